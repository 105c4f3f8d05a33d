"""Settings tuned for steps or for seconds, and what several workers make of them."""

from __future__ import annotations

from typing import Any

import pytest

from passel.algos import ALGORITHMS
from passel.place.sharing import FEWEST_ROWS
from passel.recipes import presets
from passel.recipes.resolve import resolve_config, start_lines
from passel.sync import SCHEMES

ANYWHERE = {"env": "MyEnv-v0"}


class TestTuneFor:
    def test_seconds_puts_other_presets_and_defaults_in_place(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(presets.PRESETS, ("ppo", "MyEnv-v0"), {"lr": 0.5, "gamma": 0.5})
        monkeypatch.setitem(presets.FOR_SECONDS, ("ppo", "MyEnv-v0"), {"lr": 0.25})
        _, steps = resolve_config({**ANYWHERE, "algo": "ppo"})
        _, seconds = resolve_config({**ANYWHERE, "algo": "ppo", "tune_for": "seconds"})
        defaults = ALGORITHMS["ppo"].Config()
        assert (steps.lr, steps.gamma, steps.epochs) == (0.5, 0.5, defaults.epochs)
        assert (seconds.lr, seconds.gamma, seconds.epochs) == (0.25, defaults.gamma, presets.QUICK["ppo"]["epochs"])
        assert seconds.epochs < steps.epochs

    def test_a_preset_for_steps_is_used_for_seconds_where_there_is_no_other(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(presets.PRESETS, ("ppo", "MyEnv-v0"), {"lr": 0.5})
        assert resolve_config({**ANYWHERE, "algo": "ppo", "tune_for": "seconds"})[1].lr == 0.5

    @pytest.mark.parametrize(("algo", "env"), presets.FOR_SECONDS, ids=str)
    def test_every_preset_for_seconds_is_a_configuration_that_runs(self, algo: str, env: str) -> None:
        resolve_config({"algo": algo, "env": env, "tune_for": "seconds"})

    @pytest.mark.parametrize(
        ("said", "told"),
        [
            ({"algo": "ppo"}, "the defaults of ppo (tuned for steps) are used."),
            ({"algo": "dqn", "tune_for": "seconds"}, "the defaults of dqn (tuned for seconds) are used."),
            ({"algo": "a3c", "tune_for": "seconds"}, "the defaults of a3c are used."),
        ],
    )
    def test_the_start_line_says_which(self, said: dict[str, Any], told: str) -> None:
        (line,) = start_lines({**ANYWHERE, **said}, *resolve_config({**ANYWHERE, **said}))
        assert line.endswith(told)


class TestSharing:
    @pytest.mark.parametrize("algo", presets.TUNED_FOR)
    @pytest.mark.parametrize("workers", [1, 2, 4, 64])
    def test_workers_have_as_many_environments_together_as_one_alone(self, algo: str, workers: int) -> None:
        alone, _ = resolve_config({**ANYWHERE, "algo": algo, "workers": 1})
        shared, _ = resolve_config({**ANYWHERE, "algo": algo, "workers": workers})
        assert shared.envs == max(alone.envs // workers, 1)

    @pytest.mark.parametrize("sync", [sync for sync in SCHEMES if sync != "solo"])
    @pytest.mark.parametrize("algo", presets.TUNED_FOR)
    def test_they_make_as_many_updates_of_as_many_rows_for_each_step(self, algo: str, sync: str) -> None:
        """Schemes that average: each update is one of all workers, of all their rows."""
        said = {**ANYWHERE, "algo": algo, "sync": sync}
        (one, alone), (two, shared) = (resolve_config({**said, "workers": workers}) for workers in (1, 2))
        joint = 2 if sync in ("allreduce", "gossip", "proximal") else 1
        assert alone.batch // 2 >= FEWEST_ROWS
        assert shared.batch * joint == alone.batch
        if algo == "dqn":
            assert shared.updates_per_step == alone.updates_per_step * joint
        else:
            rows, all_rows = two.envs * shared.horizon, one.envs * alone.horizon
            assert rows // shared.batch * 2 == all_rows // alone.batch * joint

    @pytest.mark.parametrize(
        "said",
        [
            {"tune_for": "seconds"},
            {"algo": "a3c"},
            {"algo": "impala"},
            {"env": "levels:procgen:jumper", "algo": "ppo"},
            {"env": "ALE/Pong-v5", "recipe": "dqn-nature"},
        ],
        ids=str,
    )
    def test_other_settings_are_each_worker_s(self, said: dict[str, Any]) -> None:
        few, many = (resolve_config({**ANYWHERE, **said, "workers": workers}) for workers in (2, 8))
        assert few[0].envs == many[0].envs
        assert few[1] == many[1]

    def test_what_the_user_says_is_each_worker_s(self) -> None:
        said = {**ANYWHERE, "algo": "dqn", "sync": "allreduce", "workers": 4}
        said |= {"envs": 3, "batch": 77, "updates_per_step": 0.3}
        config, numbers = resolve_config(said)
        assert (config.envs, numbers.batch, numbers.updates_per_step) == (3, 77, 0.3)

    def test_updates_keep_a_fewest_number_of_rows(self) -> None:
        _, numbers = resolve_config({**ANYWHERE, "algo": "ppo", "sync": "allreduce", "workers": 64})
        assert numbers.batch == FEWEST_ROWS
