"""kill -9 in the middle of a save, at random and at every system call: a valid checkpoint is always there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def test_a_killed_save_never_costs_the_newest_complete_checkpoint(tmp_path: Path) -> None:
    script = Path(__file__).with_name("killed.py")
    command = [sys.executable, "-W", "error", str(script), str(tmp_path), "40"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    kills, saves = map(int, re.findall(r"random kills: (\d+), saves: (\d+)", done.stdout)[0])
    assert kills == 40
    assert saves > 40, "the kills fell among real saves"
