"""Run the tests at every instruction set up to this processor's: `make test-isa`, or

    python tests/isa.py [arguments of pytest]

A processor can play a smaller one: OpenBLAS, torch, oneDNN, MKL and numpy each have a variable that says which
instructions they may use, and child processes inherit them. Without arguments the tests of arithmetic run.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).resolve().parent
ARITHMETIC = ("algos", "maths", "nets", "sync", "data", "test_equivalence.py", "test_joint.py", "test_rounding.py")


@dataclass(frozen=True)
class Level:
    """An instruction set: the flags of a processor that has it, and how to be limited to it."""

    name: str
    needs: frozenset[str]
    settings: dict[str, str]


def _level(name: str, needs: str, openblas: str, aten: str, onednn: str, mkl: str, **more: str) -> Level:
    settings = {
        "OPENBLAS_CORETYPE": openblas,
        "ATEN_CPU_CAPABILITY": aten,
        "ONEDNN_MAX_CPU_ISA": onednn,
        "MKL_ENABLE_INSTRUCTIONS": mkl,
    }
    return Level(name, frozenset(needs.split()), settings | more)


LEVELS = (
    _level("SSE4.2", "sse4_2", "Nehalem", "default", "SSE41", "SSE4_2", NPY_DISABLE_CPU_FEATURES="X86_V3"),
    _level("AVX", "avx", "Sandybridge", "default", "AVX", "AVX", NPY_DISABLE_CPU_FEATURES="X86_V3"),
    _level("AVX2", "avx2 fma", "Haswell", "avx2", "AVX2", "AVX2"),
    _level("AVX-512", "avx512f avx512bw avx512dq avx512vl", "SkylakeX", "avx512", "AVX512_CORE", "AVX512"),
)


def flags(cpuinfo: str) -> frozenset[str]:
    """What the first processor of /proc/cpuinfo can do."""
    lines = (line.partition(":") for line in cpuinfo.splitlines())
    return next((frozenset(value.split()) for name, _, value in lines if name.strip() == "flags"), frozenset())


def levels_of(has: frozenset[str]) -> list[Level]:
    """The instruction sets up to the processor's, the smallest first."""
    return [level for level in LEVELS if level.needs <= has]


def main(arguments: list[str]) -> int:
    info = Path("/proc/cpuinfo")
    levels = levels_of(flags(info.read_text())) if info.exists() else []
    if not levels:
        print(f"{platform.machine()} has no smaller instruction set that the libraries can be limited to: one run.")
        levels = [Level("its own", frozenset(), {})]
    missing = [level.name for level in LEVELS if level not in levels]
    wanted = arguments or [str(TESTS / name) for name in ARITHMETIC]
    outcome: dict[str, str] = {}
    failed = False
    for level in levels:
        print(f"\n{level.name}: {' '.join(f'{key}={value}' for key, value in level.settings.items())}", flush=True)
        start = time.perf_counter()
        code = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-n2", "--dist=worksteal", *wanted],
            env=os.environ | level.settings,
            check=False,
        ).returncode
        failed |= code != 0
        outcome[level.name] = f"{'FAILED' if code else 'passed'} in {time.perf_counter() - start:.0f} s"
    print()
    for name, words in outcome.items():
        print(f"{name:>8}  {words}")
    for name in missing:
        print(f"{name:>8}  not run: this processor has not got it")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
