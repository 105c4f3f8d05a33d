"""An environment that returns what it must not is named, with cause and cure; what can be read is read exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

import passel
from passel.envs import describe, envpool_backend, gymnasium_backend, make_envs
from passel.envs.outcomes import OutcomeError, check_finite, check_finite_rewards
from passel.types import PasselError

VECTOR = Box(-10, 10, (4,), np.float32)
BYTES = Box(0, 255, (4,), np.uint8)
NAN = float("nan")


class Odd(gym.Env[Any, Any]):
    """Returns what it is told in its third step, and what is usual in all others."""

    action_space = Discrete(2)

    def __init__(self, space: gym.Space[Any] = VECTOR, **odd: Any) -> None:
        self.observation_space, self._odd = space, odd
        self._usual = np.ones(space.shape or (), space.dtype)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._steps = 0
        return self._odd.get("reset", (self._usual, {}))

    def step(self, action: Any) -> Any:
        self._steps += 1
        odd = self._odd if self._steps == 3 else {}
        names = {"obs": self._usual, "reward": 1.0, "terminated": self._steps == 9, "truncated": False} | odd
        values = (names["obs"], names["reward"], names["terminated"], names["truncated"], {})
        return odd.get("step", values)


def third_step(**odd: Any) -> Any:
    envs = make_envs(lambda: Odd(**odd), 2, seed=0)
    envs.reset()
    for _ in range(2):
        envs.step(np.zeros(2, np.int64))
    return envs.step(np.zeros(2, np.int64))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a scalar for a vector": ({"obs": 1.0}, r"the observation has shape \(\), and its observation_space has \(4,\)"),
    "an array without axes": ({"obs": np.float32(1)}, r"the observation has shape \(\)"),
    "one number too many": ({"obs": np.zeros(5, np.float32)}, r"has shape \(5,\)"),
    "a column": ({"obs": np.zeros((4, 1), np.float32)}, r"has shape \(4, 1\)"),
    "nothing": ({"obs": np.zeros(0, np.float32)}, r"has shape \(0,\)"),
    "None": ({"obs": None}, "the observation is None, not an array of numbers"),
    "text": ({"obs": "abcd"}, "the observation is 'abcd', not an array of numbers"),
    "a ragged list": ({"obs": [1, [2, 3], 4, 5]}, "the observation is a list of 4, not an array"),
    "objects": ({"obs": np.array([None] * 4)}, "type object, not an array of numbers"),
    "complex numbers": ({"obs": np.ones(4) * 1j}, "type complex128, not an array of numbers"),
    "NaN": ({"obs": np.full(4, NAN, np.float32)}, "the environment's observations hold NaN or infinity"),
    "infinity": ({"obs": [0, 0, 0, np.inf]}, "the environment's observations hold NaN or infinity"),
    "too large for float32": ({"obs": np.full(4, 1e300)}, "the environment's observations hold NaN or infinity"),
    "300 in a byte": ({"space": BYTES, "obs": np.full(4, 300)}, "numbers from 300 to 300, and .* holds uint8"),
    "-1 in a byte": ({"space": BYTES, "obs": np.full(4, -1)}, "numbers from -1 to -1"),
    "NaN in a byte": ({"space": BYTES, "obs": np.full(4, NAN)}, "numbers from nan to nan"),
    "a fraction in a byte": ({"space": BYTES, "obs": np.full(4, 0.5)}, "has fractions, and its .* holds uint8"),
    "no reward": ({"reward": None}, r"the reward is None .*Return one number\."),
    "two rewards": ({"reward": np.ones(2)}, r"the reward is an array of shape \(2,\) and type float64"),
    "a reward in text": ({"reward": "1.0"}, "the reward is '1.0'"),
    "a complex reward": ({"reward": 1j}, "the reward is 1j"),
    "a reward of NaN": ({"reward": NAN}, "the environment's reward is nan"),
    "a reward of infinity": ({"reward": np.float64(np.inf)}, "the environment's reward is inf"),
    "a reward of -infinity": ({"reward": np.array([-np.inf])}, "the environment's reward is -inf"),
    "a reward beyond float32": ({"reward": 1e300}, r"the environment's reward is 1e\+300"),
    "terminated None": ({"terminated": None}, "terminated is None .*Return True or False as terminated"),
    "terminated text": ({"terminated": "False"}, "terminated is 'False'"),
    "terminated NaN": ({"terminated": NAN}, "terminated is nan"),
    "terminated twice": ({"terminated": np.array([True, False])}, r"terminated is an array of shape \(2,\)"),
    "truncated None": ({"truncated": None}, "truncated is None .*Return True or False as truncated"),
    "four values": ({"step": (np.ones(4), 1.0, False, {})}, r"step\(\) returned a tuple of 4 .*Return five values"),
    "six values": ({"step": (np.ones(4), 1.0, False, False, {}, 1)}, r"step\(\) returned a tuple of 6"),
    "no values": ({"step": None}, r"step\(\) returned None"),
}


@pytest.mark.parametrize(("odd", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_read_is_named(odd: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PasselError, match=sentence) as caught:
        third_step(**odd)
    assert " (Odd, copy " in str(caught.value)
    assert ", step 2 of the episode with seed " in str(caught.value)


@pytest.mark.parametrize("culprit", [0, 1, 2])
def test_the_copy_that_returned_nan_is_named_with_its_seed(culprit: int) -> None:
    """The observations of all copies are looked at together, after all were stepped."""
    envs = make_envs(Odd, 3, seed=0)
    assert isinstance(envs, gymnasium_backend.GymnasiumEnvs)
    envs.reset()
    envs._envs[culprit].unwrapped._odd = {"obs": np.full(4, NAN, np.float32)}  # type: ignore[attr-defined]
    for _ in range(2):
        envs.step(np.zeros(3, np.int64))
    where = rf"\(Odd, copy {culprit}, step 2 of the episode with seed {envs._seed_of(culprit)}\)"
    with pytest.raises(PasselError, match=rf"^the environment's observations hold NaN or infinity {where}"):
        envs.step(np.zeros(3, np.int64))
    envs.close()


READ: dict[str, tuple[dict[str, Any], str, Any]] = {
    "a list": ({"obs": [1, 2, 3, 4]}, "next_obs", [1, 2, 3, 4]),
    "float64": ({"obs": np.full(4, 0.1)}, "next_obs", [np.float32(0.1)] * 4),
    "whole numbers that fit": ({"space": BYTES, "obs": np.array([0, 7, 200, 255])}, "next_obs", [0, 7, 200, 255]),
    "whole floats that fit": ({"space": BYTES, "obs": np.array([0.0, 7, 200, 255])}, "next_obs", [0, 7, 200, 255]),
    "an array of one reward": ({"reward": np.array([2.5])}, "reward", 2.5),
    "an array of no axes": ({"reward": np.array(2.5)}, "reward", 2.5),
    "a tensor": ({"reward": torch.tensor([2.5])}, "reward", 2.5),
    "a whole number": ({"reward": 3}, "reward", 3.0),
    "numpy's float": ({"reward": np.float32(0.5)}, "reward", 0.5),
    "numpy's bool": ({"reward": np.bool_(True)}, "reward", 1.0),
    "an end of numpy's": ({"terminated": np.bool_(True)}, "discount", 0.0),
    "an end in an array": ({"terminated": np.array([True])}, "discount", 0.0),
    "an end as a number": ({"truncated": 1}, "truncated", True),
    "no end as a number": ({"truncated": 0}, "truncated", False),
}


@pytest.mark.parametrize(("odd", "field", "expected"), READ.values(), ids=READ)
def test_what_can_be_read_is_read_exactly(odd: dict[str, Any], field: str, expected: Any) -> None:
    step = third_step(**odd)
    np.testing.assert_array_equal(getattr(step, field), [expected, expected])


@pytest.mark.parametrize(
    ("returned", "sentence"),
    [
        (np.ones(4), r"reset\(\) returned an array of shape \(4,\).*Return the tuple \(observation, info\)"),
        (np.ones(2), r"reset\(\) returned an array of shape \(2,\)"),  # an old gym's: two numbers are no pair
        (None, r"reset\(\) returned None"),
        ((np.ones(4), {}, {}), r"reset\(\) returned a tuple of 3"),
        ((1.0, {}), r"the observation has shape \(\)"),
        ((np.full(4, NAN), {}), "the environment's observations hold NaN"),
    ],
)
def test_a_reset_is_read_with_the_same_care(returned: Any, sentence: str) -> None:
    with pytest.raises(PasselError, match=sentence):
        make_envs(lambda: Odd(reset=returned), 1, seed=0).reset()


def test_a_reset_without_a_seed() -> None:
    class Old(Odd):
        def reset(self) -> Any:  # type: ignore[override]
            return super().reset()

    with pytest.raises(PasselError, match=r"reset\(\) of Old takes no seed. Define it as reset\(self, \*, seed=None"):
        make_envs(Old, 1, seed=0).reset()


def test_an_environment_s_own_type_error_stays_its_own() -> None:
    class Broken(Odd):
        def reset(self, **_: Any) -> Any:
            raise TypeError("mine")

    with pytest.raises(TypeError, match=r"^mine$"):
        make_envs(Broken, 1, seed=0).reset()


@pytest.mark.parametrize("shape", [(), (0,), (4, 0)])
def test_observations_without_a_number_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(PasselError, match=r"^passel reads observations with at least one axis and one number, and Odd"):
        describe(lambda: Odd(Box(-1, 1, shape, np.float32)))


def test_the_cure_for_a_single_number_works() -> None:
    spec = describe(lambda: gym.wrappers.ReshapeObservation(Odd(Box(-1, 1, (), np.float32)), (1,)))
    assert spec.obs_shape == (1,)


def test_spaces_that_are_not_declared() -> None:
    class Bare(gym.Env[Any, Any]):
        pass

    with pytest.raises(PasselError, match=r"^Bare declares no observation_space or no action_space\. Set both"):
        describe(Bare)


@pytest.mark.parametrize("place", ["inline", "processes"])
def test_a_run_ends_with_the_sentence_and_not_with_a_traceback(place: str, tmp_path: Path) -> None:
    """NaN rewards of PPO once were "a smaller --lr"."""
    asked = {"place": place, "workers": 1, "envs": 2, "steps": 400, "hidden": (8,), "quiet": True, "tensorboard": False}
    with pytest.raises(PasselError, match=r"^the environment's reward is nan \(Odd, copy \d, step 2 of the episode"):
        passel.train(lambda: Odd(reward=NAN), algo="ppo", horizon=32, out=str(tmp_path / "run"), **asked)


def test_large_numbers_are_finite() -> None:
    check_finite(np.full((2, 3), 1e30, np.float32))
    check_finite_rewards(np.full(3, 3e38))
    check_finite_rewards(np.full(3, 3e38, np.float32))
    for odd in (1e39, -1e200):
        with pytest.raises(OutcomeError, match="in copy 1"):
            check_finite_rewards(np.array([0, odd]))  # infinity in single precision
    for odd in (NAN, np.inf, -np.inf):
        with pytest.raises(OutcomeError, match="observations hold NaN or infinity"):
            check_finite(np.array([[0, 1], [odd, 2]], np.float32))
        with pytest.raises(OutcomeError, match="in copy 1"):
            check_finite_rewards(np.array([0, odd]))


def test_envpool_s_numbers_are_looked_at_too() -> None:
    pytest.importorskip("envpool")
    envs = make_envs("CartPole-v1", 2, seed=0, backend="envpool")
    assert isinstance(envs, envpool_backend.EnvPoolEnvs)
    envs.reset()

    class Broken:
        def __init__(self, pool: Any, obs: float, reward: float) -> None:
            self._pool, self._obs, self._reward = pool, obs, reward

        def step(self, actions: Any) -> Any:
            obs, reward, *rest = self._pool.step(actions)
            obs[1, 2] += self._obs
            reward[1] += self._reward
            return obs, reward, *rest

    pool = envs._pool
    for obs, reward, sentence in ((NAN, 0.0, "observations hold NaN"), (0.0, NAN, "reward is nan in copy 1")):
        envs._pool = Broken(pool, obs, reward)
        with pytest.raises(PasselError, match=rf"^the environment's {sentence}.*\(CartPole-v1 by EnvPool\)"):
            envs.step(np.zeros(2, np.int64))
    envs._pool = pool
    envs.close()
