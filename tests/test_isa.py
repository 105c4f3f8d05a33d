"""Which instruction sets a processor can play, and that the libraries listen."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from isa import LEVELS, flags, levels_of

SAID = "processor\t: 0\nflags\t\t: fpu sse2 sse4_2 avx fma avx2\nbugs\t: none\n\nprocessor\t: 1\nflags\t: fpu\n"


@pytest.mark.parametrize(
    ("has", "names"),
    [
        ("", []),
        ("sse2 sse4_2", ["SSE4.2"]),
        ("sse4_2 avx", ["SSE4.2", "AVX"]),
        ("sse4_2 avx avx2", ["SSE4.2", "AVX"]),
        ("sse4_2 avx avx2 fma avx512f", ["SSE4.2", "AVX", "AVX2"]),
        ("sse4_2 avx avx2 fma avx512f avx512bw avx512dq avx512vl", ["SSE4.2", "AVX", "AVX2", "AVX-512"]),
    ],
)
def test_levels_up_to_the_processor_s(has: str, names: list[str]) -> None:
    assert [level.name for level in levels_of(frozenset(has.split()))] == names


def test_flags_are_those_of_the_first_processor() -> None:
    assert flags(SAID) == {"fpu", "sse2", "sse4_2", "avx", "fma", "avx2"}
    assert flags("model: an ARM\n") == frozenset()


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the levels are those of x86")
def test_the_libraries_listen() -> None:
    level = LEVELS[0]
    ask = (
        "import numpy, torch; from threadpoolctl import threadpool_info as info; "
        "blas = [each.get('architecture') for each in info() if each['user_api'] == 'blas']; "
        "print(torch.backends.cpu.get_cpu_capability(), *blas)"
    )
    said = subprocess.run(
        [sys.executable, "-c", ask], env=os.environ | level.settings, capture_output=True, text=True, check=True
    )
    assert said.stdout.split()[:2] == ["DEFAULT", level.settings["OPENBLAS_CORETYPE"]]
