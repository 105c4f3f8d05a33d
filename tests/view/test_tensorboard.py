"""What TensorBoard itself reads back from the files."""

from __future__ import annotations

import runpy
import shutil
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from passel.types import Report
from passel.view import tensorboard as module
from passel.view.tensorboard import TensorBoardLog, scalars_of

MakeReport = Callable[..., Report]


def read_back(path: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(path)).Reload()


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


class Branching(nn.Module):
    """Looks at a value in Python, of which tracing warns."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.sum() >= 0 else x


class Untraceable(nn.Module):
    def forward(self, x: Tensor) -> str:
        return str(x)


class Noisy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)


def test_every_number_of_every_report_is_read_back_at_its_step(tmp_path: Path, make_report: MakeReport) -> None:
    reports = [make_report(steps=1000 * i, return_mean_100=None if i == 0 else float(i)) for i in range(3)]
    log = TensorBoardLog(tmp_path / "tb")
    for report in reports:
        log.report(report)
    log.close()
    events = read_back(tmp_path / "tb")
    assert set(events.Tags()["scalars"]) == set(scalars_of(reports[-1]))
    for tag, value in scalars_of(reports[-1]).items():
        last = events.Scalars(tag)[-1]
        assert (last.step, last.value) == (2000, pytest.approx(value))
    assert [event.step for event in events.Scalars("rollout/ep_rew_mean")] == [1000, 2000]
    assert {"shares/env", "train/loss", "workers/worker-3/steps_per_second"} <= set(events.Tags()["scalars"])


def test_the_graph_is_there_and_names_the_layers(tmp_path: Path) -> None:
    log = TensorBoardLog(tmp_path)
    assert log.graph(network(), torch.zeros(1, 4))
    log.close()
    nodes = [node.name for node in _graph_def(tmp_path).node]
    assert any("Linear" in name for name in nodes)
    assert any("ReLU" in name for name in nodes)


def _graph_def(path: Path) -> Any:
    return read_back(path).Graph()


def test_drawing_the_graph_leaves_no_mark_on_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, noisy = TensorBoardLog(tmp_path), nn.Sequential(nn.Linear(4, 4), Noisy())
    noisy.train()
    before = torch.get_rng_state()
    filters = list(warnings.filters)
    assert log.graph(noisy, torch.zeros(1, 4))
    log.close()
    assert torch.equal(torch.get_rng_state(), before)
    assert noisy.training
    assert all(parameter.grad is None for parameter in noisy.parameters())
    assert warnings.filters == filters
    assert capsys.readouterr().out == ""


def test_a_branch_in_python_draws_without_a_warning(tmp_path: Path) -> None:
    log = TensorBoardLog(tmp_path)
    assert log.graph(Branching(), torch.ones(1, 4))
    log.close()


def test_a_module_that_cannot_be_traced_costs_the_picture_and_not_the_run(
    tmp_path: Path, make_report: MakeReport, capsys: pytest.CaptureFixture[str]
) -> None:
    log = TensorBoardLog(tmp_path)
    assert not log.graph(Untraceable(), torch.ones(1, 4))
    log.report(make_report())
    log.close()
    assert capsys.readouterr().out == ""
    assert "run/staleness" in read_back(tmp_path).Tags()["scalars"]


def test_nothing_is_imported_or_created_before_the_first_report(
    tmp_path: Path, make_report: MakeReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [*sys.modules, "tensorboard", "torch.utils.tensorboard"]:
        if name.startswith(("tensorboard", "torch.utils.tensorboard")):
            monkeypatch.setitem(sys.modules, name, None)  # an import of it is now an error
    log = runpy.run_path(str(module.__file__))["TensorBoardLog"](tmp_path / "tb")
    log.close()
    assert not (tmp_path / "tb").exists()
    with pytest.raises(ImportError):
        log.report(make_report())


def test_closing_twice_is_harmless_and_a_later_report_opens_anew(tmp_path: Path, make_report: MakeReport) -> None:
    log = TensorBoardLog(tmp_path)
    log.report(make_report(steps=1))
    log.close()
    log.close()
    log.report(make_report(steps=2))
    log.close()
    assert [event.step for event in read_back(tmp_path).Scalars("run/episodes")] == [1, 2]


def test_a_file_that_cannot_be_written_raises_here_and_prints_nothing(
    tmp_path: Path, make_report: MakeReport, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer is a thread of its own; a traceback of it would run across the screen."""
    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)  # pytest has its own
    log = TensorBoardLog(tmp_path / "tb")
    log.report(make_report())
    shutil.rmtree(tmp_path / "tb")

    def report_on() -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            log.report(make_report())
            time.sleep(0.01)

    with pytest.raises(OSError, match="No such file"):
        report_on()
    time.sleep(0.1)  # for the thread to say something
    assert capfd.readouterr().err == ""


