"""The boundary contract through a socket, and what a user reads when the server is not as it should be."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import msgpack
import numpy as np
import pytest
import torch
import zmq

from harness import TINY, Command, summary
from passel import api
from passel.envs import Envs, describe, make_envs, remote, remote_keys, remote_link, remote_place, specs
from passel.envs.remote_errors import LostError
from passel.recipes.auto import resolve_open
from passel.recipes.resolve import resolve_config
from passel.types import Episode, PasselError, Step
from serving import COUNTDOWN, Picture, Serving

FIELDS = ("obs", "next_obs", "reward", "discount", "truncated", "real")


def zeros(envs: Envs) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.zeros(envs.n, np.int64)


def assert_same(a: Step, b: Step) -> None:
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
        assert getattr(a, name).dtype == getattr(b, name).dtype
    assert a.episodes == b.episodes


@pytest.fixture(scope="module")
def cartpole() -> Iterator[Serving]:
    with Serving("CartPole-v1", "--envs", "4") as serving:
        yield serving


@pytest.fixture(scope="module")
def countdown() -> Iterator[Serving]:
    with Serving(COUNTDOWN, "--arg", "terminate_after=3") as serving:
        yield serving


@pytest.mark.parametrize("seed", [0, 2**63 - 1])
def test_served_and_in_process_are_the_same_episodes(cartpole: Serving, seed: int) -> None:
    served = make_envs(cartpole.address, 3, seed)
    local = make_envs("CartPole-v1", 3, seed, backend="gymnasium")
    np.testing.assert_array_equal(served.reset(), local.reset())
    actions = np.random.default_rng(1).integers(2, size=(200, 3))
    episodes = 0
    for row in actions:
        step = served.step(row)
        assert_same(step, local.step(row))
        assert all(getattr(step, name).flags.writeable for name in FIELDS), "torch takes no others"
        episodes += len(step.episodes)
    assert episodes > 10
    served.close()
    served.close()


def test_what_a_server_says_of_its_environment(cartpole: Serving) -> None:
    spec, local = describe(cartpole.address), describe("CartPole-v1", "gymnasium")
    assert (spec.id, spec.backend, spec.exact_resume) == (cartpole.address, "remote", False)
    same = ("obs_shape", "obs_dtype", "n_actions", "reward_threshold", "max_episode_steps", "frame_skip", "bounds")
    assert [getattr(spec, name) for name in same] == [getattr(local, name) for name in same]
    assert spec.max_copies == 4


def test_bounds_travel_as_they_are() -> None:
    with Serving("MountainCar-v0") as serving:
        assert describe(serving.address).bounds == describe("MountainCar-v0", "gymnasium").bounds


def test_a_terminated_episode_row_by_row(countdown: Serving) -> None:
    envs = make_envs(countdown.address, 1, seed=0)
    assert envs.reset().tolist() == [[0, 0]]
    steps = [envs.step(zeros(envs)) for _ in range(4)]
    assert [s.next_obs.tolist() for s in steps] == [[[1, 0]], [[2, 0]], [[3, 0]], [[1, 1]]]
    assert [s.obs.tolist() for s in steps] == [[[1, 0]], [[2, 0]], [[0, 1]], [[1, 1]]]
    assert [s.reward.item() for s in steps] == [1, 2, 3, 1]
    assert [s.discount.item() for s in steps] == [1, 1, 0, 1]
    assert [s.episodes for s in steps] == [[], [], [Episode(6.0, 3)], []]
    assert not any(s.truncated.any() for s in steps)
    assert all(s.real.all() for s in steps)
    envs.close()


@pytest.mark.parametrize(
    ("flags", "terminated"), [(["--arg", "terminate_after=null"], False), (["--arg", "terminate_after=2"], True)]
)
def test_truncation_keeps_the_bootstrap_and_termination_wins(flags: list[str], terminated: bool) -> None:
    with Serving(COUNTDOWN, *flags, "--arg", "truncate_after=2") as serving:
        envs = make_envs(serving.address, 2, seed=0)
        envs.reset()
        envs.step(zeros(envs))
        last = envs.step(zeros(envs))
        envs.close()
    assert last.truncated.tolist() == [not terminated] * 2
    assert last.discount.tolist() == [0.0 if terminated else 1.0] * 2
    assert last.next_obs.tolist() == [[2, 0]] * 2
    assert last.obs.tolist() == [[0, 1]] * 2
    assert last.episodes == [Episode(3.0, 2)] * 2


def test_a_new_start_begins_other_episodes(cartpole: Serving) -> None:
    tensors = {name: torch.zeros(s.shape, dtype=s.dtype) for name, s in specs(describe(cartpole.address), 2).items()}
    first = make_envs(cartpole.address, 2, seed=7, tensors=tensors)
    began = first.reset()
    first.close()
    second = make_envs(cartpole.address, 2, seed=7, tensors=tensors)
    assert not (second.restore() == began).all(axis=1).any()
    second.close()


def test_a_picture_that_is_not_square_arrives_as_it_is() -> None:
    with Serving("serving:Picture-v0") as serving:
        served, local = make_envs(serving.address, 2, seed=3), make_envs("serving:Picture-v0", 2, seed=3)
        first = local.reset()
        np.testing.assert_array_equal(served.reset(), first)
        for action in range(4):
            actions = np.array([action, 5 - action])
            assert_same(served.step(actions), local.step(actions))
        assert served.spec.obs_shape == (40, 60, 3)
        served.close()
    with Serving("serving:Picture-v0", "--channels-first") as serving:
        served = make_envs(serving.address, 2, seed=3)
        assert served.spec.obs_shape == (3, 40, 60)
        np.testing.assert_array_equal(served.reset(), first.transpose(0, 3, 1, 2))
        served.close()


def test_what_the_server_does_before_it_sends() -> None:
    with Serving("serving:Picture-v0", "--gray", "--resize", "20x30", "--skip", "4") as serving:
        envs = make_envs(serving.address, 1, seed=3)
        assert (envs.spec.obs_shape, envs.spec.frame_skip) == ((1, 20, 30), 4)
        shift = int(make_envs("serving:Picture-v0", 1, seed=3).reset()[0, 0, 0, 0])
        envs.reset()
        step = envs.step(np.array([1]))
        envs.close()
    assert step.reward.tolist() == [4.0]
    gray = Picture.picture(shift + 8) @ np.array([0.299, 0.587, 0.114])
    blocks = gray.reshape(20, 2, 30, 2).mean(axis=(1, 3))
    np.testing.assert_allclose(step.obs[0, 0].astype(float), blocks, atol=0.51)


def test_over_ipc(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/s"
    with Serving("CartPole-v1", bind=address) as serving:
        envs = make_envs(address, 2, seed=0)
        assert envs.reset().shape == (2, 4)
        envs.close()
        assert serving.end(signal.SIGTERM) == 0
        assert os.listdir(tmp_path) == []


# What a user reads.


def message(address: str, n: int = 1, **env_args: Any) -> str:
    with pytest.raises(PasselError) as caught:
        make_envs(address, n, 0, env_args=env_args).close()
    return str(caught.value)


def test_nobody_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_place.Address, "patience", 0.5)
    with pytest.raises(PasselError) as caught:
        describe("tcp://127.0.0.1:9")
    assert str(caught.value) == (
        "the environment server tcp://127.0.0.1:9 does not answer. "
        "Start one: passel serve-env ID --bind tcp://127.0.0.1:9"
    )


def test_more_than_it_serves(cartpole: Serving) -> None:
    assert message(cartpole.address, 5) == (
        f"the environment server {cartpole.address} refuses: 5 environments were asked for, and it serves at most 4. "
        "Use a smaller --envs here, or start it with a larger one."
    )


def test_sessions_are_counted_and_come_free_when_a_client_goes_without_a_word() -> None:
    with Serving("CartPole-v1", "--sessions", "1") as serving:
        context = zmq.Context()
        rude = context.socket(zmq.DEALER)
        rude.connect(serving.address)
        rude.send(msgpack.packb({"v": 1, "op": "open", "seq": 0, "n": 1, "seed": 0}))
        assert msgpack.unpackb(rude.recv())["op"] == "open"
        assert message(serving.address).endswith(
            "refuses: all of its 1 sessions are taken. Start it with more --sessions."
        )
        rude.close(0)
        context.term()
        deadline = time.monotonic() + 5
        while True:
            try:
                make_envs(serving.address, 1, 0).close()
                break
            except PasselError:
                assert time.monotonic() < deadline


def test_another_version(cartpole: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_link, "VERSION", 2)
    assert message(cartpole.address) == (
        f"the environment server {cartpole.address} refuses: it speaks version 1 of the protocol. "
        "Use the same version of passel on both sides."
    )


def test_an_environment_that_raises_is_named_and_the_server_lives() -> None:
    with Serving("serving:Fussy-v0") as serving:
        envs, neighbour = make_envs(serving.address, 2, 0), make_envs(serving.address, 2, 0)
        envs.reset()
        neighbour.reset()
        with pytest.raises(PasselError, match=r"refuses: RuntimeError: this move is not allowed\. Look at what"):
            envs.step(np.array([0, 1]))
        envs.close()
        assert neighbour.step(zeros(neighbour)).reward.tolist() == [1, 1]
        neighbour.close()
        assert "RuntimeError: this move is not allowed" in serving.said()


def test_other_machines_need_keys(cartpole: Serving, tmp_path: Path) -> None:
    assert message("tcp://192.0.2.1:5555") == (
        "tcp://192.0.2.1:5555 is another machine, and that needs keys. Run `passel keys FOLDER`, give the server "
        "FOLDER/server.json, and use --env-key FOLDER/client.json."
    )
    (tmp_path / "wrong").write_text("{}")
    for path in (tmp_path / "none", tmp_path / "wrong"):
        assert message(cartpole.address, key=str(path)) == (
            f"{path} is not a client's key. `passel keys FOLDER` makes one: client.json."
        )


def test_the_right_key_opens_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, client = remote_keys.make_keys(tmp_path / "a")
    _, stranger = remote_keys.make_keys(tmp_path / "b")
    # Somebody who knows where the server is and what it is called, but is not the client that it knows.
    impostor = tmp_path / "impostor.json"
    impostor.write_text(
        json.dumps(
            json.loads(stranger.read_text()) | {"server_public": json.loads(client.read_text())["server_public"]}
        )
    )
    assert [path.stat().st_mode & 0o777 for path in (server, client)] == [0o600, 0o600]
    with pytest.raises(PasselError, match=r"server\.json exists, and somebody may use it"):
        remote_keys.make_keys(tmp_path / "a")
    with Serving("CartPole-v1", "--key", str(server)) as serving:
        assert message(serving.address, key=str(impostor)) == (
            f"the server {serving.address} refuses: it does not know our key. "
            "Give --env-key the client.json of its keys."
        )
        with monkeypatch.context() as hurry:
            hurry.setattr(remote_place.Address, "patience", 1.0)
            assert "does not answer, or not to this key" in message(serving.address, key=str(stranger))
        envs = make_envs(serving.address, 2, 0, env_args={"key": str(client)})
        envs.reset()
        assert envs.step(zeros(envs)).reward.tolist() == [1, 1]
        envs.close()


@pytest.mark.parametrize(
    ("how", "cause"),
    [("kill", "closed the connection"), ("freeze", "(closed the connection|has not answered for 4 s)")],
)
def test_a_server_that_dies_or_hangs_is_named_within_five_seconds(how: str, cause: str) -> None:
    with Serving("CartPole-v1") as serving:
        envs = make_envs(serving.address, 2, 0)
        envs.reset()
        serving.end() if how == "kill" else serving.freeze()
        began = time.monotonic()
        with pytest.raises(PasselError, match=f"^the environment server {serving.address} {cause}.*--reconnect"):
            envs.step(zeros(envs))
        assert time.monotonic() - began < 5
        envs.close()


def test_an_environment_that_hangs_is_named_within_five_seconds() -> None:
    with Serving("serving:Fussy-v0") as serving:
        envs = make_envs(serving.address, 1, 0)
        envs.reset()
        began = time.monotonic()
        with pytest.raises(PasselError, match="has not answered for 4 s: it hangs, or its environment does"):
            envs.step(np.array([2]))
        assert time.monotonic() - began < 5
        envs.close()


def test_a_group_may_take_longer_for_a_step_than_a_server_may_be_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """No one of its environments does."""
    with Serving("serving:Plodding-v0") as serving:
        envs = make_envs(serving.address, 8, 0)
        envs.reset()
        monkeypatch.setitem(remote_link.Link.ask.__kwdefaults__, "patience", 1.0)
        began = time.monotonic()
        assert envs.step(zeros(envs)).reward.tolist() == [1.0] * 8
        assert time.monotonic() - began > 8 * 0.25
        envs.close()


def test_a_group_may_take_longer_to_build_than_a_server_may_be_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Meanwhile the server says that it is at it, and serves others."""
    monkeypatch.setattr(remote, "QUIET", 1.2)
    with Serving("serving:Sluggish-v0") as serving:
        neighbour = make_envs(serving.address, 1, 0)
        neighbour.reset()
        with ThreadPoolExecutor(1) as threads:
            began = time.monotonic()
            building = threads.submit(make_envs, serving.address, 8, 0)
            steps = 0
            while not building.done():
                neighbour.step(zeros(neighbour))
                steps += 1
            assert time.monotonic() - began > 8 * 0.25 > remote.QUIET
            assert steps >= 8
        building.result().close()
        neighbour.close()


