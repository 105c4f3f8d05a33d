"""What a run ran on: the facts without which a speed means nothing."""

from __future__ import annotations

import os
import platform
import re
import shutil
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

PACKAGES = ("passel", "torch", "numpy", "gymnasium", "envpool", "ale-py")


def machine_card() -> dict[str, Any]:
    """Machine and versions, without the machine's name; None where the system does not tell or a package is absent."""
    memory = psutil.virtual_memory()
    shm = _disk(Path("/dev/shm"))
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "usable_cores": usable_cores(),
        "memory_mb": _mb(memory.total),
        "memory_available_mb": _mb(memory.available),
        "shm_mb": _mb(shm[0]) if shm else None,
        "shm_free_mb": _mb(shm[1]) if shm else None,
        "platform": platform.platform(),
        "python": platform.python_version(),
        **{package: _version(package) for package in PACKAGES},
    }


def usable_cores() -> int:
    """How many cores this process may keep busy: its affinity, cut by the quota of its control group; at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(Path("/"))
    return max(1, cores if quota is None else min(cores, int(quota)))


def _quota(root: Path) -> float | None:
    """The tightest CPU quota, in cores, on the way from our control group up to the root; None if there is none.

    Every ancestor limits its children, so all are read. Inside a container the path in /proc may be one that only the
    host can see: folders that are not there are passed over.
    """
    with suppress(OSError):
        quotas = []
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            for mount in _mounts(root / "sys/fs/cgroup", controllers.split(",")):
                inside = mount / path.lstrip("/")
                for folder in (inside, *inside.parents):
                    quotas.append(_group_quota(folder))
                    if folder == mount:
                        break
        return min((quota for quota in quotas if quota is not None), default=None)
    return None


def _mounts(cgroup: Path, controllers: list[str]) -> list[Path]:
    """Where a hierarchy of /proc/self/cgroup is mounted: version 2 has no controllers named, version 1 has."""
    if controllers == [""]:
        return [cgroup]
    return [cgroup / "cpu", cgroup / "cpu,cpuacct"] if "cpu" in controllers else []


def _group_quota(folder: Path) -> float | None:
    with suppress(OSError, ValueError, ZeroDivisionError):
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        return int(quota) / int(period) if int(quota) > 0 else None  # "max", or -1, is no quota
    return None


def _cpu_model() -> str | None:
    with suppress(OSError):
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        if found:
            return found[1].strip()
    return platform.processor() or None


def _disk(path: Path) -> tuple[int, int] | None:
    with suppress(OSError):
        usage = shutil.disk_usage(path)
        return usage.total, usage.free
    return None


def _mb(size: int) -> int:
    return round(size / 1e6)


def _version(package: str) -> str | None:
    with suppress(PackageNotFoundError):
        return version(package)
    return None
