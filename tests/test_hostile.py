"""A run folder from a stranger, or from a failing disk: every command says one sentence, hangs on nothing, takes no
memory for it, writes nowhere else and sends no command to the terminal.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import passel
from hostile import edit_manifest, replaced_by
from passel import policy as policies
from passel.cli import main
from passel.run import checkpoint
from passel.run.folder import RunFolder
from passel.supervisor import History
from passel.trained import SkippedCheckpointWarning
from passel.types import PasselError
from small import SMALL

pytestmark = pytest.mark.timeout(60)

#: What is done with a run, as a command line. `train` is given another folder for its own run.
COMMANDS: dict[str, list[str]] = {
    "eval": ["eval", "x", "--episodes", "1"],
    "resume": ["resume", "x", "--steps", "500", "--quiet"],
    "video": ["video", "x", "--episodes", "1"],
    "levels": ["levels", "x"],
    "plot": ["plot", "x"],
    "transfer": ["transfer", "x", "--steps", "100"],
    "from": ["train", "--from", "x", "--env", SMALL["env"], "--place", "inline", "--out", "new", "--steps", "100"],
    "config": ["train", "--config", "x/config.toml", "--place", "inline", "--out", "new"],
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "x"
    return passel.train(**SMALL, checkpoint_every=150, sync="hogwild", workers=1, out=str(path)).path


@pytest.fixture
def run(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a run, in the current folder, beside what it must not touch."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made, "x")
    Path("victim").mkdir()
    Path("victim/precious").write_text("mine")
    (Path("victim") / "100").mkdir()
    Path("victim/100/manifest.json").write_text("mine too")
    return Path("x")


def content_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def steps_of(run: Path) -> list[int]:
    return sorted(int(path.name) for path in (run / "checkpoints").iterdir())


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit code and all that was printed, in which nothing commands the terminal."""
    capsys.readouterr()
    try:
        code = main(list(arguments))
    except SystemExit as ended:
        code = int(ended.code or 0)
    captured = capsys.readouterr()
    words = captured.out + captured.err
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", words), repr(words)
    return code, words


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def setting(line: str) -> Callable[[Path], None]:
    """The configuration with another line for the setting that it names."""

    def change(run: Path) -> None:
        key = line.partition("=")[0].strip()
        text = re.sub(rf"(?m)^{key} = (\[[^]]*\]|.*)$", "", (run / "config.toml").read_text())
        (run / "config.toml").write_text(f"{line}\n{text}")

    return change


def env_fact(**facts: Any) -> Callable[[Path], None]:
    return lambda run: edit(run / "card.json", lambda card: card["env"].update(facts))


def every(name: str, make: Callable[[Path], Any]) -> Callable[[Path], None]:
    """The same damage to a file of every checkpoint."""

    def change(run: Path) -> None:
        for step in steps_of(run):
            make(run / "checkpoints" / str(step) / name)

    return change


HUGE = "9" * 5000
READ_BY_ALL = tuple(COMMANDS)
LOADED = ("eval", "resume", "video", "from")