def test_with_reconnect_the_client_goes_on_with_new_episodes() -> None:
    with Serving(COUNTDOWN, "--arg", "terminate_after=5") as first:
        envs = make_envs(first.address, 2, 0, env_args={"reconnect": True})
        envs.reset()
        for _ in range(2):
            envs.step(zeros(envs))
        first.end()
        with Serving(COUNTDOWN, "--arg", "terminate_after=5", bind=first.address):
            lost = envs.step(zeros(envs))
            assert lost.truncated.all()
            assert lost.ended.all()
            assert not lost.real.any()
            assert (lost.discount == 1).all()
            assert (lost.reward == 0).all()
            assert lost.episodes == [Episode(3.0, 2)] * 2
            assert lost.obs.tolist() == [[0, 0]] * 2
            steps = [envs.step(zeros(envs)) for _ in range(5)]
            assert steps[-1].episodes == [Episode(15.0, 5)] * 2
            assert all(step.real.all() for step in steps)
        envs.close()


def test_a_server_that_comes_back_as_another_is_refused() -> None:
    with Serving("CartPole-v1") as first:
        envs = make_envs(first.address, 1, 0, env_args={"reconnect": True})
        envs.reset()
        first.end()
        with (
            Serving("MountainCar-v0", bind=first.address),
            pytest.raises(PasselError, match="now serves another environment"),
        ):
            envs.step(zeros(envs))
        envs.close()


