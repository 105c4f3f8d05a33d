"""What the tests of the real command share: start it, watch its processes, signal it, and read what it left behind.

Importing this module registers a few environments that are slow or that go wrong; `passel train --env harness:Slow-v0`
finds them because the tests put this folder on the command's path.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import gymnasium as gym
import psutil

from passel.run import checkpoint
from passel.run.folder import RunFolder
from passel.testing.envs import Crash, Identity

HERE = Path(__file__).parent

#: A run so small that starting it is all it costs; each flag may be given again behind these.
TINY = [
    *("--env", "CartPole-v1", "--backend", "gymnasium", "--workers", "2", "--envs", "2", "--hidden", "8"),
    *("--batch", "8", "--warmup", "40", "--capacity", "2000", "--epsilon-steps", "500", "--eval-episodes", "3"),
    "--no-tensorboard",
]
FOREVER = ["--steps", "1e9"]


#: Seconds that a run may take to end, whatever happened to it.
PROMPTLY = 5.0


class Slow(Identity):
    """Steps of 5 ms. A copy that is stepped in the user's process leaves the file `evaluating` behind as a sign."""

    def __init__(self) -> None:
        super().__init__(steps=200)

    def step(self, action: Any) -> Any:
        if multiprocessing.parent_process() is None:
            Path("evaluating").touch()
        time.sleep(0.005)
        return super().step(action)


class SlowStart(Identity):
    """A minute to build in a worker, which leaves the file `starting` behind as a sign."""

    def __init__(self) -> None:
        super().__init__()
        if multiprocessing.parent_process() is not None:
            Path("starting").touch()
            time.sleep(60)


class Segfault(Crash):
    """Dies at its step 60 as native code dies."""

    def _go_wrong(self) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)


class HasChildren(Crash):
    """Starts a process that it never ends. Its id is the name of a file in the folder `sleepers`."""

    def __init__(self, folder: str = ".", at: int = 0) -> None:
        super().__init__(at=at)
        child = subprocess.Popen(["sleep", "600"])
        (Path(folder) / "sleepers").mkdir(exist_ok=True)
        (Path(folder) / "sleepers" / str(child.pid)).touch()
        child.returncode = 0  # no warning that it still runs


class HoldsTheLock(HasChildren):
    """The same, and at its step 60 it sleeps in native code without releasing the interpreter's lock: no Python thread
    runs meanwhile. A worker that does so leaves the file `holding-<pid>` behind as a sign.
    """

    def _go_wrong(self) -> None:
        if multiprocessing.parent_process() is not None:
            Path(f"holding-{os.getpid()}").touch()
            ctypes.PyDLL(None).sleep(600)


