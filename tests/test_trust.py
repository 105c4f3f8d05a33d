"""A run folder is data: what it names is imported, or connected to, only with the consent of the user."""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import pytest

import passel
from harness import Command
from passel import trained, trust
from passel.cli import main
from passel.envs import remote_link
from passel.envs.build import build
from passel.envs.remote_errors import RefusedError
from passel.study.transfer import transfer
from passel.types import PasselError
from passel.view.terminal import PlainView, QuietView
from small import CORRIDOR, SMALL

PAYLOAD = "a_payload_of_a_stranger"
#: A module that says that it was imported, and has an environment.
SOURCE = f"""
import pathlib
import gymnasium as gym
pathlib.Path(__file__).with_name("imported").touch()
from passel.testing.envs import Corridor
gym.register("{PAYLOAD}-v0", Corridor, max_episode_steps=20)
"""
ADDRESS = "tcp://203.0.113.7:5555"


class Notes(QuietView):
    """A view that keeps the messages."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is signed with another key than the tests have."""
    return _train(tmp_path_factory.mktemp("made") / "run")


def _train(path: Path, **settings: Any) -> Path:
    return passel.train(**{**SMALL, "steps": 120, "out": str(path), **settings}).path


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of settings, a current folder, and a module in it."""
    folder = tmp_path / "settings"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    (tmp_path / f"{PAYLOAD}.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, PAYLOAD, raising=False)
    monkeypatch.delitem(gym.registry, f"{PAYLOAD}-v0", raising=False)
    return folder


@pytest.fixture
def stranger(made: Path, tmp_path: Path) -> Callable[..., Path]:
    """A run of another user, whose key this user does not have, with some settings changed."""

    def change(**settings: str) -> Path:
        return _changed(shutil.copytree(made, tmp_path / "x"), **settings)

    return change


def _changed(run: Path, **settings: str) -> Path:
    text = (run / "config.toml").read_text()
    for key, value in settings.items():
        line = f'{key} = "{value}"'
        text = "\n".join(line if each.startswith(f"{key} = ") else each for each in text.split("\n"))
    (run / "config.toml").write_text(text)
    return run


CALLS: dict[str, Callable[..., Any]] = {
    "evaluate": lambda run, **more: passel.evaluate(run, episodes=1, **more),
    "film": lambda run, **more: trained.film(run, episodes=1, **more),
    "resume": lambda run, **more: passel.resume(run, steps=240, quiet=True, **more),
}
LEVEL_CALLS: dict[str, Callable[..., Any]] = {
    "evaluate": CALLS["evaluate"],
    "film": CALLS["film"],
    "levels": trained.evaluate_levels,
    "transfer": lambda run, **more: transfer(run, steps=100, **more),
}


def _refusal(call: Callable[..., Any], run: Path) -> str:
    with pytest.raises(PasselError) as caught:
        call(run)
    assert "--trust" in str(caught.value)
    assert "--env" in str(caught.value)
    return str(caught.value)


class TestAStrangersRun:
    @pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
    @pytest.mark.parametrize(
        "env", ["antigravity:X-v0", f"{PAYLOAD}:{PAYLOAD}-v0", f"{PAYLOAD}:Corridor", f"{PAYLOAD}.a:b:C"]
    )
    def test_does_not_choose_what_is_imported(
        self, call: Callable[..., Any], env: str, stranger: Callable[..., Path]
    ) -> None:
        said = _refusal(call, stranger(env=env))
        assert f"asks for the module {env.rpartition(':')[0]}, whose code would run" in said
        assert "was not made by this user" in said
        assert PAYLOAD not in sys.modules
        assert "antigravity" not in sys.modules
        assert not Path("imported").exists()

    @pytest.mark.parametrize("call", LEVEL_CALLS.values(), ids=LEVEL_CALLS)
    @pytest.mark.parametrize(
        ("level", "asked"),
        [
            (f'id = "{PAYLOAD}:{PAYLOAD}-v0"', f"the module {PAYLOAD}"),
            (f'id = "GymV26Environment-v0"\nkwargs = {{ env_id = "{PAYLOAD}:X" }}', f"the environment '{PAYLOAD}:X'"),
            (f'id = "{CORRIDOR}"\nkwargs = {{ name = "/tmp/x" }}', "the file '/tmp/x'"),
            ('id = "passel.testing.envs:passel/Crash-v0"\nkwargs = { marker = "made" }', "with arguments"),
        ],
        ids=["id", "argument", "file", "marker"],
    )
    def test_nor_does_its_list_of_levels(
        self, call: Callable[..., Any], level: str, asked: str, stranger: Callable[..., Path], tmp_path: Path
    ) -> None:
        file = tmp_path / "levels.toml"
        file.write_text(f'[[train]]\nid = "{CORRIDOR}"\n[[held_out]]\n{level}\n')
        run = stranger()
        (run / "config.toml").write_text(f'env = "levels:{file}"\nalgo = "ppo"\nplace = "inline"\nworkers = 1\n')
        assert asked in _refusal(call, run)
        assert not Path("imported").exists()
        assert not Path("made").exists()

    @pytest.mark.parametrize("call", ["evaluate", "resume"])
    @pytest.mark.parametrize("env", [ADDRESS, "ipc:///tmp/socket", "TCP://203.0.113.7:5555"])
    def test_does_not_choose_where_to_connect(
        self, call: str, env: str, stranger: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(remote_link.zeromq, "load", lambda: pytest.fail("connects"))
        run = stranger(env=env, env_key=str(tmp_path / "client.json") if env == ADDRESS else "")
        assert f"connection to {env}" in _refusal(CALLS[call], run)

    def test_is_used_as_the_user_says(self, stranger: Callable[..., Path]) -> None:
        """By its name on this call, or as a whole; a module that another name asks for is not imported by either."""
        run = stranger(env=f"{PAYLOAD}:{PAYLOAD}-v0")
        assert passel.evaluate(run, episodes=1, env=CORRIDOR).episodes == 1
        assert not Path("imported").exists()
        named = passel.evaluate(run, episodes=1, env=f"{PAYLOAD}:{PAYLOAD}-v0")
        assert Path("imported").exists()
        assert named == passel.evaluate(run, episodes=1, trust=True)
        assert "whose code would run" in _refusal(CALLS["evaluate"], run)

    def test_is_not_signed_by_a_resume_with_a_function(self, stranger: Callable[..., Path]) -> None:
        """Which rewrites the configuration, and has not asked about the environment that is named there."""
        run = stranger(env=f"{PAYLOAD}:{PAYLOAD}-v0")
        assert passel.resume(run, lambda: gym.make(CORRIDOR), steps=240, quiet=True).summary.steps >= 240
        assert "whose code would run" in _refusal(CALLS["evaluate"], run)
        assert not Path("imported").exists()

    def test_is_the_users_after_a_resume_that_names_another_environment(self, stranger: Callable[..., Path]) -> None:
        run = stranger(env=f"{PAYLOAD}:{PAYLOAD}-v0")
        assert passel.resume(run, CORRIDOR, steps=240, quiet=True).summary.steps >= 240
        assert passel.evaluate(run, episodes=1).episodes == 1
        assert not Path("imported").exists()

    def test_may_name_what_passel_integrates(self, stranger: Callable[..., Path]) -> None:
        assert passel.evaluate(stranger(env=CORRIDOR), episodes=1).episodes == 1

    @pytest.mark.parametrize("env", ["gymnasium:make", "passel.testing.envs:Corridor", "gymnasium:envs.registration"])
    def test_of_what_passel_integrates_only_ids_are_made(self, env: str, stranger: Callable[..., Path]) -> None:
        with pytest.raises(PasselError, match=r"neither an environment nor a function|there is no environment"):
            passel.evaluate(stranger(env=env), episodes=1)

    def test_is_loaded_plotted_and_begun_from_without_an_import(
        self, stranger: Callable[..., Path], tmp_path: Path
    ) -> None:
        pytest.importorskip("matplotlib")
        run = stranger(env=f"{PAYLOAD}:{PAYLOAD}-v0")
        passel.load(run)
        assert main(["plot", str(run)]) == 0
        _train(tmp_path / "from", start_from=str(run))
        assert not Path("imported").exists()

    def test_is_not_run_again_by_its_configuration(
        self, stranger: Callable[..., Path], capfd: pytest.CaptureFixture[str]
    ) -> None:
        run = stranger(env=f"{PAYLOAD}:{PAYLOAD}-v0")
        command = ["train", "--config", str(run / "config.toml"), "--out", "again"]
        assert main(command) == 2
        assert f"asks for the module {PAYLOAD}" in capfd.readouterr().err
        assert not Path("imported").exists()
        assert main([*command, "--env", CORRIDOR]) == 0
        assert main(["eval", "again", "--episodes", "1"]) == 0
        assert not Path("imported").exists()

    def test_by_the_real_command(self, stranger: Callable[..., Path], tmp_path: Path) -> None:
        """In a folder with the module, which `python -m` can import; workers, and what they come from, neither do."""
        stranger(env=f"{PAYLOAD}:{PAYLOAD}-v0", place="processes")
        with Command(tmp_path, "resume", "x") as started:
            assert started.wait() == 2
            assert f"passel: x asks for the module {PAYLOAD}, whose code would run" in started.stderr
        assert not Path("imported").exists()

    def test_a_signature_of_another_run_is_none(self, stranger: Callable[..., Path], tmp_path: Path) -> None:
        own = _train(tmp_path / "own")
        run = stranger(env=f"{PAYLOAD}:{PAYLOAD}-v0")
        shutil.copy(own / "signature", run / "signature")
        assert "has changed since passel wrote it" in _refusal(CALLS["evaluate"], run)


class TestARunOfTheUsers:
    def test_needs_no_flag_wherever_it_is(self, tmp_path: Path) -> None:
        run = _train(tmp_path / "run", env=f"{PAYLOAD}:{PAYLOAD}-v0").rename(tmp_path / "moved")
        assert passel.evaluate(run, episodes=1).episodes == 1
        assert passel.resume(run, steps=240, quiet=True).summary.steps >= 240
        assert passel.resume(run, steps=360, quiet=True).summary.steps >= 360, "again"
        again = ["train", "--config", str(run / "config.toml"), "--out", str(tmp_path / "again")]
        assert main(again) == 0
        assert trust.standing(tmp_path / "again") == "own"

    def test_that_was_changed_by_hand(self, tmp_path: Path) -> None:
        run = _changed(_train(tmp_path / "run", env=f"{PAYLOAD}:{PAYLOAD}-v0"), out="elsewhere")
        said = _refusal(CALLS["resume"], run)
        assert said.startswith(f"the configuration of {run} has changed since passel wrote it, and asks for the module")
        passel.resume(run, steps=240, quiet=True, trust=True)
        assert passel.resume(run, steps=360, quiet=True).summary.steps >= 360, "trusted once, it is the user's own"

    def test_whose_levels_were_changed(self, tmp_path: Path) -> None:
        """What decides about imports is signed with it."""
        file = tmp_path / "levels.toml"
        file.write_text(f'[[train]]\nid = "{PAYLOAD}:{PAYLOAD}-v0"\n')
        settings = {"algo": "ppo", "env": f"levels:{file}", "workers": 1, "steps": 64, "horizon": 8, "out": "run"}
        few = {key: SMALL[key] for key in ("place", "envs", "hidden", "eval_episodes", "tensorboard", "quiet")}
        run = passel.train(**few, **settings).path
        assert passel.evaluate(run, episodes=1).episodes == 1
        file.write_text('[[train]]\nid = "antigravity:X-v0"\n')
        assert "asks for the module antigravity" in _refusal(CALLS["evaluate"], run)
        assert "antigravity" not in sys.modules

    @pytest.mark.parametrize("env", [CORRIDOR, f"{PAYLOAD}:{PAYLOAD}-v0"])
    def test_trains_without_a_folder_for_the_key(
        self, env: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One notice, where it will matter."""
        (tmp_path / "file").touch()
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
        view = Notes()
        run = _train(tmp_path / "run", env=env, view=view)
        assert not (run / "signature").exists()
        notices = [text for text in view.messages if "--trust" in text]
        assert len(notices) == (PAYLOAD in env)
        for text in notices:
            assert re.fullmatch(
                r"The run is not signed: \S+ cannot be \w+ \(Not a directory\)\. .*need --trust\.", text
            )

    def test_trains_without_a_home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("XDG_CONFIG_HOME")
        monkeypatch.setenv("HOME", str(tmp_path / "none"))
        run = _train(tmp_path / "run")
        assert trust.standing(run) == "unsigned"
        assert not (tmp_path / "none").exists()


