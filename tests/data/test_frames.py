"""Frames kept once, against a list that keeps every observation whole."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passel.arena import Arena, prefixed
from passel.data import NStep, PrioritisedReplay, Replay
from passel.data.codec import packed, unpack
from passel.data.frames import REFERENCE, FrameStore, open_store
from passel.data.stacks import Stacks
from passel.types import Array, PasselError, Step, Transitions

K, SHAPE, GAMMA = 4, (4, 3, 8), 0.5
BYTE = np.dtype(np.uint8)
FRAME_BYTES = 24


class OfEach:
    """In place of a random stream: n draws of n rows are each row once."""

    def random(self, n: int) -> Array:
        return (np.arange(n) + 0.5) / n


@dataclass
class Game:
    """N environments that stack frames, and end, are cut off, lose lives and reset as they are told."""

    envs: int
    rng: np.random.Generator
    padding: str = "first"
    noise: bool = True
    stacks: Array = field(init=False)

    def __post_init__(self) -> None:
        self.stacks = np.stack([self._begin() for _ in range(self.envs)])

    def _frame(self) -> Array:
        if self.noise:
            return self.rng.integers(0, 256, SHAPE[1:]).astype(np.uint8)
        return np.full(SHAPE[1:], self.rng.integers(0, 3), np.uint8)  # small, and often equal to the one before

    def _begin(self) -> Array:
        frame = self._frame()
        stack = np.zeros(SHAPE, np.uint8) if self.padding == "zero" else np.repeat(frame[None], K, axis=0)
        stack[-1] = frame
        return stack

    def step(self, events: list[str]) -> Step:
        """One step; an event for each environment."""
        moved = np.stack([np.concatenate([s[1:], self._frame()[None]]) for s in self.stacks])
        following = moved.copy()
        for row, event in enumerate(events):
            if event == "reset":  # a step that a back-end spent on a reset: no transition
                moved[row] = following[row] = self._begin()
            elif event in ("end", "cut"):
                following[row] = self._begin()
        self.stacks = following
        return Step(
            obs=following,
            next_obs=moved,
            reward=self.rng.integers(-3, 4, self.envs).astype(np.float32),
            discount=np.array([event not in ("end", "life") for event in events], np.float32),
            truncated=np.array([event == "cut" for event in events]),
            real=np.array([event != "reset" for event in events]),
        )


def memory_arena(
    capacity: int, envs: int, n: int, *, writers: int = 1, nbytes: int = 1 << 20, prioritised: bool = False, **more: Any
) -> Arena:
    kind = PrioritisedReplay if prioritised else Replay
    specs = {
        **prefixed("memory", kind.specs(capacity, (K,), REFERENCE, writers, paged=True)),
        **prefixed("memory/frames", FrameStore.specs(nbytes, SHAPE, BYTE, K, writers)),
    }
    for writer in range(writers):
        specs |= prefixed(f"{writer}/nstep", NStep.specs(n, envs, (K,), REFERENCE))
        specs |= prefixed(f"{writer}/stacks", Stacks.specs(envs, K, FRAME_BYTES))
    return Arena(specs, **more)


class Framed:
    """Everything between a step and a batch, made anew over the tensors: nothing may be remembered elsewhere."""

    def __init__(self, arena: Arena, n: int, writer: int = 0, compression: Any = "lz4", lock: Any = None) -> None:
        tensors = arena.below("memory")
        self.memory: Any = (
            PrioritisedReplay(tensors, writer, lock=lock) if "highest" in tensors else Replay(tensors, writer)
        )
        self.store = open_store(tensors, compression)
        self.stacks = Stacks(arena.below(f"{writer}/stacks"), self.store, self.memory, writer=writer, n_step=n)
        self.nstep = NStep(arena.below(f"{writer}/nstep"), n=n, gamma=GAMMA)

    def push(self, obs: Array, action: Array, step: Step) -> None:
        references, referring = self.stacks.keep(obs, step)
        self.memory.add(self.nstep.push(references, action, referring))


def rows_of(transitions: Any) -> list[tuple[Any, ...]]:
    fields = (transitions.obs, transitions.action, transitions.reward, transitions.discount, transitions.next_obs)
    return [tuple(np.asarray(cell).tobytes() for cell in row) for row in zip(*fields, strict=True)]


def kept_by(memory: Any, *, everything: int) -> list[tuple[Any, ...]]:
    """All that the memory holds."""
    batch = memory.sample(everything, OfEach())
    return rows_of(batch)


EVENTS = st.sampled_from(["on", "on", "on", "on", "on", "end", "cut", "life", "reset"])


@settings(deadline=None, max_examples=120)
@given(
    envs=st.integers(1, 3),
    n=st.integers(1, 4),
    capacity=st.integers(1, 30),
    seed=st.integers(0, 2**32 - 1),
    padding=st.sampled_from(["first", "zero"]),
    noise=st.booleans(),
    compression=st.sampled_from(["lz4", "none"]),
    events=st.lists(st.tuples(EVENTS, EVENTS, EVENTS), min_size=1, max_size=60),
)
def test_equals_a_memory_that_keeps_everything(envs, n, capacity, seed, padding, noise, compression, events) -> None:
    rng = np.random.default_rng(seed)
    game = Game(envs, rng, padding, noise)
    arena = memory_arena(capacity, envs, n, nbytes=Stacks.least_bytes(envs, K, n, FRAME_BYTES) + 40 * 32)
    whole = NStep(Arena(NStep.specs(n, envs, SHAPE, BYTE)), n=n, gamma=GAMMA)
    naive: list[tuple[Any, ...]] = []
    for row in events:
        obs, action = game.stacks.copy(), rng.integers(0, 100, envs)
        step = game.step(list(row[:envs]))
        framed = Framed(arena, n, compression=compression)
        framed.push(obs, action, step)
        naive += rows_of(whole.push(obs, action, step))
        framed.memory.check_valid()
        assert len(framed.memory) == min(len(naive), capacity)
        if naive:
            assert sorted(kept_by(framed.memory, everything=len(framed.memory))) == sorted(naive[-capacity:])


@settings(deadline=None, max_examples=8)
@given(
    envs=st.integers(1, 3),
    n=st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
    prioritised=st.booleans(),
)
def test_where_bytes_are_short_the_newest_are_kept_and_all_of_them_right(envs, n, seed, prioritised) -> None:
    rng = np.random.default_rng(seed)
    events = rng.choice(["on", "on", "on", "on", "end", "cut", "life", "reset"], (400, envs)).tolist()
    game = Game(envs, rng)
    capacity, nbytes = 10_000, Stacks.least_bytes(envs, K, n, FRAME_BYTES) // 2
    arena = memory_arena(capacity, envs, n, nbytes=nbytes, prioritised=prioritised)
    whole = NStep(Arena(NStep.specs(n, envs, SHAPE, BYTE)), n=n, gamma=GAMMA)
    naive: list[tuple[Any, ...]] = []
    framed = Framed(arena, n)
    for row in events:
        obs, action = game.stacks.copy(), rng.integers(0, 100, envs)
        step = game.step(row)
        framed.push(obs, action, step)
        naive += rows_of(whole.push(obs, action, step))
        framed.memory.check_valid()
        held = len(framed.memory)
        if not held:
            continue
        if prioritised:
            for found in rows_of(framed.memory.sample(20, rng)):
                assert found in naive[-held:]
        else:
            assert kept_by(framed.memory, everything=held) == naive[-held:]
    given_up = int(arena["memory/frames/given_up"].sum())
    assert held + given_up == len(naive)
    assert given_up > len(naive) // 10


def test_each_frame_is_kept_once() -> None:
    envs, pushes = 2, 200
    game = Game(envs, np.random.default_rng(0))
    arena = memory_arena(1000, envs, 3)
    framed = Framed(arena, 3)
    for number in range(pushes):
        obs = game.stacks
        framed.push(obs, np.zeros(envs, np.int64), game.step(["life" if number % 7 == 3 else "on"] * envs))
    version, scale = int(arena["memory/frames/versions"].sum()), arena["memory/frames/bytes"].shape[2] + 1
    assert version // scale == 1, "all in the first segment"
    # Random bytes do not shrink: the first frame of each, and one for each step, with 4 bytes before it and 4 behind.
    assert version % scale == envs * (pushes + 1) * 32


def test_memory_is_taken_as_it_fills_and_a_full_ring_takes_no_more() -> None:
    envs = 1
    game = Game(envs, np.random.default_rng(0))
    arena = memory_arena(50, envs, 1, nbytes=1 << 20)
    framed = Framed(arena, 1)
    used = []
    for _ in range(3000):
        obs = game.stacks
        framed.push(obs, np.zeros(envs, np.int64), game.step(["on"] * envs))
        used.append(framed.store.nbytes_used)
    segment = arena["memory/frames/bytes"].shape[2]
    assert arena["memory/frames/bytes"].shape[1] >= 64
    assert max(used) <= 3 * segment
    assert int(arena["memory/frames/given_up"].sum()) == 0


@pytest.mark.parametrize("prioritised", [False, True])
def test_three_writers_and_a_reader_at_once_never_give_out_a_wrong_frame(prioritised: bool) -> None:
    """Every frame says who made it and when; a transition's frames must fit together, under constant eviction."""
    envs, writers, n = 1, 3, 1
    arena = memory_arena(600, envs, n, writers=writers, nbytes=20_000, prioritised=prioritised)
    lock = threading.Lock()
    stop = threading.Event()
    errors: list[BaseException] = []

    def frame(writer: int, time: int) -> Array:
        made = np.full(SHAPE[1:], time % 251, np.uint8)
        made[0, 0], made[1] = writer, np.frombuffer(np.int64(time).tobytes(), np.uint8)
        return made

    def write(writer: int) -> None:
        try:
            framed = Framed(arena, n, writer, lock=lock)
            time = K
            ones, flags = np.ones(1, np.float32), np.zeros(1, bool)
            while not stop.is_set():
                obs = np.stack([frame(writer, time - K + 1 + i) for i in range(K)])[None]
                after = np.stack([frame(writer, time - K + 2 + i) for i in range(K)])[None]
                framed.push(obs, np.array([time]), Step(after, after, ones, ones, flags, ~flags))
                time += 1
        except BaseException as error:
            errors.append(error)
            stop.set()

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(writers)]
    for thread in threads:
        thread.start()
    try:
        rng, reader, drawn = np.random.default_rng(0), Framed(arena, n, 0, lock=lock).memory, 0
        while drawn < 60 and not errors:
            if len(reader) < 100:
                continue
            batch = reader.sample(32, rng)
            writer = batch.obs[:, 0, 0, 0].astype(int)
            for stack, shift in ((batch.obs, 0), (batch.next_obs, 1)):
                times = stack[:, :, 1].copy().view(np.int64)[..., 0]
                assert (stack[:, :, 0, 0] == writer[:, None]).all()
                assert (times == batch.action[:, None] + np.arange(1 - K, 1) + shift).all()
                assert (stack[:, :, 2] == (times % 251)[..., None]).all()
            drawn += 1
    finally:
        stop.set()
        for thread in threads:
            thread.join(20)
    assert not errors
    assert int(arena["memory/versions"].sum()) > 0


