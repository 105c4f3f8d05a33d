"""Every cell of algorithm × scheme × placement × workers × memory × priorities runs, or is refused with its reason."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

import passel
from passel.algos import ALGORITHMS
from passel.api import PLACEMENTS
from passel.place import refusals
from passel.place.board import Board
from passel.place.diets.dreams import LEAD
from passel.place.refusals import why_not
from passel.recipes.resolve import resolve_config
from passel.sync import SCHEMES
from small import AIM, CORRIDOR, new_arena, run_over, settings_for, small_plan

REPLAYING = [name for name, algorithm in ALGORITHMS.items() if algorithm.diet == "replay"]
ON_POLICY = [name for name, algorithm in ALGORITHMS.items() if algorithm.diet == "rollout"]
APART = [name for name, algorithm in ALGORITHMS.items() if algorithm.apart]
KEEPING = [name for name, algorithm in ALGORITHMS.items() if algorithm.diet == "trajectories"]
DREAMING = [name for name, algorithm in ALGORITHMS.items() if algorithm.dreams]
CONTINUOUS = [name for name, algorithm in ALGORITHMS.items() if algorithm.continuous]
CELLS = list(product(REPLAYING, SCHEMES, PLACEMENTS, (1, 2), ("local", "global"), (False, True)))
RUNNING = [cell for cell in CELLS if why_not(cell[1], cell[2], cell[3]) is None]
REFUSED = [cell for cell in CELLS if why_not(cell[1], cell[2], cell[3]) is not None]
INLINE = [cell for cell in RUNNING if cell[2] == "inline"]

#: Real processes cost more: every scheme, both memories, priorities on and off, each pair of them somewhere.
IN_PROCESSES: list[dict[str, Any]] = [
    {"sync": "solo", "workers": 1, "memory": "global", "prioritized": True},
    {"sync": "locked", "workers": 2, "memory": "local", "prioritized": True},
    {"sync": "hogwild", "workers": 2, "memory": "global", "prioritized": True},
    {"sync": "hogwild", "workers": 2, "memory": "local", "prioritized": False, "sync_every": 3},
    {"sync": "server", "workers": 2, "memory": "global", "prioritized": False, "shards": 2},
    {"sync": "server", "workers": 1, "memory": "local", "prioritized": True},
    {"sync": "allreduce", "workers": 2, "memory": "local", "prioritized": False, "transport": "distributed"},
    {"sync": "allreduce", "workers": 2, "memory": "global", "prioritized": True},
    {"sync": "gossip", "workers": 2, "memory": "local", "prioritized": True},
    {"sync": "gossip", "workers": 3, "memory": "global", "prioritized": False, "topology": "ring"},
    {"sync": "proximal", "workers": 2, "memory": "global", "prioritized": False, "l1": 1e-5},
    {"sync": "tokenring", "workers": 3, "memory": "local", "prioritized": True, "group_size": 2},
]


def settings(cell: tuple[str, str, str, int, str, bool]) -> dict[str, Any]:
    names = ("algo", "sync", "place", "workers", "memory", "prioritized")
    return settings_for(**dict(zip(names, cell, strict=True)), steps=300)


def test_the_matrix_is_whole() -> None:
    assert set(PLACEMENTS) == set(refusals.PLACEMENTS)
    assert {cell["sync"] for cell in IN_PROCESSES} == set(SCHEMES)
    assert len(RUNNING) + len(REFUSED) == len(REPLAYING) * len(SCHEMES) * len(PLACEMENTS) * 2 * 2 * 2
    assert {cell[1:4] for cell in REFUSED} == {("solo", place, 2) for place in PLACEMENTS}


@pytest.mark.parametrize("switches", list(product((False, True), repeat=4)), ids=str)
@pytest.mark.parametrize("sync", SCHEMES)
def test_the_switches_of_dqn_are_independent_under_every_scheme(sync: str, switches: tuple[bool, ...]) -> None:
    double, dueling, distributional, prioritized = switches
    changes = {"double": double, "dueling": dueling, "distributional": distributional, "prioritized": prioritized}
    n_step = 1 if double == dueling else 3
    plan = small_plan(sync=sync, workers=1 if sync == "solo" else 2, n_step=n_step, steps=150, **changes)
    arena = new_arena(plan)
    before = arena["sync/q/vector"].clone()
    run_over(plan, arena)
    assert (Board(arena.below("board")).column("updates") > 5).all()
    assert not torch.equal(arena["sync/q/vector"], before)
    assert torch.isfinite(arena["sync/q/vector"]).all()


@pytest.mark.parametrize("cell", INLINE, ids=str)
def test_inline_every_cell_runs(cell: tuple[str, str, str, int, str, bool]) -> None:
    plan = small_plan(**settings(cell))
    arena = new_arena(plan)
    before = arena["sync/q/vector"].clone()
    run_over(plan, arena)
    board = Board(arena.below("board"))
    assert 300 <= board.steps < 300 + 40
    updates = board.column("updates")
    assert (updates > 0).all()
    # The warm-up takes 60 steps; after it there is an update for every fourth.
    assert 0.7 * 60 <= updates.sum() <= 1.1 * (board.steps - 60) / 4 + plan.workers
    assert not torch.equal(arena["sync/q/vector"], before)
    assert torch.isfinite(arena["sync/q/vector"]).all()
    counted = updates[0] if SCHEMES[cell[1]].collective else updates.sum()
    assert plan.schemes["q"].version(arena.below("sync/q")) == counted


def assert_learns(asked: dict[str, Any]) -> None:
    """Every network moves, stays finite, and has seen as many updates as were counted."""
    plan = small_plan(**asked)
    arena = new_arena(plan)
    before = {name: arena[f"sync/{name}/vector"].clone() for name in plan.schemes}
    run_over(plan, arena)
    updates = Board(arena.below("board")).column("updates")
    for name, vector in before.items():
        now = arena[f"sync/{name}/vector"]
        assert torch.isfinite(now).all()
        assert not torch.equal(now, vector)
        counted = updates[0] if SCHEMES[asked["sync"]].collective else updates.sum()
        assert plan.schemes[name].version(arena.below(f"sync/{name}")) == counted


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("sync", SCHEMES)
@pytest.mark.parametrize("algo", ON_POLICY)
def test_inline_every_on_policy_cell_runs(algo: str, sync: str, workers: int) -> None:
    asked = {"algo": algo, "sync": sync, "place": "inline", "workers": workers, "steps": 300}
    reason = why_not(sync, "inline", workers)
    if reason:
        with pytest.raises(passel.PasselError) as caught:
            small_plan(**asked)
        assert str(caught.value) == reason
        return
    assert_learns(asked)


@pytest.mark.parametrize(("workers", "learners"), [(1, 1), (2, 1), (3, 1), (3, 2), (4, 2)])
@pytest.mark.parametrize("sync", SCHEMES)
@pytest.mark.parametrize("algo", APART)
def test_inline_every_cell_with_actors_apart_runs(algo: str, sync: str, workers: int, learners: int) -> None:
    asked = {"algo": algo, "sync": sync, "place": "inline", "workers": workers, "learners": learners, "steps": 400}
    reason = why_not(sync, "inline", workers, algo=algo, learners=learners)
    assert (reason is not None) == (learners == 2 and (algo == "apex" or sync == "solo" or workers == 3))
    if reason:
        with pytest.raises(passel.PasselError) as caught:
            small_plan(**asked)
        assert str(caught.value) == reason
        assert "Use --" in reason
        return
    assert_learns(asked)


@pytest.mark.parametrize(
    "cell",
    [
        {"algo": "impala", "workers": 2},
        {"algo": "impala", "workers": 1},
        {"algo": "impala", "workers": 4, "learners": 2},
        {"algo": "impala", "workers": 4, "learners": 2, "sync": "hogwild"},
        {"algo": "impala", "workers": 4, "learners": 2, "sync": "gossip"},
        {"algo": "impala", "workers": 2, "sync": "server", "shards": 2},
        {"algo": "apex", "workers": 3},
        {"algo": "apex", "workers": 2, "prioritized": False, "sync": "locked"},
    ],
    ids=lambda cell: "-".join(map(str, cell.values())),
)
def test_in_processes_a_cell_with_actors_apart_runs(cell: dict[str, Any], tmp_path: Path) -> None:
    run = passel.train(**settings_for(**cell, place="processes", steps=1200, out=str(tmp_path / "run")))
    assert run.summary.status == "finished"
    assert run.summary.steps >= 1200
    assert run.summary.updates > 10
    assert run.summary.eval is not None
    text = (run.path / "metrics.jsonl").read_text()
    line = [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()][-1]
    names = {row["name"] for row in line["workers"]}
    learners = {f"learner {rank}" for rank in range(cell.get("learners", 1))} if cell["workers"] > 1 else {"worker 0"}
    assert learners <= names
    assert len(names) == cell["workers"]
    shown = set(small_plan(**cell).scalar_names) - {"refused_gradients"}  # which there are none of
    assert shown - {"explained_variance"} <= set(line["scalars"]) - {"loss"} <= shown, "returns may not vary"
    if cell["algo"] == "apex":
        assert line["scalars"]["samples_per_insert"] == pytest.approx(4.0, rel=0.2)


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("sync", SCHEMES)
@pytest.mark.parametrize("algo", DREAMING)
def test_inline_every_cell_that_dreams_runs(algo: str, sync: str, workers: int) -> None:
    asked = settings_for(algo=algo, sync=sync, workers=workers, place="inline", steps=300)
    reason = why_not(sync, "inline", workers, algo=algo)
    assert (reason is None) == (workers == 1 or sync in ("locked", "hogwild", "server"))
    if reason:
        with pytest.raises(passel.PasselError) as caught:
            small_plan(**asked)
        assert str(caught.value) == reason
        assert "Use --" in reason
        return
    assert_dreams(asked)


@pytest.mark.parametrize("model_sync", ["locked", "hogwild", "server", "allreduce"])
@pytest.mark.parametrize("algo", DREAMING)
def test_inline_the_models_of_three_dreamers_are_shared_by_any_scheme(algo: str, model_sync: str) -> None:
    assert_dreams(settings_for(algo=algo, workers=4, place="inline", steps=300, model_sync=model_sync))


def assert_dreams(asked: dict[str, Any]) -> None:
    """Both networks learn, as often as they should, and only one worker takes real steps."""
    plan = small_plan(**asked)
    arena = new_arena(plan)
    before = {name: arena[f"sync/{name}/vector"].clone() for name in plan.schemes}
    assert list(before) == ["q", "model"]
    run_over(plan, arena)
    board = Board(arena.below("board"))
    assert board.column("steps").tolist() == [board.steps] + [0] * (plan.workers - 1)
    versions = {name: plan.schemes[name].version(arena.below(f"sync/{name}")) for name in plan.schemes}
    for name, vector in before.items():
        assert torch.isfinite(arena[f"sync/{name}/vector"]).all()
        assert not torch.equal(arena[f"sync/{name}/vector"], vector)
    updates = board.column("updates")
    assert versions["q"] == updates.sum()
    assert updates[0] > 0
    # Real updates for every fourth step after 60, each followed by two imagined ones; lessons of the models likewise.
    assert versions["q"] == pytest.approx(3 * (board.steps - 60) / 4, rel=0.2)
    taught = versions["model"] * (len(plan.cast.dreamers) if plan.schemes["model"].collective else 1)
    ahead = 1 if plan.workers == 1 else LEAD
    assert taught == pytest.approx((board.steps - 16) / 4, abs=ahead + 3)
    assert (arena["imagined/committed"] > 0).all(), "every dreamer has dreamt"


@pytest.mark.parametrize(
    "cell",
    [
        {"algo": "dyna", "workers": 1, "sync": "solo"},
        {"algo": "dyna", "workers": 2},
        {"algo": "dyna", "workers": 2, "sync": "locked", "dream": "sweeping", "prioritized": True, "n_step": 3},
        {"algo": "dyna", "workers": 3, "dream": "explore", "model_sync": "allreduce"},
        {"algo": "dyna", "workers": 3, "sync": "server", "shards": 2},
    ],
    ids=lambda cell: "-".join(map(str, cell.values())),
)
def test_in_processes_a_cell_that_dreams_runs(cell: dict[str, Any], tmp_path: Path) -> None:
    run = passel.train(**settings_for(**cell, place="processes", steps=1000, out=str(tmp_path / "run")))
    assert run.summary.status == "finished"
    assert run.summary.steps >= 1000
    assert run.summary.eval is not None
    text = (run.path / "metrics.jsonl").read_text()
    line = [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()][-1]
    players = {row["name"] for row in line["workers"]}
    alone = cell["workers"] == 1
    assert players == ({"worker 0"} if alone else {"player 0", *(f"dreamer {n}" for n in range(cell["workers"] - 1))})
    assert line["scalars"]["dream_ratio"] == pytest.approx(2.0, rel=0.15)
    assert {"model", "dream", "learn"} <= set(run.shares)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"sync": "allreduce", "workers": 2}, "--sync allreduce needs a gradient of every worker"),
        ({"sync": "gossip", "workers": 2}, "--sync gossip leaves every worker values of its own"),
        ({"workers": 3, "model_sync": "solo"}, "--model-sync solo is one learner .* 2 dreamers"),
        ({"workers": 2, "dream_ratio": 0.0}, "--dream-ratio 0 leaves nothing to do for 1 of 2 workers"),
        ({"dream": "explore", "ensemble": 1}, "--dream explore goes where models disagree"),
        ({"dream": "explore", "grounded": True}, "--dream explore goes where models disagree"),
        ({"dream_capacity": 20}, "--dream-capacity 20 leaves"),
        ({"memory": "global"}, "--memory has no effect without --algo dqn"),
        ({"learners": 2, "workers": 4}, "--learners 2 has no effect on dyna"),
        ({"env": "levels:procgen:coinrun", "sync": "hogwild"}, "set of levels .* --algo ppo or a3c"),
        ({"dream_depth": 0}, "--dream-depth is 0, and must be at least 1"),
        ({"dream_ratio": -1.0}, "--dream-ratio is -1.0, and must be 0 or more"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(map(str, value.values())),
)
def test_what_cannot_be_dreamt_is_refused(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(passel.PasselError, match=said):
        resolve_config(settings_for(algo="dyna", **asked))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"env": "ALE/Pong-v5"}, "dreams of states that are vectors"),
        ({"grounded": True}, "--grounded puts a copy .* Corridor cannot be put into one"),
    ],
    ids=["images", "grounded"],
)
def test_where_cannot_be_dreamt_is_refused(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(passel.PasselError, match=said):
        small_plan(algo="dyna", **asked)


def test_learners_are_for_algorithms_that_keep_actors_apart() -> None:
    with pytest.raises(passel.PasselError, match=r"--learners 2 has no effect on dqn.*impala, apex"):
        small_plan(learners=2, workers=4)


def test_the_usual_scheme_of_actors_apart_needs_no_word() -> None:
    for learners, expected in ((1, "solo"), (2, "allreduce")):
        config, _ = resolve_config(settings_for(algo="impala", learners=learners))
        assert config.sync == expected
        assert config.workers >= 2 * learners if learners > 1 else config.workers >= 1


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"algo": "impala", "slots": 1, "batch": 3, "workers": 3}, "--slots 1 .* --batch 3"),
        ({"algo": "apex", "epsilon_steps": 5}, "--epsilon-steps has no effect without --algo dqn"),
        ({"algo": "apex", "memory": "local"}, "--memory has no effect without --algo dqn"),
        ({"algo": "apex", "updates_per_step": 0.5}, "--updates-per-step has no effect without --algo dqn"),
        ({"algo": "impala", "split": True}, "--split has no effect without --algo a3c"),
        ({"algo": "impala", "env": "levels:procgen:coinrun"}, "set of levels .* --algo ppo or a3c"),
        ({"algo": "apex", "samples_per_insert": 0.0}, "--samples-per-insert is 0.0"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(map(str, value.values())),
)
def test_what_has_no_effect_where_actors_are_apart_is_refused(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(passel.PasselError, match=said):
        resolve_config(settings_for(**asked))


@pytest.mark.parametrize("sync", [name for name in SCHEMES if name != "solo"])
@pytest.mark.parametrize("algo", ON_POLICY)
def test_in_processes_an_on_policy_cell_runs(algo: str, sync: str, tmp_path: Path) -> None:
    run = passel.train(
        **settings_for(algo=algo, sync=sync, workers=2, place="processes", steps=600, out=str(tmp_path / "run"))
    )
    assert run.summary.status == "finished"
    assert run.summary.steps >= 600
    assert run.summary.updates > 10
    assert run.summary.eval is not None
    text = (run.path / "metrics.jsonl").read_text()
    lines = [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]
    shown = set(small_plan(algo=algo, sync=sync, workers=2).scalar_names) - {"refused_gradients"}
    assert shown - {"explained_variance"} <= set(lines[-1]["scalars"]) - {"loss"} <= shown, "returns may not vary"


@pytest.mark.parametrize(
    ("asked", "networks"),
    [
        ({"algo": "ppo", "sync": "allreduce", "workers": 2}, 2),
        ({"algo": "awr", "sync": "allreduce", "workers": 1}, 2),
        ({"algo": "impala", "workers": 4, "learners": 2}, 2),
        ({"algo": "dyna", "workers": 1, "sync": "allreduce"}, 2),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_in_processes_torch_distributed_carries_every_network(
    asked: dict[str, Any], networks: int, tmp_path: Path
) -> None:
    """Each network has a group of its own, of the workers that learn it."""
    changes = {**asked, "place": "processes", "transport": "distributed", "steps": 150}
    assert len(small_plan(**changes).schemes) == networks
    run = passel.train(**settings_for(**changes, out=str(tmp_path / "run")))
    assert run.summary.status == "finished"
    assert run.summary.updates > 2


def test_torch_distributed_is_for_learners_of_values() -> None:
    with pytest.raises(passel.PasselError, match="--transport has no effect without --sync allreduce"):
        small_plan(
            algo="dyna",
            workers=3,
            sync="hogwild",
            model_sync="allreduce",
            transport="distributed",
            place="processes",
        )


@pytest.mark.parametrize("env", [CORRIDOR, AIM], ids=["discrete", "continuous"])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("sync", SCHEMES)
@pytest.mark.parametrize("algo", KEEPING)
def test_inline_every_cell_that_keeps_trajectories_runs(algo: str, sync: str, workers: int, env: str) -> None:
    if why_not(sync, "inline", workers):
        return
    plan = small_plan(env=env, algo=algo, sync=sync, place="inline", workers=workers, steps=300)
    arena = new_arena(plan)
    before = {name: arena[f"sync/{name}/vector"].clone() for name in plan.schemes}
    run_over(plan, arena)
    updates = Board(arena.below("board")).column("updates")
    versions = {}
    for name, vector in before.items():
        now = arena[f"sync/{name}/vector"]
        assert torch.isfinite(now).all()
        assert not torch.equal(now, vector)
        versions[name] = plan.schemes[name].version(arena.below(f"sync/{name}"))
    # Each network learns in its turn, three times and five times in a lesson.
    assert sum(versions.values()) == (updates[0] if SCHEMES[sync].collective else updates.sum())
    assert versions["value"] / 3 == pytest.approx(versions["policy"] / 5, abs=workers)


@pytest.mark.parametrize(
    ("algo", "env", "sync"),
    [
        *product(KEEPING, [CORRIDOR], [name for name in SCHEMES if name != "solo"]),
        *product(CONTINUOUS, [AIM], ["hogwild"]),
    ],
    ids=lambda value: str(value).rpartition("/")[2],
)
def test_in_processes_cells_with_trajectories_and_with_vectors_run(
    algo: str, env: str, sync: str, tmp_path: Path
) -> None:
    out = str(tmp_path / "run")
    run = passel.train(**settings_for(algo=algo, env=env, sync=sync, workers=2, place="processes", steps=600, out=out))
    assert run.summary.status == "finished"
    assert run.summary.steps >= 600
    assert run.summary.updates > 10
    assert run.summary.eval is not None


@pytest.mark.parametrize("algo", [name for name in ALGORITHMS if name not in CONTINUOUS])
def test_where_actions_are_vectors_the_others_are_refused(algo: str) -> None:
    with pytest.raises(passel.PasselError, match=f"--algo {algo} chooses among Discrete actions") as caught:
        small_plan(env=AIM, algo=algo)
    assert f"Use --algo {' or '.join(CONTINUOUS)}" in str(caught.value)


@pytest.mark.parametrize("cell", IN_PROCESSES, ids=lambda cell: "-".join(map(str, cell.values())))
def test_in_processes_a_cell_runs(cell: dict[str, Any], tmp_path: Path) -> None:
    run = passel.train(**settings_for(**cell, place="processes", steps=600, out=str(tmp_path / "run")))
    assert run.summary.status == "finished"
    assert run.summary.steps >= 600
    assert run.summary.updates > 20
    assert run.summary.workers == cell["workers"]
    assert run.summary.eval is not None
    assert sum(run.shares.values()) == pytest.approx(1, abs=0.01)
    assert not {"model", "dream"} & set(run.shares), "nobody dreams here"


@pytest.mark.parametrize("cell", REFUSED, ids=str)
def test_a_cell_that_cannot_run_is_refused_with_its_reason_before_anything_starts(
    cell: tuple[str, str, str, int, str, bool], tmp_path: Path
) -> None:
    reason = why_not(cell[1], cell[2], cell[3])
    with pytest.raises(passel.PasselError) as caught:
        passel.train(**settings(cell), out=str(tmp_path / "run"))
    assert str(caught.value) == reason
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("cell", REFUSED, ids=str)
def test_a_reason_names_the_cause_and_the_cure(cell: tuple[str, str, str, int, str, bool]) -> None:
    reason = why_not(cell[1], cell[2], cell[3]) or ""
    assert f"--sync {cell[1]}" in reason
    assert "Use " in reason
    assert reason.endswith(".")


@pytest.mark.parametrize(
    ("axis", "known"),
    [("algo", ALGORITHMS), ("sync", SCHEMES), ("place", PLACEMENTS)],
    ids=lambda value: str(value)[:9],
)
def test_a_name_that_is_on_no_axis_is_refused_with_those_that_are(axis: str, known: dict[str, Any]) -> None:
    with pytest.raises(passel.PasselError, match=f"no --{axis} nonsense") as caught:
        resolve_config(settings_for(**{axis: "nonsense"}))
    assert ", ".join(known) in str(caught.value)
