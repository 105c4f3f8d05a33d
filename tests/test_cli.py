"""The command line as its user meets it: what it prints, what it leaves on disk, and the code that it ends with."""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

import passel
from harness import TINY, Command, assert_whole, kinds, newest, rows, summary
from passel import __version__
from passel.algos import ALGORITHMS
from passel.algos.dqn import DQNConfig
from passel.cli import main
from passel.config import RunConfig
from passel.run.folder import RunFolder
from passel.sync import SCHEMES

INLINE = [*TINY, "--place", "inline"]  # no process is started: the tests of this file may call `main` itself

Said = tuple[int, str, str]


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """`passel ...` in this process and an empty folder: its code, and what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("passel.place.forkserver.warm_up", lambda env: pytest.fail("nothing here needs processes"))

    def run(*arguments: str) -> Said:
        try:
            code = main(arguments)
        except SystemExit as end:  # argparse's way
            code = int(end.code or 0)
        return code, *capfd.readouterr()

    return run


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--env", "levels:procgen:jumper"],
        ["train", "--env=levels:procgen:jumper"],
        ["train", "--config", "my.toml"],
        ["train", "--config", "other.toml", "--env", "levels:procgen:jumper"],
        ["resume", "run"],
    ],
)
def test_the_forkserver_learns_early_what_workers_will_share(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the environment is named. Nothing is trained: there is no such algorithm, and nothing to resume."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    jumper = "levels:procgen:jumper"
    for file, env in (("my", jumper), ("other", "CartPole-v1"), ("run/config", jumper)):
        (tmp_path / f"{file}.toml").write_text(f'env = "{env}"\nplace = "processes"\n')
    envs: list[str] = []
    monkeypatch.setattr("passel.place.forkserver.warm_up", envs.append)
    assert main([*words, *(["--algo", "none"] if words[0] == "train" else [])]) == 2
    assert envs == ["levels:procgen:jumper"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A small run by the real command, and what it printed."""
    folder = tmp_path_factory.mktemp("trained")
    flags = [*INLINE, "--tensorboard", "--steps", "600", "--checkpoint-every", "200"]
    with Command(folder, "train", *flags, "--out", "runs/x") as command:
        assert command.wait() == 0, command.stderr
        assert command.stderr == ""
        command.assert_nothing_is_left()
        return folder / "runs" / "x", command.stdout


@pytest.fixture
def run(trained: tuple[Path, str], tmp_path: Path) -> Path:
    """A copy of that run, to do anything with."""
    return shutil.copytree(trained[0], tmp_path / "x")


TOO_MUCH = (
    r"passel: the run needs [\d,]+ MB of memory, and [\d,]+ MB can be used here\. "
    r"The largest --capacity that fits is \d+\.\n"
)


