"""What a run ran on: the facts without which a speed means nothing; and what of them a policy needs to act again."""

from __future__ import annotations

import dataclasses
import math
import os
import platform
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from passel.reading import as_fields
from passel.types import Bounds, EnvSpec, PasselError, printable

PACKAGES = ("passel", "torch", "numpy", "gymnasium", "envpool", "ale-py")

#: The types of a card's facts about the environment, as JSON has them; of a field that is not here, any.
_ENV: dict[str, Any] = {
    "id": str,
    "obs_shape": list[int],
    "obs_dtype": str,
    "obs_scale": float,
    "n_actions": int,
    "reward_threshold": float | None,
    "max_episode_steps": int | None,
    "frame_skip": int,
    "backend": str,
    "exact_resume": bool,
    "bounds": list[list[float]] | None,
    "max_copies": int | None,
    "frames": int,
    "action_bounds": list[list[float]] | None,
    "protocol": dict[str, Any] | None,
    "reference_scores": list[float] | None,
}
BACKENDS = ("gymnasium", "envpool", "ale", "remote", "levels")
_NEEDED = ("id", "obs_shape", "obs_dtype", "n_actions")
_LEVELS = {
    "train": int,
    "held_out": list[str],
    "workers": list[list[str]],
    "rows": Any,
    "weights": Any,
    "step_us": dict[str, float],
}
_DTYPES = re.compile("bool|u?int(8|16|32|64)|float(16|32|64)")
_LARGEST_OBS = 1 << 28  # numbers of one observation


def env_of(card: Mapping[str, Any], where: Path) -> EnvSpec:
    """What the environment of a run is, as its card says. Raises PasselError if that is no environment."""
    try:
        facts = card.get("env")
        if not isinstance(facts, Mapping):
            raise ValueError("it says nothing of the environment")
        names = [field.name for field in dataclasses.fields(EnvSpec)]
        known = as_fields(dict.fromkeys(names, Any) | _ENV, {name: facts[name] for name in names if name in facts})
        missing = [name for name in _NEEDED if name not in known]
        if missing:
            raise ValueError(f"it has no {missing[0]}")
        return _spec(known)
    except ValueError as error:
        raise PasselError(f"{where} is damaged ({printable(error)}). Mend it by hand or start a new run.") from error


def levels_of(card: Mapping[str, Any], workers: int, where: Path) -> dict[str, Any] | None:
    """What a card says about the levels of a set: which worker holds which, and what a step of each costs."""
    if "levels" not in card:
        return None
    try:
        facts = as_fields(_LEVELS, card["levels"])
        missing = [name for name in ("workers", "step_us") if name not in facts]
        if missing or len(facts["workers"]) != workers:
            raise ValueError(f"its levels are not those of {workers} workers")
    except ValueError as error:
        raise PasselError(f"{where} is damaged ({printable(error)}). Mend it by hand or start a new run.") from error
    return facts


def _spec(known: dict[str, Any]) -> EnvSpec:
    shape, dtype = tuple(known["obs_shape"]), known["obs_dtype"]
    if len(shape) > 8 or any(size < 1 for size in shape) or math.prod(shape) > _LARGEST_OBS:
        raise ValueError(f"obs_shape is {shape}")
    if known.get("backend", BACKENDS[0]) not in BACKENDS:
        raise ValueError(f"backend is {known['backend'][:60]!r}")
    if not _DTYPES.fullmatch(dtype):
        raise ValueError(f"obs_dtype is {dtype!r}")
    if not known.get("obs_scale", 1.0) > 0:
        raise ValueError(f"obs_scale is {known['obs_scale']}")
    for name in ("max_episode_steps", "frame_skip", "max_copies", "frames"):
        if known.get(name) is not None and known[name] < 1:
            raise ValueError(f"{name} is {known[name]}")
    known |= {"obs_shape": shape, "obs_dtype": np.dtype(dtype)}
    known |= {name: _bounds(name, known[name]) for name in ("bounds", "action_bounds") if known.get(name) is not None}
    if known["n_actions"] < 0 or (known["n_actions"] > 0) == (known.get("action_bounds") is not None):
        raise ValueError(f"n_actions is {known['n_actions']}")
    if known.get("bounds") is not None and math.prod(shape) != len(known["bounds"][0]):
        raise ValueError(f"it has {len(known['bounds'][0])} bounds of observations of shape {shape}")
    if known.get("reference_scores") is not None:
        scores = known["reference_scores"] = tuple(known["reference_scores"])
        if len(set(scores)) != 2:
            raise ValueError(f"reference_scores are {scores}")
    return EnvSpec(**known)


def _bounds(name: str, sides: list[list[float]]) -> Bounds:
    if len(sides) != 2 or len(sides[0]) != len(sides[1]) or not sides[0]:
        raise ValueError(f"{name} are no two vectors of one length")
    low, high = tuple(map(float, sides[0])), tuple(map(float, sides[1]))
    if not all(a <= b for a, b in zip(low, high, strict=True)):
        raise ValueError(f"{name} leave no room")
    return low, high


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