def test_a_server_that_lies_about_sizes_is_not_believed() -> None:
    """Arrays that are shorter than their shape, a type that nobody has, a shape beyond all memory."""
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    hello = {"v": 1, "op": "hello", "seq": 0, "shape": [4], "dtype": "<f4", "actions": 2, "autoreset": "same-step"}
    hello |= {"limit": None, "threshold": None, "frame_skip": 1, "max_envs": 4, "seconds": 0.0}
    lies: list[dict[str, Any]] = [
        {"dtype": "|O"},
        {"shape": [2**40]},
        {"shape": "abc"},
        {"autoreset": "next-step"},
    ]
    sentence = "answers, but not as an environment server does"
    try:
        for lie in lies:
            place = remote_place.Address(f"tcp://127.0.0.1:{port}")
            link = remote_link.Link(place, "")
            link._socket.send(b"wake")
            client, _ = router.recv_multipart()
            router.send_multipart([client, msgpack.packb({**hello, **lie})])
            with pytest.raises(PasselError, match=sentence):
                link.hello()
            router.recv_multipart()
            link.close()
            router.recv_multipart()
        with pytest.raises(LostError, match="arrays of another size"):
            remote_link.Answer({}, [b"1234"]).array(0, (2,), np.dtype("<f8"))
        with pytest.raises(LostError, match="arrays of another size"):
            remote_link.Answer({}, []).array(0, (2,), np.dtype("<f8"))
    finally:
        router.close(0)
        context.term()


