"""The server by itself: its lens, old games, its addresses and keys, and whatever a socket may bring."""

from __future__ import annotations

import contextlib
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgpack
import numpy as np
import psutil
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from passel.envs import make_envs, remote_link, remote_place, seeds, serve_env
from passel.envs.remote import RemoteEnvs
from passel.envs.remote_place import Address
from passel.types import PasselError
from serving import PROGRAM, Serving


def test_both_ends_agree() -> None:
    assert serve_env.VERSION == remote_link.VERSION
    for seed, index, episode in ((0, 0, 0), (2**63 - 1, 7, 3 << 20)):
        assert serve_env.derive_seed(seed, index, episode) == seeds.derive_seed(seed, index, episode)
    for address in ("tcp://127.0.0.1:1", "tcp://127.9.9.9:1", "tcp://localhost:1", "tcp://[::1]:1", "ipc:///tmp/x"):
        assert serve_env.is_local(address)
        assert remote_place.is_local(address)
    for address in ("tcp://*:1", "tcp://0.0.0.0:1", "tcp://127.evil.org:1", "tcp://127.0.0.1.evil:1", "tcp://[::]:1"):
        assert not serve_env.is_local(address)
        assert not remote_place.is_local(address)


# The lens.


@given(st.integers(1, 300), st.integers(1, 100))
def test_a_smaller_picture_keeps_what_is_even(before: int, after: int) -> None:
    weights = serve_env.area_weights(before, after)
    assert weights.shape == (after, before)
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-5)
    if after <= before:
        np.testing.assert_allclose(weights.sum(axis=0), after / before, atol=1e-5)


def lens(gray: bool = False, size: tuple[int, int] | None = None, first: bool = False) -> serve_env.Lens:
    return serve_env.Lens(gray, size, first)


def through(made: serve_env.Lens, picture: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    row = np.empty(made.shape(picture.shape), picture.dtype)
    made.write(picture, row)
    return row


def test_a_whole_factor_is_the_mean_of_blocks_and_nothing_is_transposed() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (12, 20, 3)).astype(np.uint8)
    small = picture.reshape(4, 3, 5, 4, 3).mean(axis=(1, 3))
    np.testing.assert_allclose(through(lens(size=(4, 5)), picture).astype(float), small, atol=0.51)
    first = through(lens(size=(4, 5), first=True), picture).astype(float)
    np.testing.assert_allclose(first, small.transpose(2, 0, 1), atol=0.51)
    np.testing.assert_array_equal(through(lens(first=True), picture), picture.transpose(2, 0, 1))
    np.testing.assert_array_equal(through(lens(), picture), picture)
    white = np.full((12, 20, 3), 255, np.uint8)
    assert (through(lens(gray=True, size=(5, 7)), white) == 255).all()


def test_a_lens_is_for_pictures() -> None:
    with pytest.raises(serve_env.UsageError, match=r"pictures \[height, width, 3\], and the observations are \[4\]"):
        lens(gray=True).shape((4,))


# Games that speak the old gym.


class OldGame:
    """gym before 0.26: seed() apart, one result of reset, four of step."""

    def __init__(self) -> None:
        self.seeds: list[int] = []

    def seed(self, seed: int) -> None:
        self.seeds.append(seed)

    def reset(self) -> int:
        self.count = 0
        return 0

    def step(self, action: int) -> Any:
        self.count += 1
        return self.count, 1.5, self.count >= 3, {"TimeLimit.truncated": self.count >= 3 and action == 1}


def test_an_old_game_behind_the_same_face() -> None:
    old = OldGame()
    game = serve_env.Game(old, 1, None)
    assert game.reset(7) == 0
    assert old.seeds == [7]
    assert [game.step(0) for _ in range(3)] == [(1, 1.5, False, False), (2, 1.5, False, False), (3, 1.5, True, False)]
    game.reset(8)
    assert [game.step(1)[2:] for _ in range(3)] == [(False, False), (False, False), (False, True)]


