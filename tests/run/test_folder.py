"""A run folder has one writer, is made whole or not at all, and reads back what was written."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from passel.run.folder import RunFolder, check_out, default_name
from passel.run.lock import FolderLock
from passel.types import PasselError, Report, WorkerRow

CONFIG: dict[str, Any] = {
    "env": "ALE/Pong-v5",
    "algo": "dqn",
    "sync": "hogwild",
    "workers": 2,
    "seed": 1,
    "lr": 1e-4,
    "hidden": [64, 64],
    "limits": {"steps": 1000, "seconds": 1.5},
}


def created(path: Path) -> RunFolder:
    return RunFolder.create(path, CONFIG, {"cpu": "abacus"})


def names_in(folder: Path) -> set[str]:
    return {str(entry.relative_to(folder)) for entry in folder.rglob("*")}


def test_config_and_card_come_back_as_they_were(tmp_path: Path) -> None:
    with created(tmp_path / "runs" / "x") as run:
        assert run.read_config() == CONFIG
        assert run.read_card() == {"cpu": "abacus"}
        assert run.read_summary() is None
        assert run.read_metrics() == run.read_events() == []
    assert names_in(tmp_path / "runs" / "x") == {"config.toml", "card.json", ".lock"}


def test_a_folder_that_holds_a_run_is_refused_with_the_cure_and_untouched(tmp_path: Path) -> None:
    path = tmp_path / "x"
    created(path).close()
    before = {name: (path / name).read_bytes() for name in ("config.toml", "card.json")}
    with pytest.raises(PasselError) as caught:
        RunFolder.create(path, {"other": 1}, {})
    assert str(caught.value) == f"{path} already holds a run. Use `passel resume {path}`, or another --out."
    assert {name: (path / name).read_bytes() for name in before} == before


def content_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["thesis.txt", ".lock", "card.json", "photos/1.png", ".config.toml.writing"])
def test_a_folder_with_the_users_files_is_refused_and_untouched(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    for attempt in (lambda: check_out(tmp_path), lambda: created(tmp_path)):
        with pytest.raises(PasselError, match=r"is not empty \(it holds .*\) and is no run\. Choose another --out"):
            attempt()
    assert content_of(tmp_path) == {name: b"mine"}


def test_an_empty_folder_or_one_of_a_killed_creation_becomes_a_run(tmp_path: Path) -> None:
    for number, left in enumerate([{}, {".lock": "17 host\n"}, {".lock": "", f".card.json.{'0' * 16}.writing": "{"}]):
        path = tmp_path / str(number)
        path.mkdir()
        for name, text in left.items():
            (path / name).write_text(text)
        created(path).close()
        assert {"config.toml", "card.json", ".lock"} <= names_in(path)


def test_a_provisional_run_goes_with_what_it_made_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for path in (tmp_path / "runs" / "deep" / "x", tmp_path / "mine"):
        with RunFolder.create(path, CONFIG, {}, provisional=True) as run:
            run.event("started")
            run.metric({"steps": 0})
            run.write_summary({})
            assert len(names_in(path)) == 6
            (path / "notes.txt").write_text("written meanwhile")
        assert content_of(path) == {"notes.txt": b"written meanwhile"}
        (path / "notes.txt").unlink()
        with RunFolder.create(path, CONFIG, {}, provisional=True) as run:
            run.event("started")
        assert names_in(path) == set()
        assert path.is_dir(), "it was there before"
    path = tmp_path / "other" / "deep" / "x"
    RunFolder.create(path, CONFIG, {}, provisional=True).close()
    assert not (tmp_path / "other").exists(), "folders that it made go with it"


def test_a_run_that_is_kept_stays(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "x", CONFIG, {}, provisional=True) as run:
        run.event("started")
        run.keep()
    assert names_in(tmp_path / "x") == {"config.toml", "card.json", ".lock", "events.jsonl"}


def test_the_current_folder_may_be_a_run_and_survives_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    RunFolder.create(Path("."), CONFIG, {}, provisional=True).close()
    assert tmp_path.is_dir()
    assert names_in(tmp_path) == set()
    created(Path(".")).close()
    RunFolder.open(Path(".")).close()


@pytest.mark.parametrize("call", range(1, 8))
def test_a_creation_that_fails_leaves_the_disk_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    count = 0

    def failing(real: Any) -> Any:
        def wrapper(*arguments: Any) -> Any:
            nonlocal count
            count += 1
            if count >= call:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*arguments)

        return wrapper

    for name in ("write", "fsync", "rename"):
        monkeypatch.setattr(os, name, failing(getattr(os, name)))
    with pytest.raises(PasselError, match=r"No space left on device.* another --out"):
        created(tmp_path / "runs" / "x")
    assert names_in(tmp_path) == set()


def test_a_config_that_cannot_be_written_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        RunFolder.create(tmp_path / "x", {"f": object()}, {})
    assert names_in(tmp_path) == set()


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    with pytest.raises(PasselError, match=r"cannot be made .* another --out"):
        created(tmp_path / "x")


HOLDER = """
import sys, time
from pathlib import Path
from passel.run.lock import FolderLock
lock = FolderLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


