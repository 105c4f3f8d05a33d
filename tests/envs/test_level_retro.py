"""Games of stable-retro: Airstriker, whose ROM is free, for real; Sonic, as far as one comes without its ROMs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch

import passel
from passel.cli import main
from passel.envs import level_retro, retro_game
from passel.envs.apart import Apart
from passel.envs.level_sets import level_set
from passel.envs.levels import Copies
from passel.envs.retro_game import RetroGame
from passel.types import PasselError


class Emulator:
    """In place of stable-retro's: every frame pays 1, shows its number, and the fifth is the last."""

    buttons = ("B", "A", "MODE", "START", "UP", "DOWN", "LEFT", "RIGHT", "C", "Y", "X", "Z")
    observation_space = SimpleNamespace(shape=(168, 84, 3))

    def __init__(self, last: int = 10**6) -> None:
        self.frames, self.held, self.last = 0, list[list[str]](), last

    def reset(self, seed: int | None = None) -> Any:
        self.frames = 0
        return self._screen(), {}

    def step(self, pad: Any) -> Any:
        self.held.append([name for name, down in zip(self.buttons, pad, strict=True) if down])
        self.frames += 1
        return self._screen(), 1.0, self.frames >= self.last, False, {}

    def _screen(self) -> Any:
        """Two lines of each pixel's height: one dark, one as bright as twice the number of the frame."""
        screen = np.zeros((168, 84, 3), np.uint8)
        screen[::2] = 2 * self.frames % 256
        return screen


def new_game(monkeypatch: pytest.MonkeyPatch, emulator: Emulator) -> RetroGame:
    monkeypatch.setattr(retro_game, "load", lambda: SimpleNamespace(make=lambda *_, **__: emulator))
    return RetroGame("game", "state", level_retro.SONIC_BUTTONS)


def emulators() -> list[psutil.Process]:
    """Our children that hold an emulator."""
    return [child for child in psutil.Process().children() if "passel.envs.apart" in child.cmdline()]


