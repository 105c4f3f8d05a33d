"""The public API: what there is, what it costs to import, and that it does what its docstrings say."""

from __future__ import annotations

import importlib
import inspect
import json
import multiprocessing
import pkgutil
import shutil
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest
import torch

import passel
from passel.place.inline import Inline
from passel.testing.envs import Identity
from small import CORRIDOR, SMALL, settings_for

PUBLIC = [getattr(passel, name) for name in passel.__all__]


def in_a_new_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


class TestNames:
    def test_all_is_sorted_and_has_no_name_twice(self) -> None:
        assert passel.__all__ == sorted(set(passel.__all__))

    def test_all_is_what_can_be_imported_and_what_dir_shows(self) -> None:
        shown = [name for name in dir(passel) if not name.startswith("_")]
        assert shown == list(passel.__all__)
        namespace: dict[str, Any] = {}
        exec("from passel import *", namespace)
        assert {name for name in namespace if not name.startswith("_")} == set(passel.__all__)

    def test_no_module_of_the_package_has_a_public_name(self) -> None:
        """Importing passel.x sets the attribute x of the package to the module, over whatever x was."""
        for module in pkgutil.walk_packages(passel.__path__, "passel."):
            if module.name != "passel.__main__":
                importlib.import_module(module.name)
        modules = {module.name for module in pkgutil.iter_modules(passel.__path__)}
        assert not modules & set(passel.__all__)
        assert not [name for name in passel.__all__ if inspect.ismodule(getattr(passel, name))]

    def test_a_name_that_is_not_there_is_an_attribute_error(self) -> None:
        with pytest.raises(AttributeError, match="trian"):
            _ = passel.trian

    def test_the_version_is_the_package_s(self) -> None:
        from importlib.metadata import version

        assert passel.__version__ == version("passel")


class TestImport:
    def test_import_passel_imports_neither_torch_nor_numpy_nor_gymnasium(self) -> None:
        heavy = "{'torch', 'numpy', 'gymnasium', 'psutil', 'rich'}"
        assert in_a_new_python(f"import sys, passel; print({heavy} & set(sys.modules))") == "set()"

    def test_dir_and_all_import_nothing_either(self) -> None:
        code = "import sys, passel; dir(passel); passel.__all__; print('torch' in sys.modules)"
        assert in_a_new_python(code) == "False"

    def test_the_command_line_answers_help_without_torch(self) -> None:
        code = (
            "import sys\nfrom passel.cli import main\n"
            "try: main(['--help'])\nexcept SystemExit: pass\n"
            "print('torch' in sys.modules)"
        )
        assert in_a_new_python(code).endswith("False")


class TestDocumentation:
    @pytest.mark.parametrize("thing", PUBLIC, ids=lambda thing: thing.__name__)
    def test_every_public_name_has_a_docstring(self, thing: Any) -> None:
        assert inspect.getdoc(thing)
        for name, member in _own_members(thing):
            assert inspect.getdoc(member), f"{thing.__name__}.{name}"

    @pytest.mark.parametrize("thing", PUBLIC, ids=lambda thing: thing.__name__)
    def test_every_public_callable_is_annotated_in_full(self, thing: Any) -> None:
        members = [getattr(member, "fget", member) for _, member in _own_members(thing)]
        for function in [thing] if inspect.isfunction(thing) else members:
            signature = inspect.signature(function)
            hints = typing.get_type_hints(function)
            assert "return" in hints, function
            for name in signature.parameters:
                assert name in hints or name in ("self", "cls"), f"{function.__qualname__}({name})"

    def test_the_package_says_that_it_is_typed(self) -> None:
        assert (Path(passel.__file__).parent / "py.typed").exists()


def _own_members(thing: Any) -> list[tuple[str, Any]]:
    """Public methods and properties that a class of ours defines itself."""
    if not inspect.isclass(thing):
        return []
    return [
        (name, member)
        for name, member in vars(thing).items()
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property))
    ]


def make_identity() -> gym.Env[Any, Any]:
    return Identity(n_actions=3, steps=5)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> passel.Run:
    return passel.train(
        CORRIDOR, **_without_env(), sync="solo", workers=1, out=str(tmp_path_factory.mktemp("runs") / "x")
    )


def _without_env(**changes: Any) -> dict[str, Any]:
    settings = settings_for(**changes)
    del settings["env"]
    return settings


