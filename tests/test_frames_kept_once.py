"""Training on stacks of frames: the memory that keeps each frame once changes nothing but the memory it takes."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import FrameStackObservation

import passel
from harness import kinds, newest
from passel import api, arena
from passel.api import make_plan
from passel.arena import Arena, total_bytes
from passel.clock import STAGES
from passel.place.board import COLUMNS, Board
from passel.recipes.resolve import resolve_config
from passel.run import checkpoint
from small import new_arena, run_over, settings_for
from test_resume import cut_back, steps_of, tensors_of

FRAMES = 4
FILM: dict[str, Any] = {"n_step": 3, "capacity": 150, "batch": 8, "envs": 2, "workers": 2, "sync": "hogwild"}
APEX: dict[str, Any] = {"algo": "apex", "sync": "solo", "workers": 3}
MEASURED = [COLUMNS[name] for name in ("heartbeat", "staleness", *STAGES)]


class Film(gym.Env[Any, Any]):
    """A small moving picture. It ends or is cut off by chance, and pays for the action that its last pixel names."""

    observation_space = Box(0, 255, (6, 8), np.uint8)
    action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self._frame(), {}

    def _frame(self) -> Any:
        self._last = np.zeros((6, 8), np.uint8)
        self._last[self.np_random.integers(6)] = self.np_random.integers(0, 256, 8)
        return self._last

    def step(self, action: Any) -> Any:
        reward = float(action == self._last[-1, -1] % 2)
        dice = self.np_random.random()
        return self._frame(), reward, dice < 0.05, 0.05 < dice < 0.1, {}


def film() -> gym.Env[Any, Any]:
    return FrameStackObservation(Film(), FRAMES)


class Log:
    """A view that keeps what it is told."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def start(self, *_: Any) -> None: ...
    def report(self, *_: Any) -> None: ...
    def stop(self) -> None: ...
    def message(self, text: str) -> None:
        self.messages.append(text)


def plan_of(frames: int, **changes: Any) -> Any:
    config, numbers = resolve_config(settings_for(**{**FILM, "env": "film", **changes}))
    with pytest.MonkeyPatch.context() as patch:
        describe = api.describe
        patch.setattr(api, "describe", lambda *a, **k: replace(describe(*a, **k), frames=frames))
        return make_plan(config, numbers, film)


