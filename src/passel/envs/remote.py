"""Environments behind a socket: the client of `serve_env.py`, which runs in an interpreter of its own.

One request and one reply for each batched step: a small msgpack header, and the arrays as they lie in memory. Nothing
is unpickled, and nothing that arrives is trusted: types come from a list, and sizes must be exactly those that the
shapes say. A server that has died or hangs is named within five seconds.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from passel.arena import Spec
from passel.envs.base import Envs
from passel.types import Array, EnvSpec, Episode, Ints, PasselError, Step

VERSION = 1
SCHEMES = ("tcp://", "ipc://")
QUIET = 4.0  # seconds without an answer after which a server is given up; 5 are promised
LONG = 120.0  # seconds that building or resetting a group may take, as long as the server says that it is at it
RECONNECT_PATIENCE = 60.0
TICK_MS = 250
AWAKE = 0.0005  # seconds of looking for an answer before sleeping; other threads go first
MAX_REPLY = 1 << 30  # bytes of one array
SMALL = 1 << 14  # bytes below which an array is copied out of libzmq's buffer, where it need not be aligned
DTYPES = {np.dtype(kind).str: np.dtype(kind) for kind in ("?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4")}
TERMINATED, TRUNCATED = 1, 2
_DOUBLE = np.dtype("<f8")

CURES = {
    "version": "Use the same version of passel on both sides.",
    "limit": "Use a smaller --envs here, or start it with a larger one.",
    "full": "Start it with more --sessions.",
    "environment": "Look at what the server printed, and correct the environment.",
}


_yield = getattr(os, "sched_yield", lambda: time.sleep(0))


class LostError(Exception):
    """The server is gone, hangs or has forgotten us; the message says which."""


class RefusedError(Exception):
    """The server answered, and said no."""

    def __init__(self, code: str, say: str) -> None:
        super().__init__(say)
        self.code = code


class Place(Protocol):
    """Where a server is, and whose it is."""

    name: str
    #: Seconds that it may take to answer at all.
    patience: float

    def start(self) -> str:
        """Its address; a server of our own is started first, unless it runs."""

    def why_gone(self) -> str | None:
        """What it ended of, if that is known."""

    def close(self) -> None: ...


class Address:
    """A server that somebody else started."""

    patience = QUIET

    def __init__(self, address: str) -> None:
        self.name = address

    def start(self) -> str:
        return self.name

    def why_gone(self) -> str | None:
        return None

    def close(self) -> None:
        """It is not ours to end."""


@dataclass(frozen=True)
class Facts:
    """A server's hello."""

    spec: EnvSpec
    #: Seconds that it took to make and reset one copy.
    seconds: float


def is_address(env: object) -> bool:
    return isinstance(env, str) and env.startswith(SCHEMES)


def is_local(address: str) -> bool:
    """Whether only this machine can be at the other end."""
    if address.startswith("ipc://"):
        return True
    host = address.removeprefix("tcp://").rpartition(":")[0]
    parts = host.split(".")
    loopback = len(parts) == 4 and parts[0] == "127" and all(part.isdigit() for part in parts)
    return loopback or host in ("localhost", "[::1]")


def describe(place: Place, key: str = "") -> EnvSpec:
    """What a server says of its environment."""
    try:
        link = Link(place, key)
        try:
            return link.hello().spec
        finally:
            link.close()
    except (LostError, RefusedError) as error:
        raise _sentence(place, error) from error
    finally:
        place.close()


def record_specs() -> dict[str, Spec]:
    """How often the episodes were begun: a resumed run, or another connection, must not see the same ones again."""
    return {"starts": Spec((1,), torch.int64)}


