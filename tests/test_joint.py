"""Joint training: one policy, many levels, and the mean over the levels at every gradient step."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import passel
from passel.algos.ppo import PPO, PPOConfig
from passel.api import make_plan
from passel.arena import Tensors
from passel.cli import main
from passel.place.inline import Inline
from passel.place.parts import Parts
from passel.recipes.resolve import resolve_config
from passel.run.folder import RunFolder
from passel.sync.base import SyncSettings
from passel.trained import evaluate_levels
from passel.types import EnvSpec, Minibatch, PasselError
from small import CORRIDOR, IDENTITY, new_arena, settings_for, small_plan
from teams import PLAIN_SGD, Team


def toml(folder: Path, train: int = 3, held_out: int = 1, env: str = IDENTITY) -> str:
    """Levels that differ in how long they take."""
    lines = [
        f'[[{part}]]\nid = "{env}"\nname = "{part} {number}"\nkwargs = {{ steps = {4 + number} }}\n'
        for part, count in (("train", train), ("held_out", held_out))
        for number in range(count)
    ]
    path = folder / "levels.toml"
    path.write_text("\n".join(lines))
    return f"levels:{path}"


def joint_plan(env: str, **changes: Any) -> Any:
    return small_plan(algo="ppo", sync="allreduce", env=env, **changes)


def rows_of(level: int, size: int = 16) -> dict[str, Any]:
    """A minibatch of one level: its own, whoever holds it. Every eighth row is no transition."""
    rng = np.random.default_rng(level)
    numbers = rng.standard_normal((4, size)).astype(np.float32) * (level + 1)
    weight = (np.arange(size) % 8 > 0).astype(np.float32) if level else np.ones(size, np.float32)
    return {
        "obs": rng.standard_normal((size, 3)).astype(np.float32),
        "action": rng.integers(0, 2, size),
        "advantage": numbers[0],
        "target": numbers[1],
        "logp": -np.abs(numbers[2]) / 3 - 0.3,
        "value": numbers[3],
        "weight": weight / weight.sum(),
    }


def joined(levels: list[int]) -> Minibatch:
    rows = [rows_of(level) for level in levels]
    columns = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
    return Minibatch(**columns, group=np.repeat(np.arange(len(levels)), 16))


def new_ppo(**changes: Any) -> PPO:
    torch.manual_seed(0)
    return PPO(PPOConfig(hidden=(8,), **changes), EnvSpec("test", (3,), np.dtype(np.float32), n_actions=2), Tensors({}))


def gradient(algo: PPO, batch: Minibatch) -> Tensor:
    loss = algo.loss(batch)
    for name, flat in algo.flats.items():
        flat.backward(loss.losses[name])
    return torch.cat([flat.grads for flat in algo.flats.values()])


class TestTheReducedGradient:
    """The mean over workers, each with its weight, is the mean over levels: what one process finds on the same data."""

    @pytest.mark.parametrize("normalise", [True, False])
    @pytest.mark.parametrize(
        "held", [((0,), (1,)), ((0, 1), (2,)), ((0, 1, 2), (3,)), ((0, 1), (2, 3), (4,)), ((0,), (1,), (2,), (0,))]
    )
    def test_equals_a_single_process_s(self, held: tuple[tuple[int, ...], ...], normalise: bool) -> None:
        parts = Parts(None, tuple(tuple(map(str, part)) for part in held), {})  # type: ignore[arg-type]
        algo = new_ppo(normalise=normalise)
        reduced = torch.stack(
            [parts.weight(rank) * gradient(algo, joined(list(part))) for rank, part in enumerate(held)]
        ).mean(dim=0)
        alone = gradient(algo, joined(sorted({level for part in held for level in part})))
        assert alone.abs().max() > 1e-3
        torch.testing.assert_close(reduced, alone, rtol=1e-4, atol=1e-6)

    def test_without_the_weights_it_does_not(self) -> None:
        algo = new_ppo()
        unweighted = (gradient(algo, joined([0, 1])) + gradient(algo, joined([2]))) / 2
        assert (unweighted - gradient(algo, joined([0, 1, 2]))).abs().max() > 1e-3

    def test_goes_through_the_scheme(self) -> None:
        """Two learners with weights 4/3 and 2/3 under all-reduce end where one learner on all levels ends."""
        algos = [new_ppo(), new_ppo()]
        teams = {
            name: Team("allreduce", lambda name=name: new_ppo().flats[name].module, 2, SyncSettings(PLAIN_SGD))
            for name in ("policy", "value")
        }
        one = new_ppo()
        for rank, (levels, weight) in enumerate((([0, 1], 4 / 3), ([2], 2 / 3))):
            algo = algos[rank]
            loss = algo.loss(joined(levels))
            for name, team in teams.items():
                sync = team.syncs[rank]
                sync.weight = weight
                sync.pull()
                sync.flat.bind(grads=algo.flats[name].grads)
                sync.flat.module = algo.flats[name].module
                sync.push(loss.losses[name])
        mean = gradient(one, joined([0, 1, 2]))
        moved = torch.cat([team.vector - one.flats[name].values for name, team in teams.items()])
        torch.testing.assert_close(moved, -mean, rtol=1e-4, atol=1e-6)

    def test_each_level_is_normalised_by_itself_and_counts_the_same(self) -> None:
        """A level whose rewards are a thousand times as large does not drown the others."""
        algo = new_ppo()
        batch = joined([0, 1])
        louder = dataclasses.replace(batch, advantage=np.where(batch.group == 1, 1000, 1) * batch.advantage)
        policies = [gradient(algo, each)[: len(algo.flats["policy"])].clone() for each in (batch, louder)]
        torch.testing.assert_close(policies[0], policies[1], rtol=1e-3, atol=1e-6)


class TestTraining:
    def test_workers_hold_unequal_numbers_of_levels_and_stay_equal(self, tmp_path: Path) -> None:
        plan = joint_plan(toml(tmp_path), workers=2)
        assert plan.parts.held == (("train 0", "train 2"), ("train 1",))
        assert [plan.rows(rank) for rank in range(2)] == [4, 2]
        placement = Inline(plan, new_arena(plan))
        placement.start()
        placement.resume()
        while placement.board.steps < plan.config.steps:
            placement.advance(0.0)
        placement.pause()
        vectors = [
            torch.cat([sync.flat.values for sync in worker.learner._syncs.values()]) for worker in placement._workers
        ]
        weights = [sync.weight for worker in placement._workers for sync in worker.learner._syncs.values()]
        updates = placement.board.column("updates").tolist()
        placement.stop()
        assert torch.equal(vectors[0], vectors[1])
        assert weights == pytest.approx([4 / 3, 4 / 3, 2 / 3, 2 / 3])
        assert updates[0] == updates[1] > 10

    def test_the_ratio_moves_and_the_clip_acts(self, tmp_path: Path) -> None:
        """Gradients that were all taken at the old weights would leave every ratio at 1."""
        plan = joint_plan(toml(tmp_path), workers=2, lr=3e-2, epochs=4, minibatches=2)
        place = PPO.scalar_names.index("clip_fraction")
        placement = Inline(plan, new_arena(plan))
        placement.start()
        placement.resume()
        seen: list[float] = []
        while placement.board.steps < plan.config.steps:
            placement.advance(0.0)
            seen += [worker._algo.scalars(0)[place] for worker in placement._workers]
        placement.stop()
        assert max(share for share in seen if np.isfinite(share)) > 0.05

    def test_levels_that_are_held_out_are_never_trained_on(self, tmp_path: Path) -> None:
        plan = joint_plan(toml(tmp_path, train=2, held_out=2), workers=2)
        assert {name for held in plan.parts.held for name in held} == {"train 0", "train 1"}

    def test_it_learns_all_levels_of_a_toy(self, tmp_path: Path) -> None:
        env = toml(tmp_path, train=3, held_out=2)
        run = passel.train(
            env, algo="ppo", place="inline", workers=2, steps=12_000, hidden=[32], horizon=32, lr=3e-3,
            eval_episodes=30, tensorboard=False, quiet=True, out=str(tmp_path / "run"),
        )  # fmt: skip
        table = json.loads((run.path / "levels.json").read_text())
        assert [row["mean"] for row in table["train"]["levels"]] == pytest.approx([4, 5, 6], abs=0.5)
        assert [row["mean"] for row in table["held_out"]["levels"]] == pytest.approx([4, 5], abs=0.5)
        assert table["gap"] == pytest.approx(table["train"]["mean"] - table["held_out"]["mean"])
        assert run.summary.eval is not None
        assert run.summary.eval.episodes == 30
        card = RunFolder.open(run.path, lock=False).read_card()
        assert card["levels"]["workers"] == [["train 0", "train 2"], ["train 1"]]
        assert card["levels"]["weights"] == pytest.approx([4 / 3, 2 / 3])

    def test_a_resumed_run_is_the_run_that_was_not_stopped(self, tmp_path: Path) -> None:
        env = toml(tmp_path)

        def go(name: str, steps: int) -> passel.Run:
            settings = settings_for(algo="ppo", sync="allreduce", workers=2, steps=steps, out=str(tmp_path / name))
            return passel.train(**{**settings, "env": env, "checkpoint_every": 10**6})

        def vector(run: passel.Run) -> Tensor:
            return torch.cat([p.flatten() for n in passel.load(run.path)._algorithm.flats.values() for p in [n.values]])

        whole = go("whole", 1000)
        go("half", 480)
        again = passel.resume(tmp_path / "half", steps=1000, quiet=True)
        assert torch.equal(vector(again), vector(whole))

    def test_it_can_be_resumed_and_looked_at_from_another_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The file was named as it is seen from the folder where the run was started."""
        toml(tmp_path, train=2, held_out=1)
        monkeypatch.chdir(tmp_path)
        settings = settings_for(algo="ppo", sync="allreduce", workers=2, horizon=16)
        run = passel.train(**{**settings, "env": "levels:levels.toml", "steps": 64})
        assert run.path.name.startswith("levels-levels.toml-ppo"), "a run's own name needs no folders"
        path = run.path.resolve()
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert passel.resume(path, steps=128, quiet=True).summary.steps == 128
        assert len(evaluate_levels(path)["train"]["levels"]) == 2

    def test_in_processes_the_parts_are_measured_and_kept(self, tmp_path: Path) -> None:
        env = toml(tmp_path, train=3, held_out=0)
        settings = settings_for(algo="ppo", workers=2, place="processes", out=str(tmp_path / "run"))
        run = passel.train(**{**settings, "env": env, "sync": "allreduce"})
        card = RunFolder.open(run.path, lock=False).read_card()["levels"]
        assert sorted(name for held in card["workers"] for name in held) == ["train 0", "train 1", "train 2"]
        assert set(card["step_us"]) == {"train 0", "train 1", "train 2"}
        config, numbers = resolve_config(RunFolder.open(run.path, lock=False).read_config())
        kept = make_plan(config, numbers, env, resumed=1, held={**card, "workers": card["workers"][::-1]})
        assert kept.parts is not None
        assert [list(held) for held in kept.parts.held] == card["workers"][::-1]
        assert json.loads((run.path / "levels.json").read_text())["gap"] is None


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            ({"sync": "hogwild"}, "under --sync hogwild each worker steps for its own. Use --sync allreduce"),
            ({"sync": "gossip"}, "under --sync gossip each worker steps for its own. Use --sync allreduce"),
            ({"sync": "proximal"}, "under --sync proximal each worker steps for its own. Use --sync allreduce"),
            ({"sync_every": 2}, "--sync-every 2 takes steps in between. Leave it out"),
            ({"backend": "gymnasium"}, "--backend gymnasium has no effect on a set of levels"),
            ({"minibatches": 3}, "--minibatches 3 does not divide --horizon 8"),
        ],
    )
    def test_what_a_set_of_levels_cannot_have(self, tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
        settings = {**settings_for(algo="ppo"), "env": toml(tmp_path), "workers": 2, "sync": "allreduce", **changes}
        with pytest.raises(PasselError, match=sentence):
            resolve_config(settings)

    def test_no_table_of_a_run_without_levels(self, tmp_path: Path) -> None:
        out = str(tmp_path / "run")
        passel.train(**settings_for(algo="ppo", sync="solo", workers=1, env=CORRIDOR, out=out))
        with pytest.raises(PasselError, match=r"which is no set of levels\. Use `passel eval"):
            evaluate_levels(tmp_path / "run")


def test_the_command_trains_and_shows_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`passel train`, `passel levels` and `passel eval` on a set."""
    out = tmp_path / "run"
    shape = ["--steps", "400", "--horizon", "8", "--hidden", "8"]
    flags = ["--algo", "ppo", "--place", "inline", "--workers", "2", *shape, "--no-tensorboard"]
    assert main(["train", "--env", toml(tmp_path), *flags, "--eval-episodes", "3", "--out", str(out)]) == 0
    assert "generalisation gap" in capsys.readouterr().out
    assert main(["levels", str(out), "--episodes", "2"]) == 0
    said = capsys.readouterr().out
    assert "held_out 0" in said
    assert str(out / "levels.png") in said
    assert (out / "levels.png").stat().st_size > 1000
    assert main(["levels", str(out), "--sample"]) == 0
    assert "actions drawn; mean of 3 levels" in capsys.readouterr().out
    assert main(["eval", str(out), "--episodes", "6"]) == 0
    assert "6 greedy episodes" in capsys.readouterr().out
    assert main(["video", str(out)]) == 2
    assert "cannot be filmed" in capsys.readouterr().err