def test_other_threads_end_as_ever(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ended: list[object] = []
    monkeypatch.setattr(threading, "excepthook", ended.append)
    TensorBoardLog(tmp_path / "tb")._open().close()
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
    assert len(ended) == 1


def test_numbers_have_the_names_of_stable_baselines3(make_report: MakeReport) -> None:
    numbers = {"loss": 0.5, "approx_kl": 0.01, "epsilon": 0.05}
    report = make_report(length_mean_100=195.5, scalars=numbers)
    flat = scalars_of(report)
    assert flat["rollout/ep_rew_mean"] == report.return_mean_100
    assert flat["rollout/ep_len_mean"] == 195.5
    assert flat["rollout/exploration_rate"] == 0.05
    assert (flat["time/fps"], flat["time/time_elapsed"]) == (report.steps_per_second, report.seconds)
    assert flat["train/n_updates"] == report.updates
    assert {name: flat[f"train/{name}"] for name in numbers} == numbers
    early = scalars_of(make_report(return_mean_100=None, length_mean_100=None, scalars={"loss": 0.0}))
    assert not any(name.startswith("rollout/") for name in early)


def test_an_evaluation_is_read_back_at_its_step(tmp_path: Path, make_report: MakeReport) -> None:
    log = TensorBoardLog(tmp_path)
    log.report(make_report(steps=500))
    log.evaluation(700, 12.5, 31.0)
    log.close()
    events = read_back(tmp_path)
    for tag, value in (("eval/mean_reward", 12.5), ("eval/mean_ep_length", 31.0)):
        assert [(event.step, event.value) for event in events.Scalars(tag)] == [(700, value)]


def test_settings_are_hyperparameters_of_the_same_run(tmp_path: Path, make_report: MakeReport) -> None:
    """Not of one below it, as `SummaryWriter.add_hparams` makes: there would be no curves to choose runs by."""
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    def plugin() -> dict[str, Any]:
        found = read_back(tmp_path).PluginTagToContent("hparams")
        return {tag.rpartition("/")[2]: HParamsPluginData.FromString(data) for tag, data in found.items()}

    settings = {"lr": 3e-4, "algo": "ppo", "hidden": [64, 64], "normalise": True, "seed": 2**100, "value_clip": "none"}
    log = TensorBoardLog(tmp_path, settings)
    log.report(make_report())
    log.close()
    found = plugin()
    assert found.keys() == {"experiment", "session_start_info"}, "it has not ended"
    values = found["session_start_info"].session_start_info.hparams
    assert values["lr"].number_value == 3e-4
    assert values["seed"].number_value == 2.0**100
    texts = {name: values[name].string_value for name in ("algo", "hidden", "normalise", "value_clip")}
    assert texts == {"algo": "ppo", "hidden": "[64, 64]", "normalise": "True", "value_clip": "none"}
    experiment = found["experiment"].experiment
    assert {info.name for info in experiment.hparam_infos} == set(settings)
    assert "rollout/ep_rew_mean" in {info.name.tag for info in experiment.metric_infos}
    log.end_session()
    log.close()
    assert "session_end_info" in plugin()
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []
