"""Films of a policy at work: its best, its median and its worst episode.

Rendering is far slower than playing, so all episodes are played unseen first, and only three are played again for the
camera, from the same seeds. The only file that imports PyAV: its wheel brings the encoder, so neither ffmpeg nor a
display is needed.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from passel.run.files import replace_file, written_aside
from passel.types import Array, Episode, PasselError

Env = gym.Env[Any, Any]
Act = Callable[[Array], Array]
Camera = Callable[[Env], None]

CODECS = ("libx264", "mpeg4")  # the first that this build of PyAV can write
DEFAULT_FPS = 30.0  # where an environment does not say its own


@dataclass(frozen=True)
class VideoFile:
    """One film. `score` is that of the episode in it; `same` says whether it is the one that was ranked."""

    rank: str
    path: Path
    seed: int
    score: float
    length: int
    fps: float
    codec: str
    same: bool
    #: Of the checkpoint whose policy plays, if it is from one.
    step: int | None = None


def record_episodes(
    make_env: Callable[[], Env],
    act: Act,
    seeds: Sequence[int],
    folder: Path,
    episodes: int,
    *,
    max_steps: int = 30_000,
    step: int | None = None,
) -> list[VideoFile]:
    """Play one episode for each of the first `episodes` seeds; film the best, the median and the worst into `folder`.

    `make_env` makes an environment with render_mode="rgb_array"; `act` turns observations [1, ...] into actions [1]
    and must be greedy, or the second playing of an episode is another one. If it is (some environments keep a memory
    across resets), the film shows and names what was seen, and says so in `same`. With one or two episodes there are
    as many films. `max_steps` ends an episode that would not end: a policy may stand still for ever.
    """
    if not 1 <= episodes <= len(seeds):
        raise PasselError(f"{episodes} episodes cannot be played from {len(seeds)} seeds. Ask for 1 to {len(seeds)}.")
    _import_av()
    _need_no_display()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PasselError(f"{folder} cannot be made ({error.strerror}). Move away what is in its place.") from error
    with contextlib.closing(make_env()) as env:
        _check_renders(env)
        fps = float(env.metadata.get("render_fps") or DEFAULT_FPS)
        play = partial(_play, env, act, max_steps)
        played = [play(int(seed)) for seed in seeds[:episodes]]
        films = [
            _film(play, int(seeds[index]), folder / f"{rank}.mp4", fps, played[index])
            for rank, index in pick(played).items()
        ]
    films = [replace(film, step=step) for film in films]
    listing = [{**asdict(film), "path": film.path.name} for film in films]
    with _explained(folder / "videos.json"):
        replace_file(folder / "videos.json", json.dumps(listing, indent=2) + "\n")
    return films


def pick(played: Sequence[Episode]) -> dict[str, int]:
    """Which episodes are the best, the median and the worst; each at most once."""
    order = sorted(range(len(played)), key=lambda index: played[index].score, reverse=True)
    wanted = {"best": order[0], "worst": order[-1], "median": order[len(order) // 2]}
    found: dict[str, int] = {}
    for rank, index in wanted.items():
        if index not in found.values():
            found[rank] = index
    return {rank: found[rank] for rank in ("best", "median", "worst") if rank in found}


def _play(env: Env, act: Act, max_steps: int, seed: int, camera: Camera | None = None) -> Episode:
    obs, _ = env.reset(seed=seed)
    if camera:
        camera(env)
    score = 0.0
    for length in range(1, max_steps + 1):
        action = np.asarray(act(np.asarray(obs)[None]))[0]
        obs, reward, terminated, truncated, info = env.step(action)
        score += float(reward)
        if camera:
            camera(env)
        if terminated or truncated:
            return Episode(_own_score(info, score), length)
    return Episode(score, max_steps)


def _own_score(info: dict[str, Any], total: float) -> float:
    """The score that gymnasium's statistics wrapper kept, if there is one: wrappers outside it may clip the rewards."""
    statistics = info.get("episode")
    return float(statistics["r"]) if isinstance(statistics, dict) and "r" in statistics else total