class TestMistakes:
    """One sentence with the cause and the cure, exit code 2, and nothing on disk."""

    @pytest.mark.parametrize(
        ("flags", "sentence"),
        [
            (["--env", "CartPol-v1"], 'there is no environment "CartPol-v1". Did you mean CartPole-v1?'),
            (
                ["--env", "Pendulum-v1"],
                "--algo dqn chooses among Discrete actions, and those of Pendulum-v1 are vectors, of length 1. "
                "Use --algo a3c or ppo or awr or impala.",
            ),
            (
                ["--env", "MountainCarContinuous-v0"],
                "--algo dqn chooses among Discrete actions, and those of MountainCarContinuous-v0 are vectors, of "
                "length 1. Use --algo a3c or ppo or awr or impala, or --env MountainCar-v0.",
            ),
            (
                ["--sync", "solo"],
                "--sync solo is one learner that shares nothing, and --workers 2 asks for more. "
                "Use --workers 1, or a scheme that shares: locked, hogwild, server, allreduce, gossip, proximal or "
                "tokenring.",
            ),
            (["--sync", "osmosis"], f"there is no --sync osmosis. Choose from {', '.join(SCHEMES)}."),
            (["--shards", "2"], "--shards has no effect without --sync server. Add --sync server, or leave it out."),
            (
                ["--batch", "2000"],
                "--batch 2000 is more than the 1000 transitions that --capacity 2000 leaves each of 2 workers. "
                "Use a larger --capacity or a smaller --batch.",
            ),
            (["--gamma", "1.5"], "--gamma is 1.5, and must be from 0 to 1."),
            (["--worker", "3"], "there is no --worker. Did you mean --workers?"),
            (["--steps", "1e5x"], "argument --steps: 1e5x is not a whole number"),
            (["--steps", "inf"], "argument --steps: inf is not a whole number"),
            (["--lr", "fast"], "argument --lr: fast is not a number"),
            (
                ["--eval-episodes", "0", "--until-solved"],
                "--until-solved needs an evaluation to confirm it, and --eval-episodes 0 turns evaluations off. "
                "Leave one of the two out.",
            ),
            (["--zzz"], "there is no --zzz. `passel train --help` lists what there is."),
            (
                ["--env", "passel.testing.envs:passel/Countdown-v0", "--until-solved"],
                "passel.testing.envs:passel/Countdown-v0 does not say when it is solved. "
                "Give --solved-at a mean return.",
            ),
        ],
    )
    def test_flags(self, told: Callable[..., Said], flags: list[str], sentence: str) -> None:
        assert told("train", *INLINE, *flags, "--out", "run") == (2, "", f"passel: {sentence}\n")
        assert os.listdir() == []

    @pytest.mark.parametrize(
        ("text", "sentence"),
        [
            ("worker = 2", "there is no setting called worker in the configuration. Did you mean workers?"),
            ('workers = "two"', "workers is 'two', and must be a whole number"),
            ("[net]\nhidden = 64", "hidden is 64, and must be a list of positive whole numbers such as [128, 128]"),
            ("workers = = 2", "my.toml is not valid TOML: Invalid value (at line 1, column 11)"),
            ('backend = "unreal"', "backend is 'unreal', and must be one of auto, ale, gymnasium, envpool"),
        ],
    )
    def test_a_configuration_file(self, told: Callable[..., Said], text: str, sentence: str) -> None:
        Path("my.toml").write_text(text)
        code, out, said = told("train", "--config", "my.toml", "--place", "inline", "--out", "run")
        assert (code, out) == (2, "")
        assert said.rstrip(".\n") == f"passel: {sentence}".rstrip(".")
        assert os.listdir() == ["my.toml"]

    def test_no_such_configuration_file(self, told: Callable[..., Said]) -> None:
        sentence = "there is no file my.toml. Give --config the path of a TOML file."
        assert told("train", "--config", "my.toml", "--place", "inline") == (2, "", f"passel: {sentence}\n")
        assert os.listdir() == []

    @pytest.mark.parametrize("command", ["eval", "resume", "video"])
    def test_no_run(self, told: Callable[..., Said], command: str, run: Path) -> None:
        Path("empty").mkdir()
        code, _, said = told(command, "empty")
        assert code == 2
        assert said.startswith("passel: empty is not a run: it has no config.toml and no card.json. ")
        assert said.endswith('The nearest run is "x".\n'), said
        code, _, said = told(command, "y")
        assert (code, said) == (2, 'passel: there is no run y. The nearest run is "x".\n')
        assert sorted(os.listdir()) == ["empty", "x"]
        assert os.listdir("empty") == []

    def test_nothing_to_plot(self, told: Callable[..., Said]) -> None:
        sentence = (
            "y/metrics.jsonl cannot be read (No such file or directory). Give the folder of a run, as runs/<name>."
        )
        assert told("plot", "y") == (2, "", f"passel: {sentence}\n")
        assert os.listdir() == []

    def test_a_folder_that_holds_a_run(self, told: Callable[..., Said], run: Path) -> None:
        before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.name != ".lock"}
        sentence = "x already holds a run. Use `passel resume x`, or another --out."
        assert told("train", *INLINE, "--out", "x") == (2, "", f"passel: {sentence}\n")
        assert {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.name != ".lock"} == before

    def test_a_run_that_somebody_else_is_writing(self, told: Callable[..., Said], run: Path) -> None:
        sentence = f"x is in use by process {os.getpid()} on {socket.gethostname()}. Stop it or wait until it ends."
        with RunFolder.open(run):
            assert told("resume", "x", "--steps", "900") == (2, "", f"passel: {sentence}\n")
            assert told("train", *INLINE, "--out", "x") == (2, "", f"passel: {sentence}\n")
            assert told("eval", "x", "--episodes", "1")[0] == 0, "to look is allowed"

    def test_a_run_that_is_finished(self, told: Callable[..., Said], run: Path) -> None:
        sentence = f"x has already taken {newest(run).step} of 600 steps. Use --steps with a larger number."
        assert told("resume", "x") == (2, "", f"passel: {sentence}\n")

    def test_more_memory_than_there_is_in_one_process(self, told: Callable[..., Said]) -> None:
        code, out, said = told("train", *INLINE, "--capacity", "1e13", "--out", "run")
        assert (code, out) == (2, "")
        assert re.fullmatch(TOO_MUCH, said)
        assert os.listdir() == []

    def test_more_memory_than_there_is_in_many(self, tmp_path: Path) -> None:
        with Command(tmp_path, "train", *TINY, "--capacity", "1e13", "--out", "run") as command:
            assert command.wait() == 2
            command.assert_nothing_is_left()
            assert re.fullmatch(TOO_MUCH, command.stderr)
            assert command.stdout == ""
        assert os.listdir(tmp_path) == []

    def test_no_command(self, told: Callable[..., Said]) -> None:
        code, out, said = told("trian")
        assert (code, out) == (2, "")
        assert said.startswith("passel: ")
        assert "train" in said
        assert "Traceback" not in said