#: What was done to the folder, and which commands must refuse it.
HOSTILE: dict[str, tuple[Callable[[Path], Any], tuple[str, ...]]] = {
    "config is a pipe": (lambda run: replaced_by(run / "config.toml", os.mkfifo), READ_BY_ALL[:4] + READ_BY_ALL[5:]),
    "config is a folder": (
        lambda run: replaced_by(run / "config.toml", os.mkdir),
        READ_BY_ALL[:4] + READ_BY_ALL[5:],
    ),
    "config is huge": (
        lambda run: os.truncate(run / "config.toml", 10**12),
        READ_BY_ALL[:3] + READ_BY_ALL[5:],
    ),
    "config is deep": (
        lambda run: (run / "config.toml").write_text("env = " + "[" * 50_000),
        (*LOADED, "config", "transfer"),
    ),
    "config has a dotted key": (
        lambda run: (run / "config.toml").write_text("a" + ".a" * 50_000 + " = 1"),
        (*LOADED, "config", "transfer"),
    ),
    "config has digits": (setting(f"steps = {HUGE}"), (*LOADED, "config", "transfer")),
    "config has a large number": (setting(f"envs = {10**300}"), (*LOADED, "config")),
    "config has no env": (
        lambda run: (run / "config.toml").write_text('algo = "dqn"\n'),
        (*LOADED, "transfer"),
    ),
    "config's env is a list": (setting("env = [1, 2]"), (*LOADED, "config", "transfer")),
    "config's algo is a list": (setting("algo = [1]"), (*LOADED, "config", "transfer")),
    "config has escapes": (setting(r'env = "\u001b]0;pwned\u0007\u001b[2JX-v0"'), (*LOADED, "config", "transfer")),
    "config is not text": (
        lambda run: (run / "config.toml").write_bytes(b"\xff\x1b[2J"),
        (*LOADED, "config", "transfer"),
    ),
    "config's hidden is absurd": (setting("hidden = [300000, 300000]"), LOADED),
    "config's hidden is a wide one": (setting(f"hidden = [{2**62}]"), LOADED),
    "card is a pipe": (lambda run: replaced_by(run / "card.json", os.mkfifo), LOADED),
    "card is huge": (lambda run: os.truncate(run / "card.json", 10**12), LOADED),
    "card is deep": (lambda run: (run / "card.json").write_text("[" * 10**6), LOADED),
    "card is a list": (lambda run: (run / "card.json").write_text("[]"), LOADED),
    "card has digits": (lambda run: (run / "card.json").write_text(f'{{"env": {HUGE}}}'), LOADED),
    "card has no env": (lambda run: (run / "card.json").write_text("{}"), ("eval", "video", "from")),
    "card's env is text": (
        lambda run: edit(run / "card.json", lambda card: card.update(env="x")),
        ("eval", "video", "from"),
    ),
    "card's observation is absurd": (env_fact(obs_shape=[2 * 10**9]), ("eval", "video", "from")),
    "card's observation has axes": (env_fact(obs_shape=[1] * 10**5), ("eval", "video", "from")),
    "card's observation is none": (env_fact(obs_shape=[0]), ("eval", "video", "from")),
    "card's observation is text": (env_fact(obs_shape="6"), ("eval", "video", "from")),
    "card's actions are absurd": (env_fact(n_actions=2 * 10**9), ("eval", "video", "from")),
    "card's actions are negative": (env_fact(n_actions=-5), ("eval", "video", "from")),
    "card's type is absurd": (env_fact(obs_dtype="V1000000000"), ("eval", "video", "from")),
    "card's type is an object": (env_fact(obs_dtype="object"), ("eval", "video", "from")),
    "card's copies are negative": (env_fact(max_copies=-1), ("eval", "video", "from")),
    "card's scores are equal": (env_fact(reference_scores=[1, 1]), ("eval", "video", "from")),
    "card's back-end is unknown": (env_fact(backend="\u001b[2J"), ("eval", "video", "from")),
    "card's bounds are no bounds": (env_fact(bounds=[[1]]), ("eval", "video", "from")),
    "manifests are pipes": (
        every("manifest.json", lambda path: replaced_by(path, os.mkfifo)),
        LOADED,
    ),
    "manifests are deep": (every("manifest.json", lambda path: path.write_text("[" * 10**6)), LOADED),
    "manifests are huge": (every("manifest.json", lambda path: os.truncate(path, 10**12)), LOADED),
    "parameters are pipes": (
        every("parameters.safetensors", lambda path: replaced_by(path, os.mkfifo)),
        LOADED,
    ),
    "parameters are huge": (every("parameters.safetensors", lambda path: os.truncate(path, 10**12)), LOADED),
    "checkpoints is a file": (
        lambda run: (shutil.rmtree(run / "checkpoints"), (run / "checkpoints").write_text("")),
        LOADED,
    ),
    "metrics is a pipe": (lambda run: replaced_by(run / "metrics.jsonl", os.mkfifo), ("plot", "resume")),
    "metrics is a folder": (lambda run: replaced_by(run / "metrics.jsonl", os.mkdir), ("plot", "resume")),
    "metrics is huge": (lambda run: os.truncate(run / "metrics.jsonl", 10**12), ("plot", "resume")),
    "metrics has one line": (lambda run: os.truncate(run / "metrics.jsonl", 4 * 10**6), ("plot", "resume")),
    "metrics is deep": (
        lambda run: (run / "metrics.jsonl").write_text("[" * 10**5 + "\n{}\n"),
        ("plot", "resume"),
    ),
    "metrics has digits": (
        lambda run: (run / "metrics.jsonl").write_text(f'{{"steps": {HUGE}}}\n{{}}\n'),
        ("plot", "resume"),
    ),
    "metrics has text": (
        lambda run: (run / "metrics.jsonl").write_text('{"steps": "\\u001b[2J", "shares": 3}\n{}\n'),
        ("plot",),
    ),
    "metrics has a threshold in every line": (
        lambda run: (run / "metrics.jsonl").write_text("".join(f'{{"solved_at": {i}}}\n' for i in range(150_000))),
        ("plot",),
    ),
    "metrics has stages without end": (
        lambda run: (run / "metrics.jsonl").write_text(
            "".join(f'{{"shares": {{"{i}.{k}": 1}}}}\n' for i in range(100) for k in range(90))
        ),
        ("plot",),
    ),
    "metrics has a long stage": (
        lambda run: (run / "metrics.jsonl").write_text(f'{{"shares": {{"{"a" * 10**5}": 1}}}}\n{{}}\n'),
        ("plot",),
    ),
    "events is a pipe": (lambda run: replaced_by(run / "events.jsonl", os.mkfifo), ("resume",)),
    "episodes is a pipe": (lambda run: replaced_by(run / "episodes.csv", os.mkfifo), ("resume",)),
    "episodes is huge": (lambda run: os.truncate(run / "episodes.csv", 10**12), ("resume",)),
    "episodes has escapes": (
        lambda run: (run / "episodes.csv").write_bytes(b"step,second,worker,return,length\n" + b"\x1b[2J\n" * 99),
        ("resume",),
    ),
    "the lock is a pipe": (lambda run: replaced_by(run / ".lock", os.mkfifo), ("resume",)),
    "levels is a pipe": (lambda run: os.mkfifo(run / "levels.json"), ("levels",)),
    "levels is deep": (lambda run: (run / "levels.json").write_text("[" * 10**6), ("levels",)),
    "levels is empty": (lambda run: (run / "levels.json").write_text("{}"), ("levels",)),
    "levels has markup": (
        lambda run: (run / "levels.json").write_text(
            '{"set": "x", "gap": null, "actions": "x", "held_out": {"mean": null, "levels": []},'
            ' "train": {"mean": 1, "levels": [{"name": "[/x]\\u001b[2J"}]}}'
        ),
        ("levels",),
    ),
    "the folder of videos is a file": (lambda run: (run / "videos").write_text(""), ("video",)),
}


