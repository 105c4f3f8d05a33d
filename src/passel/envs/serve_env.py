"""A server of environments: one file, for whatever interpreter an environment needs.

    python serve_env.py CartPole-v1 --envs 8 --bind tcp://127.0.0.1:5555

It needs numpy, pyzmq, msgpack and gym or gymnasium, runs on Python 3.8 and later, and imports nothing of passel: an old
gym, another numpy or another Python stays on this side of the socket. docs/remote.md has the protocol.

One process, one thread, one loop. Every client has a session with a group of environments of its own; what takes long
(to build a group, to reset it) is done one environment at a time between the other clients' steps. Messages are data:
whatever is wrong with one is answered with a sentence or dropped, and changes nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import json
import math
import os
import signal
import socket as sockets
import stat
import sys
import threading
import time
import traceback
import warnings
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, cast

if __name__ == "__main__":
    # The folder of this file is no place to import from: its names belong to passel.
    HERE = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [each for each in sys.path if os.path.abspath(each or ".") != HERE]
    # One thread: those of a library, spinning for small products, would take the cores of workers and other servers.
    for each in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(each, "1")

try:
    import msgpack
    import numpy as np
    import zmq
    from zmq.utils import z85
except ImportError as missing:
    print("passel: the server needs numpy, pyzmq and msgpack (%s)." % missing, file=sys.stderr)
    print("        Run: %s -m pip install numpy pyzmq msgpack" % sys.executable, file=sys.stderr)
    sys.exit(2)

VERSION = 1
MAX_HEADER = 1 << 12
MAX_FRAMES = 8  # of one message that are kept: the client's name, the header, at most one array, and some to refuse
QUEUED = 8  # messages of one client that may wait; a client of passel's sends one at a time
MAX_ENVS = 4096  # of all clients together
MAX_SEED = 2**63 - 1
TICK_MS = 1000
AWAKE = 0.0005  # seconds of looking for the next message before sleeping; other threads go first
TIDY_EVERY = 5.0  # seconds between two looks for clients that are gone
NOTICE_EVERY = 0.5  # seconds between two signs of life while something takes long
HEARTBEAT_MS = 1000

BRIGHTNESS = np.array([0.299, 0.587, 0.114], np.float32)  # of red, green and blue

Header = Dict[str, Any]
Outcome = Tuple[Any, float, bool, bool]


_yield = getattr(os, "sched_yield", lambda: time.sleep(0))


class UsageError(Exception):
    """A mistake of whoever starts the server: the cause and the cure."""


class RefusedError(Exception):
    """A request that cannot be granted; the client gets the code and the sentence."""

    def __init__(self, code: str, say: str) -> None:
        super().__init__(say)
        self.code, self.say = code, say


class OutcomeError(Exception):
    """A value that an environment must not return: the cause and the cure."""


def write_checked(obs: Any, row: Any) -> None:
    """Put an observation into its row, if it has the row's shape and its numbers fit into the row's type."""
    array = np.asarray(obs)
    if array.shape != row.shape:
        raise OutcomeError(
            "the observation has shape %s, and its observation_space has %s. Return what the space declares."
            % (array.shape, row.shape)
        )
    if array.dtype != row.dtype:
        if array.dtype.kind not in "biuf":
            raise OutcomeError("the observation is no array of numbers. Return what the space declares.")
        if row.dtype.kind != "f":
            low, high = (0, 1) if row.dtype.kind == "b" else (np.iinfo(row.dtype).min, np.iinfo(row.dtype).max)
            if not (array.min() >= low and array.max() <= high and (array == np.trunc(array)).all()):
                raise OutcomeError(
                    "the observation has numbers that are not whole or not from %d to %d, and its observation_space "
                    "holds %s. Declare another dtype." % (low, high, row.dtype)
                )
    row[...] = array


def one_number(what: str, value: Any) -> float:
    """A reward, or an end as a number, also if it comes as an array of one."""
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biuf":
        raise OutcomeError("%s is %.40r. Return one number." % (what, value))
    return float(array.item())


def truth(what: str, value: Any) -> bool:
    """Whether an episode is over."""
    if value is True or value is False:
        return bool(value)
    number = one_number(what, value)
    if number not in (0.0, 1.0):
        raise OutcomeError("%s is %.40r. Return True or False." % (what, value))
    return number == 1.0


class Lens:
    """What is done to an observation before it travels: gray, a smaller size, colours first."""

    def __init__(self, gray: bool, size: Optional[Tuple[int, int]], channels_first: bool) -> None:
        self._gray, self._size, self._channels_first = gray, size, channels_first
        self.idle = not (gray or size or channels_first)
        self._averages: Optional[Tuple[Any, Any]] = None

    def shape(self, shape: Tuple[int, ...]) -> Tuple[int, ...]:
        """The shape of what travels, for observations of this shape."""
        if self.idle:
            return shape
        if len(shape) != 3 or shape[2] != 3:
            raise UsageError(
                "--gray, --resize and --channels-first work on pictures [height, width, 3], and the observations are "
                "%s. Leave them out." % (list(shape),)
            )
        height, width = self._size or shape[:2]
        if self._size:
            self._averages = area_weights(shape[0], height), area_weights(shape[1], width)
        if self._gray:
            return (1, height, width)
        return (3, height, width) if self._channels_first else (height, width, 3)

    def write(self, obs: Any, row: Any) -> None:
        """Put an observation into a row of the batch."""
        if self.idle:
            write_checked(obs, row)
            return
        # The channels first: everything after it works on flat pictures, and a screen may be a strided view.
        planes = np.asarray(obs).transpose(2, 0, 1)
        if self._gray:
            # Plane by plane: a product of matrices would copy the strided picture first, at thrice the time.
            planes = sum(BRIGHTNESS[colour] * planes[colour] for colour in range(3))[None]
        if self._averages:
            down, across = self._averages
            planes = down @ planes.astype(np.float32) @ across.T
        if planes.dtype != row.dtype and row.dtype.kind in "iu":
            planes = np.rint(planes)
        row[...] = planes if self._gray or self._channels_first else planes.transpose(1, 2, 0)


def area_weights(before: int, after: int) -> Any:
    """[after, before]: each new pixel is the mean of the part of the old ones that it covers."""
    edges = np.linspace(0, before, after + 1)
    old = np.arange(before)
    cover = np.minimum(edges[1:, None], old + 1) - np.maximum(edges[:-1, None], old)
    return (np.clip(cover, 0, None) / (before / after)).astype(np.float32)


class Game:
    """One copy of an environment behind one face, whether it speaks gymnasium (5 results) or the old gym (4)."""

    def __init__(self, env: Any, skip: int, limit: Optional[int]) -> None:
        self.env, self._skip, self._limit = env, skip, limit
        self._takes_seed = all(takes_seed(layer) for layer in layers(env))
        self._steps = 0
        self.step = self._once if skip == 1 else self._several

    def reset(self, seed: int) -> Any:
        self._steps = 0
        if self._takes_seed:
            said = self.env.reset(seed=seed)
        else:
            plant = getattr(self.env, "seed", None)
            if plant is not None:
                plant(seed)
            said = self.env.reset()
        return said[0] if isinstance(said, tuple) else said

    def _several(self, action: int) -> Outcome:
        total = 0.0
        for _ in range(self._skip):
            obs, reward, terminated, truncated = self._once(action)
            total += reward
            if terminated or truncated:
                break
        return obs, total, terminated, truncated

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.env.close()

    def _once(self, action: int) -> Outcome:
        said = self.env.step(action)
        if len(said) == 5:
            obs, reward, terminated, truncated, _ = said
        else:
            obs, reward, done, info = said
            truncated = truth("done", done) and bool(info.get("TimeLimit.truncated"))
            terminated = truth("done", done) and not truncated
        self._steps += 1
        if self._limit is not None and self._steps >= self._limit:
            truncated = True
        reward = reward if type(reward) is float else one_number("the reward", reward)
        terminated = truth("terminated", terminated)
        return obs, reward, terminated, truth("truncated", truncated) and not terminated


def layers(env: Any) -> Iterator[Any]:
    """The wrappers from the outside in, and the environment itself."""
    yield env
    while "env" in vars(env):
        env = env.env
        yield env


def takes_seed(env: Any) -> bool:
    parameters = inspect.signature(type(env).reset).parameters.values()
    return any(each.name == "seed" or each.kind is each.VAR_KEYWORD for each in parameters)


class Maker:
    """Makes copies of one environment, all alike."""

    def __init__(self, env_id: str, arguments: Header, joypad: str, skip: int, limit: Optional[int] = None) -> None:
        self.id, self._arguments, self._joypad, self._skip = env_id, arguments, joypad, skip
        #: In the environment's own steps.
        self.limit = None if limit is None else limit * skip
        self._gym = self._find()
        self._bare = bool(joypad)
        if not self._bare:
            self._bare = not self._wrappers_agree()

    def make(self) -> Game:
        env = self._make()
        if not self._bare:
            return Game(env, self._skip, self.limit)
        limits = [self.limit, getattr(env.spec, "max_episode_steps", None)]
        env = env.unwrapped
        if self._joypad:
            module, _, name = self._joypad.partition(":")
            moves = getattr(importlib.import_module(module), name)
            env = importlib.import_module("nes_py.wrappers").JoypadSpace(env, moves)
        return Game(env, self._skip, min((each for each in limits if each), default=None))

    def _find(self) -> Any:
        """gymnasium if it knows the id, else gym."""
        module, _, name = self.id.rpartition(":")
        if module:
            self._import(module)
        names = [each for each in ("gymnasium", "gym") if _importable(each)]
        if not names:
            raise UsageError("there is no gymnasium and no gym in this Python (%s). Install one." % sys.executable)
        for each in names:
            gym = importlib.import_module(each)
            if name in _registry(gym):
                return gym
        raise UsageError('%s has no environment "%s". Install what has it, or write package:id.' % (names[0], self.id))

    def _import(self, module: str) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                importlib.import_module(module)
        except ImportError as error:
            raise UsageError(
                "%s cannot be imported (%s). Install it in %s." % (module, error, sys.executable)
            ) from None

    def _make(self) -> Any:
        arguments = dict(self._arguments)
        if "disable_env_checker" in inspect.signature(self._gym.make).parameters:
            arguments["disable_env_checker"] = True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self._gym.make(self.id.rpartition(":")[2], **arguments)

    def _wrappers_agree(self) -> bool:
        """Whether the wrappers that gym puts around it speak its API: gym 0.26 puts new ones around old games."""
        env = self._make()
        game = Game(env, 1, None)
        try:
            check_spaces(self.id, env)
            game.reset(0)
            game.step(int(getattr(env.action_space, "start", 0)))
        except (ValueError, TypeError):
            if env is env.unwrapped:
                raise
            return False
        finally:
            game.close()
        return True


def _importable(name: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            importlib.import_module(name)
        except ImportError:
            return False
    return True


def _registry(gym: Any) -> Sequence[str]:
    found = gym.envs.registry
    return list(getattr(found, "env_specs", found))


class Facts(NamedTuple):
    """What a client must know before it can use the environment; the hello."""

    shape: Tuple[int, ...]
    #: Before anything was done to the observations.
    own_shape: Tuple[int, ...]
    dtype: Any
    n_actions: int
    first_action: int
    limit: Optional[int]
    threshold: Optional[float]
    frame_skip: int
    bounds: Optional[Tuple[Any, Any]]
    seconds: float
    #: The largest that bytes can be; None for every other type.
    high: Optional[float]


def look_at(maker: Maker, lens: Lens, skip: int) -> Facts:
    """The facts, read from one copy that is reset, stepped and closed."""
    began = time.monotonic()
    game = maker.make()
    try:
        space, action = check_spaces(maker.id, game.env)
        lens.write(game.reset(0), np.empty(lens.shape(space.shape), _travelling(space.dtype)))
        spec = getattr(game.env, "spec", None)
        limits = [maker.limit, getattr(spec, "max_episode_steps", None)]
        limits += [vars(layer).get("_max_episode_steps") for layer in layers(game.env)]
        known = [each for each in limits if each]
        return Facts(
            shape=lens.shape(space.shape),
            own_shape=tuple(space.shape),
            dtype=_travelling(space.dtype),
            n_actions=int(action.n),
            first_action=int(getattr(action, "start", 0)),
            limit=math.ceil(min(known) / skip) if known else None,
            threshold=getattr(spec, "reward_threshold", None),
            frame_skip=skip * _own_skip(game.env, spec),
            bounds=_bounds(space) if lens.idle else None,
            seconds=time.monotonic() - began,
            high=float(space.high.max()) if space.dtype == np.uint8 and hasattr(space, "high") else None,
        )
    finally:
        game.close()


def check_spaces(env_id: str, env: Any) -> Tuple[Any, Any]:
    """The two spaces, if an agent of passel's can live in them. By name: gym's and gymnasium's are other classes."""
    space, action = env.observation_space, env.action_space
    if type(space).__name__ != "Box" or type(action).__name__ != "Discrete":
        raise UsageError(
            "passel needs one Box of observations and Discrete actions, and %s has %s and %s. Wrap it."
            % (env_id, " ".join(str(space).split())[:80], " ".join(str(action).split())[:80])
        )
    return space, action