class TestNumbersThatAreNone:
    """What was learnt until then is kept, and the sentence says where to look."""

    def test_in_the_observations(self, told: Callable[..., Said]) -> None:
        flags = ["--env", "passel.testing.envs:passel/NaN-v0", "--quiet", "--out", "run"]
        code, out, said = told("train", *INLINE, *flags)
        assert (code, out) == (2, "")
        where = r"\(passel\.testing\.envs:passel/NaN-v0, copy \d+, step \d+ of the episode with seed \d+\)"
        said = " ".join(said.split())
        assert re.match(f"passel: the environment's observations hold NaN or infinity {where}. Correct the", said)
        assert summary(Path("run"))["status"] == "failed"
        assert kinds(Path("run"))[-1] == "failed"
        assert_whole(Path("run"))

    def test_in_a_layer(self, told: Callable[..., Said]) -> None:
        """A learning rate beyond all reason, which sets in after some good checkpoints."""
        flags = [
            "--layer-norm",
            "no",
            "--lr-end",
            "none",
            "--optimizer",
            "sgd",
            "--lr",
            "1e30",
            "--warmup",
            "200",
            "--checkpoint-every",
            "50",
            "--quiet",
        ]
        code, out, said = told("train", *INLINE, *flags, "--out", "run")
        assert (code, out) == (2, "")
        assert re.match(
            r"passel: the loss is (nan|inf): the (output|weights) of layer [\w.]+ (is|are) no longer finite\.", said
        )
        assert "--lr" in said
        assert summary(Path("run"))["status"] == "failed"
        assert newest(Path("run")).groups["parameters"]["sync/q/vector"].isfinite().all()
        assert_whole(Path("run"))