def test_a_second_process_is_refused_by_name_until_the_first_is_killed(tmp_path: Path) -> None:
    created(tmp_path).close()
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        for attempt in (lambda: RunFolder.open(tmp_path), lambda: created(tmp_path)):
            with pytest.raises(PasselError, match=rf"in use by process {holder.pid} on \S+\. Stop it"):
                attempt()
        with RunFolder.open(tmp_path, lock=False) as reader:
            assert reader.read_config() == CONFIG
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    RunFolder.open(tmp_path).close()


def test_a_started_worker_does_not_inherit_the_lock(tmp_path: Path) -> None:
    run = created(tmp_path)
    worker = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False)
    run.close()
    RunFolder.open(tmp_path).close()
    worker.communicate(b"\n")


def test_a_lock_file_removed_while_it_was_being_locked_is_not_a_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, removals = fcntl.flock, [tmp_path / ".lock"]

    def after_a_removal(fd: int, operation: int) -> None:
        if removals:
            removals.pop().unlink()
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", after_a_removal)
    lock = FolderLock(tmp_path)
    assert removals == []
    with pytest.raises(PasselError, match=f"process {os.getpid()}"):
        FolderLock(tmp_path)
    lock.release()


def test_without_the_lock_nothing_can_be_written(tmp_path: Path) -> None:
    created(tmp_path).close()
    before = names_in(tmp_path)
    run = RunFolder.open(tmp_path, lock=False)
    for write in (
        lambda: run.metric({}),
        lambda: run.event("x"),
        lambda: run.write_summary({}),
        lambda: run.truncate_metrics(0),
    ):
        with pytest.raises(PasselError, match="reading only"):
            write()
    assert names_in(tmp_path) == before


def test_closing_twice_is_harmless_and_ends_writing(tmp_path: Path) -> None:
    run = created(tmp_path)
    run.metric({"steps": 1})
    run.close()
    run.close()
    with pytest.raises(PasselError, match="reading only"):
        run.metric({"steps": 2})


def test_an_unknown_run_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(PasselError, match="no runs in"):
        RunFolder.open(tmp_path / "CartPole-dqn")
    for name in ("CartPole-dqn-2w", "LunarLander-ppo"):
        created(tmp_path / name).close()
    with pytest.raises(PasselError) as caught:
        RunFolder.open(tmp_path / "CartPole-dqn-3w")
    assert str(caught.value) == (
        f'there is no run {tmp_path / "CartPole-dqn-3w"}. The nearest run is "{tmp_path / "CartPole-dqn-2w"}".'
    )