def test_skipped_frames_stop_at_the_end_and_a_limit_is_a_truncation() -> None:
    game = serve_env.Game(OldGame(), 2, None)
    game.reset(0)
    assert [game.step(0), game.step(0)] == [(2, 3.0, False, False), (3, 1.5, True, False)]
    limited = serve_env.Game(OldGame(), 1, 2)
    limited.reset(0)
    assert [limited.step(0)[2:] for _ in range(2)] == [(False, False), (False, True)]


@pytest.mark.parametrize(
    ("obs", "sentence"),
    [
        (1, r"the observation has shape \(\), and its observation_space has \(2,\)"),
        ([1, 2, 3], r"has shape \(3,\)"),
        ([300, 0], "not whole or not from 0 to 255"),
        ([-1, 0], "not whole or not from 0 to 255"),
        ([0.5, 0], "not whole or not from 0 to 255"),
        (["a", "b"], "no array of numbers"),
    ],
)
def test_an_observation_that_does_not_fit_is_refused(obs: Any, sentence: str) -> None:
    row = np.zeros(2, np.uint8)
    with pytest.raises(serve_env.OutcomeError, match=sentence):
        lens().write(obs, row)
    lens().write([7, 255], row)
    assert row.tolist() == [7, 255]


class Says:
    """Returns what it is told."""

    def __init__(self, *said: Any) -> None:
        self._said = said

    def reset(self) -> int:
        return 0

    def step(self, action: int) -> Any:
        return self._said


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ((0, None, False, False, {}), "the reward is None. Return one number."),
        ((0, np.ones(2), False, False, {}), "the reward is array"),
        ((0, 1.0, None, False, {}), "terminated is None. Return one number."),
        ((0, 1.0, False, 7, {}), "truncated is 7. Return True or False."),
        ((0, 1.0, "no", {}), "done is 'no'. Return one number."),
    ],
)
def test_rewards_and_ends_that_are_none_are_refused(said: tuple[Any, ...], sentence: str) -> None:
    with pytest.raises(serve_env.OutcomeError, match=f"^{sentence}"):
        serve_env.Game(Says(*said), 1, None).step(0)
    assert serve_env.Game(Says(0, np.array([2.5]), np.bool_(False), 1, {}), 1, None).step(0) == (0, 2.5, False, True)


OLD_GYM = '''
"""A gym of 0.26: wrappers that want five results, around whatever there is."""

class Box:
    def __init__(self, shape):
        import numpy
        self.shape, self.dtype = shape, numpy.dtype("uint8")

class Discrete:
    n = 2

class Spec:
    max_episode_steps, reward_threshold, kwargs = 4, None, {}

class Old:
    observation_space, action_space, spec = Box((2,)), Discrete(), Spec()
    unwrapped = property(lambda self: self)
    def seed(self, seed): self.first = seed % 200
    def reset(self): self.count = 0; return [self.first, 0]
    def step(self, action): self.count += 1; return [self.first, self.count], 1, False, {}
    def close(self): pass

class TimeLimit:
    observation_space, action_space, spec = Box((2,)), Discrete(), Spec()
    def __init__(self, env): self.env = env
    def __getattr__(self, name): return getattr(self.env, name)
    unwrapped = property(lambda self: self.env)
    def reset(self, **kwargs): return self.env.reset(**kwargs)
    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated, truncated, info
    def close(self): pass

class envs:
    registry = {"Old-v0": None}

def make(name): return TimeLimit(Old())
'''


def test_an_old_game_in_new_wrappers_is_taken_out_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gym.py").write_text(OLD_GYM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Serving("Old-v0") as serving:
        envs = make_envs(serving.address, 2, seed=5)
        first = [seeds.derive_seed(5, i, 0) % 200 for i in range(2)]
        assert envs.reset().tolist() == [[first[0], 0], [first[1], 0]]
        steps = [envs.step(np.zeros(2, np.int64)) for _ in range(4)]
        assert [step.next_obs[:, 1].tolist() for step in steps] == [[1, 1], [2, 2], [3, 3], [4, 4]]
        assert [step.truncated.all() for step in steps] == [False, False, False, True], "the wrapper's limit is kept"
        envs.close()