class TestTheKey:
    @pytest.fixture
    def run(self, tmp_path: Path) -> Path:
        run = tmp_path / "run"
        run.mkdir()
        (run / "config.toml").write_text('env = "os:X"\n')
        return run

    def test_is_for_this_user_only(self, run: Path, home: Path) -> None:
        assert trust.standing(run) == "unsigned"
        assert not home.exists(), "to look makes none"
        assert trust.sign(run) is None
        assert trust.standing(run) == "own"
        key = trust.key_file()
        assert key == home / "passel" / "run.key"
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700
        assert os.listdir(key.parent) == ["run.key"]
        assert key.read_bytes().hex() not in (run / "signature").read_text()

    def test_is_one_though_many_make_it_at_once(self, run: Path, tmp_path: Path) -> None:
        runs = [shutil.copytree(run, tmp_path / str(number)) for number in range(16)]
        with ThreadPoolExecutor(16) as pool:
            assert set(pool.map(trust.sign, runs)) == {None}
        assert {trust.standing(each) for each in runs} == {"own"}
        assert os.listdir(trust.key_file().parent) == ["run.key"]

    def test_made_a_moment_later_it_replaces_none(self, run: Path) -> None:
        trust.sign(run)
        trust._make_key(trust.key_file())  # by a process that saw no key before the first was there
        assert trust.standing(run) == "own"

    def test_of_another_user(self, run: Path) -> None:
        trust.sign(run)
        trust.key_file().unlink()
        assert trust.sign(run.parent / "none") is not None
        assert trust.standing(run) == "unsigned"

    @pytest.mark.parametrize("damage", ["link", "mode", "short", "fifo"])
    def test_that_cannot_be_relied_on_is_not_used(self, damage: str, run: Path, tmp_path: Path) -> None:
        trust.sign(run)
        key = trust.key_file()
        if damage == "link":
            key.rename(tmp_path / "elsewhere")
            key.symlink_to(tmp_path / "elsewhere")
        elif damage == "mode":
            key.chmod(0o640)
        elif damage == "short":
            key.write_bytes(b"short")
        else:
            key.unlink()
            os.mkfifo(key, 0o600)
        assert trust.standing(run) == "unsigned"
        (run / "signature").unlink()
        assert str(key) in (trust.sign(run) or "")
        assert not (run / "signature").exists()

    def test_a_signature_that_is_a_fifo_or_a_link(self, run: Path, tmp_path: Path) -> None:
        trust.sign(run)
        (run / "signature").rename(tmp_path / "signature")
        (run / "signature").symlink_to(tmp_path / "signature")
        assert trust.standing(run) == "unsigned"
        (run / "signature").unlink()
        os.mkfifo(run / "signature")
        assert trust.standing(run) == "unsigned"