class RemoteEnvs(Envs):
    """A session with a server: N environments there, the boundary contract here."""

    def __init__(
        self,
        place: Place,
        n: int,
        seed: int,
        *,
        key: str = "",
        reconnect: bool = False,
        tensors: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.n = n
        self._place, self._seed, self._key, self._reconnect = place, seed, key, reconnect
        self._starts = (torch.zeros(1, dtype=torch.int64) if tensors is None else tensors["starts"]).numpy()
        self._score, self._length = np.zeros(n), np.zeros(n, np.int64)
        self._link: Link | None = None
        try:
            self._connect()
        except (LostError, RefusedError) as error:
            self.close()
            raise _sentence(place, error) from error
        except BaseException:
            self.close()
            raise

    def reset(self) -> Array:
        try:
            return self._reset()
        except LostError as lost:
            return self._recover(lost)
        except RefusedError as error:
            raise _sentence(self._place, error) from error

    def step(self, actions: Array) -> Step:
        assert self._link is not None
        sent = np.ascontiguousarray(actions, "<i8")
        try:
            return self._take(self._link.ask("step", arrays=[sent]))
        except LostError as lost:
            return self._new_episodes(lost)
        except RefusedError as error:
            raise _sentence(self._place, error) from error

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None
        self._place.close()

    def _take(self, answer: Answer) -> Step:
        """A step out of its answer."""
        n, spec = self.n, self.spec
        next_obs = answer.array(0, (n, *spec.obs_shape), spec.obs_dtype)
        reward, ends = answer.array(1, (2, n), _DOUBLE)
        obs, ended = next_obs, np.flatnonzero(ends)
        if len(ended):
            obs = next_obs.copy()
            obs[ended] = answer.array(2, (len(ended), *spec.obs_shape), spec.obs_dtype)
        self._score += reward
        self._length += 1
        return Step(
            obs=obs,
            next_obs=next_obs,
            reward=reward.astype(np.float32),
            discount=(ends != TERMINATED).astype(np.float32),
            truncated=ends == TRUNCATED,
            real=np.ones(n, np.bool_),
            episodes=self._finish(ended) if len(ended) else [],
        )

    def _connect(self) -> None:
        if self._link is not None:
            self._link.close()
        self._link = Link(self._place, self._key)
        facts = self._link.hello()
        known = getattr(self, "spec", facts.spec)
        if (known.obs_shape, known.obs_dtype, known.n_actions) != (
            facts.spec.obs_shape,
            facts.spec.obs_dtype,
            facts.spec.n_actions,
        ):
            raise PasselError(
                f"{self._place.name} now serves another environment. Start the one that it served before."
            )
        self.spec = facts.spec
        # One environment is built or reset between two signs of life.
        self._patience = max(QUIET, 4 * facts.seconds)
        self._link.ask("open", {"n": self.n, "seed": self._seed}, patience=self._patience, limit=LONG)

    def _reset(self) -> Array:
        assert self._link is not None
        start = int(self._starts[0])
        self._starts[0] += 1
        self._score[:], self._length[:] = 0.0, 0
        answer = self._link.ask("reset", {"episode": start << 20}, patience=self._patience, limit=LONG)
        return answer.array(0, (self.n, *self.spec.obs_shape), self.spec.obs_dtype)

    def _recover(self, lost: Exception) -> Array:
        """The first observations of new episodes, from a server that has come back."""
        if not self._reconnect:
            raise _sentence(self._place, lost) from lost
        deadline = time.monotonic() + RECONNECT_PATIENCE
        while True:
            try:
                self._connect()
                return self._reset()
            except (LostError, RefusedError) as error:
                if time.monotonic() > deadline:
                    raise PasselError(
                        f"the environment server {self._place.name} {lost}, and did not come back within "
                        f"{RECONNECT_PATIENCE:.0f} s ({error}). Start it again, and use `passel resume`."
                    ) from error
                time.sleep(0.2)

    def _new_episodes(self, lost: LostError) -> Step:
        """What the step was to bring is lost, and so are the episodes: their last true step was the one before."""
        cut = self._length > 0
        episodes = self._finish(np.flatnonzero(cut))
        obs = self._recover(lost)
        return Step(
            obs=obs,
            next_obs=obs,
            reward=np.zeros(self.n, np.float32),
            discount=np.ones(self.n, np.float32),
            truncated=cut,
            real=np.zeros(self.n, np.bool_),
            episodes=episodes,
        )

    def _finish(self, rows: Ints) -> list[Episode]:
        episodes = [Episode(float(self._score[i]), int(self._length[i])) for i in rows]
        self._score[rows], self._length[rows] = 0.0, 0
        return episodes


@dataclass(frozen=True)
class Answer:
    """A reply: what its header says, and its arrays as they came."""

    header: Mapping[str, Any]
    frames: Sequence[Any]

    def array(self, index: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An array over the memory that the message arrived in, if it has exactly the size that its shape says."""
        size = math.prod(shape) * dtype.itemsize
        if index >= len(self.frames) or len(self.frames[index]) != size:
            raise LostError("answered with arrays of another size than it had promised")
        array = np.frombuffer(self.frames[index], dtype).reshape(shape)
        return array.copy() if size < SMALL or not array.flags.aligned else array


class Link:
    """One socket to one server, and the numbering of what is asked on it."""

    def __init__(self, place: Place, key: str) -> None:
        self._zmq, self._msgpack = _import()
        self._place, self._key = place, key
        address = place.start()
        if not key and not is_local(address):
            raise PasselError(
                f"{address} is another machine, and that needs keys. Run `passel keys FOLDER`, give the server "
                "FOLDER/server.json, and use --env-key FOLDER/client.json."
            )
        self._seq, self._shaken, self._closed = 0, False, False
        zmq = self._zmq
        keys = read_client_key(key) if key else None
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        for option, value in (
            (zmq.LINGER, 200),
            (zmq.RCVTIMEO, TICK_MS),
            (zmq.SNDTIMEO, int(QUIET * 1000)),
            (zmq.MAXMSGSIZE, MAX_REPLY),
            (zmq.HEARTBEAT_IVL, 1000),
            (zmq.HEARTBEAT_TIMEOUT, 3000),
            (zmq.IPV6, int(address.startswith("tcp://["))),
        ):
            self._socket.setsockopt(option, value)
        if keys:
            self._socket.setsockopt(zmq.CURVE_SERVERKEY, keys["server_public"])
            self._socket.setsockopt(zmq.CURVE_PUBLICKEY, keys["client_public"])
            self._socket.setsockopt(zmq.CURVE_SECRETKEY, keys["client_secret"])
        self._monitor = self._socket.get_monitor_socket(
            zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH
        )
        try:
            self._socket.connect(address)
        except zmq.ZMQError as error:
            self.close()
            raise PasselError(f"{address} is no address ({error}). Use tcp://127.0.0.1:5555, for instance.") from error

    def hello(self) -> Facts:
        answer = self.ask("hello", patience=self._place.patience)
        try:
            return _facts(self._place.name, answer)
        except (KeyError, TypeError, ValueError) as error:
            raise PasselError(
                f"{self._place.name} answers, but not as an environment server does ({error}). "
                "Use the address of a `passel serve-env` of this version."
            ) from error

    def ask(
        self,
        op: str,
        fields: Mapping[str, int] | None = None,
        arrays: Sequence[Array] = (),
        *,
        patience: float = QUIET,
        limit: float = math.inf,
    ) -> Answer:
        """Send one request and wait for its answer; LostError after `patience` seconds without a sign of life."""
        seq = self._seq
        self._seq += 1
        header = {"v": VERSION, "op": op, "seq": seq, **(fields or {})}
        began = heard = time.monotonic()
        try:
            self._socket.send_multipart([self._msgpack.packb(header), *arrays])
        except self._zmq.Again:
            raise LostError("takes no more messages") from None
        while True:
            frames = self._receive()
            if not frames:
                self._look_for_a_cause(time.monotonic() - heard, patience)
                continue
            answer = self._read(frames, op, seq)
            if answer is not None:
                return answer
            heard = time.monotonic()
            if heard - began > limit:
                raise LostError(f"was still not done after {limit:.0f} s")

    def _receive(self) -> list[Any]:
        """The next message, or nothing after a tick. Sleeps late: to be woken costs more than most steps take."""
        receive, awake, again = self._socket.recv, time.perf_counter() + AWAKE, self._zmq.Again
        while True:
            late = time.perf_counter() > awake
            try:
                frames = [receive(0 if late else self._zmq.NOBLOCK, copy=False)]
                break
            except again:
                if late:
                    return []
            _yield()
        while frames[-1].more:
            frames.append(receive(copy=False))
        return frames

    def _read(self, frames: Sequence[Any], op: str, seq: int) -> Answer | None:
        """The answer; None for a sign of life, and for what answers an earlier question."""
        try:
            header = self._msgpack.unpackb(frames[0].buffer)
            version, about, says = header["v"], header["op"], header["seq"]
        except Exception:
            raise LostError("sent something that is no answer") from None
        if about == "error" and says in (seq, -1):
            code, say = str(header.get("code")), str(header.get("say"))[:1000]
            if code == "session":
                raise LostError("was restarted, and does not know us any more")
            raise RefusedError(code, say)
        if version != VERSION:
            raise RefusedError("version", f"it speaks version {version} of the protocol, and this is {VERSION}")
        return Answer(header, frames[1:]) if (about, says) == (op, seq) else None

    def _look_for_a_cause(self, silent: float, patience: float) -> None:
        """Raise, if there is a reason not to wait any longer."""
        gone = self._place.why_gone()
        if gone:
            raise LostError(gone)
        zmq = self._zmq
        while self._monitor.poll(0):
            event, _ = self._monitor.recv_multipart()
            kind = int.from_bytes(event[:2], "little")
            if kind == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                raise RefusedError("key", "it does not know our key")
            if kind == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._shaken = True
            elif self._shaken:
                raise LostError("closed the connection")
        if silent > patience and self._shaken:
            raise LostError(f"has not answered for {patience:.0f} s: it hangs, or its environment does")
        if silent > patience:
            raise LostError("does not answer" + (", or not to this key" if self._key else ""))

    def close(self) -> None:
        """Say goodbye, if there is somebody to hear it."""
        if self._closed:
            return
        self._closed = True
        try:
            header = {"v": VERSION, "op": "close", "seq": self._seq}
            self._socket.send(self._msgpack.packb(header), self._zmq.NOBLOCK)
        except self._zmq.ZMQError:
            pass
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close()
        self._context.term()


def _facts(name: str, answer: Answer) -> Facts:
    """The hello as an EnvSpec; whatever it lacks or overstates is an error."""
    header = answer.header
    shape = tuple(int(size) for size in header["shape"])
    dtype = DTYPES[header["dtype"]]
    if len(shape) > 8 or min(shape, default=1) < 1 or math.prod(shape) * dtype.itemsize > MAX_REPLY:
        raise ValueError(f"observations of shape {shape}")
    if header["autoreset"] != "same-step":
        raise ValueError(f"autoreset {header['autoreset']}")
    bounds = None
    if answer.frames:
        low, high = (answer.array(side, shape, _DOUBLE) for side in (0, 1))
        bounds = tuple(map(float, low)), tuple(map(float, high))
    limit, threshold = header["limit"], header["threshold"]
    spec = EnvSpec(
        id=name,
        obs_shape=shape,
        obs_dtype=dtype,
        n_actions=int(header["actions"]),
        reward_threshold=None if threshold is None else float(threshold),
        max_episode_steps=None if limit is None else int(limit),
        frame_skip=int(header["frame_skip"]),
        backend="remote",
        exact_resume=False,
        bounds=bounds,
        max_copies=int(header["max_envs"]),
    )
    return Facts(spec, float(header["seconds"]))


def _sentence(place: Place, error: Exception) -> PasselError:
    """The error as the user reads it: who, what, and what to do."""
    if isinstance(error, RefusedError):
        if error.code == "key":
            return PasselError(f"the server {place.name} refuses: {error}. Give --env-key the client.json of its keys.")
        cure = CURES.get(error.code, "This is a fault in passel: please report it.")
        return PasselError(f"the environment server {place.name} refuses: {error}. {cure}")
    if not isinstance(place, Address):
        return PasselError(f"the environment server of {place.name} {error}.")
    if str(error).startswith("does not answer"):
        return PasselError(
            f"the environment server {place.name} {error}. Start one: passel serve-env ID --bind {place.name}"
        )
    return PasselError(
        f"the environment server {place.name} {error}. "
        "Start it again and use `passel resume`, or train with --reconnect."
    )


def make_keys(folder: Path) -> list[Path]:
    """Two files, for the two ends: each has its own secret, and the other's public half."""
    zmq, _ = _import()
    if not zmq.has("curve"):
        raise PasselError("this pyzmq was built without CURVE. Install its wheel: pip install --force-reinstall pyzmq")
    (server_public, server_secret), (client_public, client_secret) = zmq.curve_keypair(), zmq.curve_keypair()
    files = {
        "server.json": {
            "server_public": server_public,
            "server_secret": server_secret,
            "client_public": client_public,
        },
        "client.json": {
            "server_public": server_public,
            "client_public": client_public,
            "client_secret": client_secret,
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / name for name in files]
    for path in paths:
        if path.exists():
            raise PasselError(f"{path} exists, and somebody may use it. Choose another folder, or remove it.")
    for path, content in zip(paths, files.values(), strict=True):
        text = json.dumps({name: value.decode("ascii") for name, value in content.items()}, indent=1)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text + "\n")
    return paths


def read_client_key(path: str) -> dict[str, bytes]:
    names = ("server_public", "client_public", "client_secret")
    try:
        content = json.loads(Path(path).read_text(encoding="ascii"))
        found = {name: cast(str, content[name]).encode("ascii") for name in names}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        found = {}
    if not found or any(len(value) != 40 for value in found.values()):
        raise PasselError(f"{path} is not a client's key. `passel keys FOLDER` makes one: client.json.")
    return found


def _import() -> tuple[Any, Any]:
    try:
        import msgpack
        import zmq
    except ImportError as error:
        raise PasselError(
            f"environments over a socket need pyzmq and msgpack ({error}). Run: pip install 'passel[remote]'"
        ) from error
    return zmq, msgpack
