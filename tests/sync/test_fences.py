"""Where data lands before a counter, a fence stands between them: on the side that writes and on the side that reads.

An x86 never shows a missing one. So the order of operations is recorded here: tensor operations, and fences with the
counters as they are at that moment.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from passel.arena import Arena
from passel.nets.flat import Flat
from passel.place.board import Board
from passel.place.inline import InlineKit
from passel.place.plan import Plan
from passel.place.worker import Worker
from passel.sync import allreduce, gossip, proximal, reader, server, shared, solo, tokenring
from passel.sync.base import SyncSettings
from passel.sync.reader import Reader
from passel.types import Episode
from small import new_arena, small_plan
from teams import PLAIN_SGD, Team, Weights

MODULES = (allreduce, gossip, proximal, reader, server, shared, solo, tokenring)


class Order(TorchFunctionMode):
    """The names of tensor operations, and of each fence what `counter` was."""

    def __init__(self, counter: Callable[[], Any]) -> None:
        super().__init__()
        self._counter = counter
        self.events: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        self.events += [name] if name in WATCHED else []
        return result

    def fence(self) -> None:
        with torch._C.DisableTorchFunction():
            self.events.append(("fence", self._counter()))


#: Operations that move data between a learner and the others.
WATCHED = {"copy_", "add", "add_", "mean", "_fused_sgd_"}


def order(monkeypatch: pytest.MonkeyPatch, counter: Callable[[], Any], act: Callable[[], None]) -> list[Any]:
    watch = Order(counter)
    for module in MODULES:
        monkeypatch.setattr(module, "fence", watch.fence)
    with watch:
        act()
    return watch.events


def team_of(name: str, workers: int = 2, **settings: Any) -> Team:
    team = Team(name, partial(Weights, 4), workers, SyncSettings(PLAIN_SGD, **settings))
    for sync in team.syncs:
        sync.pull()
        sync.flat.grads.fill_(1.0)
    return team


def test_allreduce(monkeypatch: pytest.MonkeyPatch) -> None:
    team = team_of("allreduce")
    offered = team.tensors["offered"].numpy()
    assert order(monkeypatch, offered.tolist, team.syncs[0].send) == ["copy_", ("fence", [0, 0])]
    assert order(monkeypatch, offered.tolist, team.syncs[1].send) == ["copy_", ("fence", [1, 0])]
    events = order(monkeypatch, offered.tolist, team.syncs[0].pull)
    assert events == [("fence", [1, 1]), "mean", "_fused_sgd_"]


def test_proximal(monkeypatch: pytest.MonkeyPatch) -> None:
    team = team_of("proximal")
    spoken = team.tensors["spoken"].numpy()
    assert order(monkeypatch, spoken.tolist, team.syncs[0].send)[-2:] == ["add", ("fence", [0, 0])]
    assert order(monkeypatch, spoken.tolist, team.syncs[1].send)[-2:] == ["add", ("fence", [1, 0])]
    assert order(monkeypatch, spoken.tolist, team.syncs[0].pull)[:2] == [("fence", [1, 1]), "add_"]


def test_server(monkeypatch: pytest.MonkeyPatch) -> None:
    team = team_of("server", 1)
    pushes, writing = team.tensors["pushes"].numpy(), team.tensors["writing"].numpy()
    events = order(monkeypatch, lambda: (int(pushes[0]), int(writing[0])), team.syncs[0].send)
    # The gradient is there, then it is counted; the shard sees the count, then reads; it is odd while it writes.
    assert events[:5] == [("fence", (0, 0)), ("fence", (1, 0)), ("fence", (1, 1)), "_fused_sgd_", ("fence", (1, 1))]
    events = order(monkeypatch, lambda: int(writing[0]), team.syncs[0].pull)
    assert events == [("fence", 2), "copy_", ("fence", 2)]


@pytest.mark.parametrize("name", ["solo", "hogwild", "gossip"])
def test_a_version_is_counted_after_its_step(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    team = team_of(name, 1)
    pushes = team.tensors["pushes"].numpy()
    assert order(monkeypatch, pushes.tolist, team.syncs[0].send) == ["_fused_sgd_", ("fence", [0])]


def test_hogwild_reads_the_version_before_the_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    team = team_of("hogwild", 1)
    assert order(monkeypatch, lambda: team.syncs[0].version, team.syncs[0].pull) == [("fence", 0), "copy_"]


def test_a_reader_reads_the_version_before_the_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    team = team_of("hogwild", 1)
    reads = Reader(Flat(Weights(4)), team.tensors, team.scheme)
    team.syncs[0].send()
    assert order(monkeypatch, lambda: None, lambda: assert_new(reads)) == [("fence", None), "copy_"]


def assert_new(reads: Reader) -> None:
    assert reads.fetch()


def test_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    team = team_of("tokenring")
    pending = team.tensors["pending"].numpy()
    events = order(monkeypatch, lambda: int(pending[0]), team.syncs[0].send)
    exchange = events[events.index(("fence", 1)) :]
    assert exchange == [("fence", 1), "add_", "copy_", "copy_", ("fence", 1)]
    assert int(pending[0]) == 0
    out = torch.empty(4)
    events = order(monkeypatch, lambda: None, lambda: team.scheme.look(team.tensors, out))
    assert events[0] == events[-1] == ("fence", None)
    assert "copy_" in events


def test_the_board_counts_an_episode_after_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = Arena(Board.specs(1))
    board = Board(arena)
    seen: list[tuple[int, float]] = []
    monkeypatch.setattr(
        "passel.place.board.fence",
        lambda: seen.append((int(board.column("episodes")[0]), float(arena["episodes"][0, 0, 0]))),
    )
    board.finished(0, [Episode(7.0, 3)])
    assert seen == [(0, 7.0)]
    assert board.read_episodes(0, 0) == [Episode(7.0, 3)]
    assert len(seen) == 2


def test_who_rests_has_written_everything_before_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = small_plan(steps=50)
    arena = new_arena(plan)
    worker = plan.build_worker(arena, plan.links(InlineKit()), 0)
    events: list[str] = []
    for module in ("worker", "plan"):
        monkeypatch.setattr(f"passel.place.{module}.fence", lambda module=module: events.append(module))
    monkeypatch.setattr(Worker, "publish", lambda self, state: events.append("published"))
    for scheme in plan.schemes.values():
        monkeypatch.setattr(scheme, "settle", lambda tensors: events.append("settled"))
    worker.park()
    assert events == ["published", "worker"]
    Plan.settle(plan, arena)
    assert events[2:] == ["plan", "settled"]
    worker.close()
