"""Environments behind a socket: the client of `serve_env.py`, which runs in an interpreter of its own.

One request and one reply for each batched step: a small msgpack header, and the arrays as they lie in memory. Who the
server is (remote_place.py), how one talks to it (remote_link.py) and what is said if it fails (remote_errors.py) are
told elsewhere; here is the boundary contract, and what becomes of episodes that were lost.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from passel.arena import Spec
from passel.envs.base import Envs
from passel.envs.remote_errors import LostError, RefusedError, sentence
from passel.envs.remote_link import DOUBLE, Answer, Link
from passel.envs.remote_place import QUIET, Place
from passel.types import Array, EnvSpec, Episode, Ints, PasselError, Step

LONG = 120.0  # seconds that building or resetting a group may take, as long as the server says that it is at it
RECONNECT_PATIENCE = 60.0
TERMINATED, TRUNCATED = 1, 2


def describe(place: Place, key: str = "") -> EnvSpec:
    """What a server says of its environment."""
    try:
        link = Link(place, key)
        try:
            return link.hello().spec
        finally:
            link.close()
    except (LostError, RefusedError) as error:
        raise sentence(place, error) from error
    finally:
        place.close()


def record_specs() -> dict[str, Spec]:
    """How often the episodes were begun: a resumed run, or another connection, must not see the same ones again."""
    return {"starts": Spec((1,), torch.int64)}


class RemoteEnvs(Envs):
    """A session with a server: N environments there, the boundary contract here."""

    def __init__(
        self,
        place: Place,
        n: int,
        seed: int,
        *,
        key: str = "",
        reconnect: bool = False,
        kinds: Ints | None = None,
        tensors: Mapping[str, Tensor] | None = None,
    ) -> None:
        """`kinds` says which of a server's environments each row plays, if it has several."""
        self.n = n
        self._kinds = [] if kinds is None else [np.ascontiguousarray(kinds, "<i8")]
        self._place, self._seed, self._key, self._reconnect = place, seed, key, reconnect
        self._starts = (torch.zeros(1, dtype=torch.int64) if tensors is None else tensors["starts"]).numpy()
        self._score, self._length = np.zeros(n), np.zeros(n, np.int64)
        self._link: Link | None = None
        try:
            self._connect()
        except (LostError, RefusedError) as error:
            self.close()
            raise sentence(place, error) from error
        except BaseException:
            self.close()
            raise

    def reset(self) -> Array:
        try:
            return self._reset()
        except LostError as lost:
            return self._recover(lost)
        except RefusedError as error:
            raise sentence(self._place, error) from error

    def step(self, actions: Array) -> Step:
        assert self._link is not None
        sent = np.ascontiguousarray(actions, "<i8")
        try:
            return self._take(self._link.ask("step", arrays=[sent]))
        except LostError as lost:
            return self._new_episodes(lost)
        except RefusedError as error:
            raise sentence(self._place, error) from error

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None
        self._place.close()

    def _take(self, answer: Answer) -> Step:
        """A step out of its answer."""
        n, spec = self.n, self.spec
        next_obs = answer.array(0, (n, *spec.obs_shape), spec.obs_dtype)
        reward, ends = answer.array(1, (2, n), DOUBLE)
        obs, ended = next_obs, np.flatnonzero(ends)
        if len(ended):
            obs = next_obs.copy()
            obs[ended] = answer.array(2, (len(ended), *spec.obs_shape), spec.obs_dtype)
        self._score += reward
        self._length += 1
        return Step(
            obs=obs,
            next_obs=next_obs,
            reward=reward.astype(np.float32),
            discount=(ends != TERMINATED).astype(np.float32),
            truncated=ends == TRUNCATED,
            real=np.ones(n, np.bool_),
            episodes=self._finish(ended) if len(ended) else [],
        )

    def _connect(self) -> None:
        if self._link is not None:
            self._link.close()
        self._link = Link(self._place, self._key)
        facts = self._link.hello()
        known = getattr(self, "spec", facts.spec)
        if (known.obs_shape, known.obs_dtype, known.n_actions) != (
            facts.spec.obs_shape,
            facts.spec.obs_dtype,
            facts.spec.n_actions,
        ):
            raise PasselError(
                f"{self._place.name} now serves another environment. Start the one that it served before."
            )
        self.spec = facts.spec
        # One environment is built or reset between two signs of life.
        self._patience = max(QUIET, 4 * facts.seconds)
        self._link.ask("open", {"n": self.n, "seed": self._seed}, self._kinds, patience=self._patience, limit=LONG)

    def _reset(self) -> Array:
        assert self._link is not None
        start = int(self._starts[0])
        self._starts[0] += 1
        self._score[:], self._length[:] = 0.0, 0
        answer = self._link.ask("reset", {"episode": start << 20}, patience=self._patience, limit=LONG)
        return answer.array(0, (self.n, *self.spec.obs_shape), self.spec.obs_dtype)

    def _recover(self, lost: Exception) -> Array:
        """The first observations of new episodes, from a server that has come back."""
        if not self._reconnect:
            raise sentence(self._place, lost) from lost
        deadline = time.monotonic() + RECONNECT_PATIENCE
        while True:
            try:
                self._connect()
                return self._reset()
            except (LostError, RefusedError) as error:
                if time.monotonic() > deadline:
                    raise PasselError(
                        f"the environment server {self._place.name} {lost}, and did not come back within "
                        f"{RECONNECT_PATIENCE:.0f} s ({error}). Start it again, and use `passel resume`."
                    ) from error
                time.sleep(0.2)

    def _new_episodes(self, lost: LostError) -> Step:
        """What the step was to bring is lost, and so are the episodes: their last true step was the one before."""
        cut = self._length > 0
        episodes = self._finish(np.flatnonzero(cut))
        obs = self._recover(lost)
        return Step(
            obs=obs,
            next_obs=obs,
            reward=np.zeros(self.n, np.float32),
            discount=np.ones(self.n, np.float32),
            truncated=cut,
            real=np.zeros(self.n, np.bool_),
            episodes=episodes,
        )

    def _finish(self, rows: Ints) -> list[Episode]:
        episodes = [Episode(float(self._score[i]), int(self._length[i])) for i in rows]
        self._score[rows], self._length[rows] = 0.0, 0
        return episodes
