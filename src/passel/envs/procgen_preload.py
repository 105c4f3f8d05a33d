"""Has Procgen decode its pictures when it is imported: for the forkserver, which takes its orders as names of modules.

They are 375 MB and 1.3 s of work in every process that plays, of any game. Made before the workers are, they are there
once, for all of them.
"""

from __future__ import annotations

from contextlib import suppress

from passel.envs.level_procgen import read
from passel.envs.levels import Copies

# What is missing here will be missed by the workers, who can say so; the forkserver cannot.
with suppress(Exception):
    _levels = read("jumper:easy:1+0")
    _envs = _levels.make(_levels.train, Copies(1, seed=0))
    _envs.reset()
    _envs.close()