class TestTrain:
    def test_from_a_function_of_a_script(self, tmp_path: Path) -> None:
        run = passel.train(make_identity, **_without_env(), sync="hogwild", workers=2, out=str(tmp_path / "run"))
        assert run.summary.env == "Identity"
        assert run.summary.status == "finished"
        assert run.policy.spec.n_actions == 3

    def test_from_a_lambda_that_closes_over_a_local_name(self, tmp_path: Path) -> None:
        steps = 4
        run = passel.train(
            lambda: Identity(n_actions=2, steps=steps),
            **_without_env(),
            sync="solo",
            workers=1,
            out=str(tmp_path / "run"),
        )
        assert run.policy.spec.n_actions == 2
        assert run.summary.episodes == run.summary.steps // steps

    def test_from_a_lambda_in_real_processes(self, tmp_path: Path) -> None:
        steps = 4
        run = passel.train(
            lambda: Identity(n_actions=2, steps=steps),
            **_without_env(place="processes"),
            sync="hogwild",
            workers=2,
            out=str(tmp_path / "run"),
        )
        assert run.summary.status == "finished"
        assert run.summary.episodes > 0

    def test_from_an_environment_that_is_made_already(self, tmp_path: Path, trained: passel.Run) -> None:
        env: Any = gym.make("CartPole-v1")
        calls: list[Any] = [
            lambda env: passel.train(env, **_without_env(), out=str(tmp_path / "run")),
            lambda env: passel.evaluate(trained.path, env=env),
            lambda env: passel.film(trained.path, env=env),
            lambda env: passel.resume(trained.path, env),
        ]
        for call in calls:
            with pytest.raises(passel.PasselError) as caught:
                call(env)
            assert str(caught.value) == (
                "passel needs something that makes the environment, once for every worker, and this TimeLimit is an "
                "environment that is made already. Pass the id, the class or a function: lambda: gym.make(...)."
            )
        with pytest.raises(passel.PasselError, match="and this int is no such thing"):
            passel.train(typing.cast(Any, 3), **_without_env())
        assert not (tmp_path / "run").exists()

    def test_in_a_process_that_must_have_no_children(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """As a worker of multiprocessing.Pool is."""
        settings = _without_env(place="processes", out=str(tmp_path / "run"))
        process = multiprocessing.current_process()
        monkeypatch.setitem(process._config, "daemon", True)  # type: ignore[attr-defined]
        with pytest.raises(passel.PasselError, match="--place processes starts processes, which a daemonic process"):
            passel.train(CORRIDOR, **settings, workers=2)
        assert not (tmp_path / "run").exists()
        assert passel.train(CORRIDOR, **_without_env(out=str(tmp_path / "run")), workers=2).summary.steps

    def test_the_run_says_where_it_is_and_what_came_out(self, trained: passel.Run) -> None:
        assert trained.path.is_dir()
        summary = trained.summary
        assert (summary.algo, summary.sync, summary.place, summary.workers) == ("dqn", "solo", "inline", 1)
        assert summary.steps >= SMALL["steps"]
        assert summary.eval is not None
        assert summary.eval.episodes == SMALL["eval_episodes"]
        assert summary.eval.min <= summary.eval.mean <= summary.eval.max
        assert summary.checkpoint is not None
        assert Path(summary.checkpoint).is_dir()

    def test_what_cannot_run_raises_before_anything_is_made(self, tmp_path: Path) -> None:
        for wrong in ({"workrs": 2}, {"sync": "solo", "workers": 2}, {"lr": -1.0}):
            with pytest.raises(passel.PasselError):
                passel.train(CORRIDOR, **{**_without_env(), "out": str(tmp_path / "run"), **wrong})
        with pytest.raises(passel.PasselError, match="Corridor"):
            passel.train("passel.testing.envs:passel/Coridor-v0", **_without_env(), out=str(tmp_path / "run"))
        assert list(tmp_path.iterdir()) == []

    def test_the_first_of_two_runs_is_never_overwritten(self, trained: passel.Run) -> None:
        with pytest.raises(passel.PasselError, match="already holds a run"):
            passel.train(CORRIDOR, **_without_env(), sync="solo", workers=1, out=str(trained.path))

    def test_threads_of_the_caller_are_as_they_were(self, tmp_path: Path) -> None:
        before = torch.get_num_threads()
        passel.train(make_identity, **_without_env(steps=100), sync="solo", workers=1, out=str(tmp_path / "run"))
        assert torch.get_num_threads() == before


def test_workers_end_if_the_watcher_cannot_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have started, and nobody would ever tell them to stop."""

    def broken(*args: Any) -> None:
        raise OSError(24, "Too many open files")

    stopped: list[Inline] = []

    def stop(placement: Inline) -> None:
        stopped.append(placement)

    monkeypatch.setattr("passel.api.Supervisor", broken)
    monkeypatch.setattr(Inline, "stop", stop)
    with pytest.raises(OSError, match="Too many open files"):
        passel.train(**settings_for(workers=1, sync="solo"), out=str(tmp_path / "run"))
    assert stopped
    assert not (tmp_path / "run").exists(), "nothing has begun"


class TestResume:
    @pytest.mark.parametrize("old", [False, True])
    def test_a_run_of_a_function_needs_it_again(self, old: bool, tmp_path: Path) -> None:
        """The folder has no name that would make it; older cards do not say so."""
        settings = {**_without_env(), "sync": "solo", "workers": 1}
        for function, called in ((lambda: Identity(n_actions=2), "<lambda>"), (make_identity, "make_identity")):
            path = tmp_path / called
            passel.train(function, **settings, out=str(path))
            card = json.loads((path / "card.json").read_text())
            assert card["env"].pop("factory") is True
            if old:
                (path / "card.json").write_text(json.dumps(card))
            for call, use in ((passel.evaluate, "evaluate"), (passel.film, "film"), (passel.resume, "resume")):
                with pytest.raises(passel.PasselError) as caught:
                    call(path)
                assert str(caught.value) == (
                    f"{path} was trained on a Python function ({called}), which a run folder does not hold. "
                    f"Use passel.{use}(path, env=that_function), or --env module:function on the command line."
                )
            assert passel.evaluate(path, env=function, episodes=1).episodes == 1
            assert passel.evaluate(path, env="small:make_two" if called == "<lambda>" else "small:make_three").episodes
            assert passel.resume(path, function, steps=500, quiet=True).summary.steps >= 500
            with pytest.raises(passel.PasselError, match="CartPole-v1"):
                passel.resume(path, "CartPole-v1", steps=600, quiet=True)

    def test_a_run_of_an_id_says_so(self, trained: passel.Run) -> None:
        assert json.loads((trained.path / "card.json").read_text())["env"]["factory"] is False

    def test_a_run_of_a_function_of_a_module(self, tmp_path: Path) -> None:
        """By its name, workers import it, and the run is resumed without a word."""
        settings = _without_env(place="processes", out=str(tmp_path / "run"))
        run = passel.train("small:make_three", **settings, workers=2)
        assert run.policy.spec.n_actions == 3
        assert passel.evaluate(run.path, episodes=1).episodes == 1
        assert passel.resume(run.path, steps=500, quiet=True).summary.steps >= 500

    def test_a_resumed_run_takes_the_new_total_of_steps(self, tmp_path: Path) -> None:
        run = passel.train(
            CORRIDOR, **_without_env(until_solved=False), sync="locked", workers=2, out=str(tmp_path / "run")
        )
        again = passel.resume(run.path, steps=600, quiet=True)
        assert 600 <= again.summary.steps < 650
        assert again.summary.episodes > run.summary.episodes
        assert again.path == run.path

    @pytest.mark.parametrize("sync", ["hogwild", "allreduce"])
    def test_inline_a_run_that_was_killed_ends_with_the_weights_of_one_that_was_not(
        self, sync: str, tmp_path: Path
    ) -> None:
        """The card says: the same seed gives the same weights, also across a resume."""
        settings = _without_env(until_solved=False, steps=600, checkpoint_every=200, keep_checkpoints=9)
        whole = passel.train(CORRIDOR, **settings, sync=sync, workers=2, out=str(tmp_path / "whole"))
        weights = whole.policy.networks["q"].state_dict()
        killed = Path(shutil.copytree(whole.path, tmp_path / "killed"))
        first, *later = sorted((killed / "checkpoints").iterdir(), key=lambda path: int(path.name))
        assert 200 <= int(first.name) < 300
        for path in later:
            shutil.rmtree(path)
        resumed = passel.resume(killed, quiet=True)
        assert resumed.summary.steps == whole.summary.steps
        for name, weight in resumed.policy.networks["q"].state_dict().items():
            assert torch.equal(weight, weights[name]), name

    def test_a_finished_run_is_refused_with_the_cure(self, trained: passel.Run) -> None:
        with pytest.raises(passel.PasselError, match="--steps"):
            passel.resume(trained.path, quiet=True)

    def test_a_run_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(passel.PasselError, match="no run"):
            passel.resume(tmp_path / "nothing")


class TestPolicy:
    def test_one_observation_gives_an_int_and_a_batch_an_array(self, trained: passel.Run) -> None:
        policy = passel.load(trained.path)
        one = np.zeros(6, np.float32)
        one[2] = 1
        action = policy.act(one)
        assert type(action) is int
        assert action in (0, 1)
        batch = policy.act(np.stack([one, one, one]))
        assert isinstance(batch, np.ndarray)
        assert batch.tolist() == [action] * 3
        assert policy.act(one.tolist()) == action, "anything that numpy understands"
        assert policy.act(one.astype(np.float64)) == action

    def test_acting_starts_no_process_and_no_thread_of_ours(self, trained: passel.Run) -> None:
        me = psutil.Process()
        before = {child.pid for child in me.children(recursive=True)}
        policy = passel.load(trained.path)
        policy.act(np.zeros((100, 6), np.float32))
        assert {child.pid for child in me.children(recursive=True)} == before

    @pytest.mark.parametrize("shape", [(5,), (2, 5), (1, 1, 6), ()])
    def test_an_observation_of_another_shape_is_refused_with_both_shapes(
        self, trained: passel.Run, shape: tuple[int, ...]
    ) -> None:
        with pytest.raises(passel.PasselError, match=r"\(6,\)") as caught:
            trained.policy.act(np.zeros(shape, np.float32))
        assert str(shape) in str(caught.value)

    def test_the_policy_is_the_checkpoint_s_network(self, trained: passel.Run) -> None:
        policy = trained.policy
        obs = torch.eye(6)
        expected = policy.networks["q"](obs).argmax(dim=1)
        assert policy.act(obs.numpy()).tolist() == expected.tolist()  # type: ignore[union-attr]

    def test_acting_does_not_explore(self, trained: passel.Run) -> None:
        obs = np.eye(6, dtype=np.float32)
        answers = {tuple(trained.policy.act(obs)) for _ in range(20)}  # type: ignore[arg-type]
        assert len(answers) == 1


class TestEvaluate:
    def test_the_same_seed_gives_the_same_scores(self, trained: passel.Run) -> None:
        results = [passel.evaluate(trained.path, episodes=5, seed=seed) for seed in (3, 3)]
        assert results[0] == results[1]
        assert results[0].episodes == 5

    @pytest.mark.parametrize("episodes", [1, 7, 130])
    def test_as_many_episodes_as_were_asked_for(self, trained: passel.Run, episodes: int) -> None:
        assert passel.evaluate(trained.path, episodes=episodes).episodes == episodes

    def test_it_can_be_watched_and_stopped(self, trained: passel.Run) -> None:
        seen: list[int] = []

        def watch(ended: int) -> bool:
            seen.append(ended)
            return True

        passel.evaluate(trained.path, episodes=4, progress=watch)
        assert seen == sorted(seen)
        assert seen[-1] == 4

    def test_no_episodes_are_refused(self, trained: passel.Run) -> None:
        with pytest.raises(passel.PasselError, match="at least 1"):
            passel.evaluate(trained.path, episodes=0)


def test_observations_without_bounds_cannot_be_scaled(tmp_path: Path) -> None:
    with pytest.raises(passel.PasselError, match=r"--scale-obs needs .* CartPole-v1 .* Leave it out"):
        passel.train("CartPole-v1", scale_obs=True, place="inline", quiet=True, out=str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_policy_that_scales_its_observations_is_loaded_with_its_scale(tmp_path: Path) -> None:
    run = passel.train(
        "MountainCar-v0",
        scale_obs=True,
        hidden=[8],
        steps=300,
        eval_episodes=1,
        quiet=True,
        tensorboard=False,
        place="inline",
        workers=1,
        out=str(tmp_path / "run"),
    )
    network = passel.load(run.path).networks["q"]
    obs = torch.tensor([[-1.2, 0.07], [0.6, 0.0]])
    scaled = torch.tensor([[-1.0, 1.0], [1.0, 0.0]])
    with torch.no_grad():
        torch.testing.assert_close(network(obs), network.perceptron(scaled), rtol=1e-4, atol=1e-5)
