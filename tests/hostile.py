"""Run folders as a stranger would make them, or a failing disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def seal(path: Path, manifest: str) -> None:
    """Another manifest, with a digest that fits: what a stranger can make, and an accident cannot."""
    (path / "manifest.json").write_text(manifest)
    digest = hashlib.sha256(manifest.encode()).hexdigest()
    (path / "manifest.sha256").write_text(f"{digest}  manifest.json\n")


def edit_manifest(path: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Change the manifest of a checkpoint, and its digest."""
    manifest = json.loads((path / "manifest.json").read_text())
    edit(manifest)
    seal(path, json.dumps(manifest))


def replaced_by(path: Path, make: Callable[[Path], Any]) -> None:
    """Put something else in a file's place: `os.mkfifo`, `os.mkdir`, a link."""
    path.unlink(missing_ok=True)
    make(path)
