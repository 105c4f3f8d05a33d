"""The card tells the machine's facts; the usable cores are the least of affinity and quota."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from passel.run import card
from passel.run.card import machine_card, usable_cores


def test_the_card_is_json_and_agrees_with_the_packages_themselves() -> None:
    facts = machine_card()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert facts["numpy"] == np.__version__
    assert facts["python"] == ".".join(map(str, sys.version_info[:3]))
    assert 0 < facts["memory_available_mb"] <= facts["memory_mb"]
    assert 1 <= facts["usable_cores"] <= facts["cores"]


def test_the_card_does_not_say_whose_machine_it_was() -> None:
    assert os.uname().nodename not in json.dumps(machine_card()).split('"')


def test_envpool_is_not_imported_to_learn_its_version() -> None:
    code = "import sys; from passel.run.card import machine_card; machine_card(); sys.exit('envpool' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_absent_package_is_none() -> None:
    assert card._version("no-such-package-as-this") is None


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="affinity is Linux's")
def test_affinity_limits_the_cores() -> None:
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(mine)})
    try:
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, mine)


def machine(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    for name, text in {"proc/self/cgroup": cgroup, **{f"sys/fs/cgroup/{n}": t for n, t in files.items()}}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("cgroup", "files", "quota"),
    [
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "200000 100000\n"}, 2.0),
        ("0::/a/b\n", {"a/b/cpu.max": "50000 100000\n", "a/cpu.max": "200000 100000\n"}, 0.5),
        ("0::/only/the/host/sees\n", {"cpu.max": "300000 100000\n"}, 3.0),
        (
            "3:cpu,cpuacct:/\n",
            {"cpu,cpuacct/cpu.cfs_quota_us": "400000", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
            4.0,
        ),
        ("1:cpu:/x\n0::/\n", {"cpu/x/cpu.cfs_quota_us": "-1", "cpu/x/cpu.cfs_period_us": "100000"}, None),
        ("2:memory:/x\n", {}, None),
        ("0::/\n", {"cpu.max": "rubbish\n"}, None),
    ],
)
def test_the_tightest_quota_on_the_way_up_counts(
    tmp_path: Path, cgroup: str, files: dict[str, str], quota: float | None
) -> None:
    assert card._quota(machine(tmp_path, cgroup, files)) == quota


def test_a_system_without_control_groups_has_no_quota(tmp_path: Path) -> None:
    assert card._quota(tmp_path) is None


@pytest.mark.parametrize(("quota", "cores"), [(0.5, 1), (1.9, 1), (1000.0, None), (None, None)])
def test_a_quota_is_rounded_down_but_never_to_nothing(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, cores: int | None
) -> None:
    unlimited = usable_cores()
    monkeypatch.setattr(card, "_quota", lambda root: quota)
    assert usable_cores() == (unlimited if cores is None else cores)
