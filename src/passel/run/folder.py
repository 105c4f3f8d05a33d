"""A run's folder: who may write in it, and where everything is."""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Self

import tomli_w
from numpy.typing import NDArray

from passel.reading import (
    CONFIG_LIMIT,
    DOCUMENT_LIMIT,
    as_fields,
    check_plain,
    check_values,
    from_json,
    read_config,
    read_regular,
)
from passel.run import checkpoint
from passel.run.episodes import EpisodeFile
from passel.run.files import ASIDE, json_text, plain, refuse_links, replace_file, sweep
from passel.run.lines import JsonLines
from passel.run.lock import NAME as LOCK
from passel.run.lock import FolderLock, refuse_if_held
from passel.run.summary import Summary
from passel.types import PasselError, Report, printable

CONFIG, CARD, METRICS, EVENTS, SUMMARY = "config.toml", "card.json", "metrics.jsonl", "events.jsonl", "summary.json"
LEVELS, SIGNATURE, EPISODES = "levels.json", "signature", "episodes.csv"

_NEEDED = (CONFIG, CARD)
_SIGNS_OF_A_RUN = (CONFIG, METRICS, EVENTS, SUMMARY, checkpoint.FOLDER, checkpoint.BEST)
_FILES = (CONFIG, CARD, METRICS, EVENTS, EPISODES, SUMMARY, LEVELS, SIGNATURE)