@pytest.mark.parametrize("value", ['"\\u001b[2J"', "null", "[1]"])
@pytest.mark.parametrize("name", ["steps", "seconds"])
def test_a_line_of_metrics_that_says_anything_does_not_stop_a_resume(
    name: str, value: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "metrics.jsonl").write_text(f'{{"steps": 1}}\n{{"{name}": {value}}}\n')
    code, words = told(capsys, *COMMANDS["resume"])
    assert code == 0, words
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert rows[0] == {"steps": 1}
    assert all(type(row[name]) in (int, float) for row in rows[1:])


@pytest.mark.parametrize(
    "damage", [lambda path: path.write_bytes(b"\xff"), lambda path: os.truncate(path, 10**12)], ids=["bytes", "huge"]
)
def test_a_signature_may_be_anything(
    damage: Callable[[Path], Any], run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever resumes copies it with the run. It is not signed anew, so that it stays as it is."""
    monkeypatch.setattr("passel.api._sign", lambda *_: None)
    damage(run / "signature")
    code, words = told(capsys, *COMMANDS["resume"])
    assert code == 0, words


@pytest.mark.filterwarnings("default::passel.trained.SkippedCheckpointWarning")
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_folder_is_refused_in_a_sentence(
    kind: str, run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    damage, commands = HOSTILE[kind]
    damage(run)
    if kind != "the folder of videos is a file":
        monkeypatch.setattr(policies.Policy, "__init__", lambda *_: pytest.fail("a network was built"))
    victim = content_of(Path("victim"))
    began = time.perf_counter()
    for name in commands:
        code, words = told(capsys, *COMMANDS[name])
        assert code == 2, (name, words)
        assert words.startswith("passel: "), (name, words)
        assert "Traceback" not in words
        assert len(words) < 3000, (name, words)
        assert not Path("new").exists(), name
    assert time.perf_counter() - began < 30
    assert content_of(Path("victim")) == victim


LINKS = {
    ".lock": "victim/precious",
    "events.jsonl": "victim/precious",
    "metrics.jsonl": "victim/precious",
    "episodes.csv": "victim/precious",
    "summary.json": "victim/precious",
    "config.toml": "victim/precious",
    "plot.png": "victim/precious",
    "levels.json": "victim/precious",
    "signature": "victim/precious",
    ".metrics.jsonl.writing": "victim/precious",
    "checkpoints": "victim",
    "tb": "victim",
    "videos": "victim",
    "deep/within/link": "victim",
    "dangling": "nowhere",
    "zero": "/dev/zero",
}


@pytest.mark.parametrize("name", LINKS)
def test_a_run_with_a_link_inside_is_refused_and_nothing_is_touched(
    name: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run / name
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(Path(LINKS[name]).absolute())
    before = content_of(Path("victim"))
    for command in ("eval", "resume", "video", "levels", "plot", "transfer", "from"):
        code, words = told(capsys, *COMMANDS[command])
        assert (code, "is a symbolic link" in words) == (2, True), (command, words)
    for call in (passel.load, passel.evaluate, passel.resume, RunFolder.open):
        with pytest.raises(PasselError, match="is a symbolic link"):
            call(run)  # type: ignore[operator]
    assert content_of(Path("victim")) == before
    assert not Path("nowhere").exists()


def test_a_run_may_be_reached_through_a_link(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("latest").symlink_to(run)
    assert told(capsys, "eval", "latest", "--episodes", "1")[0] == 0
    assert told(capsys, "plot", "latest")[0] == 0
    assert passel.resume("latest", steps=450, quiet=True).summary.steps >= 450
    assert Path("latest").is_symlink()


def test_a_file_with_a_second_name_is_not_written_to(run: Path) -> None:
    (run / ".lock").unlink()
    os.link("victim/precious", run / ".lock")
    with pytest.raises(PasselError, match="second name"):
        passel.resume(run, quiet=True)
    (run / ".lock").unlink()
    (run / "events.jsonl").unlink()
    Path("victim/precious").write_text("{}\n")
    os.link("victim/precious", run / "events.jsonl")
    with pytest.raises(PasselError, match="second name"):
        passel.resume(run, steps=500, quiet=True)
    assert Path("victim/precious").read_text() == "{}\n"


def test_absurd_sizes_are_refused_without_memory_for_them(run: Path) -> None:
    setting("hidden = [100000, 100000]")(run)
    tracemalloc.start()
    try:
        with pytest.raises(PasselError, match=r"weights of .* are not those that config.toml and card.json"):
            passel.load(run)
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden": (17,)}, "weights, and there are"),
        ({"hidden": (2**40, 2**40)}, "a layer of 1099511627776"),
        ({"atoms": 10**12, "distributional": True}, "a layer of 1000000000000"),
        ({"hidden": (16, 100, 100)}, "weights, and there are"),
    ],
)
def test_weights_that_are_not_the_networks_are_named(change: dict[str, Any], words: str) -> None:
    import dataclasses

    import numpy as np

    from passel.algos.dqn import DQN, DQNConfig
    from passel.types import EnvSpec

    spec = EnvSpec("Some-v0", (3,), np.dtype(np.float32), 4)
    fitting = DQNConfig(hidden=(16,))
    vectors = {"q": torch.zeros(3 * 16 + 16 + 16 * 4 + 4)}
    assert policies.why_not(DQN, fitting, spec, vectors) is None
    assert words in str(policies.why_not(DQN, dataclasses.replace(fitting, **change), spec, vectors))
    assert "float32 vector" in str(policies.why_not(DQN, fitting, spec, {"q": vectors["q"].double()}))


class TestWhichCheckpoint:
    def test_the_step_is_told(self, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
        last = steps_of(run)[-1]
        assert passel.load(run).step == last
        assert passel.evaluate(run, episodes=1).step == last
        assert f"; checkpoint: step {last}\n" in told(capsys, *COMMANDS["eval"])[1]

    @pytest.mark.filterwarnings("default::passel.trained.SkippedCheckpointWarning")
    def test_a_damaged_one_is_skipped_aloud(self, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
        *_, older, last = steps_of(run)
        os.truncate(run / "checkpoints" / str(last) / "parameters.safetensors", 100)
        with pytest.warns(SkippedCheckpointWarning, match=rf"{last}/parameters.*of step {older}, is used"):
            assert passel.load(run).step == older
        code, words = told(capsys, *COMMANDS["eval"])
        assert code == 0
        assert f"checkpoints/{last}/parameters.safetensors has 100 bytes" in words
        assert f"checkpoint: step {older}" in words

    @pytest.mark.parametrize("command", ["eval", "video", "from", "resume"])
    def test_all_damaged_is_not_none_yet(self, run: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
        every("parameters.safetensors", lambda path: os.truncate(path, 100))(run)
        code, words = told(capsys, *COMMANDS[command])
        assert code == 2
        assert "all are damaged" in words or "none of its 3 can be used" in words
        assert all(f"checkpoints/{step}/parameters" in words for step in steps_of(run))
        assert "no checkpoint yet" not in words

    def test_parameters_are_enough_to_act(self, run: Path) -> None:
        """A policy does not need the memory of the run, nor the time that it takes to verify that."""
        last = steps_of(run)[-1]
        (run / "checkpoints" / str(last) / "memory.safetensors").unlink()
        assert passel.load(run).step == last


def test_loading_beside_a_writer_that_prunes_finds_a_checkpoint(run: Path) -> None:
    """The only checkpoint is replaced by the next, again and again, between the listing and the reading."""
    step, real = steps_of(run)[-1], checkpoint.load
    for other in steps_of(run)[:-1]:
        shutil.rmtree(run / "checkpoints" / str(other))

    def load_late(path: Path, *rest: Any) -> checkpoint.Checkpoint:
        nonlocal step
        if step < 410:
            new = run / "checkpoints" / str(step + 1)
            (run / "checkpoints" / str(step)).rename(new)
            edit_manifest(new, lambda manifest: manifest.update(step=step + 1))
            step += 1
        return real(path, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "load", load_late)
        assert passel.load(run).step == step == 410


@pytest.mark.filterwarnings("error::passel.trained.SkippedCheckpointWarning")
def test_loading_beside_a_writer_that_writes_the_same_step_again_finds_it(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As every run does at its end, with the result of the evaluation; here between a manifest and its digest."""
    real, last = checkpoint.read_regular, steps_of(run)[-1]
    path, moment = run / "checkpoints" / str(last), iter([True])

    def read(file: Path, *rest: Any, **options: Any) -> bytes:
        found = real(file, *rest, **options)
        if file == path / "manifest.json" and next(moment, False):
            shutil.copytree(path, run / "checkpoints" / ".writing-again")
            edit_manifest(run / "checkpoints" / ".writing-again", lambda manifest: manifest["meta"].update(resumed=7))
            path.rename(run / "checkpoints" / ".removing-it")
            (run / "checkpoints" / ".writing-again").rename(path)
        return found

    monkeypatch.setattr(checkpoint, "read_regular", read)
    monkeypatch.setattr(checkpoint, "_files_of", lambda folder: {"manifest.json"})  # reads it before `load` does
    assert passel.load(run).step == last


def test_two_trainings_at_once_take_two_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have chosen the name before either makes its folder."""
    monkeypatch.chdir(tmp_path)
    together = threading.Barrier(2, timeout=30)
    real = RunFolder.create.__func__  # type: ignore[attr-defined]

    def create(cls: Any, *arguments: Any, **options: Any) -> RunFolder:
        together.wait()
        found: RunFolder = real(cls, *arguments, **options)
        return found

    monkeypatch.setattr(RunFolder, "create", classmethod(create))
    found: list[Path] = []
    both = [
        threading.Thread(target=lambda: found.append(passel.train(**{**SMALL, "steps": 60}, sync="solo").path))
        for _ in range(2)
    ]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert sorted(path.name for path in found) == sorted(path.name for path in Path("runs").iterdir())
    assert len(set(found)) == 2


class TestNothingOfTheUsersIsDeleted:
    @pytest.fixture
    def failing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Workers that cannot be started."""

        def start(_: Any) -> None:
            raise PasselError("they cannot be started. Do something.")

        monkeypatch.setattr("passel.place.inline.Inline.start", start)

    @pytest.mark.usefixtures("failing")
    def test_a_failed_start_leaves_the_disk_as_it_was(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        for out in ("deep/new", "."):
            with pytest.raises(PasselError, match="cannot be started"):
                passel.train(**SMALL, sync="solo", out=out)
            assert list(tmp_path.iterdir()) == []

    @pytest.mark.usefixtures("failing")
    def test_what_appeared_meanwhile_stays(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        out = tmp_path / "out"
        real = RunFolder.event

        def event(folder: RunFolder, *arguments: Any, **fields: Any) -> None:
            real(folder, *arguments, **fields)
            (out / "thesis.txt").write_text("mine")

        monkeypatch.setattr(RunFolder, "event", event)
        with pytest.raises(PasselError, match="cannot be started"):
            passel.train(**SMALL, sync="solo", out=str(out))
        assert content_of(out) == {"thesis.txt": b"mine"}

    def test_a_folder_with_files_is_refused_before_anything_is_built(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "thesis.txt").write_text("mine")
        monkeypatch.setattr("passel.api.make_plan", lambda *_: pytest.fail("it was built"))
        with pytest.raises(PasselError, match=r"is not empty \(it holds thesis.txt\) and is no run"):
            passel.train(**SMALL, sync="solo", out=str(tmp_path))
        assert content_of(tmp_path) == {"thesis.txt": b"mine"}

    def test_a_users_folder_among_the_checkpoints_stays(self, run: Path) -> None:
        last = steps_of(run)[-1]
        mine = {
            "1/notes.txt": "a",
            "2/model.safetensors": "e",
            "9000/model.bin": "b",
            f"{last}/notes.txt": "c",
            ".removing-mine/x.txt": "d",
        }
        for name, text in mine.items():
            path = run / "checkpoints" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        for step in (last, last + 1, last + 2):
            checkpoint.save(run, step, {"parameters": {"t": torch.zeros(1)}}, {}, keep=1)
        assert {name: (run / "checkpoints" / name).read_text() for name in mine} == mine
        found = checkpoint.latest(run, pytest.fail)
        assert found is not None
        assert found.step == last + 2
        assert content_of(run / "checkpoints" / str(last)) == {"notes.txt": b"c"}


class TestEveryByteOfAManifest:
    """A manifest with one wrong byte is noticed, and the checkpoint before it is used."""

    def flips(self, text: bytes, *, one_in: int) -> list[bytes]:
        """One bit wrong: every bit of every different key, and of all others a sample."""
        keys = {found[1]: found for found in reversed(list(re.finditer(rb'"([^"]+)":', text)))}
        places = {8 * at + bit for found in keys.values() for at in range(*found.span()) for bit in range(8)}
        places |= set(range(0, 8 * len(text), one_in))
        return [
            text[: place // 8] + bytes([text[place // 8] ^ 1 << place % 8]) + text[place // 8 + 1 :] for place in places
        ]

    def test_of_this_format(self, run: Path) -> None:
        path = run / "checkpoints" / str(steps_of(run)[-1])
        for name in ("manifest.json", "manifest.sha256"):
            good = (path / name).read_bytes()
            for bad in self.flips(good, one_in=3 if name == "manifest.sha256" else 37):
                (path / name).write_bytes(bad)
                with pytest.raises(checkpoint.BrokenCheckpoint):
                    checkpoint._read_manifest(path)
            (path / name).write_bytes(good)
            checkpoint._read_manifest(path)

    def test_of_the_first_format_never_crashes(self, run: Path) -> None:
        """It has no digest: a wrong number may pass, and nothing else."""
        path = run / "checkpoints" / str(steps_of(run)[-1])
        as_first_format(path)
        good = (path / "manifest.json").read_bytes()
        fields, passed = set(History.from_meta(json.loads(good)["meta"]).__dict__), 0
        for bad in self.flips(good, one_in=37):
            (path / "manifest.json").write_bytes(bad)
            try:
                found = checkpoint._read_manifest(path)
                history = History.from_meta(found["meta"])
            except (checkpoint.BrokenCheckpoint, ValueError):
                continue
            passed += 1
            assert set(vars(history)) == fields
            assert found.keys() <= json.loads(good).keys()
        assert passed > 20, "digits, in the main"


def as_first_format(path: Path) -> None:
    """A checkpoint as the first version of passel wrote it."""
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["format"] = 1
    if manifest["pages"] is None:
        del manifest["pages"]
    (path / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
    (path / "manifest.sha256").unlink()


class TestResume:
    def test_of_the_first_format(self, run: Path) -> None:
        for step in steps_of(run):
            as_first_format(run / "checkpoints" / str(step))
        assert passel.load(run).step == steps_of(run)[-1]
        done = passel.resume(run, steps=450, quiet=True)
        assert done.summary.steps >= 450
        assert json.loads((run / "checkpoints" / str(done.summary.steps) / "manifest.json").read_text())["format"] == 2

    @pytest.mark.parametrize(
        "change",
        [
            lambda meta: meta.update(qpisodes=meta.pop("episodes")),
            lambda meta: meta.update(more=1),
            lambda meta: meta.update(scores="none"),
            lambda meta: meta.update(seconds=None),
            lambda meta: meta.update(resumed=-1),
            lambda meta: meta.update(episodes=10**400),
        ],
    )
    def test_a_checkpoint_whose_meta_cannot_be_used_falls_back(
        self, run: Path, change: Callable[[Any], Any], capsys: pytest.CaptureFixture[str]
    ) -> None:
        *_, older, last = steps_of(run)
        edit_manifest(run / "checkpoints" / str(last), lambda manifest: change(manifest["meta"]))
        code, words = told(capsys, "resume", "x", "--steps", str(older + 60))
        assert code == 0, words
        assert f"x/checkpoints/{last} cannot be used" in words
        assert f"Resuming x at step {older:,}." in words

    def test_a_checkpoint_that_does_not_fit_falls_back(self, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
        *_, older, last = steps_of(run)
        found = checkpoint.load(run / "checkpoints" / str(last))
        del found.groups["workers"]["worker/0/acting"]
        checkpoint.save(run, last, found.groups, found.meta, keep=3)
        code, words = told(capsys, "resume", "x", "--steps", str(last + 60))
        assert code == 0, words
        assert f"x/checkpoints/{last} does not fit (the checkpoint has no" in words
        assert f"Resuming x at step {older:,}." in words


def test_a_checkpoint_is_durable_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file, then the folder that names them; the rename; then the folder that has the new name."""
    calls: list[tuple[str, str]] = []
    fsync, rename = os.fsync, os.rename

    def recorded_fsync(fd: int) -> None:
        calls.append(("fsync", os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))))
        fsync(fd)

    def recorded_rename(source: Any, target: Any) -> None:
        calls.append(("rename", os.path.basename(target)))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(os, "rename", recorded_rename)
    path = checkpoint.save(tmp_path, 7, {"parameters": {"t": torch.zeros(1)}, "memory": {}}, {})
    named = calls.index(("rename", "7"))
    before = [name for kind, name in calls[:named] if kind == "fsync"]
    assert {entry.name for entry in path.iterdir()} == set(before[:-1])
    assert before[-1].startswith(".writing-")
    assert ("fsync", "checkpoints") in calls[named:]