def test_a_full_disk(tmp_path: Path) -> None:
    """No file may grow beyond 200 kB: the memory of a checkpoint does not fit, all else does."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    run = tmp_path / "run"
    with Command(
        tmp_path, "train", *INLINE, "--capacity", "2e4", "--steps", "200", "--out", "run", before=limit
    ) as command:
        assert command.wait() == 2
        assert command.stderr == (
            "passel: the checkpoint cannot be written in run (File too large). Mend that or choose another --out.\n"
        )
        command.assert_nothing_is_left()
    assert not list(run.glob("checkpoints/*"))
    assert_whole(run)
    assert summary(run)["status"] == "failed"
    assert summary(run)["checkpoint"] is None


class TestTrain:
    def test_piped_output_is_plain(self, trained: tuple[Path, str]) -> None:
        """A line of facts, a line a report in ASCII, and the closing page: no control characters."""
        path, out = trained
        lines = out.splitlines()
        assert lines[0] == "CartPole-v1: dqn, hogwild, inline, workers 2, exact"
        reports = [line for line in lines if " steps/s | " in line]
        assert 1 <= len(reports) <= 5
        assert all(line.isascii() for line in reports)
        assert reports[-1].startswith("100.0% | ")
        assert "\x1b" not in out
        assert "\r" not in out
        assert any(line.startswith("Finished, not solved (that takes 475)") for line in lines)
        assert "passel resume runs/x" in out
        for name in (
            "config.toml",
            "card.json",
            "metrics.jsonl",
            "events.jsonl",
            "episodes.csv",
            "checkpoints/",
            "tb/",
            "summary.json",
        ):
            assert name in out, name
            assert (path / name).exists()

    def test_what_it_leaves_on_disk(self, trained: tuple[Path, str]) -> None:
        path, _ = trained
        config = tomllib.loads((path / "config.toml").read_text())
        assert config["env"] == "CartPole-v1"
        assert config["workers"] == 2
        assert config["hidden"] == [8]
        assert config["huber"] == DQNConfig.huber, "also what was not said is written down"
        assert 600 <= summary(path)["steps"] < 620
        assert summary(path)["eval"]["episodes"] == 3
        happened = [kind for kind in kinds(path) if kind not in ("first step", "evaluated")]
        assert happened == ["started", *["checkpointed"] * 3, "finished"]
        assert kinds(path).count("evaluated") >= 2
        assert rows(path / "metrics.jsonl")[-1]["phase"] == "finished"
        assert list((path / "tb").iterdir())
        assert_whole(path)

    def test_quiet(self, told: Callable[..., Said]) -> None:
        assert told("train", *INLINE, "--steps", "100", "--quiet", "--out", "run") == (0, "", "")
        assert told("resume", "run", "--steps", "200", "--quiet") == (0, "", "")
        assert summary(Path("run"))["steps"] >= 200

    def test_quiet_is_asked_for_anew_when_a_run_is_resumed(self, told: Callable[..., Said]) -> None:
        assert told("train", *INLINE, "--steps", "100", "--out", "run")[1]
        assert told("resume", "run", "--steps", "200", "--quiet") == (0, "", "")
        assert "over 3 greedy episodes" in told("resume", "run", "--steps", "300")[1]

    def test_without_an_evaluation(self, told: Callable[..., Said]) -> None:
        """Nothing confirms that it is solved: it trains to its last step, whatever the returns."""
        flags = [*INLINE, "--steps", "1600", "--solved-at", "1", "--eval-episodes", "0", "--quiet", "--out", "run"]
        flags += ["--env", "passel.testing.envs:passel/Identity-v0", "--envs", "16"]
        assert told("train", *flags) == (0, "", "")
        found = summary(Path("run"))
        assert (found["status"], found["eval"], found["solved_at_steps"]) == ("finished", None, None)
        assert found["episodes"] > 100
        assert found["return_mean_100"] >= 1
        assert told("resume", "run", "--steps", "1700", "--quiet") == (0, "", "")

    def test_flags_stand_above_the_file(self, told: Callable[..., Said]) -> None:
        Path("my.toml").write_text('place = "inline"\nlr = 5e-4\ngamma = 0.9\n\n[run]\nsteps = 1e2\nquiet = true\n')
        flags = [*TINY, "--gamma", "0.8", "--out", "run"]
        assert told("train", "--config", "my.toml", *flags) == (0, "", "")
        config = tomllib.loads(Path("run/config.toml").read_text())
        assert (config["lr"], config["gamma"], config["steps"], config["place"]) == (5e-4, 0.8, 100, "inline")

    def test_the_written_configuration_is_the_run(self, told: Callable[..., Said]) -> None:
        """`--config runs/x/config.toml` trains the same weights again."""
        assert told("train", *INLINE, "--steps", "200", "--seed", "7", "--quiet", "--out", "one") == (0, "", "")
        assert told("train", "--config", "one/config.toml", "--out", "two") == (0, "", "")
        assert told("train", "--config", "one/config.toml") == (0, "", ""), "in another folder than the run's own"
        (named,) = Path("runs").iterdir()
        one, two, three = (
            newest(path).groups["parameters"]["sync/q/vector"] for path in (Path("one"), Path("two"), named)
        )
        assert one.equal(two)
        assert one.equal(three)
        assert sorted(path.name for path in Path("one").iterdir()) == sorted(path.name for path in named.iterdir())

    def test_a_name_when_none_is_given(self, told: Callable[..., Said]) -> None:
        for _ in range(2):
            assert told("train", *INLINE, "--steps", "50", "--seed", "3", "--quiet")[0] == 0
        name = "CartPole-v1-dqn-hogwild-2w-s3"
        assert sorted(os.listdir("runs")) == [name, f"{name}-2"]

    def test_help_has_every_setting(self, told: Callable[..., Said]) -> None:
        code, out, said = told("train", "--help")
        assert (code, said) == (0, "")
        for field in (*dataclasses.fields(RunConfig), *dataclasses.fields(DQNConfig)):
            flag = field.metadata.get("flag", field.name).replace("_", "-")
            assert f"--{flag}" in out, field.name
            words = "".join(field.metadata["help"].split())
            assert words in "".join(out.split()), field.name


class TestLooking:
    """Commands that read a run and change nothing of it."""

    def test_eval(self, told: Callable[..., Said], run: Path) -> None:
        code, out, said = told("eval", "x", "--episodes", "20", "--seed", "5")
        assert (code, said) == (0, "")
        line = r"20 greedy episodes: ([\d.]+) ± ([\d.]+) \(from ([\d.]+) to ([\d.]+)\); checkpoint: step (\d+)\n"
        found = re.fullmatch(line, out)
        assert found, out
        mean, std, low, high = map(float, found.groups()[:4])
        assert found[5] == str(passel.load(run).step)
        last = told("eval", "x", "--episodes", "20", "--seed", "5", "--last")[1]
        assert last.endswith(f"; checkpoint: step {newest(run).step}\n")
        assert 8 <= low <= mean <= high <= 500
        assert std <= high - low
        assert told("eval", "x", "--episodes", "20", "--seed", "5")[1] == out, "a seed is a set of episodes"
        assert told("eval", "x", "--episodes", "20", "--seed", "6")[1] != out
        drawn = told("eval", "x", "--episodes", "20", "--seed", "5", "--sample")[1]
        assert drawn == out.replace("greedy ", ""), "the preset's exploration ends at 0"
        assert told("eval", "x", "--episodes", "0") == (2, "", "passel: --episodes is 0, and must be at least 1.\n")

    def test_eval_in_another_environment_of_the_same_shape(self, told: Callable[..., Said], run: Path) -> None:
        """CartPole-v0 is the same game, and ends after 200 steps."""
        same, shorter = (told("eval", "x", "--env", env, "--seed", "5") for env in ("CartPole-v1", "CartPole-v0"))
        assert same == told("eval", "x", "--seed", "5")
        assert shorter[0] == 0
        assert float(shorter[1].split(" to ")[1].split(")")[0]) <= 200
        code, _, said = told("eval", "x", "--env", "Acrobot-v1")
        assert code == 2
        assert "Acrobot-v1 shows (6,) of float32 and has 3 actions" in said

    def test_plot(self, told: Callable[..., Said], run: Path) -> None:
        pytest.importorskip("matplotlib")
        assert told("plot", "x") == (0, "x/plot.png\n", "")
        assert (run / "plot.png").read_bytes().startswith(b"\x89PNG")
        shutil.copytree(run, run.parent / "y")
        code, out, _ = told("plot", "x", "y", "--x", "seconds", "--out", "both.png")
        assert (code, out) == (0, "both.png\n")
        assert Path("both.png").read_bytes().startswith(b"\x89PNG")

    def test_plot_of_all_runs_in_a_folder(self, told: Callable[..., Said], run: Path) -> None:
        pytest.importorskip("matplotlib")
        shutil.copytree(run, "runs/one")
        shutil.copytree(run, "runs/two")
        assert told("plot", "runs") == (0, "runs/plot.png\n", "")
        one = told("plot", "runs/one", "runs/two", "--out", "both.png")
        assert one[0] == 0
        assert Path("runs/plot.png").read_bytes() == Path("both.png").read_bytes()

    def test_list_of_runs(self, told: Callable[..., Said], run: Path) -> None:
        shutil.copytree(run, "runs/ended")
        shutil.copytree(run, "runs/killed")
        Path("runs/killed/summary.json").unlink()
        shutil.copytree(run, "runs/odd")
        Path("runs/odd/config.toml").write_text("= =")
        code, out, said = told("list", "runs")
        assert (code, said) == (0, "")
        assert re.search(r"^runs/ended +CartPole-v1 +dqn +hogwild +finished +60\d +[\d.]+ *$", out, re.MULTILINE), out
        assert re.search(r"^runs/killed +CartPole-v1 +dqn +hogwild +not ended", out, re.MULTILINE), out
        assert re.search(r"^runs/odd .*damaged", out, re.MULTILINE), out
        assert told("list", "none") == (2, "", "passel: there are no runs in none. Start one with `passel train`.\n")

    def test_no_command_is_help(self, told: Callable[..., Said]) -> None:
        code, out, said = told()
        assert (code, said) == (0, "")
        assert out.startswith("usage: passel ")
        assert (code, out, said) == told("--help")

    def test_no_episodes_to_film(self, told: Callable[..., Said], run: Path) -> None:
        assert told("video", "x", "--episodes", "0") == (2, "", "passel: --episodes is 0, and must be at least 1.\n")

    def test_video(self, told: Callable[..., Said], run: Path) -> None:
        pytest.importorskip("av")
        pytest.importorskip("pygame")
        code, out, said = told("video", "x", "--episodes", "3")
        assert (code, said) == (0, "")
        films = [
            re.fullmatch(r"(x/videos/\S+)  (\w+): score ([\d.]+), (\d+) steps; checkpoint: step \d+", line)
            for line in out.splitlines()
        ]
        assert [film and film[2] for film in films] == ["best", "median", "worst"]
        scores = [float(film[3]) for film in films if film]
        assert scores == sorted(scores, reverse=True)
        for film in films:
            assert film
            assert Path(film[1]).stat().st_size > 500
            assert float(film[3]) == int(film[4]), "a step of CartPole pays 1"

    def test_list(self, told: Callable[..., Said]) -> None:
        code, out, said = told("list")
        assert (code, said) == (0, "")
        for name, scheme in SCHEMES.items():
            assert re.search(rf"^  {name}\s+{re.escape(scheme.summary)} *$", out, re.MULTILINE), name
            assert re.search(rf"^  {name}\s+runs ", out, re.MULTILINE), name
        for word in (*ALGORITHMS, "inline", "processes", "LunarLander-v3"):
            assert re.search(rf"^  {word} ", out, re.MULTILINE), word
        assert "(1) --sync solo is one learner that shares nothing" in out

    def test_doctor(self, told: Callable[..., Said]) -> None:
        import torch

        code, out, said = told("doctor")
        assert (code, said) == (0, "")
        number = torch.__version__.partition("+")[0]  # builds for a GPU have a suffix, and not all in their metadata
        assert re.search(rf"^torch\s+{re.escape(number)}(\+\w+)?$", out, re.MULTILINE)
        assert re.search(rf"^passel\s+{re.escape(__version__)}$", out, re.MULTILINE)
        assert re.search(r"^cores\s+\d+ usable of \d+", out, re.MULTILINE)
        for part in ("envpool", "Box2D", "matplotlib", "av"):
            assert re.search(rf"^{part}\s.*: (there|missing: pip install 'passel\[\w+\]')$", out, re.MULTILINE), part

    def test_version(self, told: Callable[..., Said]) -> None:
        assert told("--version") == (0, f"passel {__version__}\n", "")


def test_a_reader_that_goes_away(tmp_path: Path) -> None:
    """`passel list | head -1`: no traceback."""
    process = subprocess.Popen(
        [sys.executable, "-m", "passel", "list"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        process.stdout.close()
        assert process.stderr.read() == b""
        process.wait(30)


def test_the_console_script_is_the_module() -> None:
    script = Path(sys.executable).with_name("passel")
    if not script.exists():
        pytest.skip("passel is not installed beside this Python")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == f"passel {__version__}\n"


def test_keys(told: Callable[..., Said], tmp_path: Path) -> None:
    code, said, _ = told("keys", "secrets")
    assert code == 0
    assert said.splitlines()[0] == (
        "secrets/server.json  for the server: passel serve-env ID --bind tcp://0.0.0.0:5555 --key secrets/server.json"
    )
    assert (tmp_path / "secrets" / "client.json").exists()
    code, _, said = told("keys", "secrets")
    assert code == 2
    assert "secrets/server.json exists" in said


def test_serve_env_is_the_server_in_whatever_interpreter(tmp_path: Path) -> None:
    with Command(tmp_path, "serve-env", "--help") as command:
        assert command.wait() == 0
        assert command.stdout.startswith("usage: passel serve-env")
    with Command(
        tmp_path, "serve-env", "--python", sys.executable, "CartPole-v1", "--bind", "tcp://1.2.3.4:5"
    ) as command:
        assert command.wait() == 2
        assert command.stderr.startswith("passel: tcp://1.2.3.4:5 can be reached from other machines")
    with Command(tmp_path, "serve-env", "--python", "/no/python", "CartPole-v1") as command:
        assert command.wait() == 2
        assert command.stderr.startswith("passel: /no/python cannot be run (No such file or directory).")


@pytest.mark.parametrize("words", [["list"], ["plot"], ["train", "--config"], ["train", "--from"]])
@pytest.mark.parametrize("reason", [errno.ENAMETOOLONG, errno.EACCES])
def test_a_path_that_the_system_refuses_is_a_sentence(
    words: list[str], reason: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(path: Path) -> bool:
        raise OSError(reason, os.strerror(reason), str(path))

    monkeypatch.setattr(Path, "exists", refused)
    assert main([*words, "somewhere"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("passel: somewhere")
    assert f"cannot be used ({os.strerror(reason)})" in said
