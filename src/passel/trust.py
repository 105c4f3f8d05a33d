"""Which runs are this user's own, and what only a run folder asks for: modules to import, addresses to connect to.

A run folder is data, and may come from a stranger. Its configuration names the environment, and `package:Id-v0` imports
`package`, which runs its code; `tcp://HOST:PORT` connects to a host. Both need the consent of the user: `--env` on the
command, `--trust`, or a run that this user has made. Such a run holds `signature`, an HMAC-SHA256 of its configuration
with a key that never leaves the user's configuration folder.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from passel.envs import packaged
from passel.envs.atari_protocol import is_atari
from passel.envs.build import INTEGRATED, TESTING
from passel.envs.level_sets import file_of
from passel.envs.level_toml import MOST_BYTES, Entry, read
from passel.envs.levels import is_level_set
from passel.reading import CONFIG_LIMIT, from_toml, read_regular
from passel.run.files import replace_file
from passel.run.folder import CONFIG, SIGNATURE
from passel.types import PasselError, printable

VERSION = "passel-1"
KEY_BYTES = 32
MOST_SIGNATURE = 1024

Standing = Literal["own", "changed", "unsigned"]


class NoKeyError(Exception):
    """There is no key to sign with, and none can be made; the message says why."""


def sign(folder: Path) -> str | None:
    """Write the signature of the run's configuration as it is on disk now; or return why that is not possible.

    Call it after every change of config.toml. A run without a signature trains as any other.
    """
    try:
        replace_file(folder / SIGNATURE, _signature(folder, _key(make=True)) + "\n")
    except NoKeyError as error:
        return str(error)
    except OSError as error:
        return f"{SIGNATURE} cannot be written ({error.strerror})"
    return None


def sign_or_tell(folder: Path, env: str) -> str | None:
    """Sign the run; the notice for its owner if it stays unsigned and will therefore need --trust."""
    reason = sign(folder)
    if reason is None or not any(foreign(env)):
        return None
    return f"The run is not signed: {reason}. `passel resume` and `passel eval` will need --trust."


def standing(folder: Path) -> Standing:
    """Whether this user made the run, or made it and its configuration has changed since, or neither is known."""
    try:
        key = _key(make=False)
        found = read_regular(folder / SIGNATURE, MOST_SIGNATURE).decode("ascii").strip()
        expected = _signature(folder, key)
    except (NoKeyError, OSError, ValueError):
        return "unsigned"
    if hmac.compare_digest(found, expected):
        return "own"
    return "changed" if found.split()[:2] == expected.split()[:2] else "unsigned"


def check(folder: Path, env: str, *, trust: bool = False) -> None:
    """Refuse a run whose configuration asks for what the user has not consented to. Imports nothing."""
    if trust:
        return
    asked = next(foreign(env), None)
    if asked is None:
        return
    found = standing(folder)
    if found == "own":
        return
    where = printable(folder)
    cause = (
        f"the configuration of {where} has changed since passel wrote it, and asks for {asked}"
        if found == "changed"
        else f"{where} asks for {asked}, and was not made by this user on this machine"
    )
    raise PasselError(
        f"{cause}. Name the environment with --env, or use --trust (in Python trust=True) if you trust the run."
    )


def foreign(env: str) -> Iterator[str]:
    """What an environment's name makes passel import or connect to, beyond what passel integrates; in words."""
    if is_level_set(env):
        file = file_of(env)
        for entry in read(file).entries.values() if file else ():
            yield from _modules(entry.id)
            yield from _arguments(entry)
    elif "://" in env:
        yield f"a connection to {printable(env)}"
    elif not packaged.is_name(env) and not is_atari(env):
        yield from _modules(env)


def _modules(env: str) -> Iterator[str]:
    module = env.rpartition(":")[0]
    if module and module not in INTEGRATED:
        yield f"the module {printable(module)}, whose code would run"


def _arguments(entry: Entry) -> Iterator[str]:
    """Some environments take the id of another one, or read or write the file that they are told."""
    for text in _texts(entry.kwargs):
        if ":" in text:
            yield f"the environment {printable(text)!r}"
        elif os.sep in text:
            yield f"the file {printable(text)!r}"
    if entry.kwargs and entry.id.startswith(f"{TESTING}:"):
        yield f"the environment {printable(entry.id)} with arguments, which fails as it is told"


def _texts(value: Any) -> Iterator[str]:
    """Every text in the arguments of a level."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key)
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _signature(folder: Path, key: bytes) -> str:
    """The version, the name of the key, and the digest of all that decides what is imported."""
    config = read_regular(folder / CONFIG, CONFIG_LIMIT)
    env: Any = from_toml(config).get("env")
    file = file_of(env) if is_level_set(env) else None
    parts = [config, read_regular(Path(file), MOST_BYTES, follow=True) if file else b""]
    message = VERSION.encode() + b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    name = hashlib.sha256(b"passel key" + key).hexdigest()[:16]
    return f"{VERSION} {name} {hmac.new(key, message, hashlib.sha256).hexdigest()}"


def key_file() -> Path:
    """Where this user's key is. XDG says that a relative path in the variable is to be ignored."""
    folder = os.environ.get("XDG_CONFIG_HOME", "")
    if os.path.isabs(folder):
        return Path(folder) / "passel" / "run.key"
    home = Path(os.path.expanduser("~"))
    if not home.is_dir():  # nor is it ours to make
        raise NoKeyError("there is no home folder for the key")
    return home / ".config" / "passel" / "run.key"


def _key(*, make: bool) -> bytes:
    path = key_file()
    try:
        return _read_key(path)
    except FileNotFoundError:
        if not make:
            raise NoKeyError(f"there is no {path}") from None
    except OSError as error:
        raise NoKeyError(f"{path} cannot be read ({error.strerror})") from error
    try:
        _make_key(path)
        return _read_key(path)
    except OSError as error:
        raise NoKeyError(f"{path} cannot be made ({error.strerror})") from error


def _read_key(path: Path) -> bytes:
    """The key, unless another user could know it or could have put it there."""
    key = read_regular(path, KEY_BYTES)
    facts = path.lstat()
    if facts.st_uid != os.geteuid() or stat.S_IMODE(facts.st_mode) & 0o077:
        raise NoKeyError(f"{path} is open to other users: run chmod 600 {path}, or remove it")
    if len(key) != KEY_BYTES:
        raise NoKeyError(f"{path} is damaged: remove it")
    return key


def _make_key(path: Path) -> None:
    """Put a new key there, whole, unless another process was faster: then its key counts."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(fd)
        with suppress(FileExistsError):
            os.link(aside, path)  # unlike a rename it never replaces a key
    finally:
        aside.unlink()
