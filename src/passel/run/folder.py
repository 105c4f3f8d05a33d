"""A run's folder: who may write in it, and where everything is."""

from __future__ import annotations

import difflib
import json
import math
import re
import tomllib
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import tomli_w

from passel.run import checkpoint
from passel.run.files import json_text, plain, replace_file
from passel.run.lines import JsonLines
from passel.run.lock import FolderLock
from passel.run.summary import Summary
from passel.types import PasselError, Report

CONFIG, CARD, METRICS, EVENTS, SUMMARY = "config.toml", "card.json", "metrics.jsonl", "events.jsonl", "summary.json"
LEVELS = "levels.json"

_NEEDED = (CONFIG, CARD)
_SIGNS_OF_A_RUN = (CONFIG, METRICS, EVENTS, SUMMARY, checkpoint.FOLDER)


class RunFolder:
    """An open run. With the lock it may be written, by this process alone; without, it may only be read.

    with RunFolder.create(Path("runs/x"), config, card) as run:
        run.event("started")
        run.metric(report)
        checkpoint.save(run.path, steps, groups, meta)
        run.write_summary(summary)
    """

    def __init__(self, path: Path, lock: FolderLock | None) -> None:
        self.path = path
        self._lock = lock
        self._metrics = JsonLines(path / METRICS)
        self._events = JsonLines(path / EVENTS)

    @classmethod
    def create(cls, path: Path, config: Mapping[str, Any], card: Mapping[str, Any]) -> Self:
        """Make a new run, locked. If anything fails, the disk is as it was. A None in `config` must be left out."""
        texts = {CARD: json_text(card, indent=2) + "\n", CONFIG: tomli_w.dumps(config)}
        with ExitStack() as undo:
            try:
                _make_folders(path, undo)
                lock = FolderLock(path)
                undo.callback(lock.abandon)
                if any((path / name).exists() for name in _SIGNS_OF_A_RUN):
                    raise PasselError(f"{path} already holds a run. Use `passel resume {path}`, or another --out.")
                for name, text in texts.items():
                    undo.callback((path / name).unlink, missing_ok=True)
                    replace_file(path / name, text)
            except OSError as error:
                raise PasselError(f"{path} cannot be made ({error.strerror}). Choose another --out.") from error
            undo.pop_all()
        return cls(path, lock)

    @classmethod
    def open(cls, path: Path, lock: bool = True) -> Self:
        """Open a run that exists: with the lock to continue it, without to look at it, also while it is running."""
        _check_is_a_run(path)
        if not lock:
            return cls(path, None)
        try:
            run = cls(path, FolderLock(path))
        except OSError as error:
            raise PasselError(f"{path} cannot be locked ({error.strerror}). Make it writable.") from error
        run._metrics.repair()
        run._events.repair()
        return run

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
        self._metrics.append(plain(obj))

    def event(self, kind: str, **fields: Any) -> None:
        """Add one event to events.jsonl, with the time in UTC."""
        self._check_may_write()
        time = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self._events.append({"time": time, "kind": kind, **fields})

    def write_summary(self, obj: Mapping[str, Any] | Summary) -> None:
        """Write summary.json, or replace it whole."""
        self._check_may_write()
        replace_file(self.path / SUMMARY, json_text(obj, indent=2) + "\n")

    def write_levels(self, obj: Mapping[str, Any]) -> None:
        """Write levels.json, the scores of each level of a set, or replace it whole."""
        replace_file(self.path / LEVELS, json_text(obj, indent=1) + "\n")

    def read_levels(self) -> dict[str, Any] | None:
        """levels.json, if there is one."""
        return _parsed(self.path / LEVELS, json.loads) if (self.path / LEVELS).exists() else None

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Replace config.toml whole: the one place that does so after `create`. A None in `config` must be left out."""
        self._check_may_write()
        replace_file(self.path / CONFIG, tomli_w.dumps(config))

    def truncate_metrics(self, after_step: int, after_seconds: float = math.inf) -> None:
        """Drop the reports later than a checkpoint: the resumed run will make them again."""
        self._check_may_write()
        self._metrics.keep(lambda row: row.get("steps", 0) <= after_step and row.get("seconds", 0) <= after_seconds)

    def read_config(self) -> dict[str, Any]:
        return _parsed(self.path / CONFIG, tomllib.loads)

    def read_card(self) -> dict[str, Any]:
        return _parsed(self.path / CARD, json.loads)

    def read_summary(self) -> dict[str, Any] | None:
        """The summary, or None while the run has not ended."""
        path = self.path / SUMMARY
        return _parsed(path, json.loads) if path.exists() else None

    def read_metrics(self) -> list[dict[str, Any]]:
        return self._metrics.read()

    def read_events(self) -> list[dict[str, Any]]:
        return self._events.read()

    def close(self) -> None:
        """Let go of the files and the lock; may be called twice."""
        self._metrics.close()
        self._events.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_may_write(self) -> None:
        if self._lock is None:
            raise PasselError(f"{self.path} is open for reading only. Open it with its lock to write.")


def default_name(config: Mapping[str, Any], root: Path = Path("runs")) -> str:
    """A path below `root` that says what the run is, with -2, -3, ... if it is taken."""
    env = re.sub("^levels:[^@]*/", "levels:", config["env"])  # of a file of levels, its name is enough
    parts = (env, config["algo"], config["sync"], f"{config['workers']}w", f"s{config['seed']}")
    base = re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(str(part) for part in parts)).strip(".-")
    name, number = base, 2
    while (root / name).exists():
        name, number = f"{base}-{number}", number + 1
    return str(root / name)


def _make_folders(path: Path, undo: ExitStack) -> None:
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        undo.callback(_remove_if_empty, folder)


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


def _check_is_a_run(path: Path) -> None:
    if not path.exists():
        raise PasselError(f"there is no run {path}. {_suggestion(path, [path.parent])}")
    missing = [name for name in _NEEDED if not (path / name).is_file()]
    if missing:
        lacks = " and no ".join(missing)
        raise PasselError(f"{path} is not a run: it has no {lacks}. {_suggestion(path, [path, path.parent])}")


def _suggestion(path: Path, folders: list[Path]) -> str:
    """The run with the nearest name, in the first of `folders` that holds any."""
    for folder in folders:
        runs = [entry.parent.name for entry in folder.glob(f"*/{CONFIG}") if (entry.parent / CARD).is_file()]
        if runs:
            nearest = difflib.get_close_matches(path.name, sorted(runs), n=1, cutoff=0)[0]
            return f"The nearest run is {folder / nearest}."
    return f"There are no runs in {folders[-1]}: start one with `passel train`."


def _parsed(path: Path, parse: Callable[[str], Any]) -> dict[str, Any]:
    try:
        content = parse(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise PasselError(f"{path} cannot be read ({error}). Mend it by hand or start a new run.") from error
    except OSError as error:
        raise PasselError(f"{path} cannot be read ({error.strerror}). Mend that or start a new run.") from error
    if not isinstance(content, dict):
        raise PasselError(f"{path} is not a table of fields. Mend it by hand or start a new run.")
    return content