HELLO: dict[str, Any] = {
    "v": 1,
    "op": "hello",
    "seq": 0,
    "shape": [4],
    "dtype": "<f4",
    "actions": 2,
    "autoreset": "same-step",
    "limit": None,
    "threshold": None,
    "frame_skip": 1,
    "max_envs": 4,
    "seconds": 0.0,
}


def facts(*frames: bytes, **said: Any) -> remote_link.Facts:
    """What the client makes of a hello."""

    class Hello(remote_link.Link):
        def __init__(self) -> None:
            self._place = remote_place.Address("tcp://127.0.0.1:5555")

        def ask(self, *_: Any, **__: Any) -> remote_link.Answer:
            return remote_link.Answer(HELLO | said, frames)

    return Hello().hello()


def test_a_plain_hello_is_believed() -> None:
    low, high = np.zeros(4).tobytes(), np.ones(4).tobytes()
    assert facts().spec.max_copies == 4
    assert facts(low, high).spec.bounds == ((0.0,) * 4, (1.0,) * 4)
    spec = facts(shape=[84, 84, 3], dtype="|u1", limit=1000, threshold=-110, frame_skip=4, seconds=1, high=3.0).spec
    assert (spec.obs_shape, spec.max_episode_steps, spec.reward_threshold) == ((84, 84, 3), 1000, -110.0)
    assert (spec.frame_skip, spec.obs_scale) == (4, 3.0)
    assert facts(dtype="|u1").spec.obs_scale == 255.0