# Several environments of one server.


def test_each_copy_plays_what_its_client_chose() -> None:
    """Stages show their number, times 7, in gray."""
    stages = [f"serving:SuperMarioBros-1-{stage}-v0" for stage in (1, 2, 3)]
    with Serving(*stages) as serving:
        envs = RemoteEnvs(Address(serving.address), 4, 0, kinds=np.array([2, 0, 1, 1]))
        assert envs.reset()[:, 0, 0, 0].tolist() == [14, 0, 7, 7]
        assert envs.step(np.zeros(4, np.int64)).next_obs[:, 0, 0, 0].tolist() == [15, 1, 8, 8]
        envs.close()
        envs = RemoteEnvs(Address(serving.address), 2, 0)
        assert envs.reset()[:, 0, 0, 0].tolist() == [0, 0], "who does not choose plays the first"
        envs.close()
        for kinds in ([0, 3], [-1, 0], [0]):
            with pytest.raises(
                PasselError, match=r"refuses: (one of the kinds is outside of 0 \.\. 2|8 bytes are not 2)"
            ):
                RemoteEnvs(Address(serving.address), 2, 0, kinds=np.array(kinds))
        assert serving.running


def test_only_environments_that_are_alike_share_a_server() -> None:
    with Serving("serving:SuperMarioBros-1-1-v0", "serving:Picture-v0") as serving:
        with pytest.raises(
            PasselError, match=r"serving:Picture-v0 has uint8 \[40, 60, 3\] and 6 actions, and .* and 7"
        ):
            RemoteEnvs(Address(serving.address), 2, 0, kinds=np.array([0, 1]))
        envs = RemoteEnvs(Address(serving.address), 1, 0)
        assert envs.reset().shape == (1, 40, 60, 3)
        envs.close()


def test_a_limit_counts_the_steps_of_the_client() -> None:
    """Five steps of two frames; a stage of its own ends after six frames, before four steps of two are over."""
    with Serving("serving:Picture-v0", "--skip", "2", "--limit", "5") as serving:
        envs = make_envs(serving.address, 1, seed=0)
        assert envs.spec.max_episode_steps == 5
        envs.reset()
        ends = [bool(envs.step(np.zeros(1, np.int64)).truncated[0]) for _ in range(10)]
        envs.close()
    assert ends == [False, False, False, False, True] * 2
    with Serving("serving:SuperMarioBros-1-4-v0", "--skip", "2", "--limit", "4") as serving:
        envs = make_envs(serving.address, 1, seed=0)
        envs.reset()
        assert [float(envs.step(np.zeros(1, np.int64)).discount[0]) for _ in range(3)] == [1, 1, 0]
        envs.close()


# How it is started.


def run(*words: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *words], capture_output=True, text=True, timeout=30, check=False
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["CartPole-v1", "--bind", "tcp://0.0.0.0:0"], "can be reached from other machines, and that needs keys."),
        (["CartPole-v1", "--bind", "udp://127.0.0.1:1"], "udp://127.0.0.1:1 is no address."),
        (["CartPole-v1", "--bind", "tcp://127.0.0.1:0", "--key", "no"], "no is not a server's key."),
        (["CartPole-v7"], 'gymnasium has no environment "CartPole-v7".'),
        (["nowhere:Foo-v0"], "nowhere cannot be imported"),
        (["Pendulum-v1"], "passel needs one Box of observations and Discrete actions, and Pendulum-v1 has"),
        (["CartPole-v1", "--gray"], "--gray, --resize and --channels-first work on pictures"),
        (["CartPole-v1", "--arg", "colour"], "--arg colour is not NAME=JSON"),
        (["CartPole-v1", "--arg", "colour=1"], "CartPole-v1 could not be made (TypeError"),
    ],
)
def test_a_mistake_is_a_sentence(words: list[str], sentence: str) -> None:
    code, said = run(*words)
    assert code == 2
    assert said.startswith("passel: ")
    assert sentence in said


