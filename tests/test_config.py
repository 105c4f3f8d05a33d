"""From what the user said to a complete configuration: layers, types, ranges, and nothing silently ignored."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import passel
from passel.algos import ALGORITHMS
from passel.config import FRACTIONS, RunConfig, as_dict, coerce, overriding, read_toml, resolve
from passel.place.budget import usable_cores
from passel.recipes import presets
from passel.recipes import resolve as resolving
from passel.recipes.named import RECIPES
from passel.recipes.resolve import resolve_config, start_lines
from passel.run.folder import RunFolder
from passel.types import PasselError
from small import settings_for

CONFIGS = [RunConfig, *(algorithm.Config for algorithm in ALGORITHMS.values())]
FIELDS = [(config, field) for config in CONFIGS for field in dataclasses.fields(config)]


@pytest.mark.parametrize(("config", "field"), FIELDS, ids=lambda part: getattr(part, "name", ""))
def test_every_setting_has_a_sentence_of_help(config: type[Any], field: dataclasses.Field[Any]) -> None:
    text = field.metadata["help"]
    assert text.endswith("."), "a sentence ends with a full stop"
    assert text[0].isupper()
    assert "\n" not in text
    assert not text.endswith(".."), text


def test_no_setting_has_two_meanings() -> None:
    """Nothing is a setting of the run and of an algorithm; where two algorithms share a name, they share its type."""
    of_the_run = {field.name for field in dataclasses.fields(RunConfig)}
    types: dict[str, Any] = {}
    for algorithm in ALGORITHMS.values():
        for field in dataclasses.fields(algorithm.Config):
            assert field.name not in of_the_run
            assert types.setdefault(field.name, field.type) == field.type


def test_every_condition_of_a_setting_is_about_a_setting_that_exists() -> None:
    names = {field.name for _, field in FIELDS}
    for _, field in FIELDS:
        assert set(field.metadata.get("only", {})) <= names


@pytest.mark.parametrize("config", CONFIGS)
def test_configurations_cannot_be_changed(config: type[Any]) -> None:
    made = config()
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(made, dataclasses.fields(config)[0].name, None)


class TestLayers:
    def test_defaults_are_those_of_the_dataclasses(self) -> None:
        config, numbers = resolve_config({})
        defaults = RunConfig(workers=usable_cores(), steps=presets.DEFAULT_STEPS, normalize="none")
        tuned = presets.preset("dqn", RunConfig.env)
        tuned = tuned | {"envs": max(tuned.get("envs", ALGORITHMS["dqn"].usual_envs) // usable_cores(), 1)}
        assert config == dataclasses.replace(defaults, **{k: v for k, v in tuned.items() if hasattr(defaults, k)})
        changed = {k: tuple(v) if isinstance(v, list) else v for k, v in tuned.items() if hasattr(numbers, k)}
        assert numbers == dataclasses.replace(ALGORITHMS["dqn"].Config(), **changed)

    def test_the_last_layer_wins(self) -> None:
        config, numbers = resolve_config({"lr": 0.1, "seed": 3}, {"lr": 0.2}, {"seed": 4})
        assert (numbers.lr, config.seed) == (0.2, 4)

    def test_dashes_are_underscores(self) -> None:
        config, numbers = resolve_config({"n-step": 5, "eval-episodes": 7})
        assert (numbers.n_step, config.eval_episodes) == (5, 7)

    def test_a_preset_may_be_another_under_one_scheme(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(presets.PRESETS, ("dqn", "CartPole-v1"), {"lr": 0.5, "gamma": 0.5})
        monkeypatch.setitem(presets.UNDER, ("dqn", "CartPole-v1", "gossip", "steps"), {"lr": 0.25, "steps": 1234})
        config, numbers = resolve_config({"env": "CartPole-v1", "sync": "gossip"})
        assert (numbers.lr, numbers.gamma, config.steps) == (0.25, 0.5, 1234)
        config, numbers = resolve_config({"env": "CartPole-v1", "sync": "locked"})
        assert (numbers.lr, config.steps) == (0.5, presets.DEFAULT_STEPS)
        _, numbers = resolve_config({"env": "CartPole-v1", "sync": "gossip", "lr": 0.125})
        assert numbers.lr == 0.125

    def test_a_preset_stands_between_the_defaults_and_what_was_said(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(presets.PRESETS, ("dqn", "CartPole-v1"), {"lr": 0.5, "steps": 1234, "gamma": 0.5})
        config, numbers = resolve_config({"env": "CartPole-v1", "lr": 0.25})
        assert (numbers.lr, numbers.gamma, config.steps) == (0.25, 0.5, 1234)
        _, others = resolve_config({"env": "Acrobot-v1"})
        assert others.gamma == ALGORITHMS["dqn"].Config().gamma

    @pytest.mark.parametrize(("algo", "env"), presets.PRESETS, ids=str)
    def test_every_preset_is_a_configuration_that_runs(self, algo: str, env: str) -> None:
        resolve_config({"algo": algo, "env": env})

    @pytest.mark.parametrize(("said", "last"), [({}, 1e-4), ({"lr": 1e-5}, None), ({"lr": 1e-5, "lr_end": 1e-4}, 1e-4)])
    def test_a_learning_rate_that_was_given_does_not_rise_to_a_default(
        self, said: dict[str, Any], last: float | None
    ) -> None:
        assert resolve_config({"algo": "ppo", "env": "MyEnv-v0", **said})[1].lr_end == last

    def test_workers_are_one_for_each_core_and_one_under_solo(self) -> None:
        assert resolve_config({"sync": "hogwild"})[0].workers == usable_cores()
        assert resolve_config({"sync": "solo"})[0].workers == 1
        assert resolve_config({"sync": "hogwild", "workers": 3})[0].workers == 3

    def test_resolve_keeps_what_it_does_not_know_for_the_next(self) -> None:
        config, rest = resolve(RunConfig, {"seed": 5, "lr": 0.1}, known=["lr"])
        assert config.seed == 5
        assert rest == {"lr": 0.1}


class TestUnknownKeys:
    @pytest.mark.parametrize(
        ("key", "nearest"),
        [("worker", "workers"), ("gama", "gamma"), ("learning_rate", None), ("n-steps", "n_step"), ("priority", None)],
    )
    def test_the_nearest_setting_is_named(self, key: str, nearest: str | None) -> None:
        with pytest.raises(PasselError, match=f"no setting called {key.replace('-', '[-_]')}") as caught:
            resolve_config({key: 1})
        if nearest:
            assert f"Did you mean {nearest}?" in str(caught.value)

    def test_where_nothing_is_near_the_help_is_named(self) -> None:
        with pytest.raises(PasselError, match="passel train --help"):
            resolve_config({"zzzzzzzzzz": 1})

    @pytest.mark.parametrize("algo", ["ppq", "", 5, None])
    def test_an_unknown_algorithm_names_those_there_are(self, algo: Any) -> None:
        with pytest.raises(PasselError, match=r"no --algo .*Choose from .*dqn"):
            resolve_config({"algo": algo})


class TestTypes:
    @pytest.mark.parametrize(
        ("key", "value", "expected"),
        [
            ("workers", "two", "a whole number"),
            ("workers", 1.5, "a whole number"),
            ("workers", True, "a whole number"),
            ("workers", None, "a whole number"),
            ("lr", "fast", "a number"),
            ("lr", True, "a number"),
            ("lr", [0.1], "a number"),
            ("max_grad_norm", "big", "a number"),
            ("env", 5, "text"),
            ("double", 1, "true or false"),
            ("double", "yes", "true or false"),
            ("hidden", 64, "a list of positive whole numbers"),
            ("hidden", [64, 0], "a list of positive whole numbers"),
            ("hidden", [64, -1], "a list of positive whole numbers"),
            ("hidden", [6.5], "a list of positive whole numbers"),
            ("hidden", "64", "a list of positive whole numbers"),
            ("optimizer", "adamw", "one of adam, rmsprop, sgd"),
            ("memory", 1, "one of local, global"),
            ("backend", "retro", "one of auto, ale, gymnasium, envpool"),
        ],
    )
    def test_a_wrong_type_is_refused_with_the_right_one(self, key: str, value: Any, expected: str) -> None:
        with pytest.raises(PasselError) as caught:
            resolve_config({key: value})
        assert f"{key} is {value!r}, and must be {expected}" in str(caught.value)

    @pytest.mark.parametrize(
        ("key", "value", "expected"),
        [
            ("steps", 1e6, 1_000_000),
            ("capacity", 5e4, 50_000),
            ("lr", 1, 1.0),
            ("hidden", [64, 32], (64, 32)),
            ("hidden", (64,), (64,)),
            ("hidden", [], ()),
            ("lr_end", None, None),
            ("lr_end", "none", None),
            ("lr_end", 0, 0.0),
            ("max_grad_norm", None, None),
            ("solved_at", 200, 200.0),
        ],
    )
    def test_what_can_only_mean_one_thing_is_understood(self, key: str, value: Any, expected: Any) -> None:
        config, numbers = resolve_config({key: value})
        found = getattr(config if hasattr(config, key) else numbers, key)
        assert found == expected
        assert type(found) is type(expected)

    def test_a_float_that_is_no_whole_number_is_no_whole_number(self) -> None:
        assert coerce("steps", 1e6, int) == 1_000_000
        for wrong in (1.5, float("nan"), float("inf")):
            with pytest.raises(PasselError, match="a whole number"):
                coerce("steps", wrong, int)


class TestNothingIsSilentlyIgnored:
    @pytest.mark.parametrize(
        ("said", "cause"),
        [
            ({"shards": 2}, "--shards has no effect without --sync server"),
            ({"shards": 2, "sync": "allreduce"}, "--shards has no effect without --sync server"),
            ({"transport": "distributed"}, "--transport has no effect without --sync allreduce"),
            ({"topology": "ring"}, "--topology has no effect without --sync gossip or proximal"),
            ({"topology": "ring", "sync": "tokenring"}, "--topology has no effect without --sync gossip or proximal"),
            ({"l1": 0.1, "sync": "gossip"}, "--l1 has no effect without --sync proximal"),
            ({"group_size": 2}, "--group-size has no effect without --sync tokenring"),
            ({"sync": "gossip", "topology": "star"}, "there is no --topology star"),
            ({"sync": "proximal", "l1": -1.0}, "--l1 is -1.0, and must be 0 or more"),
            ({"sync": "tokenring", "group_size": 3, "workers": 2}, "from 1 to the number of learners, which is 2"),
            ({"sync": "tokenring", "group_size": 0}, "--group-size is 0, and must be from 1"),
            ({"priority_alpha": 0.5}, "--priority-alpha has no effect without --prioritized"),
            ({"priority_beta": 0.5}, "--priority-beta has no effect without --prioritized"),
            ({"sync": "solo", "sync_every": 4}, "--sync-every has no effect under --sync solo"),
            ({"atoms": 21}, "--atoms has no effect without --distributional"),
            ({"v_min": -1.0}, "--v-min has no effect without --distributional"),
            ({"distributional": True, "huber": 2.0}, "--huber has no effect on --distributional"),
            ({"distributional": True, "atoms": 1}, "--atoms is 1, and must be at least 2"),
            ({"distributional": True, "v_min": 1.0, "v_max": 1.0}, "must be less than --v-max"),
            ({"centred": True}, "--centred has no effect without --optimizer rmsprop"),
            ({"momentum": 0.9}, "--momentum has no effect on adam"),
            ({"optimizer": "sgd", "optimizer_eps": 1e-5}, "--optimizer-eps has no effect on sgd"),
            ({"algo": "a3c", "env": "CartPole-v1", "lr_fraction": 0.5}, "--lr-fraction has no effect without --lr-end"),
            ({"algo": "a3c", "env": "CartPole-v1", "lr_steps": 50}, "--lr-steps has no effect without --lr-end"),
            ({"algo": "apex", "epsilon_fraction": 0.5}, "--epsilon-fraction has no effect without --algo dqn"),
            ({"epsilon_steps": 5, "epsilon_fraction": 0.1}, "--epsilon-steps and --epsilon-fraction both give"),
            ({"lr_steps": 5, "lr_fraction": 1.0, "lr_end": 0.1}, "--lr-steps and --lr-fraction both give"),
            (
                {"sync": "allreduce", "place": "inline", "transport": "distributed"},
                "--transport distributed has no effect under --place inline",
            ),
        ],
    )
    def test_a_setting_without_effect_is_refused(self, said: dict[str, Any], cause: str) -> None:
        with pytest.raises(PasselError) as caught:
            resolve_config(said)
        assert cause in str(caught.value)
        assert str(caught.value).endswith("."), "cause and cure are sentences"

    @pytest.mark.parametrize(
        "said",
        [
            {"shards": 2, "sync": "server"},
            {"transport": "distributed", "sync": "allreduce"},
            {"priority_alpha": 0.5, "prioritized": True},
            {"momentum": 0.9, "optimizer": "sgd"},
            {"topology": "ring", "sync": "gossip", "workers": 5},
            {"topology": "exponential", "sync": "proximal", "l1": 0.01},
            {"group_size": 2, "sync": "tokenring", "workers": 5},
            {"momentum": 0.9, "optimizer": "rmsprop"},
            {"shards": 1, "sync": "hogwild"},
            {"sync": "solo", "sync_every": 1},
        ],
    )
    def test_where_it_has_one_it_is_accepted(self, said: dict[str, Any]) -> None:
        config, numbers = resolve_config(said)
        merged = dataclasses.asdict(config) | dataclasses.asdict(numbers)
        assert {key: merged[key] for key in said} == said


def test_a_topology_s_file_is_kept_by_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is resumed from another folder too."""
    (tmp_path / "who.toml").write_text("edges = [[0, 1], [1, 2]]")
    monkeypatch.chdir(tmp_path)
    asked = {"sync": "gossip", "workers": 3}
    assert resolve_config({**asked, "topology": "who.toml"})[0].topology == str(tmp_path / "who.toml")
    with pytest.raises(PasselError, match="leaves learner 3 unconnected"):
        resolve_config({**asked, "topology": "who.toml", "workers": 4})