@pytest.mark.parametrize(
    "lie",
    [
        *({"actions": value} for value in (0, -5, 10**9, 2.0, True, None, "2")),
        *({"max_envs": value} for value in (0, -1, 10**9, 1.5)),
        *({"limit": value} for value in (0, -1, 2.5, 2**60)),
        *({"frame_skip": value} for value in (0, -4, 10**9, 1.0)),
        *({"threshold": value} for value in (float("nan"), float("inf"), "475", [475])),
        *({"seconds": value} for value in (float("nan"), float("inf"), -1.0, "1")),
        *({"shape": value} for value in ("4", [4.7], [], [0], [-4], [True], [1] * 9, 4, {"4": 4})),
        *({"high": value} for value in (float("nan"), 1e9, "255", -3)),
    ],
    ids=str,
)
def test_a_server_that_lies_about_its_environment_is_not_believed(lie: dict[str, Any]) -> None:
    with pytest.raises(PasselError, match=r"answers, but not as an environment server does \(.*\)\. Use the address"):
        facts(**lie)


@pytest.mark.parametrize(
    "frames",
    [
        [np.full(4, np.nan), np.ones(4)],
        [np.full(4, -np.inf), np.ones(4)],
        [np.ones(4), np.zeros(4)],
        [np.zeros(4)],
        [np.zeros(4), np.ones(4), np.ones(4)],
        [np.zeros(3), np.ones(3)],
    ],
    ids=["NaN", "infinite", "in the wrong order", "one", "three", "of another size"],
)
def test_bounds_that_are_none_are_not_believed(frames: list[np.ndarray[Any, Any]]) -> None:
    with pytest.raises(PasselError, match="answers, but not as an environment server does"):
        facts(*(frame.tobytes() for frame in frames))


