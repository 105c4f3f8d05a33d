"""One environment in a process of its own: for emulators, of which a process can hold only one.

The child imports neither torch nor anything else that it does not need, so it weighs little. It reads commands from one
pipe and answers on another: a line of JSON, and the observation's bytes behind it. It ends when its parent does, for
then the pipe ends.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

from passel.types import Array, PasselError

PATIENCE = 120.0  # seconds for one answer; an emulator may be slow to start
STOP_PATIENCE = 3.0


class Apart(gym.Env[Array, Any]):
    """An environment that lives in a child process. `maker` is "module:name" of what makes it from `arguments`.

    Its actions are Discrete and its observations arrays of one shape; what it puts into `info` stays with the child.
    """

    def __init__(self, maker: str, arguments: Mapping[str, Any]) -> None:
        self._name = f"{maker}({', '.join(f'{key}={value}' for key, value in arguments.items())})"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "passel.envs.apart", maker, json.dumps(dict(arguments))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,  # a Ctrl-C is for the watcher: an emulator that heard it would leave too soon
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OPENBLAS_NUM_THREADS": "1"},
        )
        try:
            hello = self._answer()
        except BaseException:
            self.close()
            raise
        self._shape, self._dtype = tuple(hello["shape"]), np.dtype(hello["dtype"])
        self.observation_space = Box(hello["low"], hello["high"], self._shape, self._dtype.type)
        self.action_space = Discrete(hello["actions"])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        self._ask({"do": "reset", "seed": seed})
        self._answer()
        return self._observation(), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self._ask({"do": "step", "action": int(action)})
        said = self._answer()
        return self._observation(), said["reward"], said["terminated"], said["truncated"], {}

    def close(self) -> None:
        process = self._process
        with suppress(OSError):
            _end(process, "stdin").close()
        try:
            process.wait(STOP_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _end(process, "stdout").close()

    def _ask(self, command: Mapping[str, Any]) -> None:
        try:
            to = _end(self._process, "stdin")
            to.write(json.dumps(command).encode() + b"\n")
            to.flush()
        except (BrokenPipeError, ValueError):
            raise self._gone() from None

    def _answer(self) -> dict[str, Any]:
        answer = _end(self._process, "stdout")
        ready, _, _ = select.select([answer], [], [], PATIENCE)
        if not ready:
            raise RuntimeError(f"{self._name} has not answered within {PATIENCE:.0f} s")
        line = answer.readline()
        if not line:
            raise self._gone()
        said: dict[str, Any] = json.loads(line)
        if "error" in said:
            raise PasselError(said["error"]) if said["user"] else RuntimeError(f"{self._name}: {said['error']}")
        return said

    def _observation(self) -> Array:
        size = int(np.prod(self._shape)) * self._dtype.itemsize
        data = _end(self._process, "stdout").read(size)
        if len(data) < size:
            raise self._gone()
        return np.frombuffer(data, self._dtype).reshape(self._shape)

    def _gone(self) -> RuntimeError:
        return RuntimeError(f"the process of {self._name} ended with exit code {self._process.poll()}")


def _end(process: subprocess.Popen[bytes], name: str) -> IO[bytes]:
    end: IO[bytes] | None = getattr(process, name)
    assert end is not None
    return end


def serve(maker: str, arguments: Mapping[str, Any], commands: IO[bytes], answers: IO[bytes]) -> None:
    """Make the environment and do as told until the pipe ends. Runs in: the child."""

    def say(content: Mapping[str, Any], obs: Array | None = None) -> None:
        answers.write(json.dumps(content).encode() + b"\n")
        if obs is not None:
            answers.write(np.ascontiguousarray(obs).tobytes())
        answers.flush()

    try:
        module, _, name = maker.partition(":")
        env: gym.Env[Any, Any] = getattr(importlib.import_module(module), name)(**arguments)
        space = env.observation_space
        assert isinstance(space, Box)
        assert isinstance(env.action_space, Discrete)
        low, high = float(space.low.min()), float(space.high.max())
        shape, dtype = list(space.shape), str(space.dtype)
        say({"shape": shape, "dtype": dtype, "low": low, "high": high, "actions": int(env.action_space.n)})
        for line in commands:
            command = json.loads(line)
            if command["do"] == "reset":
                obs, _ = env.reset(seed=command["seed"])
                say({}, obs)
            else:
                obs, reward, terminated, truncated, _ = env.step(command["action"])
                said = {"reward": float(reward), "terminated": bool(terminated), "truncated": bool(truncated)}
                say(said, obs)
        env.close()
    except Exception as error:
        user = isinstance(error, PasselError)
        say({"error": str(error) if user else f"{type(error).__name__}: {error}", "user": user})


def main() -> None:
    """Whatever a library prints must not fall between the answers: they have a descriptor of their own."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with suppress(BrokenPipeError):
        serve(sys.argv[1], json.loads(sys.argv[2]), sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
