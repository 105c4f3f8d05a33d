"""To resume is not to have stopped: a run that continues from a checkpoint is, to the bit, the run that went on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import passel
from harness import Command, assert_whole, kinds, newest, rows, summary
from passel import examiner, supervisor
from passel.clock import STAGES
from passel.place.board import COLUMNS
from passel.run import checkpoint
from passel.run.checkpoint import Checkpoint
from passel.run.folder import RunFolder
from passel.types import Episode
from small import ALONE, REPLAY

SMALL: dict[str, Any] = {
    "env": "CartPole-v1",
    "backend": "gymnasium",
    "place": "inline",
    "workers": 2,
    "envs": 2,
    "hidden": [8],
    "batch": 8,
    "warmup": 60,
    "capacity": 400,
    "n_step": 1,
    "target_every": 20,
    "epsilon_steps": 300,
    "steps": 600,
    "checkpoint_every": 150,
    "keep_checkpoints": 10,
    "eval_episodes": 3,
    "eval_every": "none",
    "tensorboard": False,
    "quiet": True,
}
CORRIDOR = {"env": "passel.testing.envs:passel/Corridor-v0", "solved_at": 1e9}
AIM = {"env": "passel.testing.envs:passel/Aim-v0"}
TRAP = {"env": "passel.testing.envs:passel/TimeLimitTrap-v0"}
CASES: dict[str, dict[str, Any]] = {
    "solo": {"sync": "solo", "workers": 1},
    "locked": {"sync": "locked"},
    "hogwild": {"sync": "hogwild"},
    "server": {"sync": "server", "shards": 2},
    "allreduce": {"sync": "allreduce"},
    "hogwild-normalized": {"sync": "hogwild", "n_step": 3, "normalize": "obs,reward"},
    "solo-every-switch": {
        "sync": "solo",
        "workers": 1,
        "n_step": 3,
        "prioritized": True,
        "dueling": True,
        "lr_end": 1e-5,
    },
    "locked-global-memory": {"sync": "locked", "memory": "global", "n_step": 3, **CORRIDOR},
    "hogwild-prioritized": {"sync": "hogwild", "prioritized": True, "lr_end": 1e-5},
    "hogwild-three-local-steps": {"sync": "hogwild", "sync_every": 3},
    "server-prioritized-global": {"sync": "server", "shards": 3, "prioritized": True, "memory": "global"},
    "server-three-local-steps": {"sync": "server", "sync_every": 3, "n_step": 3},
    "allreduce-three-local-steps": {"sync": "allreduce", "sync_every": 3, "optimizer": "rmsprop", "momentum": 0.5},
    "gossip": {"sync": "gossip"},
    "gossip-three-local-steps": {"sync": "gossip", "sync_every": 3, "workers": 3, "topology": "complete"},
    "gossip-ring": {"sync": "gossip", "workers": 4, "topology": "ring", "prioritized": True, **CORRIDOR},
    "proximal": {"sync": "proximal", "l1": 1e-4},
    "proximal-ring": {"sync": "proximal", "workers": 3, "topology": "ring", "lr_end": 1e-5, **CORRIDOR},
    "proximal-three-local-steps": {"sync": "proximal", "sync_every": 3},
    "tokenring": {"sync": "tokenring"},
    "tokenring-groups": {"sync": "tokenring", "workers": 3, "group_size": 2, "sync_every": 3},
    "allreduce-corridor": {"sync": "allreduce", "n_step": 3, "target_tau": 0.5, **CORRIDOR},
}
#: Rollouts of 40 steps and 6 parts: checkpoints fall between two parts as well as between two rollouts.
ON_POLICY: dict[str, dict[str, Any]] = {
    "a3c-hogwild": {"algo": "a3c", "sync": "hogwild", "horizon": 5},
    "a3c-allreduce": {"algo": "a3c", "sync": "allreduce", "horizon": 7, "lr_end": 1e-5},
    "ppo-solo": {"algo": "ppo", "sync": "solo", "workers": 1, "horizon": 20, "epochs": 3, "minibatches": 2},
    "ppo-server": {"algo": "ppo", "sync": "server", "shards": 2, "horizon": 20, "epochs": 3, "minibatches": 2},
    "ppo-vectors": {"algo": "ppo", "sync": "hogwild", "horizon": 20, "epochs": 3, "minibatches": 2, **AIM},
    "ppo-gossip": {"algo": "ppo", "sync": "gossip", "horizon": 20, "epochs": 3, "minibatches": 2},
    "a3c-normalized": {"algo": "a3c", "sync": "hogwild", "horizon": 5, "normalize": "obs,reward"},
    "ppo-allreduce-normalized": {"algo": "ppo", "sync": "allreduce", "horizon": 20, "epochs": 3, "minibatches": 2},
    "ppo-rewards-normalized": {"algo": "ppo", "sync": "locked", "horizon": 20, "minibatches": 2, "normalize": "reward"},
    "ppo-corridor": {"algo": "ppo", "sync": "allreduce", "horizon": 20, "epochs": 3, "minibatches": 2, **CORRIDOR},
}
#: Rounds in which a learner goes first, and actors after it, some of whom find no room: a checkpoint falls anywhere.
APART: dict[str, dict[str, Any]] = {
    "impala-alone": {"algo": "impala", "workers": 1, "horizon": 7, "batch": 2},
    "impala": {"algo": "impala", "workers": 3, "horizon": 7, "fetch_every": 3},
    "impala-normalized": {"algo": "impala", "workers": 3, "horizon": 7, "fetch_every": 3, "normalize": "obs,reward"},
    "impala-two-gossips": {"algo": "impala", "workers": 4, "learners": 2, "sync": "gossip", "horizon": 5},
    "impala-two-learners": {"algo": "impala", "workers": 5, "learners": 2, "horizon": 5, **CORRIDOR},
    "apex-alone": {"algo": "apex", "workers": 1, "n_step": 3},
    "apex": {"algo": "apex", "workers": 3, "n_step": 3, "fetch_every": 7, "samples_per_insert": 3.0},
    "apex-uniform": {"algo": "apex", "workers": 2, "prioritized": False, **CORRIDOR},
}
#: Lessons of 7 updates, memories that wrap around, and checkpoints between two updates of either network.
KEEPING: dict[str, dict[str, Any]] = {
    name: {"algo": "awr", "horizon": 10, "capacity": 120, "batch": 8, "critic_updates": 3, "policy_updates": 4, **more}
    for name, more in {
        "awr-solo": {"sync": "solo", "workers": 1},
        "awr-hogwild": {"sync": "hogwild", "lr_end": 1e-5},
        "awr-server-vectors": {"sync": "server", "shards": 2, **AIM},
        "awr-allreduce-time-limit": {"sync": "allreduce", **TRAP},
        "awr-three-local-steps": {"sync": "hogwild", "sync_every": 3, **AIM},
    }.items()
}
#: Models, dreams and two kinds of lessons: a checkpoint falls between any two of them.
DREAMING: dict[str, dict[str, Any]] = {
    name: {"algo": "dyna", "dream_capacity": 300, "model_hidden": [8], "model_batch": 8, "dream_age": 30, **more}
    for name, more in {
        "dyna-alone": {"workers": 1, "sync": "solo", "n_step": 3},
        "dyna-alone-sweeping": {"workers": 1, "dream": "sweeping", "dream_ratio": 1.5, "prioritized": True},
        "dyna": {"workers": 3, "sync": "hogwild", "dream": "explore", "ensemble": 3},
        "dyna-models-together": {"workers": 4, "sync": "server", "model_sync": "allreduce", **CORRIDOR},
        "dyna-grounded": {"workers": 2, "grounded": True, "dream_depth": 3, "envs": 1},
        "dyna-without-dreams": {"workers": 1, "dream_ratio": 0.0},
        "dyna-that-ends-dreaming": {"workers": 1, "dream_fraction": 0.5, "prioritized": True},
        "dyna-that-ends-dreaming-together": {"workers": 3, "dream_fraction": 0.4, "model_sync": "allreduce"},
    }.items()
}
#: What the board tells of this process rather than of the run: how long things took, and the mean staleness since.
MEASURED = [COLUMNS[name] for name in ("heartbeat", "staleness", *STAGES)]


def steps_of(run: Path) -> list[int]:
    return sorted(int(path.name) for path in (run / "checkpoints").iterdir())


def milestones(run: Path) -> list[str]:
    return [kind for kind in kinds(run) if kind not in ("checkpointed", "evaluated", "first step")]


def cut_back(run: Path, to: Path, step: int) -> Path:
    """A copy of a run as it was when the checkpoint of `step` was its newest."""
    shutil.copytree(run, to)
    for later in steps_of(to):
        if later > step:
            shutil.rmtree(to / "checkpoints" / str(later))
    (to / "summary.json").unlink()
    return to


def tensors_of(found: Checkpoint) -> dict[str, torch.Tensor]:
    """All that a checkpoint holds, but for what was measured."""
    tensors = {name: tensor.clone() for group in found.groups.values() for name, tensor in group.items()}
    tensors["board/counters"][:, MEASURED] = 0
    return tensors


def episodes_of(run: Path) -> list[tuple[float, ...]]:
    """episodes.csv without the seconds, which differ each time."""
    found = RunFolder.open(run, lock=False).read_episodes()
    assert found["second"].tolist() == sorted(found["second"])
    columns = (found[name].tolist() for name in ("step", "worker", "return", "length"))
    return list(zip(*columns, strict=True))


def assert_same_run(one: Path, other: Path) -> None:
    left, right = newest(one), newest(other)
    assert left.step == right.step
    ours, theirs = tensors_of(left), tensors_of(right)
    assert ours.keys() == theirs.keys()
    different = [
        name for name in ours if ours[name].view(-1).numpy().tobytes() != theirs[name].view(-1).numpy().tobytes()
    ]
    assert different == []
    assert episodes_of(one) == episodes_of(other)
    for field in ("episodes", "scores", "lengths", "eval", "solved_at_steps", "solved_at_episodes"):
        assert left.meta[field] == right.meta[field], field
    for field in ("status", "steps", "updates", "episodes", "return_mean_100", "eval"):
        assert summary(one)[field] == summary(other)[field], field


def settings_of(case: str) -> dict[str, Any]:
    if case in CASES or case in DREAMING:
        return {**SMALL, **(CASES | DREAMING)[case]}
    if case.startswith("apex"):
        return {key: value for key, value in SMALL.items() if key not in ALONE} | APART[case]
    return {key: value for key, value in SMALL.items() if key not in REPLAY} | (ON_POLICY | KEEPING | APART)[case]


@pytest.mark.parametrize("case", [*CASES, *ON_POLICY, *KEEPING, *APART, *DREAMING])
def test_resumed_equals_uninterrupted(case: str, tmp_path: Path) -> None:
    whole = passel.train(**settings_of(case), out=str(tmp_path / "whole"))
    name = "q" if case in CASES or case.startswith(("apex", "dyna")) else "policy"
    steps = steps_of(whole.path)
    assert len(steps) >= 4
    for cut in steps[:-1]:
        part = cut_back(whole.path, tmp_path / f"from-{cut}", cut)
        before = newest(part).groups["parameters"][f"sync/{name}/vector"]
        again = passel.resume(part, quiet=True)
        assert again.summary.status == "finished"
        assert_same_run(whole.path, part)
        learnt = newest(part).groups["parameters"][f"sync/{name}/vector"]
        assert not learnt.equal(before), "nothing was learnt after the cut"


def test_resumed_in_another_process_equals_uninterrupted(tmp_path: Path) -> None:
    """Nothing of a run is in the process that runs it."""
    whole = passel.train(**SMALL, sync="hogwild", out=str(tmp_path / "whole"))
    cut_back(whole.path, tmp_path / "part", steps_of(whole.path)[1])
    with Command(tmp_path, "resume", "part", "--quiet") as command:
        assert command.wait() == 0
        assert (command.stdout, command.stderr) == ("", "")
        command.assert_nothing_is_left()
    assert_same_run(whole.path, tmp_path / "part")


def test_resumed_after_an_evaluation_that_denied_equals_uninterrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When to evaluate again is part of the run too: an evaluation brings everybody to rest, at a moment of its own."""
    monkeypatch.setattr(examiner, "play", lambda *args, **options: [Episode(-1.0, 1)])
    monkeypatch.setattr(supervisor, "WINDOW", 5)
    settings = {**SMALL, "sync": "hogwild", "solved_at": 0.0, "steps": 900, "envs": 4}
    whole = passel.train(**settings, out=str(tmp_path / "whole"))
    assert kinds(whole.path).count("not confirmed") >= 2
    first = rows(whole.path / "events.jsonl")[[kind == "not confirmed" for kind in kinds(whole.path)].index(True)]
    cut = next(step for step in steps_of(whole.path) if step > first["steps"])
    part = cut_back(whole.path, tmp_path / "part", cut)
    passel.resume(part, quiet=True)
    assert_same_run(whole.path, part)