@pytest.fixture
def stacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment whose back-end says that it stacks frames."""
    describe = api.describe
    monkeypatch.setattr(api, "describe", lambda *a, **k: replace(describe(*a, **k), frames=FRAMES))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"n_step": 1, "memory": "global"},
        {"prioritized": True},
        {"prioritized": True, "memory": "global", "n_step": 2},
        {"compress": "none"},
        {"distributional": True, "prioritized": True},
        APEX,
        {**APEX, "distributional": True, "dueling": True},
    ],
    ids=str,
)
def test_a_run_over_frames_kept_once_is_to_the_bit_the_run_over_whole_stacks(changes: dict[str, Any]) -> None:
    vectors = []
    for frames in (1, FRAMES):
        plan = plan_of(frames, **(changes if frames > 1 else {k: v for k, v in changes.items() if k != "compress"}))
        arena = new_arena(plan)
        run_over(plan, arena)
        assert Board(arena.below("board")).column("updates").sum() > 10
        vectors.append(arena["sync/q/vector"].clone())
        assert ("memory/0/frames/bytes" in arena) == (frames > 1)
    assert torch.equal(*vectors)


def assert_same(one: Path, other: Path) -> None:
    left, right = newest(one), newest(other)
    ours, theirs = tensors_of(left), tensors_of(right)
    assert ours.keys() == theirs.keys()
    assert [n for n in ours if ours[n].numpy().tobytes() != theirs[n].numpy().tobytes()] == []
    pages = [{(name, number): page for name, number, page in found.pages()} for found in (left, right)]
    assert pages[0].keys() == pages[1].keys() != set()
    assert all(torch.equal(pages[0][key], pages[1][key]) for key in pages[0])


@pytest.mark.usefixtures("stacked")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"prioritized": True, "memory": "global"},
        {"compress": "none"},
        APEX,
        {**APEX, "distributional": True, "workers": 1},
    ],
    ids=str,
)
def test_resumed_equals_uninterrupted(changes: dict[str, Any], tmp_path: Path) -> None:
    settings = settings_for(**{**FILM, **changes}, checkpoint_every=100, keep_checkpoints=10)
    settings.pop("env")
    whole = passel.train(film, **settings, out=str(tmp_path / "whole"))
    cut = steps_of(whole.path)[1]
    part = cut_back(whole.path, tmp_path / "part", cut)
    passel.resume(part, film, quiet=True)
    assert_same(whole.path, part)


@pytest.mark.usefixtures("stacked")
@pytest.mark.parametrize("memory", ["local", "global"])
def test_two_processes_share_frames_and_resume(memory: str, tmp_path: Path) -> None:
    settings = settings_for(**FILM, memory=memory, prioritized=True, place="processes", steps=1500)
    settings.pop("env")
    run = passel.train(film, **settings, out=str(tmp_path / "run"))
    assert run.summary.status == "finished"
    assert run.summary.updates > 100
    again = passel.resume(run.path, film, steps=2500, quiet=True)
    assert again.summary.steps >= 2500
    found = newest(run.path)
    assert len(list(found.pages())) >= 4


def test_the_size_is_said_before_it_is_taken_and_too_much_is_refused_with_what_fits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    free = 100_000_000
    monkeypatch.setattr(arena, "free_memory", lambda: free)
    monkeypatch.setattr(api, "free_memory", lambda: free)
    plan, view = plan_of(FRAMES, capacity=50_000_000), Log()
    with pytest.raises(passel.PasselError, match=r"largest --capacity that fits is (\d+)") as caught:
        api._make_arena(plan, view)
    assert len(view.messages) == 1
    assert "50,000,000 transitions over frames of 48 bytes" in view.messages[0]
    fits = int(str(caught.value).rstrip(".").rsplit(" ", 1)[1])
    for capacity, right in ((fits, True), (round(fits * 1.005), False)):
        needed = total_bytes(plan_of(FRAMES, capacity=capacity).specs())
        assert (needed <= 0.9 * free) == right
    said = Log()
    made = api._make_arena(plan_of(FRAMES, capacity=fits), said)
    assert f"{fits:,} transitions" in said.messages[0]
    del made


def test_a_memory_costs_what_it_holds() -> None:
    process = psutil.Process()
    plan = plan_of(FRAMES, capacity=3_000_000)
    before = process.memory_info().rss
    made = Arena(plan.specs(), shared=True)
    assert made.nbytes > 150e6
    assert process.memory_info().rss - before < 30e6


@pytest.mark.usefixtures("stacked")
def test_a_memory_that_is_short_of_bytes_says_so_once(tmp_path: Path) -> None:
    settings = settings_for(**{**FILM, "capacity": 20_000}, frame_bytes=1, steps=6000, updates_per_step=0.01)
    settings.pop("env")
    view = Log()
    run = passel.train(film, **settings, out=str(tmp_path / "run"), view=view)  # type: ignore[arg-type]
    told = [message for message in view.messages if "--frame-bytes" in message]
    assert len(told) == 1
    assert "fewer than 20,000, the newest ones" in told[0]
    assert kinds(run.path).count("notice") == 1


@pytest.mark.parametrize("changes", [{"compress": "none"}, {"frame_bytes": 500}], ids=str)
def test_settings_for_frames_are_refused_where_there_are_none(changes: dict[str, Any]) -> None:
    with pytest.raises(passel.PasselError, match="no stacks of frames"):
        plan_of(1, **changes)


@pytest.mark.usefixtures("stacked")
def test_a_second_checkpoint_writes_little(tmp_path: Path) -> None:
    settings = settings_for(**{**FILM, "capacity": 200_000}, steps=8000, checkpoint_every=3900, updates_per_step=0.01)
    settings.pop("env")
    run = passel.train(film, **settings, out=str(tmp_path / "run"))
    last = [run.path / "checkpoints" / str(step) for step in steps_of(run.path)][-1]
    shared = [path for path in last.glob("pages-*") if path.stat().st_nlink > 1]
    assert shared
    copied = shutil.copytree(last, tmp_path / "alone")
    assert checkpoint.load(copied).step == steps_of(run.path)[-1]
