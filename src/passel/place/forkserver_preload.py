"""Imported by the forkserver before anything else, and by nothing but it."""

from __future__ import annotations

from passel.place.lifeline import guard_family

guard_family()