class Scripted(remote_link.Link):
    """A server's answers as the test has them, without a server."""

    hello_says: ClassVar[dict[str, Any]] = {}
    answers: ClassVar[list[Any]] = []
    patience: ClassVar[list[float]] = []

    def __init__(self, place: remote_place.Place, key: str) -> None:
        self._place = place

    def ask(self, op: str, *_: Any, patience: float = 0.0, **__: Any) -> remote_link.Answer:
        if op == "hello":
            return remote_link.Answer(HELLO | self.hello_says, [])
        Scripted.patience.append(patience)
        said = self.answers.pop(0)
        if isinstance(said, Exception):
            raise said
        return remote_link.Answer({}, [array.tobytes() for array in said])

    def close(self) -> None:
        pass


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> type[Scripted]:
    monkeypatch.setattr(remote, "Link", Scripted)
    Scripted.hello_says, Scripted.answers, Scripted.patience = {}, [], []
    return Scripted


OBS = np.ones((2, 4), np.float32)
NONE_ENDED = np.array([[1.0, 1.0], [0.0, 0.0]])


def test_patience_has_an_end_whatever_a_server_says(scripted: type[Scripted]) -> None:
    scripted.hello_says, scripted.answers = {"seconds": 1e9}, [[], [OBS]]
    make_envs("tcp://127.0.0.1:5555", 2, 0).reset()
    assert scripted.patience == [remote.LONG, remote.LONG]


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ([OBS, np.array([[1.0, 1], [0, 7]]), OBS[:1]], "an end that is neither a termination nor a truncation"),
        ([OBS, np.array([[1.0, 1], [0, np.nan]]), OBS[:1]], "an end that is neither a termination nor a truncation"),
        ([OBS, NONE_ENDED, OBS], "answered with 3 arrays where 2 belong"),
        ([OBS, np.array([[1.0, 1], [0, 1]])], "answered with 2 arrays where 3 belong"),
        ([OBS, np.array([[1.0, 1], [0, 1]]), OBS[:1], OBS], "answered with 4 arrays where 3 belong"),
        ([OBS.astype(np.float64), NONE_ENDED], "arrays of another size"),
        ([OBS, np.array([[1.0, np.nan], [0, 0]])], "the environment's reward is nan in copy 1"),
        ([OBS * np.float32(np.nan), NONE_ENDED], "the environment's observations hold NaN"),
    ],
    ids=["7", "NaN", "one too many", "one too few", "two too many", "another type", "NaN rewards", "NaN observations"],
)
def test_a_step_that_is_not_as_promised(scripted: type[Scripted], answer: list[Any], sentence: str) -> None:
    scripted.answers = [[], [OBS], [OBS, NONE_ENDED], answer]
    envs = make_envs("tcp://127.0.0.1:5555", 2, 0)
    envs.reset()
    assert envs.step(zeros(envs)).reward.tolist() == [1, 1]
    with pytest.raises(PasselError, match=sentence):
        envs.step(zeros(envs))