class TestRanges:
    @pytest.mark.parametrize(
        ("key", "value", "words"),
        [
            ("workers", -1, "at least 1"),
            ("envs", 0, "at least 1"),
            ("steps", -5, "at least 1"),
            ("sync_every", 0, "at least 1"),
            ("checkpoint_every", 0, "at least 1"),
            ("keep_checkpoints", 0, "at least 1"),
            ("eval_episodes", -1, "0 or more"),
            ("seed", -1, "0 or more"),
            ("threads", -1, "0 or more"),
            ("batch", 0, "at least 1"),
            ("capacity", 0, "at least 1"),
            ("n_step", 0, "at least 1"),
            ("target_every", 0, "at least 1"),
            ("lr", 0.0, "more than 0"),
            ("lr", -1e-3, "more than 0"),
            ("lr", float("nan"), "more than 0"),
            ("updates_per_step", 0.0, "more than 0"),
            ("huber", 0.0, "more than 0"),
            ("optimizer_eps", 0.0, "more than 0"),
            ("max_grad_norm", 0.0, "more than 0"),
            ("max_grad_norm", -1.0, "more than 0"),
            ("lr_end", -0.1, "0 or more"),
            ("warmup", -1, "0 or more"),
            ("epsilon_steps", -1, "0 or more"),
            ("gamma", 1.01, "from 0 to 1"),
            ("gamma", -0.01, "from 0 to 1"),
            ("gamma", float("nan"), "from 0 to 1"),
            ("epsilon_start", 1.1, "from 0 to 1"),
            ("epsilon_end", -0.1, "from 0 to 1"),
            ("target_tau", 2.0, "from 0 to 1"),
            ("epsilon_fraction", 1.1, "from 0 to 1"),
            ("lr_fraction", -0.1, "from 0 to 1"),
        ],
    )
    def test_out_of_range_is_refused_with_the_range(self, key: str, value: Any, words: str) -> None:
        with pytest.raises(PasselError) as caught:
            resolve_config({"lr_end": 1e-5, key: value})
        assert str(caught.value) == f"{resolving.flag(key)} is {value}, and must be {words}."

    @pytest.mark.parametrize("key", ["lr", "updates_per_step"])
    def test_a_number_without_end_is_out_of_range(self, key: str) -> None:
        with pytest.raises(PasselError, match=f"{resolving.flag(key)} is inf"):
            resolve_config({key: float("inf")})

    def test_a_batch_must_fit_in_each_worker_s_memory(self) -> None:
        with pytest.raises(PasselError, match=r"--batch 128 is more than the 100 .* each of 4 workers"):
            resolve_config({"batch": 128, "capacity": 400, "workers": 4})
        resolve_config({"batch": 100, "capacity": 400, "workers": 4})

    def test_every_number_has_a_range(self) -> None:
        """No number of a configuration may be minus one: one that may is missing from the table of ranges."""
        free = {"solved_at", "v_min", "v_max", "log_std"}
        for config, field in FIELDS:
            if field.type not in ("int", "float", "float | None") or field.name in free:
                continue
            more = dict(field.metadata.get("only", {}))
            more |= {"optimizer": "sgd"} if field.name == "momentum" else {}
            more |= {"lr_end": 1e-5} if field.name in ("lr_steps", "lr_fraction") else {}
            algo = next((name for name, known in ALGORITHMS.items() if known.Config is config), "dqn")
            with pytest.raises(PasselError, match="must be"):
                resolve_config({"algo": algo, **more, field.name: -1})