def _film(play: Callable[[int, Camera], Episode], seed: int, path: Path, fps: float, ranked: Episode) -> VideoFile:
    with _explained(path), written_aside(path, path.suffix) as aside, _Film(aside, fps) as film:
        seen = play(seed, lambda env: film.write(_frame(env)))
        film.title = f"{path.stem} episode: score {seen.score:g} in {seen.length} steps, seed {seed}"
    return VideoFile(path.stem, path, seed, seen.score, seen.length, fps, film.codec, same=seen == ranked)


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """A disk's refusal in one sentence. PyAV's errors are OSErrors too."""
    try:
        yield
    except OSError as error:
        raise PasselError(f"{path} cannot be written ({error.strerror}). Mend that, then film it again.") from error


class _Film:
    """Writes frames to a file as they come, so that a long episode never lies in memory as pictures.

    The title is known when the episode is over, and a container wants it first: the encoded packets, which are small,
    wait for it.
    """

    def __init__(self, path: Path, fps: float) -> None:
        self._av = _import_av()
        self._path = path
        self._fps = Fraction(fps).limit_denominator(1001)
        self._container: Any = None
        self._stream: Any = None
        self._packets: list[Any] = []
        self.title = ""
        self.codec = next((name for name in CODECS if self._can_write(name)), CODECS[-1])

    def __enter__(self) -> _Film:
        self._container = self._av.open(str(self._path), mode="w", options={"movflags": "+faststart"})
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with contextlib.closing(self._container):
            if kind is not None or self._stream is None:
                return
            self._packets += self._stream.encode(None)
            self._container.metadata["title"] = self.title
            for packet in self._packets:
                self._container.mux(packet)

    def write(self, frame: Array) -> None:
        picture = _even(frame)
        if self._stream is None:
            self._open(picture.shape[1], picture.shape[0])
        image = self._av.VideoFrame.from_ndarray(picture, format="rgb24")
        self._packets += self._stream.encode(image.reformat(format="yuv420p"))

    def _open(self, width: int, height: int) -> None:
        stream = self._container.add_stream(self.codec, rate=self._fps)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.codec_context.thread_count = 1  # the other cores belong to whoever trains
        if self.codec == "libx264":
            stream.options = {"crf": "20", "preset": "veryfast"}
        else:
            stream.bit_rate = max(width * height * 8, 1_000_000)
        self._stream = stream

    def _can_write(self, name: str) -> bool:
        try:
            self._av.codec.Codec(name, "w")
        except ValueError:  # PyAV's UnknownCodecError is one
            return False
        return True


def _frame(env: Env) -> Array:
    frame = np.asarray(env.render())
    if frame.ndim == 2:
        frame = np.repeat(frame[:, :, None], 3, axis=2)
    if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
        raise PasselError(
            f"render() gave {frame.dtype} of shape {frame.shape} and not a picture of bytes [height, width, 3]. "
            'Make the environment with render_mode="rgb_array".'
        )
    return frame


def _even(frame: Array) -> Array:
    """Padded to even height and width, which 4:2:0 colour needs; the edge is repeated, so that no black line shows."""
    height, width = frame.shape[:2]
    padded = np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    return np.ascontiguousarray(padded)


def _check_renders(env: Env) -> None:
    if env.render_mode != "rgb_array":
        raise PasselError(
            f'the environment renders as {env.render_mode!r}. Make it with render_mode="rgb_array" to film it.'
        )


def _need_no_display() -> None:
    """Without a screen, pygame looks for one and fails: tell SDL to draw, and to sound, into nothing."""
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        os.environ.setdefault("SDL_AUDIODRIVER", "dummy")


def _import_av() -> Any:
    try:
        import av
    except ImportError as error:
        raise PasselError("PyAV is not installed. Install it with: pip install 'passel[view]'") from error
    return av