class RunFolder:
    """An open run. With the lock it may be written, by this process alone; without, it may only be read.

    with RunFolder.create(Path("runs/x"), config, card) as run:
        run.event("started")
        run.metric(report)
        checkpoint.save(run.path, steps, groups, meta)
        run.write_summary(summary)

    A `provisional` run is one that has not begun to learn: unless `keep` is called, `close` removes it again, which
    means the files and folders that this object made, by name, and nothing else.
    """

    def __init__(self, path: Path, lock: FolderLock | None) -> None:
        self.path = path
        self._lock = lock
        self._metrics = JsonLines(path / METRICS)
        self._events = JsonLines(path / EVENTS)
        self._episodes = EpisodeFile(path / EPISODES)
        #: What `close` removes while the run is provisional, in the order in which it was made.
        self._made = ExitStack()
        self._provisional = False

    @classmethod
    def create(
        cls,
        path: Path,
        config: Mapping[str, Any],
        card: Mapping[str, Any],
        *,
        provisional: bool = False,
        numbered: bool = False,
    ) -> Self:
        """Make a new run, locked. If anything fails, the disk is as it was. A None in `config` must be left out.

        With `numbered`, a `path` that exists is passed over for `path-2`, `path-3` and so on: the first that this
        process makes itself, so that two processes never take the same.
        """
        texts = {CARD: json_text(card, indent=2) + "\n", CONFIG: tomli_w.dumps(config)}
        _check_can_be_read_again(texts, config, card)
        with ExitStack() as made:
            try:
                path = _make_new_folder(path, made) if numbered else _make_folders(path, made)
                check_out(path)
                lock = FolderLock(path)
                made.callback(lock.abandon)
                check_out(path)  # again: another process may have made its run here before we had the lock
                for name, text in texts.items():
                    made.callback((path / name).unlink, missing_ok=True)
                    replace_file(path / name, text)
            except OSError as error:
                raise PasselError(f"{path} cannot be made ({error.strerror}). Choose another --out.") from error
            run = cls(path, lock)
            run._made, run._provisional = made.pop_all(), provisional
        return run

    @classmethod
    def open(cls, path: Path, lock: bool = True) -> Self:
        """Open a run that exists: with the lock to continue it, without to look at it, also while it is running."""
        _check_is_a_run(path)
        refuse_links(path)
        if not lock:
            return cls(path, None)
        try:
            run = cls(path, FolderLock(path))
        except OSError as error:
            raise PasselError(
                f"{path} cannot be locked ({error.strerror}). Make it and its {LOCK} writable."
            ) from error
        try:
            sweep(path, _FILES)
            run._metrics.repair()
            run._events.repair()
            run._episodes.repair()
        except BaseException:
            run.close()
            raise
        return run

    def keep(self) -> None:
        """The run has begun: from now on `close` leaves it on disk."""
        self._provisional = False

    @property
    def checkpoints(self) -> Path:
        return self.path / checkpoint.FOLDER

    @property
    def videos(self) -> Path:
        return self.path / "videos"

    @property
    def tb(self) -> Path:
        return self.path / "tb"

    def metric(self, obj: Mapping[str, Any] | Report) -> None:
        """Add one report to metrics.jsonl."""
        self._check_may_write()
        self.note(METRICS)
        self._metrics.append(plain(obj))

    def event(self, kind: str, **fields: Any) -> None:
        """Add one event to events.jsonl, with the time in UTC."""
        self._check_may_write()
        self.note(EVENTS)
        time = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self._events.append({"time": time, "kind": kind, **fields})

    def add_episodes(self, rows: bytes) -> None:
        """Add rows to episodes.csv, as `passel.run.episodes.csv_rows` makes them."""
        self._check_may_write()
        self.note(EPISODES)
        self._episodes.append(rows)

    def write_summary(self, obj: Mapping[str, Any] | Summary) -> None:
        """Write summary.json, or replace it whole."""
        self._check_may_write()
        self.note(SUMMARY)
        replace_file(self.path / SUMMARY, json_text(obj, indent=2) + "\n")

    def write_levels(self, obj: Mapping[str, Any]) -> None:
        """Write levels.json, the scores of each level of a set, or replace it whole."""
        replace_file(self.path / LEVELS, json_text(obj, indent=1) + "\n")

    def read_levels(self) -> dict[str, Any] | None:
        """levels.json, if there is one."""
        path = self.path / LEVELS
        return _parsed(path, lambda path: _checked_levels(_document(path))) if os.path.lexists(path) else None

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Replace config.toml whole: the one place that does so after `create`. A None in `config` must be left out."""
        self._check_may_write()
        replace_file(self.path / CONFIG, tomli_w.dumps(config))

    def truncate_metrics(self, after_step: int, after_seconds: float = math.inf) -> None:
        """Drop the reports later than a checkpoint: the resumed run will make them again."""
        self._check_may_write()
        self._metrics.keep(
            lambda row: _at_most(row.get("steps", 0), after_step) and _at_most(row.get("seconds", 0), after_seconds)
        )

    def truncate_episodes(self, after_step: int) -> None:
        """Drop the episodes later than a checkpoint: the resumed run will play them again."""
        self._check_may_write()
        self._episodes.truncate(after_step)

    def read_config(self) -> dict[str, Any]:
        content = _parsed(self.path / CONFIG, partial(read_config))
        missing = [name for name in ("env", "algo") if name not in content]
        if missing:
            raise PasselError(f"{self.path / CONFIG} has no {missing[0]}. Mend it by hand or start a new run.")
        return content

    def read_card(self) -> dict[str, Any]:
        return _document(self.path / CARD)

    def read_summary(self) -> dict[str, Any] | None:
        """The summary, or None while the run has not ended."""
        path = self.path / SUMMARY
        return _document(path) if os.path.lexists(path) else None

    def read_metrics(self) -> list[dict[str, Any]]:
        return self._metrics.read()

    def read_events(self) -> list[dict[str, Any]]:
        return self._events.read()

    def read_episodes(self) -> NDArray[Any]:
        """episodes.csv as a structured array: `step`, `second`, `worker`, `return` and `length` of every episode."""
        return self._episodes.read()

    def close(self) -> None:
        """Let go of the files and the lock; may be called twice. A run that is still provisional is removed."""
        self._metrics.close()
        self._events.close()
        self._episodes.close()
        if self._lock is not None:
            lock, self._lock = self._lock, None
            if self._provisional:
                with suppress(OSError):
                    self._made.close()
            else:
                self._made.pop_all()
                lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def note(self, name: str) -> None:
        """Before a file of the run is first written: a provisional run removes it again."""
        if self._provisional and not os.path.lexists(self.path / name):
            self._made.callback((self.path / name).unlink, missing_ok=True)

    def _check_may_write(self) -> None:
        if self._lock is None:
            raise PasselError(f"{self.path} is open for reading only. Open it with its lock to write.")


def default_name(config: Mapping[str, Any], root: Path = Path("runs")) -> Path:
    """A path below `root` that says what the run is; `RunFolder.create` adds -2, -3, ... where it is taken."""
    env = re.sub("^levels:[^@]*/", "levels:", config["env"])  # of a file of levels, its name is enough
    parts = (env, config["algo"], config["sync"], f"{config['workers']}w", f"s{config['seed']}")
    return root / re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(str(part) for part in parts)).strip(".-")


def check_out(path: Path) -> None:
    """PasselError unless a new run may be made at `path`: nothing is there, or an empty folder.

    A run writes into its folder and, if it fails before it begins, removes what it wrote. Neither must ever meet a file
    of the user's.
    """
    try:
        names = set(os.listdir(path))
    except FileNotFoundError:
        return
    except OSError as error:
        raise PasselError(f"{path} cannot be made ({error.strerror}). Choose another --out.") from error
    if names & set(_SIGNS_OF_A_RUN):
        refuse_if_held(path)
        raise PasselError(f"{path} already holds a run. Use `passel resume {path}`, or another --out.")
    foreign = sorted(name for name in names if not _is_left_behind(path / name))
    if foreign:
        raise PasselError(
            f"{path} is not empty (it holds {printable(foreign[0])}) and is no run. Choose another --out: a folder "
            "that is empty, or does not exist."
        )


def _is_left_behind(path: Path) -> bool:
    """Whether it is a file of a `create` that was killed, or is at work."""
    if path.name != LOCK:
        found = ASIDE.fullmatch(path.name)
        return found is not None and found["name"] in _NEEDED
    try:
        return re.fullmatch(rb"([0-9]+ \S*\n)?", read_regular(path, 1000)) is not None
    except OSError:
        return False


def _check_can_be_read_again(texts: Mapping[str, str], config: Mapping[str, Any], card: Mapping[str, Any]) -> None:
    """A run that could not be opened later is not started."""
    for name, limit in ((CONFIG, CONFIG_LIMIT), (CARD, DOCUMENT_LIMIT)):
        if len(texts[name].encode()) > limit:
            raise PasselError(f"the run's {name} would be larger than {limit / 1e6:g} MB. Use fewer levels.")
    try:
        check_values(config)
        check_plain(plain(card))
    except ValueError as error:
        raise PasselError(f"a setting cannot be kept: {error}. Use another value.") from error


def _make_folders(path: Path, made: ExitStack) -> Path:
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        with suppress(FileExistsError):
            folder.mkdir()
            made.callback(_remove_if_empty, folder)
    return path


def _make_new_folder(path: Path, made: ExitStack) -> Path:
    """The first of `path`, `path-2`, ... that this call makes itself."""
    _make_folders(path.parent, made)
    chosen, number = path, 2
    while True:
        try:
            chosen.mkdir()
        except FileExistsError:
            chosen, number = path.with_name(f"{path.name}-{number}"), number + 1
        else:
            made.callback(_remove_if_empty, chosen)
            return chosen


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


def _check_is_a_run(path: Path) -> None:
    try:
        missing = [name for name in _NEEDED if not os.path.lexists(path / name)] if path.exists() else None
    except (OSError, ValueError) as error:  # a name that is too long, or no name
        raise PasselError(f"there is no run {printable(path)} ({printable(error)}).") from error
    if missing is None:
        raise PasselError(f"there is no run {path}. {_suggestion(path, [path.parent])}")
    if missing:
        lacks = " and no ".join(missing)
        raise PasselError(f"{path} is not a run: it has no {lacks}. {_suggestion(path, [path, path.parent])}")


def _suggestion(path: Path, folders: list[Path]) -> str:
    """The run with the nearest name, in the first of `folders` that holds any."""
    for folder in folders:
        runs = [entry.parent.name for entry in folder.glob(f"*/{CONFIG}") if (entry.parent / CARD).is_file()]
        if runs:
            nearest = difflib.get_close_matches(path.name, sorted(runs), n=1, cutoff=0)[0]
            return f'The nearest run is "{folder / nearest}".'
    return f"There are no runs in {folders[-1]}: start one with `passel train`."


def _checked_levels(found: dict[str, Any]) -> dict[str, Any]:
    """A table of levels whose fields are those that `passel.evaluation.level_table` writes."""
    part = {"mean": float | None, "levels": list[dict[str, Any]]}
    row = {"name": str, "episodes": int, "mean": float, "std": float, "min": float, "max": float}
    as_fields({"set": str, "train": Any, "held_out": Any, "gap": float | None, "actions": str}, found)
    for name in ("set", "train", "held_out", "gap", "actions"):
        if name not in found:
            raise ValueError(f"it has no {name}")
    for name in ("train", "held_out"):
        if as_fields(part, found[name]).keys() != part.keys():
            raise ValueError(f"its {name} has no mean or no levels")
        for level in found[name]["levels"]:
            if not row.keys() <= as_fields(row | {"cut": int}, level).keys():
                raise ValueError(f"a level of its {name} lacks a score")
    return found


def _at_most(value: object, largest: float) -> bool:
    """Whether it is a number, and not a larger one: a line of metrics may say anything, and is not worth a run."""
    return isinstance(value, int | float) and value <= largest


def _document(path: Path) -> dict[str, Any]:
    """One JSON object whose texts can be shown and whose numbers fit into a machine word."""

    def read(path: Path) -> Any:
        content = from_json(read_regular(path, DOCUMENT_LIMIT))
        check_plain(content)
        return content

    return _parsed(path, read)


def _parsed(path: Path, read: Callable[[Path], Any]) -> dict[str, Any]:
    try:
        content = read(path)
    except OSError as error:
        raise PasselError(f"{path} cannot be read ({error.strerror}). Mend that or start a new run.") from error
    except ValueError as error:
        raise PasselError(f"{path} cannot be read ({printable(error)}). Mend it by hand or start a new run.") from error
    if not isinstance(content, dict):
        raise PasselError(f"{path} is not a table of fields. Mend it by hand or start a new run.")
    return content