def sleepers(folder: Path) -> list[int]:
    """The processes of such environments that are alive."""
    pids = [int(path.name) for path in (folder / "sleepers").glob("*")]
    return [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


gym.register("Slow-v0", "harness:Slow")
gym.register("HoldsTheLock-v0", "harness:HoldsTheLock", kwargs={"at": 60})
gym.register("HasChildren-v0", "harness:HasChildren")
gym.register("SlowStart-v0", "harness:SlowStart")
gym.register("Raises-v0", "harness:Crash", kwargs={"how": "raise", "at": 60})
gym.register("Exits-v0", "harness:Crash", kwargs={"how": "exit", "at": 60})
gym.register("Segfault-v0", "harness:Segfault", kwargs={"at": 60})


class Command:
    """One `passel ...` in a session of its own, as a terminal starts it: a Ctrl-C reaches every process of the group.

    It is given its own TMPDIR, so that what it leaves there can be seen. Leaving the `with` block ends what is left.
    """

    def __init__(
        self, cwd: Path, *arguments: str, program: list[str] | None = None, before: Callable[[], None] | None = None
    ) -> None:
        self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._tmp = tempfile.TemporaryDirectory()
        path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
        environ = {**os.environ, "PYTHONPATH": path, "TMPDIR": self._tmp.name, "COLUMNS": "120"}
        self._process = subprocess.Popen(
            [sys.executable, *(program or ["-m", "passel"]), *arguments],
            cwd=cwd,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._err,
            start_new_session=True,
            preexec_fn=before,  # noqa: PLW1509 - it only lowers a limit
        )
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.session():
            process.kill()
        self._process.wait(10)
        self._out.close()
        self._err.close()
        self._tmp.cleanup()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def stdout(self) -> str:
        return _text(self._out)

    @property
    def stderr(self) -> str:
        return _text(self._err)

    def session(self) -> list[psutil.Process]:
        """Every process that came from this command and is alive, also one that lost its parent."""
        return [process for process in psutil.process_iter() if _is_alive_in(process, self.pid)]

    def forkserver(self) -> psutil.Process | None:
        found = [
            p for p in self.session() if "multiprocessing.forkserver" in " ".join(p.cmdline()) and p.ppid() == self.pid
        ]
        return found[0] if found else None

    def children(self) -> list[psutil.Process]:
        """Shards and workers, in the order in which they were started."""
        server = self.forkserver()
        return sorted(server.children(), key=lambda p: (p.create_time(), p.pid)) if server else []

    def wait(self, seconds: float = 60.0) -> int:
        """The exit code."""
        return self._process.wait(seconds)

    def ends_promptly(self) -> int:
        """The exit code of a run that has just been told to end, or lost a worker."""
        began = time.monotonic()
        code = self.wait()
        gone = time.monotonic() - began
        assert gone < PROMPTLY, f"it took {gone:.1f} s to end"
        return code

    def ctrl_c(self) -> None:
        """What a terminal does: SIGINT to the whole group."""
        os.killpg(self.pid, signal.SIGINT)

    def terminate(self) -> None:
        """What a service manager does: SIGTERM to the process that it started."""
        os.kill(self.pid, signal.SIGTERM)

    def kill_tree(self) -> None:
        os.killpg(self.pid, signal.SIGKILL)

    def await_training(self, run: Path, seconds: float = 30.0) -> None:
        """Until updates are being made."""
        self.await_that(lambda: any(row["updates"] for row in rows(run / "metrics.jsonl")), "training", seconds)

    def await_that(self, condition: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
        def over() -> bool:
            return condition() or not self.running

        until(over, what, seconds)
        assert self.running, f"it ended before {what}, with {self.wait()}:\n{self.stdout}\n{self.stderr}"

    def assert_nothing_is_left(self) -> None:
        """No process, no temporary file, and no complaint of Python's about things that leaked."""
        until(lambda: not self.session(), "the end of every process", PROMPTLY)
        left = [
            name for name in os.listdir(self._tmp.name) if not name.startswith("torchinductor_")
        ]  # a cache of torch's
        assert not left, f"{left} is left in TMPDIR"
        assert "resource_tracker" not in self.stderr


def _text(file: Any) -> str:
    with os.fdopen(os.dup(file.fileno()), "rb") as copy:
        size = os.fstat(copy.fileno()).st_size
        return os.pread(copy.fileno(), size, 0).decode()


def _is_alive_in(process: psutil.Process, session: int) -> bool:
    """A zombie counts while its parent is one of ours: an orphan's is for init to bury."""
    try:
        if os.getsid(process.pid) != session:
            return False
        if process.status() != psutil.STATUS_ZOMBIE:
            return True
        parent = process.ppid()
        return parent not in (0, 1, os.getpid()) and os.getsid(parent) == session
    except (ProcessLookupError, psutil.NoSuchProcess):
        return False


def until(condition: Callable[[], bool], what: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s in vain for {what}"
        time.sleep(0.01)


def rows(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a .jsonl file that somebody may be writing."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def kinds(run: Path) -> list[str]:
    """What happened in a run, in order; but for a look that came late, which tells of the machine."""
    return [row["kind"] for row in rows(run / "events.jsonl") if row["kind"] != "late look"]


def summary(run: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return content


def newest(run: Path) -> checkpoint.Checkpoint:
    """The newest checkpoint, none of which may be broken."""
    complaints: list[str] = []
    found = checkpoint.latest(run, complaints.append)
    assert complaints == []
    assert found is not None, "there is no checkpoint"
    return found


def assert_whole(run: Path) -> None:
    """No file of the run is half written, and nobody holds its lock."""
    aside = [path for path in run.rglob(".*") if path.name != ".lock"]
    assert aside == []
    for path in (run / "checkpoints").glob("*"):
        checkpoint.load(path)
    RunFolder.open(run).close()


def shared_memory() -> set[str]:
    """Named blocks and semaphores on this machine."""
    return set(os.listdir("/dev/shm")) if Path("/dev/shm").is_dir() else set()


def kill_at_random(folder: Path, fresh: int, resumed: int) -> None:
    """Kill runs that save all the time: some soon after their start, one again and again while it is resumed.

    Run in a process of its own, for it forks: that is only safe where nothing has started threads yet (and so with
    OPENBLAS_NUM_THREADS=1, because numpy's library starts some when it is loaded).
    """
    from passel.cli import main

    dice = random.Random(1)
    saving = ["--place", "inline", "--checkpoint-every", "1", "--keep-checkpoints", "1", "--quiet"]

    # A run before the forks imports all there is to import, so that each of them costs nothing.
    main(["train", *TINY, "--steps", "60", *saving, "--out", str(folder / "first")])
    assert psutil.Process().num_threads() == 1

    def killed(arguments: list[str], moment: Callable[[], None]) -> None:
        pid = _forked(arguments, folder / "log")
        moment()
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status), f"it ended by itself: {(folder / 'log').read_text()}"

    def resume(run: Path, *flags: str) -> tuple[int, str]:
        _, status = os.waitpid(_forked(["resume", str(run), "--quiet", *flags], folder / "log"), 0)
        return os.waitstatus_to_exitcode(status), (folder / "log").read_text()

    outcomes = set()
    for number in range(fresh):
        run = folder / f"fresh-{number}"
        began = [*TINY, *FOREVER, *saving, "--out", str(run)]
        killed(["train", *began], lambda: time.sleep(dice.uniform(0.02, 0.6)))
        saved = checkpoint.latest(run, _refuse)
        code, said = resume(run, "--steps", str(10 + (saved.step if saved else 0)))
        if saved:
            assert (code, said) == (0, "")
        else:
            assert code == 2, said
            assert said.startswith(
                (f"passel: {run} has no checkpoint", f"passel: {run} is not a run", "passel: there is no run")
            )
        outcomes.add(code)

    run, reached = folder / "run", -1
    command = ["train", *TINY, *FOREVER, *saving, "--out", str(run)]
    for _ in range(resumed):

        def a_while_after_the_next_checkpoint(reached: int = reached) -> None:
            until(lambda: _newest_step(run) > reached, "a checkpoint", 20.0)
            time.sleep(dice.uniform(0, 0.03))

        killed(command, a_while_after_the_next_checkpoint)
        saved = checkpoint.latest(run, _refuse)
        assert saved is not None
        assert saved.step > reached
        reached, command = saved.step, ["resume", str(run), "--quiet"]
    assert resume(run, "--steps", str(reached + 10)) == (0, "")
    assert_whole(run)
    print(f"{fresh + resumed} kills, exit codes of the young {sorted(outcomes)}, {reached} steps")


def _forked(arguments: list[str], log: Path) -> int:
    """`passel ...` in a fork of this process, its words in a file."""
    pid = os.fork()
    if pid == 0:
        from passel.cli import main

        fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        try:
            code = main(arguments)
        except BaseException:
            traceback.print_exc()
            code = 99
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return pid


def _newest_step(run: Path) -> int:
    return max((int(path.name) for path in (run / "checkpoints").glob("[0-9]*")), default=-1)


def _refuse(message: str) -> None:
    raise AssertionError(message)


if __name__ == "__main__":
    kill_at_random(Path(sys.argv[1]), fresh=6, resumed=8)
