"""Slots: what an actor wrote is what its learner reads, each rollout once, whoever is faster."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from test_rollout import Film

from passel.arena import Arena, Tensors, prefixed
from passel.data.rollout import RolloutShape
from passel.data.slots import SlotReader, SlotWriter, slot_specs
from passel.place.forkserver import context, warm_up
from passel.types import Array, Floats, Step

T, N, SLOTS = 3, 2, 2
GAMMA = 0.5
FLOAT = np.dtype(np.float32)


class Behaviour:
    """Says that an action was as likely as a number, and a state is worth its first number."""

    def __init__(self) -> None:
        self.acted_logp: Floats = np.zeros(N, np.float32)

    def values(self, obs: Array) -> Floats:
        return obs[:, 0].astype(np.float32)


class Team:
    """Some actors and their learner over one arena."""

    def __init__(self, actors: int = 1, batch: int = 1, arena: Arena | None = None) -> None:
        self.arena = arena or new_arena(actors)
        self.version, self.behaviour = 0, Behaviour()
        self.numbers = [0] * actors
        self.writers = [writer(self.arena, actor, self.behaviour, lambda: self.version) for actor in range(actors)]
        below = [self.arena.below(f"slots/{actor}") for actor in range(actors)]
        self.reader = SlotReader(below, lambda: self.version, batch=batch)

    def step(self, actor: int = 0, **how: Any) -> None:
        push(self.writers[actor], self.behaviour, self.numbers[actor], **how)
        self.numbers[actor] += 1

    def fill(self, actor: int = 0) -> None:
        for _ in range(T):
            self.step(actor)


def new_arena(actors: int = 1, *, shared: bool = False) -> Arena:
    specs = {}
    for actor in range(actors):
        specs |= prefixed(f"slots/{actor}", slot_specs(SLOTS, RolloutShape(T, N, (1,), FLOAT)))
        specs |= prefixed(f"own/{actor}", SlotWriter.specs())
    return Arena(specs, shared=shared)


def writer(arena: Tensors, actor: int, behaviour: Behaviour, version: Any) -> SlotWriter:
    return SlotWriter(arena.below(f"slots/{actor}"), arena.below(f"own/{actor}"), behaviour, version, gamma=GAMMA)


def push(to: SlotWriter, behaviour: Behaviour, number: int, ended: str = "  ") -> None:
    """The step from the states `number` to `number` + 1; `ended` says how each did: t, u (truncated) or not at all."""
    kinds = np.array(list(ended))
    next_obs = np.full((N, 1), number + 1, np.float32)
    obs = np.where((kinds == " ")[:, None], next_obs, 100).astype(np.float32)
    discount = np.where(kinds == "t", 0, 1).astype(np.float32)
    step = Step(obs, next_obs, np.full(N, number, np.float32), discount, kinds == "u", np.ones(N, bool))
    behaviour.acted_logp = np.full(N, -number, np.float32)
    to.push(np.full((N, 1), number, np.float32), np.full(N, number), step, 0)


def test_a_rollout_arrives_as_it_was_acted() -> None:
    team = Team()
    team.fill()
    batch = team.reader.batch(0)
    assert batch.obs[:, 0].tolist() == [0, 0, 1, 1, 2, 2]
    assert batch.last_obs[:, 0].tolist() == [3, 3]
    for name, expected in (("action", 1), ("reward", 1), ("logp", -1)):
        assert getattr(batch, name).tolist() == [[[expected * t] * N for t in range(T)]]
    assert (batch.discount == GAMMA).all()
    assert (batch.weight == 1).all()


def test_termination_does_not_bootstrap_and_truncation_does_from_the_true_last_observation() -> None:
    team = Team()
    for ended in ("  ", "tu", "  "):
        team.step(ended=ended)
    batch = team.reader.batch(0)
    assert batch.reward[0].tolist() == [[0, 0], [1, 1 + GAMMA * 2], [2, 2]]
    assert batch.discount[0].tolist() == [[GAMMA] * 2, [0, 0], [GAMMA] * 2]


def test_an_actor_may_fill_what_was_taken_and_no_more() -> None:
    team = Team()
    for _ in range(SLOTS):
        assert team.writers[0].room()
        assert not team.reader.due() or team.numbers[0]
        team.fill()
    assert not team.writers[0].room()
    team.reader.batch(0)
    assert team.writers[0].room()
    team.step()
    assert team.writers[0].room(), "a slot that is begun may be finished"


def test_a_batch_is_of_the_oldest_and_what_it_was_acted_with_is_known() -> None:
    team = Team(actors=3, batch=2)
    for actor in (2, 0):
        team.version += 1
        team.fill(actor)
    assert team.reader.due()
    team.version = 7
    team.fill(1)
    batch = team.reader.batch(0)
    assert batch.action.shape == (2, T, N)
    assert batch.obs.shape == (2 * T * N, 1)
    assert batch.last_obs.shape == (2 * N, 1)
    assert team.reader.lag is not None
    assert team.reader.lag.mean == 7 - 1.5
    assert not team.reader.due()
    assert [bool(w.room()) for w in team.writers] == [True] * 3


def test_a_batch_is_a_copy() -> None:
    team = Team()
    team.fill()
    batch = team.reader.batch(0)
    before = batch.obs.copy()
    for _ in range(SLOTS):
        team.fill()
    np.testing.assert_array_equal(batch.obs, before)


def test_a_slot_that_was_begun_is_finished_by_whoever_comes_next() -> None:
    team = Team()
    team.step()
    successor = Team(arena=team.arena)
    successor.numbers = list(team.numbers)
    for _ in range(T - 1):
        assert not successor.reader.due()
        successor.step()
    assert successor.reader.batch(0).action[0, :, 0].tolist() == [0, 1, 2]


ROLLOUTS = 200


def act(arena: Arena, actor: int) -> None:
    """Write `ROLLOUTS` rollouts of numbers that count on, as fast as there is room."""
    behaviour = Behaviour()
    to = writer(arena, actor, behaviour, lambda: 0)
    for number in range(ROLLOUTS * T):
        while not to.room():
            time.sleep(0)
        push(to, behaviour, number)


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_nothing_is_lost_or_doubled_at_full_speed(kind: str) -> None:
    actors, batch = 2, SLOTS  # one actor's slots hold a batch, so that the last one to finish is heard
    arena = new_arena(actors, shared=kind == "processes")
    warm_up()
    make: Any = threading.Thread if kind == "threads" else context().Process
    workers = [make(target=act, args=(arena, actor), daemon=True) for actor in range(actors)]
    for worker in workers:
        worker.start()
    reader = SlotReader([arena.below(f"slots/{actor}") for actor in range(actors)], lambda: 0, batch=batch)
    seen = []
    deadline = time.monotonic() + 60
    while len(seen) < actors * ROLLOUTS:
        assert time.monotonic() < deadline, f"{len(seen)} rollouts came through"
        if reader.due():
            found = reader.batch(0)
            obs = found.obs.reshape(found.action.shape)
            for rollout in range(batch):
                first = int(found.action[rollout, 0, 0])
                grid = first + np.tile(np.arange(T)[:, None], (1, N))
                for array in (found.action, found.reward, -found.logp, obs):
                    np.testing.assert_array_equal(array[rollout], grid)
                seen.append(first)
        else:
            time.sleep(0)
    for worker in workers:
        worker.join(30)
    assert (np.bincount(np.array(seen) // T) == [actors] * ROLLOUTS).all()
    assert not reader.due()


@pytest.mark.parametrize("frames", [2, 4])
def test_stacks_of_frames_arrive_whole_and_are_kept_once(frames: int) -> None:
    """Three times around the slots, with episodes that end in the middle of a rollout and at its border."""
    rows, horizon = 2, 5
    film = Film(rows, frames, {0: [0], 4: [1], 7: [0, 1], 12: [1], 19: [0]}, late=False)
    specs = slot_specs(SLOTS, RolloutShape(horizon, rows, (frames, 2, 2), np.dtype(np.uint8), frames))
    assert specs["obs"].shape == (SLOTS, horizon + frames - 1, rows, 1, 2, 2), "one frame a step, and those before"
    arena, own, behaviour = Arena(specs), Arena(SlotWriter.specs()), Behaviour()
    behaviour.values = lambda obs: np.zeros(len(obs), np.float32)  # type: ignore[method-assign]
    to, reader = SlotWriter(arena, own, behaviour, lambda: 0, gamma=GAMMA), SlotReader([arena], lambda: 0, batch=1)
    for _ in range(3 * SLOTS):
        stacks = []
        for _ in range(horizon):
            obs = film.obs.copy()
            stacks.append(obs)
            to.push(obs, np.zeros(rows, np.int64), film.step(), 0)
        batch = reader.batch(0)
        np.testing.assert_array_equal(batch.obs.reshape(horizon, rows, frames, 2, 2), stacks)
        np.testing.assert_array_equal(batch.last_obs, film.obs)