def test_a_worker_looks_at_its_orders_while_its_server_is_gone(
    scripted: type[Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step returns soon, without a transition; the episodes that were lost are reported once."""
    monkeypatch.setattr(remote, "LOOK", 0.0)
    gone = LostError("closed the connection")
    scripted.answers = [[], [OBS], [OBS, NONE_ENDED], *[gone] * 3, [], [2 * OBS], [3 * OBS, NONE_ENDED]]
    envs = make_envs("tcp://127.0.0.1:5555", 2, 0, env_args={"reconnect": True})
    envs.reset()
    envs.step(zeros(envs))
    lost = [envs.step(zeros(envs)) for _ in range(3)]
    assert [step.truncated.tolist() for step in lost] == [[True] * 2, [False] * 2, [False] * 2]
    assert [step.episodes for step in lost] == [[Episode(1.0, 1)] * 2, [], []]
    assert not any(step.real.any() or step.reward.any() for step in lost)
    assert [step.obs[0, 0] for step in lost] == [1, 1, 2], "the last ones, then those of new episodes"
    assert envs.step(zeros(envs)).obs[0, 0] == 3


def test_a_server_that_stays_away_is_named(scripted: type[Scripted], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "LOOK", 0.0)
    monkeypatch.setattr(remote, "RECONNECT_PATIENCE", 0.0)
    scripted.answers = [[], [OBS], *[LostError("closed the connection")] * 2]
    envs = make_envs("tcp://127.0.0.1:5555", 2, 0, env_args={"reconnect": True})
    envs.reset()
    with pytest.raises(PasselError, match="closed the connection, and did not come back within 0 s"):
        envs.step(zeros(envs))


def test_pyzmq_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zmq", None)
    assert message("tcp://127.0.0.1:5555").endswith("Run: pip install 'passel[remote]'")


def test_settings_without_effect_are_refused(cartpole: Serving) -> None:
    with pytest.raises(PasselError, match="--reconnect has no effect on CartPole-v1, which is at no server's address"):
        resolve_config({"env": "CartPole-v1", "reconnect": True})
    with pytest.raises(PasselError, match="--backend gymnasium has no effect on tcp://"):
        describe(cartpole.address, "gymnasium")


def test_auto_asks_a_server_for_its_spaces(cartpole: Serving) -> None:
    said = {"algo": "auto", "env": cartpole.address, "workers": 1}
    config, numbers = resolve_open(said)
    plan, told = api._first_plan(said, config, numbers, config.env)
    assert (plan.config.algo, told) == ("dqn", ["Algo: dqn (actions are discrete)."])


# The real command.


def test_two_workers_train_over_tcp(cartpole: Serving, tmp_path: Path) -> None:
    flags = [*TINY, "--backend", "auto", "--env", cartpole.address, "--steps", "600", "--no-until-solved"]
    with Command(tmp_path, "train", *flags, "--eval-episodes", "6", "--out", "run") as command:
        assert command.wait() == 0, command.stderr
        result = summary(tmp_path / "run")
        assert (result["status"], result["env"], result["eval"]["episodes"]) == ("finished", cartpole.address, 6)
        command.assert_nothing_is_left()
    with Command(tmp_path, "eval", "run", "--episodes", "5") as command:
        assert command.wait() == 0, command.stderr
        assert command.stdout.startswith("5 greedy episodes: ")
    with Command(tmp_path, "video", "run") as command:
        assert command.wait() == 2
        assert "is served, and a server sends no pictures to film" in command.stderr


def test_a_run_whose_server_dies_says_so_and_can_be_resumed(tmp_path: Path) -> None:
    with Serving("CartPole-v1") as serving:
        flags = [*TINY, "--backend", "auto", "--env", serving.address, "--steps", "1e9"]
        with Command(tmp_path, "train", *flags, "--out", "run") as command:
            command.await_training(tmp_path / "run")
            serving.end()
            assert command.ends_promptly() == 2
            assert f"passel: the environment server {serving.address} closed the connection" in command.stderr
            command.assert_nothing_is_left()
        with (
            Serving("CartPole-v1", bind=serving.address),
            Command(tmp_path, "resume", "run", "--steps", "1e6") as command,
        ):
            command.await_that(lambda: "Resuming run" in command.stdout, "resuming")
            command.ctrl_c()
            assert command.ends_promptly() == 130, command.stderr
