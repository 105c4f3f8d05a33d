"""Numbers as a person reads them: short, with a unit, and never wider than they must be."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

UNKNOWN = "-"
#: The order in which the stages of a worker's turn happen, and in which they are always shown.
STAGES = ("env", "act", "store", "sample", "learn", "model", "dream", "apply", "wait", "copy", "idle", "other")
SPARKS = "▁▂▃▄▅▆▇█"


def format_duration(seconds: float | None) -> str:
    """4.2s, 42s, 3m 05s, 1h 02m, 2d 03h; two units at most, because nobody plans by the third."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    if seconds < 9.95:
        return f"{max(seconds, 0.0):.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d {whole % 86400 // 3600:02d}h"


def format_count(value: float) -> str:
    """0.25, 3.4, 999, 1.2k, 12.3k, 123k, 1.2M: three figures are enough to compare two speeds."""
    if not math.isfinite(value):
        return str(value)
    if value < 0:
        return f"-{format_count(-value)}"
    if value < 1:
        return _trimmed(f"{value:.2f}")
    if value < 9.95:
        return _trimmed(f"{value:.1f}")
    for unit in ("", "k", "M", "G"):
        # 999.5 of one unit would be printed as 1000: it is 1 of the next.
        if value < 999.5 or unit == "G":
            return (_trimmed(f"{value:.1f}") if unit and value < 99.95 else f"{value:.0f}") + unit
        value /= 1000
    raise AssertionError("the last unit takes everything")


def format_number(value: float) -> str:
    """A score or a loss: 143.2, 0.0123, -110, 1.2e-05."""
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    if size >= 99_999.5:
        return format_count(value)
    if size >= 99.95:
        return _trimmed(f"{value:.1f}")
    if size >= 0.9995:
        return _trimmed(f"{value:.2f}")
    if size >= 0.000995:
        return _trimmed(f"{value:.3g}")
    return f"{value:.1e}" if size else "0"


def format_share(share: float) -> str:
    """A part of 1 as whole percents."""
    return f"{round(100 * share)}%" if math.isfinite(share) else UNKNOWN


def stages_in(shares: Sequence[Mapping[str, float]]) -> list[str]:
    """All stages that any of the mappings names: the known ones in the order of a turn, then the rest by name."""
    found = {stage for mapping in shares for stage in mapping}
    known = [stage for stage in STAGES if stage in found and stage != "other"]
    unknown = sorted(found - set(STAGES))
    return known + unknown + (["other"] if "other" in found else [])


def sparkline(values: Sequence[float], width: int) -> str:
    """The values as at most `width` little columns, from their own minimum to their own maximum."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite or width < 1:
        return ""
    columns = _resampled(finite, min(width, len(finite)))
    low, high = min(columns), max(columns)
    scale = (len(SPARKS) - 1) / (high - low) if high > low else 0.0
    return "".join(SPARKS[round((value - low) * scale)] for value in columns)


def _resampled(values: Sequence[float], width: int) -> list[float]:
    """Means of `width` equal pieces."""
    edges = [round(i * len(values) / width) for i in range(width + 1)]
    pieces = [values[start:end] for start, end in pairwise(edges)]
    return [sum(piece) / len(piece) for piece in pieces]


def _trimmed(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text