#: Its preset has schedules in steps.
CARTPOLE = {"env": "CartPole-v1", "tune_for": "seconds"}


class TestLengthsOfSchedules:
    """In steps or as a fraction of the run: whichever was said last."""

    def test_without_a_preset_they_are_fractions(self) -> None:
        _, numbers = resolve_config({"env": "MyEnv-v0"})
        assert (numbers.epsilon_steps, numbers.epsilon_fraction) == (0, 0.1)
        assert (numbers.lr_steps, numbers.lr_fraction) == (0, 1.0)

    @pytest.mark.parametrize(
        ("steps", "expected"),
        [(200_000, (10_000, 100_000)), (100_000, (10_000, 100_000)), (99_999, (10_000, 0)), (10_999, (0, 0))],
    )
    def test_a_preset_s_are_in_steps_as_long_as_they_end_within_the_run(
        self, steps: int, expected: tuple[int, int]
    ) -> None:
        """Of CartPole: 10,000 steps after a warm-up of 1,000, and 100,000."""
        _, numbers = resolve_config({**CARTPOLE, "steps": steps})
        assert (numbers.epsilon_steps, numbers.lr_steps) == expected
        assert (numbers.epsilon_fraction, numbers.lr_fraction) == (0.1, 1.0)

    @pytest.mark.parametrize(("algo", "env"), [*presets.PRESETS, ("dqn", "ALE/Pong-v5")], ids=str)
    def test_every_preset_s_end_within_its_own_run(self, algo: str, env: str) -> None:
        tuned, (_, numbers) = presets.preset(algo, env), resolve_config({"algo": algo, "env": env})
        for steps in FRACTIONS:
            assert getattr(numbers, steps, 0) == tuned.get(steps, getattr(type(numbers), steps, 0))

    @pytest.mark.parametrize(
        "said", [{"epsilon_steps": 20_000}, {"epsilon_fraction": 0.5}, {"epsilon_steps": 0}], ids=str
    )
    def test_what_the_user_says_stands_above_the_preset(self, said: dict[str, Any]) -> None:
        _, numbers = resolve_config({**CARTPOLE, **said, "steps": 5_000})
        usual = {"epsilon_steps": 0, "epsilon_fraction": 0.1}
        assert {key: getattr(numbers, key) for key in usual} == usual | said

    def test_a_later_layer_replaces_either_form(self) -> None:
        _, numbers = resolve_config(CARTPOLE, {"epsilon_steps": 500}, {"epsilon_fraction": 0.5})
        assert (numbers.epsilon_steps, numbers.epsilon_fraction) == (0, 0.5)
        _, numbers = resolve_config(CARTPOLE, {"epsilon_fraction": 0.5}, {"epsilon-steps": 500})
        assert (numbers.epsilon_steps, numbers.epsilon_fraction) == (500, 0.1)
        assert overriding({"lr-steps": 5, "lr": 1}, {"lr-fraction": 0.5}) == {"lr": 1, "lr_fraction": 0.5}

    @pytest.mark.parametrize("said", [{"epsilon_steps": 500}, {"epsilon_fraction": 0.3}, {"steps": 5_000}], ids=str)
    def test_a_run_s_own_configuration_can_be_changed_to_either_form(self, said: dict[str, Any]) -> None:
        written = as_dict(*resolve_config({**CARTPOLE, **said}))
        assert resolve_config(written) == resolve_config({**CARTPOLE, **said})
        _, numbers = resolve_config(written, {"epsilon_steps": 700})
        assert numbers.epsilon_steps == 700
        _, numbers = resolve_config(written, {"epsilon_fraction": 0.7})
        assert (numbers.epsilon_steps, numbers.epsilon_fraction) == (0, 0.7)

    def test_schedule_steps_keep_the_lengths_of_a_preset_in_a_part_of_the_run(self) -> None:
        """train --steps 5000 and resume --steps 200000 is the run of train --steps 200000."""
        part, numbers = resolve_config({**CARTPOLE, "steps": 5_000, "schedule_steps": 200_000})
        _, whole = resolve_config({**CARTPOLE, "steps": 200_000})
        assert numbers == whole
        resolve_config(as_dict(part, numbers), {"steps": 200_000})


