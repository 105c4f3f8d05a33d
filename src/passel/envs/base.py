"""The boundary: what every environment back-end promises to the rest of passel."""

from __future__ import annotations

from abc import ABC, abstractmethod

from passel.types import Array, EnvSpec, Step


class Envs(ABC):
    """N copies of an environment behind one boundary. The loop that calls it:

        obs = envs.restore() if resuming else envs.reset()
        while working:
            actions = policy(obs)                  # [N], each in 0 .. n_actions - 1; or vectors [N, A]
            step = envs.step(actions)
            store(obs[step.real], actions[step.real], step)
            scores += [episode.score for episode in step.episodes]
            obs = step.obs
        envs.close()

    Every back-end keeps the same contract, so the caller never asks which one it has:

    - `step.next_obs` is the true successor of the observation that was acted on, also where the episode ended.
    - A row ends in one way only: terminated (`discount` 0) or truncated; if both fall on one step, it terminated.
    - Rows with `real` False are no transitions: their reward is 0, and they count in no score and no length. If such a
      row is truncated, the back-end has lost the episode, and the step before was its last.
    - `step.episodes` has the environment's own score, a sum in double precision of rewards that nobody clipped.
    - `reward` and `discount` are what is learnt from: a back-end that is told to may clip the one, and end a row in the
      middle of a game (a life was lost) by the other. Then `step.episodes` knows nothing of it.
    - Every step returns fresh arrays, which the caller may keep, but not change: `obs` and `next_obs` may be one array.
    - Actions that are vectors may lie outside of the environment's bounds: it is given the nearest that do not.
    - Floating-point observations are float32, whatever the environment declares; all others keep their type.
    """

    spec: EnvSpec
    n: int
    #: Whether `restore` continued every episode; False if it began one of them anew.
    continued: bool = False

    @abstractmethod
    def reset(self) -> Array:
        """Begin an episode in every copy; the first observations [N, ...]."""

    @abstractmethod
    def step(self, actions: Array) -> Step:
        """Act once in every copy."""

    def restore(self) -> Array:
        """Continue the episodes that the tensors given at construction record; without a record, begin new ones."""
        return self.reset()

    @abstractmethod
    def close(self) -> None:
        """Free what the copies hold; a second call does nothing."""