def test_every_episode_is_in_the_file(tmp_path: Path) -> None:
    """On CartPole a return is a length: two columns that must agree, with each other and with what a run reports."""
    run = passel.train(**SMALL, sync="hogwild", out=str(tmp_path / "run"))
    found = RunFolder.open(run.path, lock=False).read_episodes()
    assert len(found) == run.summary.episodes > 5
    assert found["return"].tolist() == found["length"].tolist()
    assert set(found["worker"]) == {0, 1}
    for worker in range(2):
        steps = newest(run.path).groups["workers"]["board/counters"][worker, COLUMNS["steps"]]
        assert found["length"][found["worker"] == worker].sum() <= steps
    assert found["step"].tolist() == sorted(found["step"])
    assert found["step"][-1] <= run.summary.steps
    last = rows(run.path / "metrics.jsonl")[-1]
    assert last["length_mean_100"] == last["return_mean_100"] == pytest.approx(found["return"][-100:].mean())
    assert newest(run.path).meta["lengths"] == found["length"][-100:].tolist()


def test_a_run_that_was_stopped_early_has_the_same_episodes(tmp_path: Path) -> None:
    """Not at a checkpoint of the other run: the watcher looks once more there, so the steps of a look may differ."""
    settings = {**SMALL, "sync": "hogwild"}
    whole = passel.train(**settings | {"steps": 400}, out=str(tmp_path / "whole")).path
    part = passel.train(**settings | {"steps": 210}, out=str(tmp_path / "part")).path
    passel.resume(part, steps=400, quiet=True)
    assert [row[1:] for row in episodes_of(part)] == [row[1:] for row in episodes_of(whole)]


