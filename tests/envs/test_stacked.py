"""Stacks that are put together on this side, against a list of frames for each row."""

from __future__ import annotations

import numpy as np

from passel.envs.base import Envs
from passel.envs.stacked import Stacked
from passel.types import Array, EnvSpec, Ints, Step

SHAPE = (2, 3, 5)


class Noise(Envs):
    """Random pictures; episodes end at random in either way, and now and then one is lost."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.spec = EnvSpec("noise", SHAPE, np.dtype(np.uint8), 2, None, None, 1, "test", False)
        self._rng = np.random.default_rng(0)

    def reset(self) -> Array:
        return self._pictures()

    def step(self, actions: Ints) -> Step:
        kind = self._rng.choice(4, self.n, p=[0.7, 0.1, 0.1, 0.1])
        next_obs, first = self._pictures(), self._pictures()
        next_obs[kind == 3] = first[kind == 3]  # lost: there is nothing but the next episode's beginning
        return Step(
            obs=np.where((kind > 0)[:, None, None, None], first, next_obs),
            next_obs=next_obs,
            reward=np.ones(self.n, np.float32),
            discount=(kind != 1).astype(np.float32),
            truncated=kind >= 2,
            real=kind != 3,
            episodes=[],
        )

    def close(self) -> None:
        """There is nothing to free."""

    def _pictures(self) -> Array:
        return self._rng.integers(0, 256, (self.n, *SHAPE), np.uint8)


def test_stacks_are_the_last_frames_of_their_episode() -> None:
    plain, stacked = Noise(5), Stacked(Noise(5), 3)
    assert (stacked.spec.obs_shape, stacked.spec.frames, stacked.n) == ((6, 3, 5), 3, 5)
    rows = [[frame] * 3 for frame in plain.reset()]
    np.testing.assert_array_equal(stacked.reset(), [np.concatenate(row) for row in rows])
    actions = np.zeros(5, np.int64)
    kept: list[tuple[Array, Array]] = []
    for _ in range(60):
        one, many = plain.step(actions), stacked.step(actions)
        for i, row in enumerate(rows):
            if one.real[i]:
                np.testing.assert_array_equal(many.next_obs[i], np.concatenate([*row[-2:], one.next_obs[i]]))
            over = one.ended[i] or not one.real[i]
            rows[i] = [one.obs[i]] * 3 if over else [*row[-2:], one.next_obs[i]]
            np.testing.assert_array_equal(many.obs[i], np.concatenate(rows[i]))
        kept.append((many.obs, many.obs.copy()))
    for array, as_it_was in kept:
        np.testing.assert_array_equal(array, as_it_was, "the caller may keep what a step returned")
