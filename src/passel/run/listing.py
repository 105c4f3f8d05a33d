"""The runs below a folder: where they are, and what each is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from passel.run.folder import CARD, CONFIG, METRICS, RunFolder
from passel.types import PasselError


def runs_in(folder: Path) -> list[Path]:
    """The runs right below a folder that is no run itself."""
    if (folder / METRICS).exists() or (folder / CONFIG).exists():
        return []
    return sorted(entry.parent for entry in folder.glob(f"*/{CONFIG}") if (entry.parent / CARD).is_file())


def facts_of(run: Path) -> dict[str, Any]:
    """What a run is, how it ended and what it reached; without a summary it is training, or was killed."""
    try:
        folder = RunFolder.open(run, lock=False)
        return {**folder.read_config(), "status": "not ended", **(folder.read_summary() or {}), "run": str(run)}
    except PasselError:
        return {"run": str(run), "status": "damaged"}