def test_metrics_and_events_go_on(tmp_path: Path) -> None:
    """Reports later than the checkpoint are made again; what was before stays, and the clock does not start anew."""
    run = passel.train(**SMALL, sync="locked", out=str(tmp_path / "run")).path
    part = cut_back(run, tmp_path / "part", steps_of(run)[1])
    with (part / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({**rows(run / "metrics.jsonl")[-1], "steps": 10**6}) + "\n" + '{"steps": 7, "torn')
    old = newest(part)
    result = passel.resume(part, steps=900, quiet=True).summary
    metrics = rows(part / "metrics.jsonl")
    steps, seconds = [row["steps"] for row in metrics], [row["seconds"] for row in metrics]
    assert steps == sorted(steps)
    assert 900 <= steps[-1] < 1000
    assert seconds == sorted(seconds)
    assert result.seconds > old.meta["seconds"] > 0
    assert newest(part).meta["resumed"] == 1
    assert milestones(part) == ["started", "finished", "resumed", "finished"]
    resumed = next(row for row in rows(part / "events.jsonl") if row["kind"] == "resumed")
    assert resumed["steps"] == old.step


class TestABrokenCheckpoint:
    def broken(self, tmp_path: Path) -> tuple[Path, Path, list[int]]:
        """A run, and a copy of it whose third checkpoint is its newest and has a wrong byte."""
        run = passel.train(**SMALL, sync="hogwild", out=str(tmp_path / "run")).path
        steps = steps_of(run)
        part = cut_back(run, tmp_path / "part", steps[2])
        file = part / "checkpoints" / str(steps[2]) / "parameters.safetensors"
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
        return run, part, steps

    def test_the_one_before_it_is_used(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        run, part, steps = self.broken(tmp_path)
        passel.resume(part)
        said = capsys.readouterr().out.splitlines()
        assert said[0] == (
            f"{part}/checkpoints/{steps[2]}/parameters.safetensors does not match its SHA-256 in the manifest: "
            f"this checkpoint is skipped and the one before it, of step {steps[1]}, is used."
        )
        assert said[1] == f"Resuming {part} at step {steps[1]:,}."
        assert_same_run(run, part)
        assert_whole(part)

    def test_none_is_whole(self, tmp_path: Path) -> None:
        _, part, steps = self.broken(tmp_path)
        for step in steps[:2]:
            (part / "checkpoints" / str(step) / "manifest.json").unlink()
        with pytest.raises(passel.PasselError, match="has no checkpoint to resume from"):
            passel.resume(part, quiet=True)
        RunFolder.open(part).close()


class TestWhatCannotBeResumed:
    def test_finished(self, tmp_path: Path) -> None:
        run = passel.train(**{**SMALL, "steps": 150}, sync="hogwild", out=str(tmp_path / "run")).path
        before = (run / "events.jsonl").read_text()
        with pytest.raises(passel.PasselError, match=r"has already taken \d+ of 150 steps\. Use --steps with a larger"):
            passel.resume(run, quiet=True)
        assert (run / "events.jsonl").read_text() == before
        assert_whole(run)

    def test_without_a_checkpoint(self, tmp_path: Path) -> None:
        run = passel.train(**{**SMALL, "steps": 150}, sync="hogwild", out=str(tmp_path / "run")).path
        shutil.rmtree(run / "checkpoints")
        with pytest.raises(passel.PasselError, match="has no checkpoint to resume from"):
            passel.resume(run, quiet=True)

    def test_its_advice_can_be_followed(self, tmp_path: Path) -> None:
        """A run that died before its first checkpoint: `train` will not take its folder, so `resume` names another."""
        run = passel.train(**{**SMALL, "steps": 150}, sync="hogwild", out=str(tmp_path / "run")).path
        shutil.rmtree(run / "checkpoints")
        with pytest.raises(passel.PasselError, match="has no checkpoint to resume from") as refused:
            passel.resume(run, quiet=True)
        with pytest.raises(passel.PasselError, match=r"Use `passel resume .*, or another --out"):
            passel.train(**{**SMALL, "steps": 150}, sync="hogwild", out=str(run))
        assert "--out" in str(refused.value)

    def test_with_another_shape(self, tmp_path: Path) -> None:
        """Somebody edited config.toml: the checkpoint does not fit, and is not touched."""
        run = passel.train(**{**SMALL, "steps": 150}, sync="hogwild", out=str(tmp_path / "run")).path
        config = run / "config.toml"
        config.write_text(config.read_text().replace("capacity = 400", "capacity = 800"))
        before = steps_of(run)
        with pytest.raises(passel.PasselError, match="the checkpoint has no memory/0/"):
            passel.resume(run, steps=300, quiet=True)
        assert steps_of(run) == before
        checkpoint.load(run / "checkpoints" / str(before[0]))


#: Written as a user writes it: no function, no guard. Workers must not import it again.
SCRIPT = """
import json, sys
import gymnasium as gym
import passel

class Doubled(gym.Wrapper):
    def step(self, action):
        obs, reward, *rest = self.env.step(action)
        return obs, 2 * reward, *rest

results = {}
for sync, more in {"solo": {}, "locked": {}, "hogwild": {}, "server": {"shards": 2}, "allreduce": {},
                   "gossip": {}, "proximal": {}, "tokenring": {}}.items():
    make = lambda: Doubled(gym.make("CartPole-v1"))
    run = passel.train(
        make, sync=sync, workers=1 if sync == "solo" else 2, envs=2, hidden=[8], batch=8, warmup=50, capacity=2000,
        steps=400, eval_episodes=3, tensorboard=False, quiet=True, out=sync, **more)
    first = run.summary
    again = passel.resume(run.path, make, steps=900, quiet=True).summary
    results[sync] = [first.to_json(), again.to_json()]
json.dump(results, open("results.json", "w"))
print("once")
"""


def test_processes_resume_under_every_scheme_from_a_script_without_a_guard(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    with Command(tmp_path, program=["script.py"]) as command:
        assert command.wait(110) == 0, command.stderr
        assert (command.stdout, command.stderr) == ("once\n", "")
        command.assert_nothing_is_left()
    for sync, (first, again) in json.loads((tmp_path / "results.json").read_text()).items():
        run = tmp_path / sync
        assert first["status"] == again["status"] == "finished"
        assert 400 <= first["steps"] < 500
        assert 900 <= again["steps"] < 1000
        for counter in ("updates", "episodes", "seconds"):
            assert again[counter] > first[counter] > 0, (sync, counter)
        assert first["return_mean_100"] >= 2 * 8, "the wrapper's rewards are what is reported"
        metrics = rows(run / "metrics.jsonl")
        for counter in ("steps", "seconds", "updates", "episodes"):
            values = [row[counter] for row in metrics]
            assert values == sorted(values), (sync, counter)
        assert milestones(run) == ["started", "finished", "resumed", "finished"]
        assert newest(run).step == again["steps"]
        assert_whole(run)
