"""n-step transitions against a list for each environment that looks like the definition."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passel.arena import Arena
from passel.data import NStep
from passel.types import PasselError, Step, Transitions

FLOAT = np.dtype("float32")
GAMMA = 0.9

#: What may happen to one environment in one step.
EVENTS = ("goes on", "goes on", "goes on", "terminates", "truncates", "does both", "is reset")


@dataclass
class Naive:
    """One list of (obs, action, reward) for each environment."""

    n: int
    envs: int
    waiting: list[list[tuple[float, int, float]]] = field(init=False)

    def __post_init__(self) -> None:
        self.waiting = [[] for _ in range(self.envs)]

    def push(self, obs: np.ndarray, action: np.ndarray, step: Step) -> dict[float, tuple[float, ...]]:
        """By the number of the observation: action, return, discount, number of the next observation."""
        done = {}
        for env, waiting in enumerate(self.waiting):
            if not step.real[env]:
                waiting.clear()
                continue
            waiting.append((float(obs[env, 0]), int(action[env]), float(step.reward[env])))
            ended = bool(step.truncated[env] or step.discount[env] == 0)
            while waiting and (ended or len(waiting) == self.n):
                total = sum(GAMMA**k * reward for k, (_, _, reward) in enumerate(waiting))
                discount = GAMMA ** len(waiting) * float(step.discount[env])
                number, chosen, _ = waiting.pop(0)
                done[number] = (chosen, total, discount, float(step.next_obs[env, 0]))
        return done


def make_step(row: list[str], number: int) -> tuple[np.ndarray, np.ndarray, Step]:
    """A step in which each observation is a number of its own."""
    envs = len(row)
    obs = np.repeat(np.arange(number, number + envs, dtype=np.float32)[:, None], 2, axis=1)
    step = Step(
        obs=obs + 1000,
        next_obs=obs + 10_000,
        reward=np.asarray([(number + env) % 7 - 3 for env in range(envs)], np.float32),
        discount=np.asarray([event not in ("terminates", "does both") for event in row], np.float32),
        truncated=np.asarray([event in ("truncates", "does both") for event in row]),
        real=np.asarray([event != "is reset" for event in row]),
    )
    return obs, np.arange(envs) + number % 5, step


def by_number(transitions: Transitions) -> dict[float, tuple[float, ...]]:
    t = transitions
    assert len(t.obs) == len(t.action) == len(t.reward) == len(t.discount) == len(t.next_obs) == len(t)
    rows = zip(t.obs[:, 0], t.action, t.reward, t.discount, t.next_obs[:, 0], strict=True)
    found = {float(obs): tuple(map(float, rest)) for obs, *rest in rows}
    assert len(found) == len(t), "a transition was given twice"
    return found


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, list[list[str]]]:
    envs = draw(st.integers(1, 4))
    row = st.lists(st.sampled_from(EVENTS), min_size=envs, max_size=envs)
    return draw(st.integers(1, 5)), draw(st.lists(row, min_size=1, max_size=30))


def windows(n: int, envs: int) -> dict:
    return dict(Arena(NStep.specs(n, envs, (2,), FLOAT))) if n > 1 else {}


@settings(deadline=None, max_examples=150)
@given(histories())
def test_equals_the_list_for_every_history_and_survives_a_new_object_at_every_step(history) -> None:
    n, rows = history
    envs = len(rows[0])
    tensors, naive = windows(n, envs), Naive(n, envs)
    for t, row in enumerate(rows):
        obs, action, step = make_step(row, t * envs)
        nstep = NStep(tensors, n=n, gamma=GAMMA)
        found, expected = by_number(nstep.push(obs, action, step)), naive.push(obs, action, step)
        nstep.check_valid()
        assert found.keys() == expected.keys()
        for number, values in expected.items():
            assert found[number] == pytest.approx(values, rel=1e-5, abs=1e-5)


def test_no_step_is_lost_and_none_is_given_twice() -> None:
    nstep = NStep(windows(3, 2), n=3, gamma=GAMMA)
    numbers: list[float] = []
    for t in range(50):
        event = "truncates" if t % 10 == 9 else "goes on"
        numbers += by_number(nstep.push(*make_step([event, event], 2 * t)))
    assert sorted(numbers) == list(range(100))


def test_a_single_step_copies_nothing_when_all_is_real() -> None:
    nstep = NStep({}, n=1, gamma=GAMMA)
    obs, action, step = make_step(["goes on", "terminates"], 0)
    out = nstep.push(obs, action, step)
    assert out.obs is obs
    assert out.next_obs is step.next_obs
    assert out.discount.tolist() == [np.float32(GAMMA), 0.0]
    assert NStep.specs(1, 8, (2,), FLOAT) == {}


def test_what_was_given_out_does_not_change_with_later_pushes() -> None:
    nstep = NStep(windows(2, 1), n=2, gamma=GAMMA)
    nstep.push(*make_step(["goes on"], 0))
    first = nstep.push(*make_step(["goes on"], 1))
    before = by_number(first)
    for t in range(2, 8):
        nstep.push(*make_step(["goes on"], t))
    assert by_number(first) == before


def test_frames_keep_their_type() -> None:
    nstep = NStep(Arena(NStep.specs(2, 1, (4, 4), np.dtype("uint8"))), n=2, gamma=GAMMA)
    frame = np.full((1, 4, 4), 200, np.uint8)
    flags = np.zeros(1, bool)
    one = np.ones(1, np.float32)
    step = Step(frame, frame, one, one, flags, ~flags)
    nstep.push(frame, np.zeros(1, np.int64), step)
    out = nstep.push(frame, np.zeros(1, np.int64), step)
    assert out.obs.dtype == np.uint8
    assert out.obs.shape == (1, 4, 4)
    assert out.reward[0] == pytest.approx(1.9)


def test_clear_forgets_what_waits() -> None:
    nstep = NStep(windows(3, 1), n=3, gamma=GAMMA)
    nstep.push(*make_step(["goes on"], 0))
    nstep.clear()
    assert by_number(nstep.push(*make_step(["terminates"], 1))).keys() == {1.0}


def test_a_broken_window_is_noticed() -> None:
    tensors = windows(3, 2)
    tensors["waiting"][1] = 3
    with pytest.raises(AssertionError, match="window"):
        NStep(tensors, n=3, gamma=GAMMA).check_valid()


def test_no_steps_at_all_are_refused() -> None:
    with pytest.raises(PasselError, match="n-step"):
        NStep.specs(0, 1, (2,), FLOAT)
