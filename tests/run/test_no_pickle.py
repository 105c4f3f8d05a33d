"""Nothing that was written to disk is ever unpickled: a file from a stranger must not be able to run code."""

from __future__ import annotations

import re
from pathlib import Path

import passel

UNPICKLING = re.compile(
    r"\b(c?pickle|cloudpickle|dill|joblib|marshal|shelve)\.(loads?|Unpickler|open)\b"
    r"|\btorch\.load\b"
    r"|allow_pickle\s*=\s*True"
)


def test_no_source_file_unpickles() -> None:
    assert passel.__file__ is not None
    sources = sorted(Path(passel.__file__).parent.rglob("*.py"))
    assert len(sources) > 10
    guilty = [
        f"{path}:{number}"
        for path in sources
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if UNPICKLING.search(line)
    ]
    assert guilty == []
