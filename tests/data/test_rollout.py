"""Rollouts: what is kept of a step, how ends are treated, and that every row is given out once an epoch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from passel.arena import Arena
from passel.data.rollout import RolloutExperience, RolloutShape, minibatches_of
from passel.types import Array, Floats, Grid, Ints, Judgement, Minibatch, Opinion, Step

T, N = 4, 3
GAMMA = 0.5


class Critic:
    """Says that a state is worth its first number, and remembers what it was shown."""

    judges_by_acting = False

    def values(self, obs: Array) -> Floats:
        return obs[:, 0].astype(np.float32)

    def judge(self, obs: Array, action: Ints, reward: Floats, discount: Floats, last_obs: Array) -> Judgement:
        self.reward, self.discount, self.last_obs = reward.copy(), discount.copy(), last_obs.copy()
        return Judgement(obs[..., 0] * 2, obs[..., 0] * 3, obs[..., 0] * 4)


def step(number: int, *, reward: float = 1, ended: str = "   ") -> Step:
    """A step from the states `number` to `number` + 1; `ended` says how each of the three did: t, u (truncated),
    r (the row is a reset) or not at all.
    """
    kinds = np.array(list(ended))
    next_obs = np.full((N, 1), number + 1, np.float32)
    obs = np.where((kinds == " ")[:, None], next_obs, 100).astype(np.float32)
    discount = np.where(kinds == "t", 0, 1).astype(np.float32)
    return Step(obs, next_obs, np.full(N, reward, np.float32), discount, kinds == "u", kinds != "r")


def make(
    arena: Arena | None = None, *, epochs: int = 1, minibatches: int = 1, seed: int = 0
) -> tuple[RolloutExperience, Critic, Arena]:
    arena = arena or Arena(RolloutExperience.specs(RolloutShape(T, N, (1,), np.dtype(np.float32))))
    critic = Critic()
    rng = np.random.default_rng(seed)
    return RolloutExperience(arena, critic, rng, gamma=GAMMA, epochs=epochs, minibatches=minibatches), critic, arena


def fill(experience: RolloutExperience, how: Callable[[int], Step] = step) -> None:
    for number in range(T):
        assert not experience.due()
        experience.push(np.full((N, 1), number, np.float32), np.arange(N), how(number), 0)
    assert experience.due()


def test_a_rollout_is_due_when_it_is_whole_and_gone_when_it_was_given_out() -> None:
    experience, critic, _ = make()
    fill(experience)
    batch = experience.batch(0)
    assert not experience.due()
    assert sorted(batch.obs[:, 0].tolist()) == sorted([*range(T)] * N)
    assert (batch.value == 2 * batch.obs[:, 0]).all()
    assert (batch.logp == 3 * batch.obs[:, 0]).all()
    assert (batch.advantage == 4 * batch.obs[:, 0]).all()
    assert (batch.target == batch.value + batch.advantage).all()
    assert (batch.weight == 1).all()
    assert critic.last_obs[:, 0].tolist() == [T] * N
    fill(experience)


def test_termination_does_not_bootstrap_and_truncation_does_from_the_true_last_observation() -> None:
    experience, critic, _ = make()
    fill(experience, lambda number: step(number, ended="tu " if number == 1 else "   "))
    experience.batch(0)
    # State 2 is what the truncated episode ended in, not the 100 that the next one begins with.
    assert critic.reward.tolist() == [[1, 1, 1], [1, 1 + GAMMA * 2, 1], [1, 1, 1], [1, 1, 1]]
    assert critic.discount.tolist() == [[0.5] * 3, [0, 0, 0.5], [0.5] * 3, [0.5] * 3]


def test_an_episode_that_terminates_at_its_time_limit_has_terminated() -> None:
    experience, critic, _ = make()
    both = step(0, ended="t  ")
    fill(experience, lambda _: Step(both.obs, both.next_obs, both.reward, both.discount, both.discount == 0, both.real))
    experience.batch(0)
    assert critic.reward[:, 0].tolist() == [1] * T


def test_a_row_that_is_a_reset_has_no_weight_and_passes_nothing_on() -> None:
    experience, critic, _ = make()
    counts = []
    for number in range(T):
        made = step(number, ended="r  " if number == 2 else "   ")
        counts.append(experience.push(np.full((N, 1), number, np.float32), np.arange(N), made, 0))
    assert counts == [3, 3, 2, 3]
    batch = experience.batch(0)
    assert critic.discount[2].tolist() == [0, 0.5, 0.5]
    assert batch.obs[batch.weight == 0].tolist() == [[2]]


def test_an_episode_that_was_lost_ended_with_the_step_before() -> None:
    """The row is truncated, and no transition: its own advantage must be zero, or it would leak into the step before,
    which bootstraps from the state where the episode was lost.
    """
    experience, critic, _ = make()

    def how(number: int) -> Step:
        made = step(number)
        if number != 2:
            return made
        lost = np.array([True, False, False])
        return Step(made.obs, made.next_obs, np.where(lost, 0, made.reward), made.discount, lost, ~lost)

    fill(experience, how)
    batch = experience.batch(0)
    assert critic.discount[:, 0].tolist() == [0.5, 0.5, 0, 0.5]
    # What the critic says of state 2, so that reward + 0 - value is nothing.
    assert critic.reward[:, 0].tolist() == [1, 1, 2, 1]
    assert batch.obs[batch.weight == 0].tolist() == [[2]]


@pytest.mark.parametrize(("epochs", "minibatches"), [(1, 1), (3, 1), (1, 4), (2, 3)])
def test_every_row_is_given_out_once_an_epoch_in_equal_parts(epochs: int, minibatches: int) -> None:
    experience, _, _ = make(epochs=epochs, minibatches=minibatches)
    for row in range(T):  # a number of its own for each row
        experience.push(np.arange(N, dtype=np.float32)[:, None] + N * row, np.arange(N), step(row), 0)
    orders = []
    for _ in range(epochs):
        parts = []
        for _ in range(minibatches):
            assert experience.due()
            parts.append(experience.batch(0))
        assert {len(part.obs) for part in parts} == {T * N // minibatches}
        rows = np.concatenate([part.obs[:, 0] for part in parts])
        assert sorted(rows.tolist()) == list(range(T * N))
        orders.append(rows.tolist())
    assert not experience.due()
    assert len({tuple(order) for order in orders}) == epochs, "each epoch has its own order"


def test_a_rollout_is_abandoned_only_once_it_has_been_learnt_from() -> None:
    experience, _, _ = make(epochs=2, minibatches=3)
    fill(experience)
    experience.abandon()
    assert experience.due(), "nothing was learnt from this one yet"
    experience.batch(0)
    experience.abandon()
    assert not experience.due()
    fill(experience)
    assert [len(experience.batch(0).obs) for _ in range(6)] == [4] * 6, "the next one is given out from the beginning"


def test_a_resumed_rollout_goes_on_in_mid_epoch() -> None:
    def parts(experience: RolloutExperience, count: int) -> list[Minibatch]:
        return [experience.batch(0) for _ in range(count)]

    whole, _, _ = make(minibatches=3)
    fill(whole)
    expected = parts(whole, 3)
    first, _, arena = make(minibatches=3)
    fill(first)
    parts(first, 1)
    copy = Arena(arena.specs)
    copy.load(arena)
    second, _, _ = make(copy, minibatches=3, seed=99)  # the order of this epoch is in the arena
    for found, wanted in zip(parts(second, 2), expected[1:], strict=True):
        assert (found.obs == wanted.obs).all()
        assert (found.advantage == wanted.advantage).all()
    assert not second.due()


def test_with_levels_apart_every_part_has_every_row_equally_often_and_every_level_the_same_weight() -> None:
    arena = Arena(RolloutExperience.specs(RolloutShape(T, N, (1,), np.dtype(np.float32))))
    groups = np.array([0, 0, 1])
    experience = RolloutExperience(
        arena, Critic(), np.random.default_rng(0), gamma=GAMMA, epochs=2, minibatches=2, groups=groups
    )
    fill(experience, lambda number: step(number, ended="r  " if number == 1 else "   "))
    seen: list[Minibatch] = [experience.batch(0) for _ in range(4)]
    for batch in seen:
        assert batch.group is not None
        assert sorted(batch.action.tolist()) == [0, 0, 1, 1, 2, 2]
        assert (batch.group == groups[batch.action]).all()
        for level in (0, 1):
            assert batch.weight[batch.group == level].sum() == pytest.approx(1)
    for epoch in (seen[:2], seen[2:]):
        times = np.concatenate([batch.obs[:, 0] for batch in epoch])
        rows = np.concatenate([batch.action for batch in epoch])
        assert sorted(zip(rows.tolist(), times.tolist(), strict=True)) == [(n, t) for n in range(N) for t in range(T)]
    assert sum(int((batch.weight == 0).sum()) for batch in seen) == 2


def test_rewards_are_scaled_before_they_are_learnt_from() -> None:
    arena = Arena(RolloutExperience.specs(RolloutShape(T, N, (1,), np.dtype(np.float32))))
    critic = Critic()
    experience = RolloutExperience(arena, critic, np.random.default_rng(0), gamma=GAMMA, reward_scale=0.5)
    fill(experience, lambda number: step(number, reward=4))
    experience.batch(0)
    assert (critic.reward == 2).all()


class Film:
    """N rows of stacked frames. Each frame is one number that never comes again; episodes end by a script, and the
    reset comes in the same step, or one step late as EnvPool's does.
    """

    def __init__(self, rows: int, frames: int, ends: dict[int, list[int]], late: bool) -> None:
        self.rows, self.frames, self.ends, self.late = rows, frames, ends, late
        self.time = 0
        self._shown = 0
        self._resetting: list[int] = []
        self.obs = np.stack([self._first() for _ in range(rows)])

    def _frame(self) -> Array:
        self._shown += 1
        return np.full((1, 2, 2), self._shown, np.uint8)

    def _first(self) -> Array:
        return np.repeat(self._frame(), self.frames, axis=0)

    def step(self) -> Step:
        ended = np.isin(np.arange(self.rows), self.ends.get(self.time, []))
        real = ~np.isin(np.arange(self.rows), self._resetting)
        next_obs = np.stack([np.concatenate([stack[1:], self._frame()]) for stack in self.obs])
        for row in self._resetting:
            next_obs[row] = self._first()
        obs = next_obs.copy()
        if not self.late:
            for row in np.flatnonzero(ended):
                obs[row] = self._first()
        self._resetting = np.flatnonzero(ended).tolist() if self.late else []
        self.time, self.obs = self.time + 1, obs
        blank = np.zeros(self.rows, np.float32)
        return Step(obs, next_obs, blank, np.where(ended, 0, 1).astype(np.float32), ended & False, real)


class Witness(Critic):
    """Remembers the observations that it was to judge."""

    def judge(self, obs: Grid, action: Ints, reward: Floats, discount: Floats, last_obs: Array) -> Judgement:
        self.obs = np.concatenate([obs[slice(t, t + 3)] for t in range(0, len(reward), 3)])
        return Judgement(reward, reward, reward)


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("frames", [2, 4])
def test_frames_are_kept_once_and_stacks_come_out_as_they_went_in(frames: int, late: bool) -> None:
    """Over two rollouts, with episodes that end early, late, twice in a row and across the border."""
    horizon, rows = 8, 3
    film = Film(rows, frames, {0: [0], 2: [0, 1], 6: [2], 7: [1], 9: [1], 12: [0]}, late)
    specs = RolloutExperience.specs(RolloutShape(horizon, rows, (frames, 2, 2), np.dtype(np.uint8), frames))
    kept = specs["obs"].nbytes
    assert kept == (horizon + frames - 1) * rows * 4, "one frame a step, and those before the first"
    critic = Witness()
    experience = RolloutExperience(Arena(specs), critic, np.random.default_rng(0), gamma=GAMMA, minibatches=2)
    for _ in range(2):
        stacks = []
        for _ in range(horizon):
            obs = film.obs
            stacks.append(obs)
            experience.push(obs, np.arange(rows), film.step(), 0)
        parts = [experience.batch(0), experience.batch(0)]
        assert np.array_equal(critic.obs, np.stack(stacks))
        given = np.concatenate([batch.obs for batch in parts]).reshape(horizon * rows, -1)
        assert sorted(map(tuple, given.tolist())) == sorted(
            map(tuple, np.stack(stacks).reshape(len(given), -1).tolist())
        )


class Opinionated(Critic):
    """Has said all it knows when it acted."""

    judges_by_acting = True
    opinion: Opinion

    def judge(self, obs: Grid, action: Ints, reward: Floats, discount: Floats, last_obs: Array) -> Judgement:
        raise AssertionError("the rollout was looked at a second time")

    def advantage(self, reward: Floats, discount: Floats, value: Floats, last_obs: Array) -> Floats:
        return 10 * value + last_obs[:, 0]


@pytest.mark.parametrize("resumed", [False, True])
def test_what_acting_has_said_is_not_asked_again(resumed: bool) -> None:
    """Nor after a pause between the last step and the lesson, when nobody remembers having acted."""
    arena = Arena(RolloutExperience.specs(RolloutShape(T, N, (1,), np.dtype(np.float32))))

    def make_one() -> tuple[RolloutExperience, Opinionated]:
        judge = Opinionated()
        return RolloutExperience(arena, judge, np.random.default_rng(0), gamma=GAMMA), judge

    experience, judge = make_one()
    for t in range(T):
        judge.opinion = Opinion(np.arange(N, dtype=np.float32) + 100 * t, np.full(N, -t, np.float32))
        experience.push(np.full((N, 1), t, np.float32), np.arange(N), step(t), 0)
    if resumed:
        experience, _ = make_one()
    batch = experience.batch(0)
    time, env = batch.obs[:, 0], batch.action
    assert np.array_equal(batch.value, 100 * time + env)
    assert np.array_equal(batch.logp, -time)
    assert np.array_equal(batch.advantage, 10 * batch.value + T), "the last observations are the states after T steps"


@pytest.mark.parametrize(
    ("rows", "batch", "expected"),
    [
        (2048, 64, 32),
        (2048, 2048, 1),
        (2048, 5000, 1),
        (300, 64, 4),
        (300, 75, 4),
        (300, 76, 3),
        (91, 64, 1),
        (1, 1, 1),
    ],
)
def test_a_rollout_falls_into_parts_of_the_size_asked_for_or_the_next_larger(
    rows: int, batch: int, expected: int
) -> None:
    assert minibatches_of(rows, batch) == expected
    smaller = [parts for parts in range(expected + 1, rows + 1) if rows % parts == 0]
    assert all(rows // parts < batch for parts in smaller)
