"""Whatever happens to a run, it ends soon, says what happened, keeps what was learnt and leaves nothing else behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import passel
from harness import (
    FOREVER,
    HERE,
    PROMPTLY,
    TINY,
    Command,
    assert_whole,
    kinds,
    newest,
    rows,
    shared_memory,
    sleepers,
    summary,
    until,
)
from passel.interrupts import ECHO
from passel.types import Report
from passel.view.terminal import QuietView


@pytest.fixture(autouse=True)
def _no_shared_memory_is_left() -> Iterator[None]:
    before = shared_memory()
    yield
    made = shared_memory() - before
    # Patiently, for others on this machine may have made some of them; theirs go too.
    until(lambda: not made & shared_memory(), f"{made} to go from /dev/shm", 30.0)


def resumed_inline(run: Path, more: int = 300) -> passel.Run:
    """Continue the run in this process: the placement is only where workers run, and a checkpoint does not know it."""
    config = run / "config.toml"
    config.write_text(config.read_text().replace('place = "processes"', 'place = "inline"'))
    return passel.resume(run, steps=newest(run).step + more, quiet=True)


class TestADeadWorker:
    """Nobody waits for the dead: not at a lock it held, nor for a gradient that it owed."""

    @pytest.mark.parametrize(
        ("flags", "victim", "name"),
        [
            (["--sync", "hogwild"], 1, "worker 1"),
            (["--sync", "locked"], 0, "worker 0"),
            (["--sync", "server", "--shards", "2"], 3, "worker 1"),
            (["--sync", "server", "--shards", "2"], 1, "shard 1"),
            (["--sync", "allreduce"], 1, "worker 1"),
            (["--sync", "gossip"], 1, "worker 1"),
            (["--sync", "proximal"], 0, "worker 0"),
            (["--sync", "tokenring"], 0, "worker 0"),
        ],
        ids=["hogwild", "locked", "server", "shard", "allreduce", "gossip", "proximal", "tokenring"],
    )
    def test_killed(self, tmp_path: Path, flags: list[str], victim: int, name: str) -> None:
        run = tmp_path / "run"
        with Command(tmp_path, "train", *TINY, *FOREVER, *flags, "--out", "run") as command:
            command.await_training(run)
            time.sleep(0.2)
            command.children()[victim].kill()
            assert command.ends_promptly() == 1
            assert command.stderr == f"passel: {name} died: killed by signal 9 (SIGKILL)\n"
            command.assert_nothing_is_left()
        result = summary(run)
        assert result["status"] == "failed"
        assert result["steps"] == newest(run).step > 0
        assert result["checkpoint"] == f"run/checkpoints/{result['steps']}"
        assert kinds(run) == ["started", "first step", "checkpointed", "worker died", "failed"]
        died = rows(run / "events.jsonl")[-2]
        assert (died["worker"], died["cause"]) == (name, "killed by signal 9 (SIGKILL)")
        assert_whole(run)
        again = resumed_inline(run).summary
        assert again.status == "finished"
        assert again.updates > result["updates"] > 0

    @pytest.mark.parametrize(
        ("env", "cause"),
        [
            ("Raises-v0", "RuntimeError: this environment raises at step 60, as asked"),
            ("Exits-v0", "it ended with exit code 3, without a word"),
            ("Segfault-v0", "killed by signal 11 (SIGSEGV)"),
        ],
        ids=["raises", "exits", "segfaults"],
    )
    def test_environment_that_goes_wrong(self, tmp_path: Path, env: str, cause: str) -> None:
        run = tmp_path / "run"
        with Command(tmp_path, "train", *TINY, *FOREVER, "--env", f"harness:{env}", "--out", "run") as command:
            assert command.wait() == 1
            said = command.stderr
            command.assert_nothing_is_left()
        said_by_us = said[said.index("passel: ") :]
        assert said_by_us.splitlines()[0] in (f"passel: worker {rank} died: {cause}" for rank in (0, 1))
        match env:
            case "Raises-v0":  # our own frames and the environment's, indented to stand under the sentence
                assert "        Traceback (most recent call last):\n" in said
                assert "in _go_wrong\n" in said
                assert said.rstrip().endswith(cause)
            case "Exits-v0":
                assert said_by_us == said
            case "Segfault-v0":  # where Python stood, from the worker that died
                assert "Fatal Python error: Segmentation fault" in said
                assert "in _go_wrong" in said
        assert summary(run)["status"] == "failed"
        assert kinds(run)[-1] == "failed"
        assert newest(run).step > 0
        assert_whole(run)


def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    with Command(tmp_path, "train", *TINY, *FOREVER, "--sync", "server", "--shards", "2", "--out", "run") as command:
        command.await_training(tmp_path / "run")
        family = command.session()
        assert len(command.children()) == 4
        os.kill(command.pid, signal.SIGKILL)
        assert command.wait() == -signal.SIGKILL
        until(lambda: not command.session(), f"all {len(family)} processes to end", PROMPTLY)
        assert "Traceback" not in command.stderr


class TestNoProcessIsLeft:
    """Whatever an environment does: these start processes, and one keeps every Python thread from running."""

    def check(self, command: Command, folder: Path) -> None:
        until(lambda: not command.session() and not sleepers(folder), "the end of every process", PROMPTLY)

    def test_when_the_watcher_is_killed(self, tmp_path: Path) -> None:
        with Command(tmp_path, "train", *TINY, *FOREVER, "--env", "harness:HoldsTheLock-v0", "--out", "run") as command:
            command.await_that(lambda: len(list(tmp_path.glob("holding-*"))) == 2, "both workers to hold the lock")
            assert len(sleepers(tmp_path)) == 5, (
                "two of each worker, and one by which the watcher knows the environment"
            )
            os.kill(command.pid, signal.SIGKILL)
            assert command.wait() == -signal.SIGKILL
            self.check(command, tmp_path)

    def test_when_the_forkserver_is_killed_and_then_the_watcher(self, tmp_path: Path) -> None:
        """Nobody is left who could look for workers, and no thread of theirs runs: the kernel alone ends them."""
        with Command(tmp_path, "train", *TINY, *FOREVER, "--env", "harness:HoldsTheLock-v0", "--out", "run") as command:
            command.await_that(lambda: len(list(tmp_path.glob("holding-*"))) == 2, "both workers to hold the lock")
            server, workers = command.forkserver(), command.children()
            assert server is not None
            theirs = [process for worker in workers for process in worker.children()]
            assert (len(workers), len(theirs)) == (2, 4)
            server.kill()
            os.kill(command.pid, signal.SIGKILL)
            assert command.wait() == -signal.SIGKILL
            _, alive = psutil.wait_procs([*workers, *theirs], PROMPTLY)
            assert not alive

    def test_when_the_forkserver_is_killed_and_a_scheduler_stops_the_run(self, tmp_path: Path) -> None:
        """The run goes on without the forkserver. A scheduler sends SIGTERM to every process that it finds."""
        run = tmp_path / "run"
        with Command(tmp_path, "train", *TINY, *FOREVER, "--env", "harness:HasChildren-v0", "--out", "run") as command:
            command.await_training(run)
            server = command.forkserver()
            assert server is not None
            workers = command.children()
            server.kill()
            seen = len(rows(run / "metrics.jsonl"))
            command.await_that(lambda: len(rows(run / "metrics.jsonl")) > seen + 2, "training to go on")
            assert all(worker.is_running() for worker in workers)
            for process in [*workers, psutil.Process(command.pid)]:
                process.terminate()
            assert command.wait() == 130
            assert command.session() == [], "nothing outlives the command, not even for a moment"
            self.check(command, tmp_path)
        assert summary(run)["status"] == "stopped"
        assert [kind for kind in kinds(run) if kind != "notice"][-2:] == ["checkpointed", "stopped"]


class TestCtrlC:
    """130, no traceback, nothing half written, nobody left; and where there was training, a checkpoint of it."""

    def check(self, command: Command, code: int = 130) -> None:
        assert command.ends_promptly() == code
        command.assert_nothing_is_left()
        assert "Traceback" not in command.stderr
        assert "KeyboardInterrupt" not in command.stderr

    def test_while_importing(self, tmp_path: Path) -> None:
        with Command(tmp_path, "train", *TINY, *FOREVER, "--out", "run") as command:
            command.await_that(lambda: command.forkserver() is not None, "the forkserver")
            time.sleep(0.2)
            command.ctrl_c()
            self.check(command)
            assert command.stderr == "passel: interrupted.\n"
            assert command.stdout == ""
        assert os.listdir(tmp_path) == []

    def test_while_workers_start(self, tmp_path: Path) -> None:
        with Command(tmp_path, "train", *TINY, *FOREVER, "--env", "harness:SlowStart-v0", "--out", "run") as command:
            command.await_that((tmp_path / "starting").exists, "the start of a worker")
            time.sleep(0.1)
            command.ctrl_c()
            self.check(command)
        assert os.listdir(tmp_path) == ["starting"], "nothing was learnt, so there is nothing to keep"

    def test_during_warm_up(self, tmp_path: Path) -> None:
        run = tmp_path / "run"
        with Command(tmp_path, "train", *TINY, *FOREVER, "--warmup", "1e9", "--out", "run") as command:
            command.await_that(lambda: any(row["steps"] for row in rows(run / "metrics.jsonl")), "warm-up")
            command.ctrl_c()
            self.check(command)
        assert summary(run)["status"] == "stopped"
        assert summary(run)["updates"] == 0
        assert summary(run)["steps"] == newest(run).step > 0
        assert_whole(run)

    def test_during_training_once(self, tmp_path: Path) -> None:
        """Every process gets the signal, and only the one that the user started answers it. The run can go on."""
        run = tmp_path / "run"
        with Command(tmp_path, "train", *TINY, *FOREVER, "--sync", "allreduce", "--out", "run") as command:
            command.await_training(run)
            command.ctrl_c()
            self.check(command)
            assert command.stderr == ""
            assert "Stopped before the end" in command.stdout
            assert "passel resume run" in command.stdout
        result = summary(run)
        assert result["status"] == "stopped"
        assert kinds(run) == ["started", "first step", "checkpointed", "stopped"]
        assert result["steps"] == newest(run).step > 0
        assert_whole(run)
        again = resumed_inline(run).summary
        assert again.updates > result["updates"] > 0

    def test_during_training_twice(self, tmp_path: Path) -> None:
        run = tmp_path / "run"
        with Command(tmp_path, "train", *TINY, *FOREVER, "--env", "harness:Slow-v0", "--out", "run") as command:
            command.await_training(run)
            command.ctrl_c()
            time.sleep(0.02)
            command.ctrl_c()
            self.check(command)
        assert_whole(run)

    @pytest.mark.parametrize(("every", "least"), [("none", 100), ("10", 1)], ids=["the last", "during training"])
    def test_during_evaluation(self, tmp_path: Path, every: str, least: int) -> None:
        """One that would take minutes: 100 copies, 200 steps of 5 ms."""
        run = tmp_path / "run"
        flags = ["--env", "harness:Slow-v0", "--steps", "100", "--eval-episodes", "100", "--out", "run"]
        flags += ["--eval-every", every, "--select-episodes", "100"]
        with Command(tmp_path, "train", *TINY, *flags) as command:
            command.await_that((tmp_path / "evaluating").exists, "evaluation")
            command.ctrl_c()
            self.check(command)
        assert summary(run)["status"] == "stopped"
        assert summary(run)["eval"] is None
        assert newest(run).step >= least
        assert_whole(run)

    def test_during_a_checkpoint(self, tmp_path: Path) -> None:
        """Checkpoints of some megabytes after every few steps: nearly all the time goes into them."""
        run = tmp_path / "run"
        flags = ["--checkpoint-every", "1", "--capacity", "3e5", "--out", "run"]
        with Command(tmp_path, "train", *TINY, *FOREVER, *flags) as command:
            command.await_that(lambda: kinds(run).count("checkpointed") >= 3, "some checkpoints")
            command.await_that(lambda: any((run / "checkpoints").glob(".writing-*/memory.safetensors")), "another")
            command.ctrl_c()
            self.check(command)
        assert summary(run)["status"] == "stopped"
        assert_whole(run)
        assert resumed_inline(run, 20).summary.status == "finished"

    def test_sigterm_does_the_same(self, tmp_path: Path) -> None:
        run = tmp_path / "run"
        with Command(tmp_path, "train", *TINY, *FOREVER, "--sync", "server", "--out", "run") as command:
            command.await_training(run)
            with pytest.raises(
                passel.PasselError, match=rf"run is in use by process {command.pid} on .*\. Stop it or wait"
            ):
                passel.resume(run, quiet=True)
            command.terminate()
            self.check(command)
            assert command.stderr == ""
        assert summary(run)["status"] == "stopped"
        assert kinds(run) == ["started", "first step", "checkpointed", "stopped"]
        assert_whole(run)
        assert resumed_inline(run).summary.status == "finished"


class Impatient(QuietView):
    """A view that presses Ctrl-C, as often as it is told to, when it sees the first update."""

    def __init__(self, times: int, pause: float) -> None:
        self.times, self.pause = times, pause

    def report(self, report: Report) -> None:
        while report.updates and self.times:
            self.times -= 1
            signal.raise_signal(signal.SIGINT)
            time.sleep(self.pause)


class TestCtrlCInOneProcess:
    """The inline placement, and whoever calls passel.train from a notebook."""

    def train(self, tmp_path: Path, times: int, pause: float = 1.1 * ECHO) -> passel.Run:
        return passel.train(
            "CartPole-v1",
            view=Impatient(times, pause),
            backend="gymnasium",
            place="inline",
            workers=2,
            envs=2,
            hidden=[8],
            batch=8,
            warmup=40,
            capacity=400,
            steps=10**9,
            tensorboard=False,
            out=str(tmp_path / "run"),
        )

    def test_once(self, tmp_path: Path) -> None:
        before = signal.getsignal(signal.SIGINT)
        run = self.train(tmp_path, times=1)
        assert run.summary.status == "stopped"
        assert newest(run.path).step == run.summary.steps
        assert_whole(run.path)
        assert signal.getsignal(signal.SIGINT) is before

    def test_an_echo_loses_nothing(self, tmp_path: Path) -> None:
        run = self.train(tmp_path, times=2, pause=0)
        assert run.summary.status == "stopped"
        assert newest(run.path).step == run.summary.steps

    def test_twice(self, tmp_path: Path) -> None:
        before = signal.getsignal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            self.train(tmp_path, times=2)
        assert_whole(tmp_path / "run")
        assert signal.getsignal(signal.SIGINT) is before


class TestTheWholeTreeKilledWhileSaving:
    """The newest complete checkpoint survives every moment."""

    def test_processes(self, tmp_path: Path) -> None:
        run = tmp_path / "run"
        command_line = ["train", *TINY, *FOREVER, "--checkpoint-every", "1", "--capacity", "1e5", "--out", "run"]
        reached = 0
        for pause in (0.0, 0.013):
            with Command(tmp_path, *command_line) as command:
                command.await_that(lambda: run.exists() and _steps(run) > reached, "a checkpoint")  # noqa: B023
                command.await_that(lambda: any((run / "checkpoints").glob(".writing-*")), "another")
                time.sleep(pause)
                command.kill_tree()
                command.wait()
            assert newest(run).step > reached
            reached = newest(run).step
            command_line = ["resume", "run"]
        assert resumed_inline(run, 20).summary.status == "finished"
        assert_whole(run)

    @pytest.mark.timeout(240)
    def test_many_times(self, tmp_path: Path) -> None:
        """In a process of its own, which forks: to import torch for each kill would take a minute."""
        done = subprocess.run(
            [sys.executable, str(HERE / "harness.py"), str(tmp_path)],
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "TMPDIR": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "14 kills" in done.stdout


def _steps(run: Path) -> int:
    return max((int(path.name) for path in (run / "checkpoints").glob("[0-9]*")), default=0)