class TestStartLines:
    """Where the settings of a run come from."""

    @pytest.mark.parametrize(
        ("said", "line"),
        [
            (CARTPOLE, "Preset: dqn on CartPole-v1 (tuned for seconds)."),
            ({"env": "MyEnv-v0"}, "No preset for (dqn, MyEnv-v0): the defaults of dqn (tuned for steps) are used."),
            ({"env": "CartPole-v1", "algo": "a3c"}, "No preset for (a3c, CartPole-v1): the defaults of a3c are used."),
            ({"env": "ALE/Pong-v5"}, "Preset: dqn on Atari games."),
            (
                {"env": "ALE/Pong-v5", "algo": "awr"},
                "No preset for (awr, ALE/Pong-v5): the defaults of awr are used.",
            ),
            ({"env": "levels:procgen:jumper", "algo": "ppo"}, "Preset: ppo on levels:procgen:*."),
            ({"env": "ALE/Pong-v5", "recipe": "dqn-nature"}, "Recipe: dqn-nature."),
        ],
    )
    def test_name_the_preset_or_that_there_is_none(self, said: dict[str, Any], line: str) -> None:
        assert start_lines(said, *resolve_config(said)) == [line]

    def test_say_which_schedules_of_a_preset_the_run_is_too_short_for(self) -> None:
        said = {**CARTPOLE, "steps": 5_000}
        assert start_lines(said, *resolve_config(said))[1:] == [
            "The preset's --epsilon-steps 10000 does not end within a run of 5,000 steps: --epsilon-fraction 0.1 is "
            "used instead.",
            "The preset's --lr-steps 100000 does not end within a run of 5,000 steps: --lr-fraction 1 is used instead.",
        ]

    def test_are_silent_where_every_setting_is_given(self) -> None:
        written = as_dict(*resolve_config(CARTPOLE))
        assert start_lines(written, *resolve_config(written)) == []