def test_a_writer_that_died_half_way_is_followed_by_one_that_relies_on_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    envs, n = 2, 1
    rng = np.random.default_rng(0)
    game, arena = Game(envs, rng), memory_arena(100, envs, n)
    naive: list[tuple[Any, ...]] = []
    for number in range(60):
        framed, obs, action = Framed(arena, n), game.stacks.copy(), np.array([number, number])
        step = game.step(["on"] * envs)
        if number % 10 == 5:
            put, left = framed.stacks._writer.put, [1]

            def dying(frames: Array, put: Any = put, left: list[int] = left) -> Array:
                put(frames)
                raise KeyboardInterrupt

            monkeypatch.setattr(framed.stacks._writer, "put", dying)
            with pytest.raises(KeyboardInterrupt):
                framed.push(obs, action, step)
            continue
        framed.push(obs, action, step)
        naive += rows_of(Transitions(obs, action, step.reward, np.float32(GAMMA) * step.discount, step.next_obs))
    assert kept_by(Framed(arena, n).memory, everything=len(naive[-100:])) == naive[-100:]


def test_a_damaged_frame_is_an_error_and_not_a_picture() -> None:
    game, arena = Game(1, np.random.default_rng(0), noise=False), memory_arena(100, 1, 1)
    framed = Framed(arena, 1)
    for _ in range(20):
        obs = game.stacks
        framed.push(obs, np.zeros(1, np.int64), game.step(["on"]))
    arena["memory/frames/bytes"].view(-1)[: 20 * 32].fill_(255)
    with pytest.raises(PasselError, match="damaged"):
        framed.memory.sample(10, np.random.default_rng(0))


@pytest.mark.parametrize("kind", ["zeros", "random"])
@pytest.mark.parametrize("compression", ["lz4", "none"])
def test_a_frame_comes_back_and_never_takes_more_than_itself(kind: str, compression: Any) -> None:
    frame = np.zeros(7056, np.uint8) if kind == "zeros" else np.random.default_rng(0).integers(0, 256, 7056, np.uint8)
    block = memoryview(bytes(packed(frame, compression)))
    assert len(block) == 7056 if kind == "random" or compression == "none" else len(block) < 60
    out = np.ones(7056, np.uint8)
    assert unpack(block, out.data)
    assert (out == frame).all()


def test_more_than_a_reference_can_tell_apart_is_refused() -> None:
    with pytest.raises(PasselError, match="--capacity"):
        FrameStore.specs(40 << 30, (4, 84, 84), BYTE, 4)


def test_a_shape_that_is_no_stack_is_refused() -> None:
    with pytest.raises(PasselError, match="no stack of 4 frames"):
        FrameStore.specs(1000, (3, 84, 84), BYTE, 4)