def _travelling(dtype: Any) -> Any:
    """Networks compute in float32: float64 would travel twice as far and buy nothing."""
    return np.dtype(np.float32) if np.issubdtype(dtype, np.floating) else np.dtype(dtype)


def _own_skip(env: Any, spec: Any) -> int:
    skips = [(getattr(spec, "kwargs", None) or {}).get("frameskip", 1)]
    skips += [vars(layer).get("frame_skip", 1) for layer in layers(env)]
    return int(np.prod([each for each in skips if isinstance(each, int)]))


def _bounds(space: Any) -> Optional[Tuple[Any, Any]]:
    if len(space.shape) != 1 or space.dtype.kind != "f":
        return None
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    whole = np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()
    return (low, high) if whole else None


def derive_seed(seed: int, index: int, episode: int) -> int:
    """The seed of one episode in one copy, as passel derives it: the same episodes come out in process and served."""
    state = np.random.SeedSequence((seed, index, episode)).generate_state(1, np.uint32)
    return int(state[0] >> 1)


class Session:
    """One client's environments, and where it is in its conversation."""

    def __init__(self, kinds: List[int], seed: int) -> None:
        self.n, self.kinds, self.seed = len(kinds), kinds, seed
        self.games: List[Game] = []
        self.episode: List[int] = []
        self.seq = -1
        self.begun = False
        self.job: Optional[Iterator[None]] = None
        self.heard = self.told = time.monotonic()

    def close(self) -> None:
        while self.games:
            self.games.pop().close()


