"""One socket to a server of environments: requests, and answers in which nothing is trusted.

Types come from a list, and sizes must be exactly those that the shapes say. A server that has died or hangs is missed
within five seconds.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from passel.envs import zeromq
from passel.envs.remote_errors import LostError, RefusedError
from passel.envs.remote_keys import read_client_key
from passel.envs.remote_place import QUIET, Place, is_local
from passel.types import Array, Bounds, EnvSpec, PasselError, printable

VERSION = 1
TICK_MS = 250
AWAKE = 0.0005  # seconds of looking for an answer before sleeping; other threads go first
MAX_REPLY = 1 << 30  # bytes of one array
#: The most that a server may say of its environment; anything above is a mistake or an attack.
MAX_ACTIONS, MAX_STEPS, MAX_FRAME_SKIP, MAX_ENVS, MAX_AXES = 1 << 16, 1 << 40, 1 << 16, 1 << 20, 8
SMALL = 1 << 14  # bytes below which an array is copied out of libzmq's buffer, where it need not be aligned
DTYPES = {np.dtype(kind).str: np.dtype(kind) for kind in ("?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4")}
DOUBLE = np.dtype("<f8")

_yield = getattr(os, "sched_yield", lambda: time.sleep(0))


@dataclass(frozen=True)
class Facts:
    """A server's hello."""

    spec: EnvSpec
    #: Seconds that it took to make and reset one copy.
    seconds: float


@dataclass(frozen=True)
class Answer:
    """A reply: what its header says, and its arrays as they came."""

    header: Mapping[str, Any]
    frames: Sequence[Any]

    def check_arrays(self, count: int) -> None:
        """Refuse an answer with more or fewer arrays than it should have."""
        if len(self.frames) != count:
            raise LostError(f"answered with {len(self.frames)} arrays where {count} belong")

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
        self._zmq, self._msgpack = zeromq.load()
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

    def hello(self, patience: float | None = None) -> Facts:
        answer = self.ask("hello", patience=self._place.patience if patience is None else patience)
        try:
            return _facts(self._place.name, answer)
        except (KeyError, TypeError, ValueError, LostError) as error:
            raise PasselError(
                f"{self._place.name} answers, but not as an environment server does ({printable(error)}). "
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
        parts = [self._msgpack.packb(header), *arrays]
        try:  # part by part: send_multipart looks at each of them twice
            for part in parts[:-1]:
                self._socket.send(part, self._zmq.SNDMORE)
            self._socket.send(parts[-1])
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
            code, say = printable(header.get("code")), printable(header.get("say"), 1000)
            if code == "session":
                raise LostError("was restarted, and does not know us any more")
            raise RefusedError(code, say)
        if version != VERSION:
            raise RefusedError(
                "version", f"it speaks version {printable(version)} of the protocol, and this is {VERSION}"
            )
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
    shape, dtype = _shape(header["shape"]), DTYPES[header["dtype"]]
    if math.prod(shape) * dtype.itemsize > MAX_REPLY:
        raise ValueError(f"observations of shape {shape}")
    if header["autoreset"] != "same-step":
        raise ValueError(f"autoreset {header['autoreset']!r}")
    limit, threshold = header["limit"], header["threshold"]
    high = _number("high", header.get("high") or 255.0, 0.0, 255.0)
    spec = EnvSpec(
        id=name,
        obs_shape=shape,
        obs_dtype=dtype,
        n_actions=_whole("actions", header["actions"], MAX_ACTIONS),
        reward_threshold=None if threshold is None else _number("threshold", threshold, -math.inf, math.inf),
        max_episode_steps=None if limit is None else _whole("limit", limit, MAX_STEPS),
        frame_skip=_whole("frame_skip", header["frame_skip"], MAX_FRAME_SKIP),
        backend="remote",
        exact_resume=False,
        bounds=_bounds(answer, shape),
        max_copies=_whole("max_envs", header["max_envs"], MAX_ENVS),
        obs_scale=max(1.0, high) if dtype == np.uint8 else 1.0,
    )
    return Facts(spec, _number("seconds", header["seconds"], 0.0, math.inf))


def _shape(found: Any) -> tuple[int, ...]:
    if not isinstance(found, list) or not 1 <= len(found) <= MAX_AXES:
        raise ValueError(f"observations of shape {found!r}")
    return tuple(_whole("a side of the observations", size, MAX_REPLY) for size in found)


def _bounds(answer: Answer, shape: tuple[int, ...]) -> Bounds | None:
    """Two arrays, if any: the bounds of a vector, finite and in order."""
    if not answer.frames:
        return None
    answer.check_arrays(2)
    if len(shape) != 1:
        raise ValueError(f"bounds of observations of shape {shape}")
    low, high = (answer.array(side, shape, DOUBLE) for side in (0, 1))
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        raise ValueError("bounds of the observations that are not finite or not in order")
    return tuple(map(float, low)), tuple(map(float, high))


def _whole(name: str, value: Any, most: int) -> int:
    if type(value) is not int or not 1 <= value <= most:
        raise ValueError(f"{name} {str(value)[:40]!r} is not a whole number from 1 to {most}")
    return value


def _number(name: str, value: Any, least: float, most: float) -> float:
    if type(value) not in (int, float) or not (math.isfinite(value) and least <= value <= most):
        raise ValueError(f"{name} {str(value)[:40]!r} is not a finite number in its range")
    return float(value)
