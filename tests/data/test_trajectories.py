"""Trajectories, against lists of episodes in plain Python: what is kept, and what each step led to."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from passel.arena import Arena, prefixed
from passel.data.trajectories import Trajectories, TrajectoryExperience
from passel.maths.regression import lambda_returns
from passel.types import Account, Array, Floats, PasselError, Recollection, Step

N, LENGTH = 3, 12
GAMMA, LAM, SCALE = 0.5, 0.8, 2.0


def worth(state: float) -> float:
    return float(np.sin(state))


class Critic:
    """Says that a state is worth the sine of its number, and returns TD(lambda) for an account."""

    def __init__(self) -> None:
        self.asked = 0

    def values(self, obs: Array) -> Floats:
        return np.sin(obs[:, 0]).astype(np.float32)

    def recount(self, reward: Floats, discount: Floats, value: Floats, last_value: Floats, weight: Floats) -> Account:
        self.asked += 1
        target = lambda_returns(reward, discount, np.concatenate([value[1:], last_value[None]]), LAM)
        return Account(target, target - value)


@dataclass
class Naive:
    """The entries of one environment: (state, action, reward, discount) of a step, or (state,) where it was cut off."""

    entries: list[tuple[float, ...]] = field(default_factory=list)

    def targets(self, last: float) -> dict[float, tuple[float, float]]:
        """The action of each step that is kept, and what it led to, by its state; from the newest back."""
        after, following, found = worth(last), worth(last), {}
        for entry in reversed(self.entries[-LENGTH:]):
            if len(entry) == 1:
                after = following = worth(entry[0])
                continue
            state, action, reward, discount = entry
            after = SCALE * reward + GAMMA * discount * ((1 - LAM) * following + LAM * after)
            following = worth(state)
            found[state] = action, after
        return found


def states(first: int) -> Array:
    return np.arange(first, first + N, dtype=np.float32)[:, None]


def make(arena: Arena | None = None) -> tuple[Trajectories, Arena]:
    arena = arena or Arena(Trajectories.specs(LENGTH, N, (1,), np.dtype(np.float32)))
    return Trajectories(arena, gamma=GAMMA, reward_scale=SCALE), arena


def drawn(trajectories: Trajectories) -> dict[float, tuple[int, float, float]]:
    batch = trajectories.draw("value", 2000, np.random.default_rng(0))
    return {
        float(state): (int(action), float(target), float(advantage))
        for state, action, target, advantage in zip(
            batch.obs[:, 0], batch.action, batch.target, batch.advantage, strict=True
        )
    }


#: How a step of an environment goes on: not at all, t(erminated), u (truncated), r (the row is a reset), l (lost), or
#: i(nterrupted): the next action is taken on another state, and nobody says why.
WAYS = " " * 6 + "turli"


@given(st.lists(st.text(WAYS, min_size=N, max_size=N), min_size=1, max_size=40), st.booleans())
def test_against_lists_of_episodes(ways: list[str], anew: bool) -> None:
    """Random episodes with every way to end, rings that wrap around, and with `anew` a new object for every step."""
    trajectories, arena = make()
    naive, rng = [Naive() for _ in range(N)], np.random.default_rng(len(ways))
    number, obs, seen, before = N, states(0), states(0), np.full(N, "t")
    for way in ways:
        # A row is spent on a reset only after an end.
        kinds = np.where((np.array(list(way)) == "r") & ~np.isin(before, ["t", "u"]), " ", list(way))
        real, truncated = ~np.isin(kinds, ["r", "l"]), np.isin(kinds, ["u", "l"])
        next_obs, first_obs, other_obs, number = (
            states(number),
            states(number + N),
            states(number + 2 * N),
            number + 3 * N,
        )
        new_obs = np.where(np.isin(kinds, ["t", "u", "r", "l"])[:, None], first_obs, next_obs)
        reward, actions = rng.integers(-3, 4, N).astype(np.float32), rng.integers(0, 5, N)
        discount = np.where(kinds == "t", 0, 1).astype(np.float32)
        trajectories.add(obs, actions, Step(new_obs, next_obs, reward, discount, truncated, real))
        for n, kind in enumerate(kinds):
            entries, state = naive[n].entries, float(obs[n, 0])
            if state != seen[n, 0]:
                entries.append((float(seen[n, 0]),))
            if real[n]:
                entries.append((state, actions[n], reward[n], discount[n]))
            if kind in "ul":
                entries.append((float(next_obs[n, 0]) if kind == "u" else state,))
        seen, before = new_obs, kinds
        obs = np.where((kinds == "i")[:, None], other_obs, new_obs)
        if anew:
            trajectories = make(arena)[0]
    expected = {state: said for n in range(N) for state, said in naive[n].targets(float(seen[n, 0])).items()}
    assert len(trajectories) == len(expected)
    if not expected:
        with pytest.raises(PasselError, match="nothing can be drawn"):
            trajectories.draw("value", 1, rng)
        return
    trajectories.recount(Critic())
    found = drawn(trajectories)
    assert found.keys() == expected.keys()
    for state, (action, target, advantage) in found.items():
        assert action == expected[state][0]
        assert target == pytest.approx(expected[state][1], abs=1e-4)
        assert advantage == pytest.approx(expected[state][1] - worth(state), abs=1e-4)


def step(number: int, *, ended: str = "   ") -> Step:
    """From the states `number` * 10 to those ten later; `ended` says how each of the three did, as above."""
    kinds = np.array(list(ended))
    next_obs = states(10 * number + 10)
    obs = np.where((kinds == " ")[:, None], next_obs, next_obs + 5)
    return Step(obs, next_obs, np.ones(N, np.float32), np.float32(kinds != "t"), kinds == "u", kinds != "r")


def test_termination_does_not_bootstrap_and_truncation_does_from_the_true_last_observation() -> None:
    trajectories, _ = make()
    trajectories.add(states(0), np.zeros(N, np.int64), step(0, ended="tu "))
    trajectories.recount(Critic())
    found = {state: target for state, (_, target, _) in drawn(trajectories).items()}
    assert found[0] == pytest.approx(SCALE)
    assert found[1] == pytest.approx(SCALE + GAMMA * worth(11)), "11 is where it was cut off, 16 where the next begins"
    assert found[2] == pytest.approx(SCALE + GAMMA * worth(12))


def test_vectors_are_kept_as_floats() -> None:
    arena = Arena(Trajectories.specs(LENGTH, N, (1,), np.dtype(np.float32), (2,)))
    trajectories = Trajectories(arena, gamma=GAMMA)
    actions = np.array([[0.1, -7.5], [0.2, 8.5], [0.3, 9.5]], np.float32)
    trajectories.add(states(0), actions, step(0))
    batch = trajectories.draw("policy", 500, np.random.default_rng(0))
    assert batch.network == "policy"
    assert {(*obs, *action) for obs, action in zip(batch.obs.tolist(), batch.action.tolist(), strict=True)} == {
        (n, *action) for n, action in enumerate(actions.tolist())
    }


def test_every_step_is_as_likely_as_any_other() -> None:
    trajectories, _ = make()
    for number in range(4):
        trajectories.add(states(10 * number), np.zeros(N, np.int64), step(number))
    batch = trajectories.draw("value", 12_000, np.random.default_rng(0))
    _, counts = np.unique(batch.obs[:, 0], return_counts=True)
    assert len(counts) == 4 * N
    assert (abs(counts - 1000) < 150).all()


def experience(arena: Arena, seed: int = 0) -> tuple[TrajectoryExperience, Critic]:
    critic = Critic()
    made = TrajectoryExperience(
        arena.below("lessons"),
        Trajectories(arena.below("trajectories"), gamma=GAMMA),
        critic,
        np.random.default_rng(seed),
        horizon=3,
        batch=5,
        critic_updates=2,
        policy_updates=4,
    )
    return made, critic


def lessons_arena() -> Arena:
    trajectories = Trajectories.specs(LENGTH, N, (1,), np.dtype(np.float32))
    return Arena(prefixed("trajectories", trajectories) | prefixed("lessons", TrajectoryExperience.specs()))


def test_a_lesson_is_for_the_critic_first_and_then_for_the_policy_and_each_has_a_fresh_account() -> None:
    made, critic = experience(lessons_arena())
    for lesson in range(3):
        for number in range(3):
            assert not made.due()
            assert made.push(states(10 * number), np.zeros(N, np.int64), step(number, ended="r  "), 0) == 2
        networks, asked = [], []
        while made.due():
            networks.append(made.batch(0).network)
            asked.append(critic.asked - 2 * lesson)
        assert networks == ["value"] * 2 + ["policy"] * 4
        assert asked == [1, 1, 2, 2, 2, 2]


@pytest.mark.parametrize("cut", range(1, 6))
def test_a_lesson_goes_on_where_it_was_left(cut: int) -> None:
    arena = lessons_arena()
    made, _ = experience(arena)
    for number in range(3):
        made.push(states(10 * number), np.zeros(N, np.int64), step(number), 0)
    for _ in range(cut):
        made.batch(0)
    copy = lessons_arena()
    copy.load({name: tensor.clone() for name, tensor in arena.items()})
    again, critic = experience(copy)
    rest, expected = (
        [(batch.network, batch.obs.tolist(), batch.target.tolist()) for batch in _rest(each, seed=7)]
        for each in (again, made)
    )
    assert rest == expected
    assert len(rest) == 6 - cut
    assert critic.asked == (1 if cut <= 2 else 0)


def _rest(made: TrajectoryExperience, seed: int) -> list[Recollection]:
    made._rng = np.random.default_rng(seed)
    found = []
    while made.due():
        found.append(made.batch(0))
    return found
