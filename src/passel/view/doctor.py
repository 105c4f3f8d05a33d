"""A look at the machine: what passel has to work with, and what is missing."""

from __future__ import annotations

import importlib.util

from rich.console import Console

from passel.run.card import machine_card

OPTIONAL = {
    "envpool": ("fast environments for LunarLander and classic control", "pip install 'passel[fast]'"),
    "ale_py": ("Atari games", "pip install 'passel[atari]'"),
    "PyQt5": ("Procgen's levels", "pip install 'passel[levels]'"),
    "stable_retro": ("levels of Sonic and other games", "pip install 'passel[levels]'"),
    "Box2D": ("LunarLander", "pip install 'passel[box2d]'"),
    "zmq": ("environments over a socket", "pip install 'passel[remote]'"),
    "msgpack": ("environments over a socket", "pip install 'passel[remote]'"),
    "matplotlib": ("passel plot", "pip install 'passel[view]'"),
    "av": ("passel video", "pip install 'passel[view]'"),
}


def print_diagnosis(console: Console | None = None) -> None:
    """Cores, memory, shared memory, versions, and each optional part: there, or how to get it."""
    console = console or Console()
    card = machine_card()
    rows = {
        "cores": f"{card['usable_cores']} usable of {card['cores']} ({card['cpu']})",
        "memory": f"{card['memory_available_mb']:,} MB free of {card['memory_mb']:,} MB",
        "shared memory": "anonymous blocks, bounded by free memory (/dev/shm is not used)",
        "platform": card["platform"],
        **{name: card[name] or "not installed" for name in ("python", "passel", "torch", "numpy", "gymnasium")},
    }
    for name, value in rows.items():
        console.print(f"{name:<14} {value}", highlight=False)
    console.print()
    for module, (purpose, cure) in OPTIONAL.items():
        found = importlib.util.find_spec(module) is not None
        state = "[green]there[/green]" if found else f"[yellow]missing[/yellow]: {cure}"
        console.print(f"{module:<14} {purpose}: {state}", highlight=False)
