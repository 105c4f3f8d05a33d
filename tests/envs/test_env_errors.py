"""What a user reads after a mistake: the cause and the cure, word for word."""

from __future__ import annotations

import importlib.util
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from passel.envs import build, describe, make_envs
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
        ("Breakout-v5", "ALE/Breakout-v5"),
        ("BreakoutNoFrameskip-v4", "ALE/Breakout-v5"),
        ("MsPacmanDeterministic-v4", "ALE/MsPacman-v5"),
        ("breakout", "ALE/Breakout-v5"),
    ],
)
def test_an_unknown_id_names_the_nearest(wrong: str, right: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(gym.registry, wrong, raising=False)  # ale-py registers old ids too, once it is imported
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

    cure = "Use a function that wraps it, def make_env(): return gymnasium.wrappers.FlattenObservation({}), as env, "
    cure += "or on the command line as --env my_module:make_env."
    assert message(Pair) == (
        "passel reads observations that are one Box of numbers, and Pair has "
        f"Dict('a': Box(0.0, 1.0, (2,), float32), 'b': Discrete(3)). {cure.format('Pair()')}"
    )
    made = 'gymnasium.make("FrozenLake-v1")'
    assert message("FrozenLake-v1") == (
        "passel reads observations that are one Box of numbers, and FrozenLake-v1 has Discrete(16). "
        f"{cure.format(made)}"
    )


def test_the_cure_for_observations_works() -> None:
    spec = describe(lambda: gym.wrappers.FlattenObservation(gym.make("FrozenLake-v1")))
    assert (spec.id, spec.obs_shape, spec.max_episode_steps) == ("FrozenLake-v1", (16,), 100)


class TestAFunctionOfAModule:
    """`module:name` is an id that the module registers, or else a function or class of it."""

    @pytest.fixture(autouse=True)
    def module(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        source = "import gymnasium as gym\nfrom passel.testing.envs import Corridor, Identity\n"
        source += "def make(): return gym.wrappers.TimeLimit(Corridor(), 7)\nnumber = 3\n"
        source += "gym.register('Identity', Corridor, max_episode_steps=5)\n"
        (tmp_path / "a_users_module.py").write_text(source)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", sys.path.copy())
        monkeypatch.delitem(sys.modules, "a_users_module", raising=False)
        monkeypatch.delitem(gym.registry, "Identity", raising=False)

    def test_in_the_current_folder(self, tmp_path: Path) -> None:
        """Which the console script has not on its path."""
        assert str(tmp_path) not in sys.path
        spec = describe("a_users_module:make")
        assert (spec.id, spec.max_episode_steps) == ("a_users_module:make", 7)
        assert sys.path[-1] == str(tmp_path), "what is installed comes first"
        with closing(make_envs("a_users_module:make", 2, 1)) as envs:
            assert envs.reset().shape == (2, *spec.obs_shape)

    def test_does_not_stand_in_for_what_passel_integrates(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Which is imported without the consent of the user: the folder may be a stranger's."""
        (tmp_path / "ale_py_of_a_stranger.py").write_text("raise SystemExit('it ran')")
        monkeypatch.setattr(build, "INTEGRATED", build.INTEGRATED | {"ale_py_of_a_stranger"})
        assert "No module named 'ale_py_of_a_stranger'" in message("ale_py_of_a_stranger:ALE/Pong-v5")
        assert str(tmp_path) not in sys.path

    def test_a_class(self) -> None:
        assert describe("a_users_module:Corridor").obs_shape == describe(Corridor).obs_shape

    def test_an_id_counts_first(self) -> None:
        assert describe("a_users_module:Identity").max_episode_steps == 5

    @pytest.mark.parametrize("name", ["nothing", "number"])
    def test_neither(self, name: str) -> None:
        assert message(f"a_users_module:{name}") == (
            f"the module a_users_module has neither an environment nor a function called {name}. "
            "Write package:Id-v0, or module:function with a function that returns an environment."
        )

    def test_a_module_that_fails(self, tmp_path: Path) -> None:
        (tmp_path / "a_broken_module.py").write_text("1 / 0")
        assert message("a_broken_module:make") == (
            "a_broken_module cannot be imported (ZeroDivisionError: division by zero). Correct that module."
        )


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