def test_an_address_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, said = run("CartPole-v1", "--bind", f"tcp://127.0.0.1:{taken.getsockname()[1]}")
    assert code == 2
    assert "cannot be bound (Address already in use" in said


def test_it_ends_with_its_owner_and_cleans_up(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), "CartPole-v1", "--bind", f"ipc://{folder}/s", "--owned", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    process.stdout.readline()
    assert (folder / "s").exists()
    process.stdin.close()
    assert process.wait(10) == 0
    process.stdout.close()
    assert not folder.exists()


def test_its_owner_s_folder_keeps_what_is_not_the_servers(tmp_path: Path) -> None:
    for name in ("thesis", "errors"):
        (tmp_path / name).write_text("mine")
    command = [sys.executable, str(PROGRAM), "CartPole-v1", "--bind", f"ipc://{tmp_path}/s", "--owned", str(tmp_path)]
    subprocess.run(command, check=False, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"thesis": "mine", "errors": "mine"}


@pytest.mark.parametrize("more", [[], ["--key", "nothing.json"]])
def test_the_socket_of_another_program_is_neither_replaced_nor_removed(tmp_path: Path, more: list[str]) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "s"))
        other.listen()
        code, said = run("CartPole-v1", "--bind", f"ipc://{tmp_path}/s", *more)
        assert code == 2
        assert "is in use by another program" in said
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / "s"))


def test_a_socket_that_was_left_behind_is_replaced_and_removed(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "s"))
    assert not serve_env.is_listening(str(tmp_path / "s"))


# Whatever a socket may bring.


class Frame(bytes):
    """As libzmq gives it."""

    @property
    def buffer(self) -> memoryview:
        return memoryview(self)


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.lists(st.integers(0, 9), max_size=3),
)
HEADERS = st.dictionaries(st.sampled_from(["v", "op", "seq", "n", "seed", "episode", "x"]), VALUES)
LIKELY = st.fixed_dictionaries(
    {"v": st.just(1), "op": st.sampled_from(serve_env.OPS), "seq": st.one_of(st.integers(0, 3), VALUES)},
    optional={"n": st.one_of(st.integers(0, 9), VALUES), "seed": VALUES, "episode": VALUES},
)
MESSAGES = st.lists(
    st.one_of(st.binary(max_size=64), HEADERS.map(msgpack.packb), LIKELY.map(msgpack.packb)), min_size=1, max_size=3
)


@given(MESSAGES)
def test_a_header_is_ours_or_refused(frames: list[bytes]) -> None:
    with contextlib.suppress(serve_env.RefusedError):
        header = serve_env.read_header([Frame(frame) for frame in frames])
        assert header["v"] == 1
        assert header["op"] in serve_env.OPS
        assert type(header["seq"]) is int


@pytest.fixture(scope="module")
def besieged() -> Iterator[tuple[Serving, Any]]:
    """A server, and a socket that has a session of one environment with it."""
    with Serving("CartPole-v1", "--envs", "8", "--sessions", "4") as serving:
        context = zmq.Context()
        dealer = context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.RCVTIMEO, 5000)
        dealer.connect(serving.address)
        yield serving, dealer
        dealer.close(0)
        context.term()


def ask(dealer: Any, header: dict[str, Any], *frames: bytes) -> dict[str, Any]:
    dealer.send_multipart([msgpack.packb(header), *frames])
    answer: dict[str, Any] = msgpack.unpackb(dealer.recv_multipart()[0])
    return answer


