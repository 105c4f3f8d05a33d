"""What a user reads after a mistake: the cause and the cure, word for word."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from passel.envs import describe, make_envs
from passel.testing.envs import Corridor
from passel.types import PasselError


def message(env: Any, backend: Any = "gymnasium", **env_args: Any) -> str:
    with pytest.raises(PasselError) as caught:
        describe(env, backend, env_args)
    return str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("LunarLandr-v3", "LunarLander-v3"),
        ("lunarlander-v3", "LunarLander-v3"),
        ("LunarLander-v2", "LunarLander-v3"),
        ("LunarLander", "LunarLander-v3"),
        ("CartPole-v7", "CartPole-v1"),
        ("cart-pole", "CartPole-v1"),
        ("passel.testing.envs:passel/Coridor-v0", "passel/Corridor-v0"),
    ],
)
def test_an_unknown_id_names_the_nearest(wrong: str, right: str) -> None:
    assert message(wrong) == f'there is no environment "{wrong}". Did you mean {right}?'


def test_an_id_like_no_other() -> None:
    assert message("Qwxyz/Jkqj-v0") == (
        'there is no environment "Qwxyz/Jkqj-v0". '
        "Install the package that has it and write package:id, for instance ale_py:ALE/Breakout-v5."
    )


def test_a_module_that_is_not_there() -> None:
    assert message("no_such_module:Foo-v0") == (
        'the environment "no_such_module:Foo-v0" asks for the module no_such_module, which cannot be imported '
        "(No module named 'no_such_module'). Install it, or correct what stands before the colon."
    )


def test_box2d_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("gymnasium.envs.box2d")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "Box2D", None)
    assert message("LunarLander-v3") == (
        "LunarLander-v3 needs Box2D, which is not installed. Run: pip install 'passel[box2d]'"
    )


def test_another_package_is_missing() -> None:
    gym.register("passel/NeedsMore-v0", "no_such_module:Env")
    assert message("passel/NeedsMore-v0") == (
        "passel/NeedsMore-v0 needs a package that is not installed "
        "(ModuleNotFoundError: No module named 'no_such_module'). Install it and start again."
    )


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.MultiDiscrete([2, 3]),
        Box(-1, 1, (2, 2), np.float32),
        Box(-np.inf, np.inf, (2,), np.float32),
        Box(0, 9, (2,), np.int64),
    ],
    ids=["several choices", "a matrix", "no bounds", "whole numbers"],
)
def test_actions_of_another_kind(space: gym.Space[Any]) -> None:
    class Odd(Corridor):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = space  # type: ignore[assignment]

    said = message(Odd)
    assert said.startswith(
        "passel acts in Discrete action spaces and in Boxes that are vectors with finite bounds, and Odd has "
    )
    assert " ".join(str(space).split())[:60] in said
    assert said.endswith("or give a factory that wraps this one so that it has one of the two.")


def test_observations_that_are_no_box() -> None:
    class Pair(Corridor):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = gym.spaces.Dict({"a": Box(0, 1, (2,)), "b": Discrete(3)})  # type: ignore[assignment]

    cure = "Give a factory instead of the id: lambda: gymnasium.wrappers.FlattenObservation(gymnasium.make"
    assert message(Pair) == (
        "passel reads observations that are one Box of numbers, and Pair has "
        f"Dict('a': Box(0.0, 1.0, (2,), float32), 'b': Discrete(3)). {cure}(\"Pair\"))."
    )
    assert message("FrozenLake-v1") == (
        "passel reads observations that are one Box of numbers, and FrozenLake-v1 has Discrete(16). "
        f'{cure}("FrozenLake-v1")).'
    )


def test_the_cure_for_observations_works() -> None:
    spec = describe(lambda: gym.wrappers.FlattenObservation(gym.make("FrozenLake-v1")))
    assert (spec.id, spec.obs_shape, spec.max_episode_steps) == ("FrozenLake-v1", (16,), 100)


def test_a_make_that_fails() -> None:
    found = message("passel.testing.envs:passel/Corridor-v0", colour="red")
    assert found.startswith("passel.testing.envs:passel/Corridor-v0 could not be made (TypeError: ")
    assert "unexpected keyword argument 'colour'" in found
    assert found.endswith("). Check its arguments.")


def test_a_factory_that_fails() -> None:
    def broken() -> gym.Env[Any, Any]:
        raise ValueError("no ROM")

    def wrong() -> Any:
        return 3

    assert message(broken) == "the factory broken failed (ValueError: no ROM). Correct it, or its arguments."
    assert message(wrong) == (
        "the factory wrong returned a int, not a gymnasium.Env. Return an environment that subclasses gymnasium.Env."
    )


def test_envpool_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "envpool" else found(name))
    assert message("CartPole-v1", "envpool") == (
        "EnvPool cannot be used (it is not installed). Run: pip install 'passel[fast]', or use --backend gymnasium."
    )
    assert describe("CartPole-v1").backend == "gymnasium", "auto does without it"


def test_envpool_does_not_have_it() -> None:
    pytest.importorskip("envpool")
    assert message("CartPole-v7", "envpool") == (
        'EnvPool has no environment "CartPole-v7". Did you mean CartPole-v1? Otherwise use --backend gymnasium.'
    )
    assert message("Qwxyz/Jkqj-v0", "envpool") == (
        'EnvPool has no environment "Qwxyz/Jkqj-v0". Use --backend gymnasium.'
    )
    assert message(Corridor, "envpool") == (
        "EnvPool makes environments by id only, and this one is a factory. Use --backend gymnasium."
    )
    assert message("LunarLander-v3", "envpool", gravity=-5.0).endswith("'gravity'). Check its arguments.")


@pytest.mark.parametrize(("n", "seed", "cause"), [(0, 0, "0 copies"), (1, -1, "the seed is -1")])
def test_numbers_out_of_range(n: int, seed: int, cause: str) -> None:
    with pytest.raises(PasselError, match=f"^{cause}"):
        make_envs("CartPole-v1", n, seed)
