"""The toys do what their docstrings promise, for other tests stand on them."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from passel.envs import describe, make_envs
from passel.testing.envs import Corridor, Countdown, Crash, Identity, NaN, TimeLimitTrap

TOYS = [Corridor, Countdown, Identity, TimeLimitTrap, Crash, NaN]


def score(env: gym.Env[Any, Any], policy: Any, seed: int = 0) -> tuple[float, int]:
    obs, _ = env.reset(seed=seed)
    total, length, ended = 0.0, 0, False
    while not ended:
        obs, reward, terminated, truncated, _ = env.step(policy(obs))
        total, length, ended = total + float(reward), length + 1, terminated or truncated
    return total, length


@pytest.mark.filterwarnings("ignore::UserWarning")  # the checker advises on spec and render modes
@pytest.mark.parametrize("toy", [toy for toy in TOYS if toy is not Countdown])  # which is no function of its seed
def test_each_keeps_gymnasium_s_own_contract(toy: Any) -> None:
    check_env(toy() if toy not in (NaN, Crash) else toy(at=10_000), skip_render_check=True)


@pytest.mark.parametrize("toy", TOYS)
def test_each_is_made_by_module_and_id(toy: Any) -> None:
    spec = describe(f"passel.testing.envs:passel/{toy.__name__}-v0")
    assert spec.obs_dtype == np.float32
    assert type(gym.make(f"passel/{toy.__name__}-v0").unwrapped) is toy


def test_module_and_id_registers_in_a_fresh_process() -> None:
    program = (
        "import gymnasium as gym\n"
        "assert 'passel/Corridor-v0' not in gym.registry\n"
        "gym.make('passel.testing.envs:passel/Corridor-v0').reset(seed=0)\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=60)


def test_corridor_s_best_return() -> None:
    total, length = score(Corridor(), lambda obs: 1)
    assert (length, Corridor().best_return) == (5, pytest.approx(0.6))
    assert total == pytest.approx(0.6)
    assert describe("passel.testing.envs:passel/Corridor-v0").reward_threshold == 0.6


def test_identity_pays_for_reading() -> None:
    assert score(Identity(), lambda obs: int(obs.argmax())) == (8.0, 8)
    rng = np.random.default_rng(0)
    env = Identity()
    mean = np.mean([score(env, lambda obs: int(rng.integers(4)), seed)[0] for seed in range(500)])
    assert 1.8 < mean < 2.2


def test_the_trap_s_two_values() -> None:
    """TD(0) on its one state, with and without the bootstrap at the truncation."""
    gamma, values = 0.99, {}
    for bootstraps in (True, False):
        envs = make_envs(TimeLimitTrap, 1, seed=0)
        envs.reset()
        value = 0.0
        for t in range(4_000):
            step = envs.step(np.zeros(1, np.int64))
            discount = step.discount.item() if bootstraps else 1.0 - step.ended.item()
            value += max(0.02, 1 / (t + 1)) * (step.reward.item() + gamma * discount * value - value)
        values[bootstraps] = value
    assert values[False] == pytest.approx(9.2, abs=0.5)
    assert 40 < values[True] <= 100.001


def test_nan_begins_at_its_step() -> None:
    env = NaN(at=3)
    env.reset(seed=0)
    assert [bool(np.isnan(env.step(0)[0]).any()) for _ in range(4)] == [False, False, True, True]


def test_crash_raises() -> None:
    env = Crash(how="raise", at=3)
    env.reset(seed=0)
    env.step(0)
    env.step(0)
    with pytest.raises(RuntimeError, match="raises at step 3"):
        env.step(0)


def test_crash_takes_its_process_with_it() -> None:
    """In one fresh process that forks, for each import of torch costs seconds."""
    program = (
        "import os\n"
        "from passel.testing.envs import Crash\n"
        "for how in ('exit', 'kill'):\n"
        "    env = Crash(how=how, at=1); env.reset(seed=0)\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        env.step(0); os._exit(0)\n"
        "    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["3", "-9"]


def test_crash_sleeps() -> None:
    env = Crash(how="sleep", at=1, seconds=0.2)
    env.reset(seed=0)
    start = time.monotonic()
    env.step(0)
    assert 0.2 <= time.monotonic() - start < 2


def test_with_a_marker_only_the_first_crashes(tmp_path: Path) -> None:
    marker = tmp_path / "crashed"
    first, second = (Crash(at=1, marker=str(marker)) for _ in range(2))
    first.reset(seed=0)
    second.reset(seed=0)
    with pytest.raises(RuntimeError, match="as asked"):
        first.step(0)
    assert marker.exists()
    second.step(0)