class Server:
    """The loop over the socket. The environments of several makers are alike: what is known of one goes for all."""

    def __init__(self, makers: Sequence[Maker], facts: Facts, lens: Lens, max_envs: int, max_sessions: int) -> None:
        self._makers, self._facts, self._lens = makers, facts, lens
        self._max_envs, self._max_sessions = max_envs, max_sessions
        self._sessions: Dict[bytes, Session] = {}
        self._tidied = time.monotonic()
        self._socket: Any = None

    def serve(self, socket: Any) -> None:
        """Until somebody ends this process."""
        self._socket = socket
        try:
            while True:
                busy = any(session.job for session in self._sessions.values())
                message = self._receive(wait=not busy)
                if message:
                    self._handle(message)
                if busy:
                    self._work()
                if time.monotonic() - self._tidied > TIDY_EVERY:
                    self._tidy()
        finally:
            for session in self._sessions.values():
                session.close()

    def _receive(self, wait: bool) -> Optional[List[Any]]:
        """The next message. Waits for some time without sleeping: to be woken costs more than most steps."""
        receive, awake = self._socket.recv, time.perf_counter() + (AWAKE if wait else 0.0)
        while True:
            late = wait and time.perf_counter() > awake
            try:
                frames = [receive(0 if late else zmq.NOBLOCK, copy=False)]
                break
            except zmq.Again:
                if late or not wait:
                    return None
            _yield()
        more = frames[-1].more
        while more:
            frame = receive(copy=False)
            more = frame.more
            if len(frames) < MAX_FRAMES:  # the rest of a longer message is dropped as it comes
                frames.append(frame)
        return frames

    def _handle(self, message: List[Any]) -> None:
        """Answer one message, or say why not. Whatever it holds, the loop goes on."""
        client, frames = message[0].bytes, message[1:]
        seq = -1
        try:
            header = read_header(frames)
            seq = header["seq"]
            self._answer(client, header, frames[1:])
        except RefusedError as refused:
            self._refuse(client, seq, refused)
        except Exception as error:  # the environments are other people's code
            self._drop(client)
            self._fail(client, seq, error)

    def _refuse(self, client: bytes, seq: int, refused: RefusedError) -> None:
        self._send(client, {"op": "error", "seq": seq, "code": refused.code, "say": refused.say})

    def _fail(self, client: bytes, seq: int, error: Exception) -> None:
        traceback.print_exception(type(error), error, error.__traceback__)
        say = "%s: %s" % (type(error).__name__, " ".join(str(error).split())[:400])
        self._send(client, {"op": "error", "seq": seq, "code": "environment", "say": say})

    def _answer(self, client: bytes, header: Header, frames: List[Any]) -> None:
        op = header["op"]
        if len(frames) not in ARRAYS[op]:
            raise RefusedError("malformed", "%s came with %d arrays" % (op, len(frames)))
        if op == "hello":
            self._hello(client, header["seq"])
            return
        session = self._sessions.get(client)
        if op == "open":
            self._open(client, header, frames, session)
            return
        if session is None:
            raise RefusedError("session", "there is no session with this client; the server may have been restarted")
        if op == "close":
            self._drop(client)
            return
        if session.job or header["seq"] != session.seq + 1 or (op == "step" and not session.begun):
            raise RefusedError("order", "%s number %d is out of order here" % (op, header["seq"]))
        session.heard = time.monotonic()
        if op == "reset":
            first = whole(header, "episode", 0, MAX_SEED)
            session.seq = header["seq"]
            session.job = self._reset(client, session, first)
        else:
            actions = self._actions(session, frames[0])
            session.seq = header["seq"]
            self._step(client, session, actions)

    def _hello(self, client: bytes, seq: int) -> None:
        facts = self._facts
        header = {
            "op": "hello",
            "seq": seq,
            "env": self._makers[0].id,
            "kinds": len(self._makers),
            "shape": list(facts.shape),
            "dtype": facts.dtype.str,
            "actions": facts.n_actions,
            "autoreset": "same-step",
            "limit": facts.limit,
            "threshold": facts.threshold,
            "frame_skip": facts.frame_skip,
            "max_envs": self._max_envs,
            "seconds": facts.seconds,
            "high": facts.high,
        }
        self._send(client, header, facts.bounds or ())

    def _open(self, client: bytes, header: Header, frames: List[Any], session: Optional[Session]) -> None:
        if session is not None:
            raise RefusedError("order", "this client has a session already")
        n = whole(header, "n", 1, 2**31)
        seed = whole(header, "seed", 0, MAX_SEED)
        if n > self._max_envs:
            raise RefusedError(
                "limit", "%d environments were asked for, and it serves at most %d" % (n, self._max_envs)
            )
        if len(self._sessions) >= self._max_sessions:
            self._tidy()
        if len(self._sessions) >= self._max_sessions:
            raise RefusedError("full", "all of its %d sessions are taken" % self._max_sessions)
        taken = sum(each.n for each in self._sessions.values())
        if taken + n > MAX_ENVS:
            raise RefusedError(
                "limit", "%d environments were asked for, and %d of its %d are taken" % (n, taken, MAX_ENVS)
            )
        session = self._sessions[client] = Session(self._kinds(n, frames), seed)
        session.seq = header["seq"]
        session.job = self._build(client, session)

    def _kinds(self, n: int, frames: List[Any]) -> List[int]:
        """Which of the environments each copy is, by their order at the start; without a word, the first."""
        return whole_numbers(frames[0], n, len(self._makers), "kinds") if frames else [0] * n

    def _build(self, client: bytes, session: Session) -> Iterator[None]:
        for kind in session.kinds:
            game = self._makers[kind].make()
            session.games.append(game)
            if kind:
                self._check_alike(self._makers[kind].id, game)
            yield
        self._send(client, {"op": "open", "seq": session.seq})

    def _check_alike(self, env_id: str, game: Game) -> None:
        """One batch holds the observations of all, and one range its actions."""
        space, action = check_spaces(env_id, game.env)
        facts, dtype, first = self._facts, _travelling(space.dtype), int(getattr(action, "start", 0))
        mine = facts.own_shape, facts.dtype, facts.n_actions, facts.first_action
        if (tuple(space.shape), dtype, int(action.n), first) != mine:
            raise RefusedError(
                "environment",
                "%s has %s %s and %d actions, and %s %s %s and %d: they cannot share a server"
                % (env_id, dtype, list(space.shape), action.n, self._makers[0].id, mine[1], list(mine[0]), mine[2]),
            )

    def _reset(self, client: bytes, session: Session, first: int) -> Iterator[None]:
        session.episode = [first] * session.n
        obs = self._blank(session.n)
        for i in range(session.n):
            self._begin(session, i, obs[i])
            yield
        session.begun = True
        self._send(client, {"op": "reset", "seq": session.seq}, (obs,))

    def _begin(self, session: Session, i: int, row: Any) -> None:
        obs = session.games[i].reset(derive_seed(session.seed, i, session.episode[i]))
        session.episode[i] += 1
        self._lens.write(obs, row)

    def _actions(self, session: Session, frame: Any) -> List[int]:
        actions, first = whole_numbers(frame, session.n, self._facts.n_actions, "actions"), self._facts.first_action
        return [action + first for action in actions] if first else actions

    def _step(self, client: bytes, session: Session, actions: List[int]) -> None:
        """Step every copy; where an episode ends, the next one's first observation goes along."""
        n, write, games, now = session.n, self._lens.write, session.games, time.monotonic
        obs, outcomes = self._blank(n), np.zeros((2, n), "<f8")
        reward, ends = outcomes
        ended = []
        session.told = session.heard
        for i in range(n):
            seen, reward[i], terminated, truncated = games[i].step(actions[i])
            write(seen, obs[i])
            if terminated or truncated:
                ends[i] = 1 if terminated else 2
                ended.append(i)
            if now() - session.told > NOTICE_EVERY:
                self._still_at_it(client, session)
                if not games:
                    return  # whoever asked is gone, and the session with them
        arrays = [obs, outcomes]
        if ended:
            fresh = self._blank(len(ended))
            for row, i in enumerate(ended):
                self._begin(session, i, fresh[row])
            arrays.append(fresh)
        self._send(client, {"op": "step", "seq": session.seq}, arrays)

    def _blank(self, n: int) -> Any:
        return np.empty((n, *self._facts.shape), self._facts.dtype)

    def _work(self) -> None:
        """One environment's worth of whatever takes long, for each client that waits."""
        for client, session in list(self._sessions.items()):
            if not session.job:
                continue
            try:
                next(session.job)
            except StopIteration:
                session.job = None
            except RefusedError as refused:
                self._drop(client)
                self._refuse(client, session.seq, refused)
            except Exception as error:
                self._drop(client)
                self._fail(client, session.seq, error)
            else:
                self._still_at_it(client, session)

    def _still_at_it(self, client: bytes, session: Session) -> None:
        """A sign of life for who waits, if the last one is some time ago."""
        now = time.monotonic()
        if now - session.told > NOTICE_EVERY:
            session.told = now
            self._send(client, {"op": "working", "seq": session.seq})

    def _send(self, client: bytes, header: Header, arrays: Sequence[Any] = ()) -> None:
        """Never waits: a client that is gone, or does not read, loses its session."""
        parts = [client, msgpack.packb({"v": VERSION, **header}), *arrays]
        send, last = self._socket.send, len(parts) - 1
        try:  # part by part: send_multipart looks at each of them twice
            for number, part in enumerate(parts):
                send(part, zmq.NOBLOCK if number == last else zmq.NOBLOCK | zmq.SNDMORE, copy=number < 2)
        except zmq.ZMQError:
            self._drop(client)

    def _tidy(self) -> None:
        """Ask after the quiet ones: a message to a client that is gone cannot be sent, and ends its session."""
        self._tidied = time.monotonic()
        for client, session in list(self._sessions.items()):
            if self._tidied - session.heard > TIDY_EVERY or len(self._sessions) >= self._max_sessions:
                self._send(client, {"op": "working", "seq": session.seq})

    def _drop(self, client: bytes) -> None:
        session = self._sessions.pop(client, None)
        if session is not None:
            session.close()


