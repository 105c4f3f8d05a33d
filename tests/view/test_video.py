"""Films are decoded again, and their frames are looked at."""

from __future__ import annotations

import builtins
import itertools
import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from passel.types import Array, Episode, PasselError
from passel.view.video import pick, record_episodes


class Lamp(gym.Env[Array, Any]):
    """An episode as long as its seed says, one point a step; each frame is brighter than the last. 33 by 47 pixels."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 12}  # noqa: RUF012
    action_space = gym.spaces.Discrete(2)
    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    renders = 0

    def __init__(self, render_mode: str | None = "rgb_array") -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        self.left, self.time = seed or 1, 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        assert np.shape(action) == ()
        self.time += 1
        return np.zeros(1, np.float32), 1.0, self.time >= self.left, False, {}

    def render(self) -> Any:
        type(self).renders += 1
        return np.full((33, 47, 3), 40 + 5 * self.time, np.uint8)


class Forgetful(Lamp):
    """Each episode is longer than the last, whatever the seed."""

    lengths = itertools.count(1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        return super().reset(seed=next(self.lengths))


def zero(obs: Array) -> Array:
    assert obs.shape[0] == 1
    return np.zeros(1, np.int64)


def lean(obs: Array) -> Array:
    """Pushes CartPole's cart under its pole, and forgets its speed: falls after a while."""
    return (obs[:, 2] > 0).astype(np.int64)


def decode(path: Path) -> tuple[list[Array], dict[str, Any]]:
    import av

    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        facts = {
            "title": container.metadata["title"],
            "fps": float(stream.average_rate or 0),
            "format": stream.codec_context.pix_fmt,
            "codec": stream.codec_context.name,
        }
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)], facts


def test_cartpole_is_filmed_without_a_display(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER", "SDL_AUDIODRIVER"):
        monkeypatch.delenv(name, raising=False)
    films = record_episodes(
        lambda: gym.make("CartPole-v1", render_mode="rgb_array"), lean, range(5), tmp_path, episodes=5
    )
    assert [film.rank for film in films] == ["best", "median", "worst"]
    assert films[0].score >= films[1].score >= films[2].score
    for film in films:
        frames, facts = decode(film.path)
        assert len(frames) == film.length + 1 == film.score + 1
        assert frames[0].shape == (400, 600, 3)
        assert all(frame.mean() > 200 for frame in frames), "CartPole's background is white"
        assert np.abs(frames[0].astype(int) - frames[-1]).max() > 50, "the cart moved"
        assert facts["fps"] == 50
        assert film.same


def test_the_best_the_median_and_the_worst_are_filmed_and_only_they_are_rendered(tmp_path: Path) -> None:
    Lamp.renders = 0
    lengths = [9, 3, 21, 15, 6]
    films = record_episodes(Lamp, zero, lengths, tmp_path, episodes=5)
    assert {film.rank: film.score for film in films} == {"best": 21.0, "median": 9.0, "worst": 3.0}
    assert Lamp.renders == (21 + 1) + (9 + 1) + (3 + 1)


def test_frames_come_out_as_they_went_in_at_the_environments_own_speed(tmp_path: Path) -> None:
    (film,) = record_episodes(Lamp, zero, [30], tmp_path, episodes=1)
    frames, facts = decode(film.path)
    assert len(frames) == 31
    assert frames[0].shape == (34, 48, 3), "padded to even"
    assert [frame.mean() for frame in frames] == pytest.approx([40 + 5 * i for i in range(31)], abs=4)
    assert all(frame.std() < 4 for frame in frames), "the padding has the colour of the edge"
    assert facts["fps"] == 12
    assert facts["format"] == "yuv420p"
    assert facts["codec"] in ("h264", "mpeg4")
    assert facts["title"] == "best episode: score 30 in 30 steps, seed 30"


def test_the_older_codec_works_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("passel.view.video.CODECS", ("no-such-codec", "mpeg4"))
    (film,) = record_episodes(Lamp, zero, [10], tmp_path, episodes=1)
    frames, facts = decode(film.path)
    assert (film.codec, facts["codec"], len(frames)) == ("mpeg4", "mpeg4", 11)


def test_videos_json_says_what_each_film_shows(tmp_path: Path) -> None:
    record_episodes(Lamp, zero, [4, 2, 8], tmp_path, episodes=3)
    listing = json.loads((tmp_path / "videos.json").read_text())
    assert [(one["rank"], one["path"], one["seed"], one["score"], one["length"]) for one in listing] == [
        ("best", "best.mp4", 8, 8.0, 8),
        ("median", "median.mp4", 4, 4.0, 4),
        ("worst", "worst.mp4", 2, 2.0, 2),
    ]


def test_an_environment_that_ignores_its_seed_is_filmed_as_seen_and_said_to_be(tmp_path: Path) -> None:
    films = record_episodes(Forgetful, zero, [1, 2, 3], tmp_path, episodes=3)
    assert not any(film.same for film in films)
    for film in films:
        assert len(decode(film.path)[0]) == film.length + 1
        assert f"score {film.score:g} " in decode(film.path)[1]["title"]


def test_the_score_is_the_environments_own_where_a_wrapper_clips_rewards(tmp_path: Path) -> None:
    def clipped() -> gym.Env[Any, Any]:
        env = gym.wrappers.RecordEpisodeStatistics(Lamp())
        return gym.wrappers.TransformReward(env, lambda reward: 0.1 * float(reward))

    (film,) = record_episodes(clipped, zero, [7], tmp_path, episodes=1)
    assert film.score == 7.0


def test_an_episode_that_would_never_end_is_ended(tmp_path: Path) -> None:
    (film,) = record_episodes(Lamp, zero, [1_000_000], tmp_path, episodes=1, max_steps=12)
    assert (film.length, len(decode(film.path)[0])) == (12, 13)


@pytest.mark.parametrize(
    ("scores", "ranks"),
    [
        ([5.0], {"best": 0}),
        ([1.0, 5.0], {"best": 1, "worst": 0}),
        ([1.0, 5.0, 3.0], {"best": 1, "median": 2, "worst": 0}),
        ([7.0, 7.0, 7.0, 7.0], {"best": 0, "median": 2, "worst": 3}),
    ],
)
def test_no_episode_is_filmed_twice(scores: list[float], ranks: dict[str, int]) -> None:
    assert pick([Episode(score, 1) for score in scores]) == ranks


def test_mistakes_are_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(PasselError, match="Ask for 1 to 2"):
        record_episodes(Lamp, zero, [1, 2], tmp_path, episodes=3)
    with pytest.raises(PasselError, match='render_mode="rgb_array"'):
        record_episodes(lambda: Lamp(render_mode=None), zero, [1], tmp_path, episodes=1)


def test_without_pyav_the_cure_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "av":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(PasselError, match=r"pip install 'passel\[view\]'"):
        record_episodes(Lamp, zero, [1], tmp_path, episodes=1)
