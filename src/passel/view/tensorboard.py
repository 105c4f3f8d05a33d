"""The run in TensorBoard: its numbers against steps, its settings as hyperparameters, and the network's graph.

Numbers that Stable-Baselines3 logs too have its names, so that the curves of both can be laid over each other.

TensorBoard takes a third of a second to import, so it is imported with the first report, when the workers already work.
A report becomes one event with all its scalars, which costs a fifth of what one event a scalar does; a thread of the
writer puts it on disk.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from passel.types import PasselError, Report

#: What the table of hyperparameters shows of each run: the last value of each.
RESULTS = ("rollout/ep_rew_mean", "rollout/ep_len_mean", "eval/mean_reward", "time/fps", "time/time_elapsed")


class TensorBoardLog:
    """Writes reports into the folder `path`, and the settings `hparams` above them; nothing is created before there is
    something to write.
    """

    def __init__(self, path: Path, hparams: Mapping[str, Any] | None = None) -> None:
        self._path, self._hparams = path, hparams
        self._writer: Any = None
        self._summary: Any = None

    def report(self, report: Report) -> None:
        """All numbers of the report, at the step at which they were true."""
        self._write(scalars_of(report), report.steps)

    def evaluation(self, steps: int, mean_reward: float, mean_ep_length: float) -> None:
        """The result of an evaluation of the policy after `steps` steps."""
        self._write({"eval/mean_reward": mean_reward, "eval/mean_ep_length": mean_ep_length}, steps)

    def end_session(self) -> None:
        """The run has ended: the table of hyperparameters says so."""
        if self._hparams is not None:
            writer, (_, _, ended) = self._open(), _hparams(self._hparams)
            writer.file_writer.add_summary(ended)

    def _write(self, numbers: Mapping[str, float], steps: int) -> None:
        writer = self._open()
        values = [self._summary.Value(tag=tag, simple_value=value) for tag, value in numbers.items()]
        writer.file_writer.add_summary(self._summary(value=values), steps)

    def graph(self, module: nn.Module, example_input: Tensor) -> bool:
        """The network's graph, drawn from one forward pass; False if PyTorch cannot trace this module.

        It is a picture, so a run goes on without it; and it leaves no mark on the run: the random stream and the
        module's mode are afterwards what they were before.
        """
        writer = self._open()
        try:
            with _traced_in_silence(), torch.random.fork_rng(devices=[]), torch.no_grad():
                writer.add_graph(module, example_input, use_strict_trace=False)
        except RuntimeError:
            return False
        return True

    def close(self) -> None:
        """Put on disk what is still in memory. Twice does no harm."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _open(self) -> Any:
        if self._writer is None:
            if self._path.is_symlink():
                raise PasselError(f"{self._path} is a symbolic link, which is not followed. Remove it.")
            self._summary = importlib.import_module("tensorboard.compat.proto.summary_pb2").Summary
            module: Any = importlib.import_module("torch.utils.tensorboard")
            if not isinstance(threading.excepthook, _ExceptWriters):
                threading.excepthook = _ExceptWriters(threading.excepthook)
            self._writer = module.SummaryWriter(str(self._path), max_queue=1000, flush_secs=10)
            if self._hparams is not None:
                for part in _hparams(self._hparams)[:2]:  # which there are, and what this run has
                    self._writer.file_writer.add_summary(part)
        return self._writer


class _ExceptWriters:
    """What to do with an exception that ends a thread: as ever, but nothing if the thread is TensorBoard's writer.

    The next `report` raises the same again, for whoever called it; a traceback would only run across the screen.
    """

    def __init__(self, usual: Callable[[threading.ExceptHookArgs], object]) -> None:
        self._usual = usual

    def __call__(self, args: threading.ExceptHookArgs) -> None:
        if not type(args.thread).__module__.startswith("tensorboard."):
            self._usual(args)


def _hparams(settings: Mapping[str, Any]) -> Any:
    """The three summaries of the plugin for hyperparameters: of the experiment, of the start and of the end of a run.

    `SummaryWriter.add_hparams` would write them into a run of their own, in which there are no curves.
    """
    summary: Any = importlib.import_module("torch.utils.tensorboard.summary")
    numbers = {name: float(value) for name, value in settings.items() if type(value) in (int, float)}
    kept = {name: numbers.get(name, str(value)) for name, value in settings.items()}
    return summary.hparams(kept, dict.fromkeys(RESULTS, 0.0))


def scalars_of(report: Report) -> dict[str, float]:
    """The report as flat names and numbers."""
    flat = {
        "time/fps": report.steps_per_second,
        "time/time_elapsed": report.seconds,
        "train/n_updates": float(report.updates),
        "run/episodes": float(report.episodes),
        "run/updates_per_second": report.updates_per_second,
        "run/staleness": report.staleness,
    }
    known = {
        "rollout/ep_rew_mean": report.return_mean_100,
        "rollout/ep_len_mean": report.length_mean_100,
        "rollout/exploration_rate": report.scalars.get("epsilon"),
        "run/human_normalised": report.human_normalised,
        "run/frames": None if report.frames == report.steps else float(report.frames),
    }
    flat |= {name: value for name, value in known.items() if value is not None}
    flat |= {f"train/{name}": value for name, value in report.scalars.items()}
    flat |= {f"shares/{stage}": share for stage, share in report.shares.items()}
    flat |= {f"workers/{row.name}/steps_per_second": row.steps_per_second for row in report.workers}
    return flat


@contextlib.contextmanager
def _traced_in_silence() -> Iterator[None]:
    """Tracing is deprecated, and warns of values that it freezes: neither matters to a picture of one forward pass.

    PyTorch also prints a failed trace to standard output, where the live view is.
    """
    jit: Any = torch.jit
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.filterwarnings("ignore", r"`torch\.jit\.trace(_method)?` is deprecated", DeprecationWarning)
        warnings.filterwarnings("ignore", category=jit.TracerWarning)
        yield