class TestEscapeSequences:
    EVIL = "\x1b]0;title\x07\x1b[2J"

    def test_in_the_configuration_of_a_run(
        self, stranger: Callable[..., Path], capfd: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["eval", str(stranger(env="\\u001b[2JX-v0"))]) == 2
        said = capfd.readouterr().err
        assert r"\x1b[2JX-v0" in said
        assert "\x1b" not in said

    @pytest.mark.parametrize("env", ["{}X-v0", "no_such_module{}:X-v0", "small:{}"])
    def test_in_the_name_of_an_environment(self, env: str) -> None:
        with pytest.raises(PasselError, match=r"there is no environment|cannot be imported") as caught:
            build(env.format(self.EVIL))
        assert str(caught.value).isprintable()
        assert r"\x1b]0;title\x07\x1b[2J" in str(caught.value)

    def test_in_the_name_of_a_folder(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        assert main(["eval", f"no{self.EVIL}"]) == 2
        assert r"passel: there is no run no\x1b]0;title\x07\x1b[2J." in capfd.readouterr().err

    def test_in_what_a_run_tells(self, capsys: pytest.CaptureFixture[str]) -> None:
        PlainView(sys.stdout).message(f"Resuming {self.EVIL}.\nOn.")
        assert capsys.readouterr().out == "Resuming \\x1b]0;title\\x07\\x1b[2J.\nOn.\n"

    def test_in_what_a_server_says(self) -> None:
        msgpack = pytest.importorskip("msgpack")
        link = object.__new__(remote_link.Link)
        link._msgpack = msgpack
        header = {"v": 1, "op": "error", "seq": 3, "code": "environment", "say": f"no {self.EVIL}"}
        with pytest.raises(RefusedError) as caught:
            link._read([SimpleNamespace(buffer=msgpack.packb(header))], "step", 3)
        assert str(caught.value) == r"no \x1b]0;title\x07\x1b[2J"