#: What a client may ask for, and with how many arrays.
ARRAYS = {"hello": (0,), "open": (0, 1), "reset": (0,), "step": (1,), "close": (0,)}
OPS = tuple(ARRAYS)


def read_header(frames: List[Any]) -> Header:
    """The first frame, if it is one of ours; only then is anything else looked at."""
    if not frames or len(frames[0]) > MAX_HEADER:
        raise RefusedError("malformed", "there is no header, or it is too long")
    try:
        header = msgpack.unpackb(frames[0].buffer)
    except Exception:
        raise RefusedError("malformed", "the header is not msgpack") from None
    if not isinstance(header, dict):
        raise RefusedError("malformed", "the header is no map")
    if header.get("v") != VERSION:
        raise RefusedError("version", "it speaks version %d of the protocol" % VERSION)
    if header.get("op") not in OPS:
        raise RefusedError("malformed", "the header names no operation")
    whole(header, "seq", 0, MAX_SEED)
    return cast(Header, header)


def whole(header: Header, key: str, least: int, most: int) -> int:
    value = header.get(key)
    if type(value) is not int or not least <= value <= most:
        raise RefusedError("malformed", "%s is not a whole number from %d to %d" % (key, least, most))
    return value


def whole_numbers(frame: Any, n: int, end: int, what: str) -> List[int]:
    """An array of n whole numbers from 0 to end - 1."""
    if len(frame) != 8 * n:
        raise RefusedError("malformed", "%d bytes are not %d %s" % (len(frame), n, what))
    numbers = np.frombuffer(frame, "<i8")
    if numbers.min() < 0 or numbers.max() >= end:
        raise RefusedError("malformed", "one of the %s is outside of 0 .. %d" % (what, end - 1))
    return cast(List[int], numbers.tolist())


