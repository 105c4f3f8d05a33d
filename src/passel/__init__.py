"""passel: parallel deep reinforcement learning with the synchronisation scheme as a free axis.

    run = passel.train("LunarLander-v3", sync="hogwild", workers=2)
    policy = passel.load(run.path)
    action = policy.act(obs)

Names are imported when they are first used: `import passel` alone costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from passel.api import Run, resume, train
    from passel.policy import Policy
    from passel.run.summary import EvalResult, Summary
    from passel.trained import evaluate, film, load
    from passel.types import PasselError

__all__ = ["EvalResult", "PasselError", "Policy", "Run", "Summary", "evaluate", "film", "load", "resume", "train"]
__version__ = "0.1.0"

_HOMES = {
    "EvalResult": "passel.run.summary",
    "PasselError": "passel.types",
    "Policy": "passel.policy",
    "Run": "passel.api",
    "Summary": "passel.run.summary",
    "evaluate": "passel.trained",
    "film": "passel.trained",
    "load": "passel.trained",
    "resume": "passel.api",
    "train": "passel.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'passel' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
