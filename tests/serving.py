"""What the tests of served environments share: a server in a process of its own, and environments for it to serve.

Importing this module registers the environments; the server finds them as `serving:Picture-v0` because it is started
with this folder on its path.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

import passel
from passel.envs import packaged

HERE = Path(__file__).parent
PROGRAM = Path(passel.__file__).parent / "envs" / "serve_env.py"
COUNTDOWN = "passel.testing.envs:passel/Countdown-v0"


class Picture(gym.Env[Any, Any]):
    """A picture that is not square, and of which no two rows, columns or colours are alike; every step shifts it."""

    HEIGHT, WIDTH = 40, 60

    def __init__(self) -> None:
        self.observation_space = Box(0, 255, (self.HEIGHT, self.WIDTH, 3), np.uint8)
        self.action_space = Discrete(6)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._shift = int(self.np_random.integers(50))
        return self.picture(self._shift), {}

    def step(self, action: Any) -> Any:
        self._shift += 1 + int(action)
        return self.picture(self._shift), 1.0, False, False, {}

    @classmethod
    def picture(cls, shift: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        row, column, colour = np.ogrid[: cls.HEIGHT, : cls.WIDTH, :3]
        return ((3 * row + column + 60 * colour + shift) % 256).astype(np.uint8)


class Fussy(gym.Env[Any, Any]):
    """Raises at action 1, and sleeps for a minute at action 2."""

    def __init__(self) -> None:
        self.observation_space = Box(0, 1, (2,), np.float32)
        self.action_space = Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        if action == 1:
            raise RuntimeError("this move is not allowed")
        if action == 2:
            time.sleep(60)
        return np.ones(2, np.float32), 1.0, False, False, {}


class Sluggish(Fussy):
    """Takes a quarter of a second to build."""

    def __init__(self) -> None:
        time.sleep(0.25)
        super().__init__()


class Plodding(Fussy):
    """Takes a quarter of a second for a step."""

    def step(self, action: Any) -> Any:
        time.sleep(0.25)
        return super().step(action)


class Stage(gym.Env[Any, Any]):
    """A stage of a game that is no game: pictures of one gray, its `number` and a step brighter with every step. Every
    step pays 1, and the number decides how many there are.
    """

    def __init__(self, number: int) -> None:
        self.observation_space = Box(0, 255, (40, 60, 3), np.uint8)
        self.action_space = Discrete(7)
        self._number = number

    @staticmethod
    def length(number: int) -> int:
        return 3 + number % 4

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        return self._picture(), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        return self._picture(), 1.0, self._steps == self.length(self._number), False, {}

    def _picture(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        return np.full((40, 60, 3), 7 * self._number + self._steps, np.uint8)


for number in range(32):
    name = f"SuperMarioBros-{1 + number // 4}-{1 + number % 4}-v0"
    gym.register(name, "serving:Stage", kwargs={"number": number})
gym.register("Sluggish-v0", "serving:Sluggish")
gym.register("Plodding-v0", "serving:Plodding")
gym.register("Picture-v0", "serving:Picture")
gym.register("Fussy-v0", "serving:Fussy")


def pretend_installed(cache: Path, name: str) -> Path:
    """The folder of a packaged environment in a user's cache, with an interpreter that is this one."""
    folder = cache / "passel" / "envs" / name
    (folder / "bin").mkdir(parents=True)
    # A script and not a link: a linked interpreter would look for its packages beside the link.
    script = folder / "bin" / "python"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    script.chmod(0o755)
    (folder / packaged.STAMP).write_text("{}\n")
    return folder


class Serving:
    """A server, ended with the `with` block, or before."""

    def __init__(self, env: str, *flags: str, bind: str = "tcp://127.0.0.1:*") -> None:
        path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._err = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), env, *flags, "--bind", bind],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._err,
            text=True,
        )
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        if " at " not in said:
            self.end()
            words = self.said()
            self._err.close()
            raise AssertionError(f"the server did not start: {said} {words}")
        self.address = said.split(" at ")[1].split(",")[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        self._err.close()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def said(self) -> str:
        size = os.fstat(self._err.fileno()).st_size
        return os.pread(self._err.fileno(), size, 0).decode()

    @property
    def pid(self) -> int:
        return self._process.pid

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def end(self, how: int = signal.SIGKILL) -> int:
        """The exit code."""
        self._process.send_signal(how)
        code = self._process.wait(10)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code