def is_local(address: str) -> bool:
    """Whether only this machine can reach it."""
    if address.startswith("ipc://"):
        return True
    host = address[len("tcp://") :].rpartition(":")[0]
    parts = host.split(".")
    loopback = len(parts) == 4 and parts[0] == "127" and all(part.isdigit() for part in parts)
    return loopback or host in ("localhost", "[::1]")


def check_address(address: str, key: str) -> None:
    if not address.startswith(("tcp://", "ipc://")):
        raise UsageError("%s is no address. Use tcp://127.0.0.1:5555, or ipc:///path/to/a/socket." % address)
    if not key and not is_local(address):
        raise UsageError(
            "%s can be reached from other machines, and that needs keys.\n"
            "Run `passel keys FOLDER` and add --key FOLDER/server.json, or bind to 127.0.0.1." % address
        )


def read_key(path: str) -> Dict[str, bytes]:
    try:
        with open(path, encoding="ascii") as file:
            content = json.load(file)
        names = ("server_public", "server_secret", "client_public")
        found = {name: content[name].encode("ascii") for name in names}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise UsageError("%s is not a server's key. `passel keys FOLDER` makes one: server.json." % path) from None
    if any(len(value) != 40 for value in found.values()):
        raise UsageError("%s is not a server's key: keys have 40 characters. Run `passel keys FOLDER`." % path)
    return found


