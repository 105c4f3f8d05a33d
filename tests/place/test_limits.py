"""What this machine has no room for is refused in one sentence, with what would fit, before anything is built."""

from __future__ import annotations

import errno
import re
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from passel import arena
from passel.place import estimate, limits, processes
from passel.place.limits import check_files, explanation, out_of_memory_kills
from passel.place.processes import Processes
from passel.types import PasselError
from small import new_arena, small_plan


def nothing_is_built(*_: object, **__: object) -> Any:
    pytest.fail("a tensor was made before the estimate")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"hidden": [1_000_000, 1_000_000]}, r"weights of --hidden 1000000 1000000 take at least .* Layers of up to"),
        ({"hidden": [10**12]}, r"weights of --hidden 1000000000000 take at least .* Layers of up to"),
        ({"algo": "ppo", "hidden": [10**6] * 3}, r"weights of --hidden .* Layers of up to"),
        ({"envs": 10**8}, r"environments take at least .* The largest --envs that fits is about"),
    ],
    ids=["two layers", "one layer", "ppo", "environments"],
)
def test_what_cannot_fit_is_refused_before_it_is_built(
    changes: dict[str, Any], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "free_memory", lambda: 10**10)
    monkeypatch.setattr(torch, "zeros", nothing_is_built)
    monkeypatch.setattr(torch.nn, "Linear", nothing_is_built)
    with pytest.raises(PasselError, match=sentence):
        small_plan(**changes)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_what_is_said_to_fit_does_and_what_is_a_fifth_more_does_not(
    layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "free_memory", lambda: 10**7)
    with pytest.raises(PasselError) as caught:
        small_plan(hidden=[10**6] * layers)
    found = re.search(r"up to (\d+) fit", str(caught.value))
    assert found is not None
    width = int(found[1])
    small_plan(hidden=[width] * layers)
    with pytest.raises(PasselError):
        small_plan(hidden=[int(1.2 * width)] * layers)


def test_a_plane_of_bytes_counts_as_the_image_that_it_is() -> None:
    """Convolutions come before the first hidden layer: it has fewer inputs than there are pixels."""
    plan = small_plan()
    plane = replace(plan.spec, obs_shape=(400, 400), obs_dtype=np.dtype(np.uint8))
    estimate._check_weights(replace(plan, spec=plane), 10**7)
    with pytest.raises(PasselError, match=r"weights of --hidden 16 take at least"):
        estimate._check_weights(replace(plan, spec=replace(plane, obs_dtype=np.dtype(np.float32))), 10**7)


def test_more_workers_than_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "free_memory", lambda: 10**9)
    with pytest.raises(PasselError, match=r"40 workers take at least .* Use at most --workers 22\."):
        small_plan(place="processes", workers=40, capacity=10_000)


def test_more_processes_than_descriptors_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda limit: (64, 64))
    check_files(8)
    with pytest.raises(PasselError, match=r"20 processes need about \d+ open files, and 64 are allowed here\. Raise"):
        check_files(20)


@pytest.mark.parametrize("limit", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_limits_of_the_process_are_limits_of_its_memory(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = resource.getrlimit
    lowered = getattr(resource, limit)
    monkeypatch.setattr(resource, "getrlimit", lambda asked: (10**6, 10**6) if asked == lowered else real(asked))
    assert arena.free_memory() == 0, "this process takes more than that already"


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN])
def test_a_refusal_of_the_system_is_one_sentence_with_the_cure(number: int) -> None:
    words = explanation(OSError(number, "Refused"))
    assert words is not None
    assert "(Refused). " in words


@pytest.mark.parametrize(("name", "sentence"), [(None, "a semaphore in /dev/shm"), ("/tmp/passel-x", "/tmp/passel-x")])
def test_a_full_disk_is_told_from_a_full_dev_shm(name: str | None, sentence: str) -> None:
    with pytest.raises(PasselError, match=rf"^there is no space for {sentence} \(Full\)\."), limits.explained():
        raise OSError(errno.ENOSPC, "Full", name)


def test_other_errors_are_left_alone() -> None:
    assert explanation(OSError(errno.ENOENT, "No such file")) is None
    with pytest.raises(FileNotFoundError), limits.explained():
        raise FileNotFoundError(errno.ENOENT, "No such file")


@pytest.mark.parametrize(
    ("groups", "file"),
    [("0::/run\n", "run/memory.events"), ("4:memory:/run\n0::/\n", "memory/run/memory.oom_control")],
    ids=["version 2", "version 1"],
)
def test_kills_of_the_control_group_are_counted(groups: str, file: str, tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(groups)
    path = tmp_path / "sys/fs/cgroup" / file
    path.parent.mkdir(parents=True)
    path.write_text("low 0\noom 3\noom_kill 2\n")
    assert out_of_memory_kills(tmp_path) == 2


@pytest.mark.parametrize("kills", [0, 1])
def test_a_worker_that_was_killed_for_its_memory_is_named_so(kills: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = small_plan(place="processes", workers=1)
    placement = Processes(plan, new_arena(plan, shared=True))
    placement._killed_before = 5
    monkeypatch.setattr(processes, "out_of_memory_kills", lambda: 5 + kills)
    said = placement._describe_exit(-9)
    assert said.startswith("killed by signal 9 (SIGKILL)")
    assert ("probably because the machine or its control group ran out of memory. Use a smaller" in said) == bool(kills)
    assert "memory" not in placement._describe_exit(-11)
