"""Imports EnvPool when it is imported: for the forkserver, which takes its orders as names of modules."""

from __future__ import annotations

from passel.envs.envpool_backend import load

load()