def max_request(envs: int) -> int:
    """Bytes of the largest frame of a client that may have so many environments: its header, or 8 for each of them."""
    return max(MAX_HEADER, 8 * envs)


def is_socket(address: str) -> bool:
    """Whether the path of an ipc:// address is a socket: nothing else there is this server's to remove."""
    try:
        return address.startswith("ipc://") and stat.S_ISSOCK(os.lstat(address[len("ipc://") :]).st_mode)
    except OSError:
        return False


def is_listening(path: str) -> bool:
    """Whether somebody is behind a socket: one that nobody listens to was left behind, and refuses."""
    with contextlib.closing(sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
    return True


def open_socket(context: Any, address: str, key: str, envs: int) -> Any:
    """The bound socket; with a key, encrypted, and open to the one client that has the other half.

    What a client can make the server hold is bounded by the size of a frame and by the number of messages that wait in
    either direction. libzmq drops the connection of a client that sends a larger frame, and stops reading from one that
    sends too many; a client that does not read its answers loses its session.
    """
    if address.startswith("ipc://") and os.path.lexists(address[len("ipc://") :]) and not is_socket(address):
        raise UsageError("%s is a file, and no socket. Use another path: binding would replace it." % address)
    if is_socket(address) and is_listening(address[len("ipc://") :]):
        raise UsageError("%s is in use by another program. Use another path: binding would replace it." % address)
    keys = read_key(key) if key else None
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.LINGER, 200)
    socket.setsockopt(zmq.RCVTIMEO, TICK_MS)
    socket.setsockopt(zmq.MAXMSGSIZE, max_request(envs))
    socket.setsockopt(zmq.RCVHWM, QUEUED)
    socket.setsockopt(zmq.SNDHWM, QUEUED)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 10 * HEARTBEAT_MS)
    if address.startswith("tcp://["):
        socket.setsockopt(zmq.IPV6, 1)
    if keys:
        answer_for(context, z85.decode(keys["client_public"]))
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, keys["server_public"])
        socket.setsockopt(zmq.CURVE_SECRETKEY, keys["server_secret"])
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        socket.close(0)
        raise UsageError("%s cannot be bound (%s). Use another address." % (address, error)) from None
    return socket