@settings(max_examples=150)
@given(MESSAGES)
def test_nothing_that_a_client_sends_ends_the_server(besieged: tuple[Serving, Any], frames: list[bytes]) -> None:
    serving, dealer = besieged
    dealer.send_multipart(frames)
    # Answers come in order: when the hello's is here, whatever came before it has been dealt with.
    hello = {"v": 1, "op": "hello", "seq": 424242}
    answer = ask(dealer, hello)
    while (answer["op"], answer["seq"]) != ("hello", 424242):
        assert answer["op"] in ("error", "hello", "open", "reset", "step", "working")
        answer = msgpack.unpackb(dealer.recv_multipart()[0])
    assert serving.running


def test_a_neighbour_notices_nothing(besieged: tuple[Serving, Any]) -> None:
    """Random bytes, by ZeroMQ and past it, between the steps of somebody who behaves."""
    serving, dealer = besieged
    host, port = serving.address.removeprefix("tcp://").split(":")
    dice = random.Random(0)
    served, local = make_envs(serving.address, 2, seed=1), make_envs("CartPole-v1", 2, seed=1, backend="gymnasium")
    np.testing.assert_array_equal(served.reset(), local.reset())
    for _ in range(60):
        dealer.send_multipart([dice.randbytes(dice.randrange(200)) for _ in range(dice.randrange(1, 4))])
        with socket.create_connection((host, int(port)), timeout=5) as raw:
            raw.sendall(dice.randbytes(dice.randrange(1, 300)))
        actions = np.array([dice.randrange(2), dice.randrange(2)])
        a, b = served.step(actions), local.step(actions)
        np.testing.assert_array_equal(a.obs, b.obs)
        assert a.episodes == b.episodes
    served.close()


def test_out_of_order_out_of_range_and_oversized(besieged: tuple[Serving, Any]) -> None:
    serving, _ = besieged
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.RCVTIMEO, 5000)
    dealer.connect(serving.address)
    one = np.zeros(1, np.int64).tobytes()

    def code(op: str, seq: int, *frames: bytes, **fields: int) -> str:
        answer = ask(dealer, {"v": 1, "op": op, "seq": seq, **fields}, *frames)
        return str(answer["code"] if answer["op"] == "error" else answer["op"])

    try:
        assert code("step", 0, one) == "session"
        assert code("reset", 0, episode=0) == "session"
        assert code("open", 0, n=0, seed=0) == "malformed"
        assert code("open", 0, n=1, seed=-1) == "malformed"
        assert code("open", 0, n=9, seed=0) == "limit"
        assert code("open", 0, n=1, seed=0) == "open"
        assert code("open", 1, n=1, seed=0) == "order"
        assert code("step", 1, one) == "order", "before the first reset"
        assert code("reset", 2, episode=0) == "order", "a number left out"
        assert code("reset", 1, episode=0) == "reset"
        assert code("reset", 1, episode=0) == "order", "a number twice"
        assert code("step", 2) == "malformed"
        assert code("step", 2, one, one) == "malformed"
        assert code("step", 2, one[:-1]) == "malformed"
        assert code("step", 2, np.array([2]).tobytes()) == "malformed"
        assert code("step", 2, np.array([-1]).tobytes()) == "malformed"
        assert code("step", 2, one) == "step", "what was refused has changed nothing"
        ask_again = {"v": 2, "op": "hello", "seq": 0}
        assert ask(dealer, ask_again)["code"] == "version"
        dealer.send_multipart(
            [b"x" * (serve_env.max_request(8) + 1)]
        )  # libzmq closes the connection, and opens it anew
        dealer.setsockopt(zmq.RCVTIMEO, 500)
        deadline = time.monotonic() + 10
        while True:
            try:
                assert code("step", 3, one) == "session", "with the connection went the session"
                break
            except zmq.Again:
                assert time.monotonic() < deadline
    finally:
        dealer.close(0)
        context.term()
    assert serving.running


def resident_mb(serving: Serving) -> float:
    return psutil.Process(serving.pid).memory_info().rss / 1e6