class TestFiles:
    def test_tables_are_only_for_the_eye(self, tmp_path: Path) -> None:
        file = tmp_path / "run.toml"
        file.write_text('env = "CartPole-v1"\n[sharing]\nsync = "server"\nshards = 2\n[learning]\nn-step = 2\nlr = 1\n')
        config, numbers = resolve_config(read_toml(file))
        assert (config.env, config.sync, config.shards, numbers.n_step, numbers.lr) == (
            "CartPole-v1",
            "server",
            2,
            2,
            1.0,
        )

    def test_a_key_that_is_written_twice_is_refused(self, tmp_path: Path) -> None:
        file = tmp_path / "run.toml"
        file.write_text("lr = 0.1\n[learning]\nlr = 0.2\n")
        with pytest.raises(PasselError, match="lr"):
            read_toml(file)

    def test_a_file_that_is_not_there_and_one_that_is_no_toml(self, tmp_path: Path) -> None:
        with pytest.raises(PasselError, match=r"no file .*missing\.toml.*--config"):
            read_toml(tmp_path / "missing.toml")
        (tmp_path / "broken.toml").write_text("lr = = 3")
        with pytest.raises(PasselError, match=r"broken\.toml is not valid TOML"):
            read_toml(tmp_path / "broken.toml")
        with pytest.raises(PasselError):
            read_toml(tmp_path)

    @pytest.mark.parametrize(
        "said",
        [
            {},
            {"max_grad_norm": None},
            {"lr_end": 0.0, "solved_at": 1.5},
            {"optimizer": "sgd", "momentum": 0.5},
            {"optimizer": "rmsprop", "optimizer_eps": 1e-4},
            {"sync": "server", "shards": 3, "workers": 2},
            {"sync": "solo"},
            {"sync": "allreduce", "transport": "distributed", "workers": 2},
            {"prioritized": True, "priority_alpha": 0.9, "memory": "global"},
            {"hidden": []},
            {"steps": 1e6, "sync_every": 4, "seed": 2**40},
        ],
        ids=str,
    )
    def test_what_is_written_reads_back_as_the_same_configuration(self, said: dict[str, Any]) -> None:
        config, numbers = resolve_config(said)
        text = tomli_w.dumps(as_dict(config, numbers))
        assert resolve_config(tomllib.loads(text)) == (config, numbers)

    def test_what_a_run_writes_reads_back_as_the_configuration_that_ran(self, tmp_path: Path) -> None:
        said = settings_for(
            sync="hogwild", workers=2, max_grad_norm=None, lr_end=0.0, out=str(tmp_path / "run"), steps=150
        )
        run = passel.train(**said)
        written = RunFolder.open(run.path, lock=False).read_config()
        assert resolve_config(written) == resolve_config(said)
        assert read_toml(run.path / "config.toml") == written