def answer_for(context: Any, client_public: bytes) -> None:
    """Say yes to this client's key and no to all others, when libzmq asks (RFC 27, ZAP)."""
    socket = context.socket(zmq.REP)
    socket.setsockopt(zmq.LINGER, 0)
    socket.bind("inproc://zeromq.zap.01")

    def answer() -> None:
        with contextlib.suppress(zmq.ZMQError), contextlib.closing(socket):
            while True:
                request = socket.recv_multipart()
                good = len(request) == 7 and request[5] == b"CURVE" and request[6] == client_public
                verdict = [b"200", b"OK"] if good else [b"400", b"unknown key"]
                socket.send_multipart([b"1.0", request[1], *verdict, b"", b""])

    threading.Thread(target=answer, daemon=True).start()


def end_with_input(folder: str, address: str) -> None:
    """Whoever started this server holds the other end of its standard input; when that closes, all is over.

    Of the folder only what belongs to this server is removed: its socket, and the file that it complains into.
    """

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 1):
                pass
        errors = os.path.join(folder, "errors")
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(2), os.lstat(errors)):
                os.unlink(errors)
        if is_socket(address) and os.path.dirname(address[len("ipc://") :]) == folder:
            with contextlib.suppress(OSError):
                os.unlink(address[len("ipc://") :])
        with contextlib.suppress(OSError):
            os.rmdir(folder)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="passel serve-env",
        description="Serve environments to `passel train --env ADDRESS`, from an interpreter of their own.",
    )
    made.add_argument(
        "ids",
        metavar="ID",
        nargs="+",
        help="Environment: an id of gymnasium's or gym's, or package:Id-v0. Several that are alike share a server; "
        "a client that does not choose plays the first.",
    )
    made.add_argument("--envs", type=_count, default=16, help="Most environments of one client (default 16).")
    made.add_argument("--sessions", type=_count, default=64, help="Most clients at once (default 64).")
    made.add_argument("--bind", default="tcp://127.0.0.1:5555", help="Address (default tcp://127.0.0.1:5555).")
    made.add_argument("--key", default="", help="The server's key file; needed if other machines can reach it.")
    made.add_argument(
        "--arg", action="append", default=[], metavar="NAME=JSON", help="Argument of the environment; may be repeated."
    )
    made.add_argument("--gray", action="store_true", help="Send brightness, [1, height, width], in place of colours.")
    made.add_argument("--resize", type=_size, metavar="HxW", help="Send pictures of this height and width.")
    made.add_argument("--channels-first", action="store_true", help="Send [3, height, width], not [height, width, 3].")
    made.add_argument("--skip", type=_count, default=1, help="Repeat every action so often; rewards add up.")
    made.add_argument("--limit", type=_count, help="Truncate episodes after so many steps.")
    made.add_argument(
        "--joypad",
        default="",
        metavar="MODULE:NAME",
        help="For nes_py: the list of presses that are the actions.",
    )
    made.add_argument(
        "--owned", default="", metavar="FOLDER", help="End with standard input; socket and folder go too."
    )
    return made


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError("%s is not a whole number above 0" % text)
    return int(text)