class TestTheGame:
    def test_seven_actions_hold_the_buttons_of_the_contest(self, monkeypatch: pytest.MonkeyPatch) -> None:
        emulator = Emulator()
        game = new_game(monkeypatch, emulator)
        game.reset(seed=0)
        assert game.action_space.n == 7  # type: ignore[attr-defined]
        for action in range(7):
            game.step(action)
        assert emulator.held[3::4] == [
            *(["LEFT"], ["RIGHT"], ["DOWN", "LEFT"], ["DOWN", "RIGHT"]),
            *(["DOWN"], ["B", "DOWN"], ["B"]),
        ]

    def test_four_frames_a_step_and_the_old_buttons_stick_in_the_first_of_a_quarter_of_them(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        emulator = Emulator()
        game = new_game(monkeypatch, emulator)
        game.reset(seed=1)
        for number in range(800):
            _, reward, *_ = game.step(number % 2)
            assert reward == 4
        assert len(emulator.held) == 3200
        wanted = [["LEFT"], ["RIGHT"]]
        assert emulator.held[0] == ["LEFT"], "nothing was held before the first step"
        for frame in (1, 2, 3):
            assert all(held == wanted[n % 2] for n, held in enumerate(emulator.held[frame::4]))
        stuck = [held != wanted[n % 2] for n, held in enumerate(emulator.held[0::4])]
        assert 0.18 < np.mean(stuck) < 0.32

    def test_a_step_ends_with_the_game(self, monkeypatch: pytest.MonkeyPatch) -> None:
        game = new_game(monkeypatch, Emulator(last=6))
        game.reset(seed=0)
        assert game.step(0)[1:4] == (4.0, False, False)
        assert game.step(0)[1:4] == (2.0, True, False)

    def test_small_gray_frames_are_means_and_the_newest_is_last(self, monkeypatch: pytest.MonkeyPatch) -> None:
        game = new_game(monkeypatch, Emulator())
        obs, _ = game.reset(seed=0)
        assert (obs.shape, obs.dtype) == ((4, 84, 84), np.uint8)
        game.step(0)
        obs, *_ = game.step(0)
        assert [np.unique(frame).tolist() for frame in obs] == [[0], [0], [4], [8]]


class TestAirstriker:
    def test_it_is_played_for_real_by_several_emulators_and_resumed_in_mid_episode(self) -> None:
        levels = level_set("levels:airstriker")
        spec = levels.describe()
        assert (spec.obs_shape, spec.n_actions, spec.max_episode_steps) == ((4, 84, 84), 6, 4500)
        assert (spec.frame_skip, spec.frames, spec.exact_resume) == (4, 4, True)
        tensors = {
            name: torch.zeros(s.shape, dtype=s.dtype) for name, s in levels.record_specs(levels.train, 2).items()
        }
        envs = levels.make(levels.train, Copies(2, seed=3, tensors=tensors))
        children = emulators()
        assert len(children) == 2
        obs = envs.reset()
        assert np.array_equal(obs[0], obs[1])
        assert (obs == obs[:, -1:]).all(), "an episode's first stack is its first frame again and again"
        rng, scored = np.random.default_rng(0), 0.0
        for _ in range(60):
            before, step = obs, envs.step(rng.integers(0, 6, 2))
            obs = step.obs
            assert np.array_equal(obs[:, :3], before[:, 1:])
            scored += float(step.reward.sum())
        assert not np.array_equal(obs[0], obs[1])
        assert scored > 0
        again = levels.make(levels.train, Copies(2, seed=3, tensors=tensors))
        assert np.array_equal(again.restore(), obs)
        again.close()
        envs.close()
        assert not any(child.is_running() for child in children)

    def test_a_policy_is_trained_on_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(level_retro, "MAX_STEPS", 12)  # so that an evaluation takes no minute
        run = passel.train(
            "levels:airstriker", algo="ppo", place="inline", workers=1, steps=64, horizon=32, minibatches=2, epochs=1,
            hidden=[8], eval_episodes=2, tensorboard=False, quiet=True, out=str(tmp_path / "run"),
        )  # fmt: skip
        assert run.summary.frames == 4 * run.summary.steps
        assert run.summary.updates >= 2
        table = json.loads((run.path / "levels.json").read_text())
        assert [row["name"] for row in table["train"]["levels"]] == ["Level1"]
        assert emulators() == []


class TestSonic:
    def test_without_roms_one_message_says_which_files_and_what_to_do(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def none(*_: object) -> None:
            raise FileNotFoundError

        monkeypatch.setattr(retro_game.load().data, "get_romfile_path", none)
        assert main(["train", "--algo", "ppo", "--place", "inline", "--env", "levels:sonic"]) == 2
        said = capsys.readouterr().err
        for game in ("SonicTheHedgehog-Genesis", "SonicTheHedgehog2-Genesis", "SonicAndKnuckles3-Genesis"):
            assert game in said
        assert "69e102855d4389c3fd1a8f3dc7d193f8eee5fe5b" in said
        assert "python -m stable_retro.import FOLDER" in said

    def test_47_acts_to_train_on_and_11_held_out_all_of_which_there_are(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(level_retro, "missing_roms", lambda games: {})
        levels = level_set("levels:sonic")
        assert isinstance(levels, level_retro.RetroLevels)
        assert (len(levels.train), len(levels.held_out), levels.scenario) == (47, 11, "contest")
        assert len(levels.buttons) == 7
        data = retro_game.load().data
        for name in (*levels.train, *levels.held_out):
            assert name in data.list_states(levels.games[name])
        for game in set(levels.games.values()):
            assert Path(data.get_file_path(game, "contest.json")).exists()
        assert level_set("levels:sonic@GreenHillZone.Act2").train == ("GreenHillZone.Act2",)


class TestApart:
    def test_the_child_imports_no_torch(self) -> None:
        code = "import passel.envs.apart, passel.envs.retro_game, sys; sys.exit('torch' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

    def test_what_goes_wrong_in_the_child_is_said_here(self) -> None:
        with pytest.raises(RuntimeError, match="no_such_module"):
            Apart("no_such_module:Env", {})

    def test_a_child_that_was_killed_is_missed(self) -> None:
        env = Apart("passel.testing.envs:Identity", {"steps": 5})
        obs, _ = env.reset(seed=1)
        assert obs.shape == (4,)
        assert os.getpgid(env._process.pid) != os.getpgid(0), "a Ctrl-C in our terminal does not reach it"
        os.kill(env._process.pid, signal.SIGKILL)
        env._process.wait()
        with pytest.raises(RuntimeError, match="ended with exit code -9"):
            env.step(0)
        env.close()

    def test_it_plays_as_it_does_at_home(self) -> None:
        from passel.testing.envs import Identity

        here, there = Identity(steps=9), Apart("passel.testing.envs:Identity", {"steps": 9})
        assert np.array_equal(here.reset(seed=4)[0], there.reset(seed=4)[0])
        for number in range(9):
            mine, its = here.step(number % 4), there.step(number % 4)
            assert np.array_equal(mine[0], its[0])
            assert mine[1:4] == its[1:4]
        there.close()

    def test_a_child_ends_with_its_parent(self) -> None:
        code = (
            "import time; from passel.envs.apart import Apart\n"
            "env = Apart('passel.testing.envs:Identity', {}); print(env._process.pid, flush=True); time.sleep(60)"
        )
        parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        parent.wait()
        parent.stdout.close()
        deadline = time.monotonic() + 20
        while child.is_running() and child.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_there_is_nothing_to_choose() -> None:
    with pytest.raises(PasselError, match="airstriker has nothing to choose"):
        level_set("levels:airstriker:hard")