def test_a_flood_takes_no_memory() -> None:
    """Three clients send up to 450 MB while an environment keeps the server from reading."""
    with Serving("serving:Fussy-v0", "--envs", "131072") as serving:
        context = zmq.Context()
        slow, *flood = [context.socket(zmq.DEALER) for _ in range(4)]
        try:
            for dealer in (slow, *flood):
                dealer.setsockopt(zmq.SNDHWM, 1)
                dealer.setsockopt(zmq.SNDTIMEO, 100)
                dealer.setsockopt(zmq.RCVTIMEO, 10_000)
                dealer.connect(serving.address)
            slow.setsockopt(zmq.SNDTIMEO, 10_000)
            assert ask(slow, {"v": 1, "op": "open", "seq": 0, "n": 1, "seed": 0})["op"] == "open"
            assert ask(slow, {"v": 1, "op": "reset", "seq": 1, "episode": 0})["op"] == "reset"
            slow.send_multipart([msgpack.packb({"v": 1, "op": "step", "seq": 2}), np.array([2]).tobytes()])
            before = resident_mb(serving)
            largest = b"x" * serve_env.max_request(131072)
            for dealer in flood:
                with contextlib.suppress(zmq.Again):
                    for _ in range(150):
                        dealer.send_multipart([msgpack.packb({"v": 1, "op": "hello", "seq": 0}), largest])
            assert len(largest) == 1 << 20
            assert resident_mb(serving) - before < 150
        finally:
            for dealer in (slow, *flood):
                dealer.close(0)
            context.term()


def test_one_frame_is_as_large_as_an_action_for_each_environment() -> None:
    assert serve_env.max_request(16) == serve_env.MAX_HEADER
    assert serve_env.max_request(100_000) == 800_000


def test_what_waits_is_bounded_in_both_directions() -> None:
    context = zmq.Context()
    bound = serve_env.open_socket(context, "tcp://127.0.0.1:*", "", 16)
    try:
        assert bound.getsockopt(zmq.RCVHWM) == serve_env.QUEUED
        assert bound.getsockopt(zmq.SNDHWM) == serve_env.QUEUED
        assert bound.getsockopt(zmq.MAXMSGSIZE) == serve_env.max_request(16)
    finally:
        bound.close(0)
        context.term()


def test_a_message_of_many_frames_is_refused_and_not_kept(besieged: tuple[Serving, Any]) -> None:
    _, dealer = besieged
    hello = msgpack.packb({"v": 1, "op": "hello", "seq": 77})
    dealer.send_multipart([hello, *[b"x"] * 5000])
    answer: dict[str, Any] = {"seq": -1}
    while answer["seq"] != 77:  # answers to what others have sent on this socket come first
        answer = msgpack.unpackb(dealer.recv_multipart()[0])
    assert answer["say"] == f"hello came with {serve_env.MAX_FRAMES - 2} arrays"


def test_environments_of_all_clients_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_env, "MAX_ENVS", 5)
    maker: Any = type("Maker", (), {"id": "x"})
    server = serve_env.Server([maker], cast(Any, None), lens(), 4, 8)
    server._open(b"a", {"n": 3, "seed": 0, "seq": 0}, [], None)
    with pytest.raises(serve_env.RefusedError, match="3 environments were asked for, and 3 of its 5 are taken"):
        server._open(b"b", {"n": 3, "seed": 0, "seq": 0}, [], None)
    server._open(b"b", {"n": 2, "seed": 0, "seq": 0}, [], None)


def test_a_file_at_the_path_of_a_socket_is_neither_replaced_nor_removed(tmp_path: Path) -> None:
    (tmp_path / "thesis").write_text("mine")
    command = [sys.executable, str(PROGRAM), "CartPole-v1", "--bind", f"ipc://{tmp_path}/thesis"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "is a file, and no socket. Use another path" in done.stderr
    assert (tmp_path / "thesis").read_text() == "mine"