def _size(text: str) -> Tuple[int, int]:
    height, _, width = text.partition("x")
    return _count(height), _count(width)


def _arguments(words: Sequence[str]) -> Header:
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        try:
            found[name] = json.loads(value)
        except ValueError:
            equals = ""
        if not equals:
            raise UsageError("--arg %s is not NAME=JSON, for instance --arg gravity=-9.5." % word)
    return found


def main(argv: Optional[Sequence[str]] = None) -> int:
    said = parser().parse_args(argv)
    if said.owned:
        end_with_input(said.owned, said.bind)
    signal.signal(signal.SIGTERM, _end)
    try:
        run(said, lambda text: print("passel: " + text, flush=True))
    except UsageError as error:
        print("passel: " + str(error).replace("\n", "\n        "), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def run(said: argparse.Namespace, tell: Callable[[str], None]) -> None:
    check_address(said.bind, said.key)
    lens = Lens(said.gray, said.resize, said.channels_first)
    arguments, makers = _arguments(said.arg), []
    for each in said.ids:
        with _its_faults_named(each):
            makers.append(Maker(each, arguments, said.joypad, said.skip, said.limit))
    with _its_faults_named(said.ids[0]):
        facts = look_at(makers[0], lens, said.skip)
    context, bound = zmq.Context(), False
    try:
        socket = open_socket(context, said.bind, said.key, said.envs)
        bound = True
        address = socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()
        more = " and %d more" % (len(makers) - 1) if makers[1:] else ""
        tell("serving %s%s at %s, at most %d environments to a client" % (said.ids[0], more, address, said.envs))
        with contextlib.closing(socket):
            Server(makers, facts, lens, said.envs, said.sessions).serve(socket)
    finally:
        context.term()
        if bound and is_socket(said.bind):
            with contextlib.suppress(OSError):
                os.unlink(said.bind[len("ipc://") :])


@contextlib.contextmanager
def _its_faults_named(env_id: str) -> Iterator[None]:
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            "%s could not be made (%s: %s). Check its arguments." % (env_id, type(error).__name__, error)
        ) from error


def _end(number: int, frame: Any) -> None:
    sys.exit(0)


if __name__ == "__main__":
    sys.exit(main())