def test_what_is_no_run_says_what_is_missing(tmp_path: Path) -> None:
    created(tmp_path / "runs" / "x").close()
    with pytest.raises(PasselError, match=r"is not a run: it has no config.toml and no card.json\..*runs/x"):
        RunFolder.open(tmp_path / "runs")
    (tmp_path / "runs" / "x" / "config.toml").unlink()
    with pytest.raises(PasselError, match=r"is not a run: it has no config.toml\."):
        RunFolder.open(tmp_path / "runs" / "x")


def test_metrics_are_one_whole_line_each_and_readable_at_once(tmp_path: Path) -> None:
    with created(tmp_path) as run:
        for step in range(5):
            run.metric({"steps": step, "text": "line\nbreak é"})
            raw = (tmp_path / "metrics.jsonl").read_bytes()
            assert raw.count(b"\n") == step + 1
            assert json.loads(raw.splitlines()[-1])["steps"] == step
        assert [row["steps"] for row in run.read_metrics()] == list(range(5))


def strict(text: str) -> Any:
    """JSON as the standard has it: Python's own reader would let a bare NaN pass."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_nan_and_infinity_become_null_and_numpy_becomes_numbers(tmp_path: Path) -> None:
    with created(tmp_path) as run:
        run.metric({"loss": float("nan"), "deep": {"list": [1.5, float("inf"), np.float32("-inf")]}})
        run.metric({"n": np.int64(3), "a": np.array([1.0, np.nan]), "f": np.float64(0.1), "b": np.bool_(True)})
        run.event("stopped", why=float("nan"))
        run.write_summary({"mean": float("nan")})
    first, second = (strict(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert first == {"loss": None, "deep": {"list": [1.5, None, None]}}
    assert second == {"n": 3, "a": [1.0, None], "f": 0.1, "b": True}
    assert strict((tmp_path / "events.jsonl").read_text())["why"] is None
    assert strict((tmp_path / "summary.json").read_text()) == {"mean": None}


def test_a_report_is_a_line(tmp_path: Path) -> None:
    row = WorkerRow("worker 0", "running", 5, 2, 10.0, {"act": 0.5, "learn": 0.5}, float("nan"))
    report = Report(5, 20, 0.5, 1, 2, None, 10.0, 4.0, 0.0, {"act": 1.0}, {"loss": 0.25}, (row,), 100)
    with created(tmp_path) as run:
        run.metric(report)
        (line,) = run.read_metrics()
    assert (line["steps"], line["frames"], line["return_mean_100"], line["scalars"]) == (5, 20, None, {"loss": 0.25})
    assert line["workers"][0]["shares"] == {"act": 0.5, "learn": 0.5}
    assert line["workers"][0]["staleness"] is None


@pytest.mark.parametrize("tail", [b'{"steps": 3, "ret', b"{", b'{"steps": 3}', b"\x00\x00\x00\n", b"\xff\xfe"])
def test_a_torn_last_line_is_passed_over_and_never_continued(tmp_path: Path, tail: bytes) -> None:
    with created(tmp_path) as run:
        run.metric({"steps": 1})
        run.metric({"steps": 2})
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(tail)
    with RunFolder.open(tmp_path, lock=False) as reader:
        assert [row["steps"] for row in reader.read_metrics()] == [1, 2]
    with RunFolder.open(tmp_path) as run:
        run.metric({"steps": 4})
        assert [row["steps"] for row in run.read_metrics()] == [1, 2, 4]


def test_a_bad_line_in_the_middle_is_an_error_that_names_it(tmp_path: Path) -> None:
    with created(tmp_path) as run:
        run.metric({"steps": 1})
    (tmp_path / "metrics.jsonl").write_text('{"steps": 1}\nrubbish\n{"steps": 3}\n')
    with RunFolder.open(tmp_path, lock=False) as run, pytest.raises(PasselError, match=r"line 2 of .*metrics\.jsonl"):
        run.read_metrics()


def test_a_full_disk_tears_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with created(tmp_path) as run:
        run.metric({"steps": 1})
        real, calls = os.write, 0

        def nearly_full(fd: int, data: Any) -> int:
            nonlocal calls
            calls += 1
            if calls == 2:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(fd, data[:3])

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", nearly_full)
            with pytest.raises(PasselError, match=r"metrics\.jsonl cannot be written \(No space left"):
                run.metric({"steps": 2})
        run.metric({"steps": 3})
    assert (tmp_path / "metrics.jsonl").read_text() == '{"steps": 1}\n{"steps": 3}\n'


def test_metrics_after_a_checkpoint_are_dropped_and_appending_goes_on(tmp_path: Path) -> None:
    with created(tmp_path) as run:
        for step in (100, 200, 300, 400):
            run.metric({"steps": step})
        run.truncate_metrics(after_step=250)
        run.metric({"steps": 300, "again": True})
        assert run.read_metrics() == [{"steps": 100}, {"steps": 200}, {"steps": 300, "again": True}]
        run.metric({"steps": 300, "seconds": 7.5})
        run.metric({"steps": 300, "seconds": 7.6})
        run.truncate_metrics(after_step=300, after_seconds=7.5)
        assert run.read_metrics()[3:] == [{"steps": 300, "seconds": 7.5}]
        run.truncate_metrics(after_step=0)
        assert run.read_metrics() == []
    assert names_in(tmp_path) == {"config.toml", "card.json", ".lock", "metrics.jsonl"}


def test_events_carry_time_and_kind_in_order(tmp_path: Path) -> None:
    with created(tmp_path) as run:
        run.event("started", workers=2)
        run.event("worker died", worker=1, signal="SIGKILL")
        first, second = run.read_events()
    assert list(first) == ["time", "kind", "workers"]
    assert (second["kind"], second["worker"]) == ("worker died", 1)
    assert first["time"].endswith("Z")
    assert first["time"] <= second["time"]


def test_a_summary_that_cannot_be_replaced_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with created(tmp_path) as run:
        run.write_summary({"status": "stopped"})

        def refuse(*_: Any) -> None:
            raise OSError(errno.EIO, "broken")

        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", refuse)
            with pytest.raises(OSError, match="broken"):
                run.write_summary({"status": "solved"})
        assert run.read_summary() == {"status": "stopped"}
        run.write_summary({"status": "solved"})
        assert run.read_summary() == {"status": "solved"}
    assert names_in(tmp_path) == {"config.toml", "card.json", ".lock", "summary.json"}


def test_a_config_broken_by_hand_is_named(tmp_path: Path) -> None:
    created(tmp_path).close()
    (tmp_path / "config.toml").write_text("algo = \n")
    with RunFolder.open(tmp_path, lock=False) as run, pytest.raises(PasselError, match=r"config\.toml cannot be read"):
        run.read_config()


def test_the_default_name_says_what_the_run_is_and_never_takes_a_name_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lander = {"env": "LunarLander-v3", "algo": "dqn", "sync": "hogwild", "workers": 2, "seed": 1}
    assert default_name(lander) == Path("runs/LunarLander-v3-dqn-hogwild-2w-s1")
    name = default_name({**lander, "env": "../../ALE/Pong v5"}, tmp_path)
    assert name == tmp_path / "ALE-Pong-v5-dqn-hogwild-2w-s1"
    # All three know the same name before the first of them makes its folder: the default is taken when it is made.
    runs = [RunFolder.create(name, lander, {}, numbered=True) for _ in range(3)]
    assert [run.path for run in runs] == [tmp_path / f"ALE-Pong-v5-dqn-hogwild-2w-s1{end}" for end in ("", "-2", "-3")]
    for run in runs:
        run.close()


def test_the_paths_are_where_the_documentation_says(tmp_path: Path) -> None:
    with created(tmp_path) as run:
        assert [path.relative_to(tmp_path).name for path in (run.checkpoints, run.videos, run.tb)] == [
            "checkpoints",
            "videos",
            "tb",
        ]
