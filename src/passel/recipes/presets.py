"""Settings that were found by search for one environment, and the study that found them: bench/presets.md.

A preset stands between an algorithm's defaults and what the user says: a configuration file and flags override it.
"""

from __future__ import annotations

from typing import Any

DEFAULT_STEPS = 500_000

PRESETS: dict[tuple[str, str], dict[str, Any]] = {
    ("dqn", "LunarLander-v3"): {},
}


def preset(algo: str, env: object) -> dict[str, Any]:
    """What is known to work well for this environment; nothing, where nobody has searched."""
    return PRESETS.get((algo, env), {}) if isinstance(env, str) else {}
