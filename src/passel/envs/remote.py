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
from passel.envs.outcomes import check_batch
from passel.envs.remote_errors import LostError, RefusedError, sentence
from passel.envs.remote_link import DOUBLE, Answer, Link
from passel.envs.remote_place import QUIET, Place
from passel.types import Array, EnvSpec, Episode, Ints, PasselError, Step

LONG = 120.0  # seconds that building or resetting a group may take, as long as the server says that it is at it
RECONNECT_PATIENCE = 60.0
#: Seconds that one step looks for a server that is gone: between two steps the worker looks at its orders.
LOOK = 1.0
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
        #: Why the server was lost and until when it may come back, while it is gone.
        self._lost: tuple[LostError, float] | None = None
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
            self._obs = self._reset()
            return self._obs
        except LostError as lost:
            self._wait_for_it(lost)
            while not self._look_for_it():
                pass
            return self._obs
        except RefusedError as error:
            raise sentence(self._place, error) from error

    def step(self, actions: Array) -> Step:
        if self._lost is not None:
            return self._gap()
        assert self._link is not None
        sent = np.ascontiguousarray(actions, "<i8")
        try:
            return self._take(self._link.ask("step", arrays=[sent]))
        except LostError as lost:
            self._wait_for_it(lost)
            return self._gap()
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
        answer.check_arrays(3 if len(ended) else 2)
        check_batch(next_obs, reward, f"served by {self._place.name}")
        if len(ended):
            if not np.isin(ends[ended], (TERMINATED, TRUNCATED)).all():
                raise LostError("answered with an end that is neither a termination nor a truncation")
            obs = next_obs.copy()
            obs[ended] = answer.array(2, (len(ended), *spec.obs_shape), spec.obs_dtype)
        self._obs = obs
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

    def _connect(self, patience: float | None = None) -> None:
        if self._link is not None:
            self._link.close()
        self._link = Link(self._place, self._key)
        facts = self._link.hello(patience)
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
        self._patience = min(LONG, max(QUIET, 4 * facts.seconds))
        answer = self._link.ask(
            "open", {"n": self.n, "seed": self._seed}, self._kinds, patience=self._patience, limit=LONG
        )
        answer.check_arrays(0)

    def _reset(self) -> Array:
        assert self._link is not None
        start = int(self._starts[0])
        self._starts[0] += 1
        self._score[:], self._length[:] = 0.0, 0
        answer = self._link.ask("reset", {"episode": start << 20}, patience=self._patience, limit=LONG)
        answer.check_arrays(1)
        obs = answer.array(0, (self.n, *self.spec.obs_shape), self.spec.obs_dtype)
        check_batch(obs, self._score, f"served by {self._place.name}")
        return obs

    def _wait_for_it(self, lost: LostError) -> None:
        """The server is gone: with `reconnect`, wait for it to come back."""
        if not self._reconnect:
            raise sentence(self._place, lost) from lost
        self._lost = lost, time.monotonic() + RECONNECT_PATIENCE

    def _look_for_it(self) -> bool:
        """Look for the server for a short time. True if it is back, and new episodes have begun there."""
        assert self._lost is not None
        lost, deadline = self._lost
        until = time.monotonic() + LOOK
        while True:
            try:
                self._connect(min(LOOK, self._place.patience))
                self._obs = self._reset()
            except (LostError, RefusedError) as error:
                if time.monotonic() > deadline:
                    raise PasselError(
                        f"the environment server {self._place.name} {lost}, and did not come back within "
                        f"{RECONNECT_PATIENCE:.0f} s ({error}). Start it again, and use `passel resume`."
                    ) from error
                if time.monotonic() > until:
                    return False
                time.sleep(0.2)
            else:
                self._lost = None
                return True

    def _gap(self) -> Step:
        """A step without transitions, while the server is gone. What the lost step was to bring is lost, and so are the
        episodes: their last true step was the one before. The observations are the last ones, or, when the server is
        back, the first of new episodes.
        """
        cut = self._length > 0
        episodes = self._finish(np.flatnonzero(cut))
        self._look_for_it()
        return Step(
            obs=self._obs,
            next_obs=self._obs,
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