@pytest.mark.parametrize(("learners", "scheme"), [(1, "solo"), (2, "allreduce")])
@pytest.mark.parametrize("env", ["CartPole-v1", "ALE/Breakout-v5"])
def test_learners_apart_share_by_allreduce_where_there_are_several(env: str, learners: int, scheme: str) -> None:
    config, _ = resolve_config({"algo": "impala", "env": env, "learners": learners})
    assert config.sync == scheme


class TestRecipes:
    @pytest.mark.parametrize("name", RECIPES)
    def test_every_recipe_resolves_to_its_numbers(self, name: str) -> None:
        config, numbers = resolve_config({"recipe": name, "env": "ALE/Breakout-v5"})
        merged = dataclasses.asdict(config) | dataclasses.asdict(numbers)
        usual = {f.name: f.default for f in dataclasses.fields(type(numbers))}
        expected = usual | {key: tuple(v) if isinstance(v, list) else v for key, v in RECIPES[name].settings.items()}
        assert {key: merged[key] for key in expected} == expected, "no number of a preset is left"
        assert (config.algo, config.recipe) == (RECIPES[name].algo, name)

    def test_what_the_user_says_comes_first(self) -> None:
        _, numbers = resolve_config({"recipe": "dqn-nature", "env": "ALE/Pong-v5", "lr": 1e-3})
        assert numbers.lr == 1e-3

    def test_auto_is_the_recipe_s_algorithm(self) -> None:
        said = {"recipe": "dqn-nature", "env": "ALE/Pong-v5"}
        assert resolve_config({**said, "algo": "auto"}) == resolve_config(said)

    @pytest.mark.parametrize(
        ("said", "words"),
        [
            ({"recipe": "dqn"}, "there is no --recipe dqn. Choose from dqn-nature, double-dqn, rainbow-lite."),
            ({"recipe": "dqn-nature", "env": "CartPole-v1"}, "is for Atari games, and CartPole-v1 is none"),
            ({"recipe": "dqn-nature", "env": "ALE/Pong-v5", "algo": "ppo"}, "--algo ppo was asked for"),
        ],
    )
    def test_a_recipe_that_does_not_fit_is_refused(self, said: dict[str, Any], words: str) -> None:
        with pytest.raises(PasselError, match=re.escape(words)):
            resolve_config(said)
