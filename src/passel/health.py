"""Whether the numbers of a run are still plausible. A run that has diverged goes on without an error: its values, its
losses or its policy's steps have left all proportion to the returns, and this says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

#: How many times the largest plausible return a mean value may be; its square, for a loss.
OUT_OF_SCALE = 100.0
#: A mean value that is out of scale where no episode has ended yet, so that no return is known.
WITHOUT_RETURNS = 1e9
#: The KL divergence in nats between the policies before and after an update: clipped steps stay below 0.1.
LARGEST_KL = 10.0

CURE = "The run has probably diverged: use a smaller --lr or --max-grad-norm."


def symptoms(scalars: Mapping[str, float], largest_return: float | None) -> dict[str, str]:
    """What is wrong with these numbers of a report, in a sentence each, by the name of the number."""
    known = largest_return is not None
    scale = max(largest_return or 0.0, 1.0)
    value_limit = OUT_OF_SCALE * scale if known else WITHOUT_RETURNS
    loss_limit = OUT_OF_SCALE * scale**2 if known else WITHOUT_RETURNS**2
    limits = {"q_mean": value_limit, "value_mean": value_limit, "loss": loss_limit, "approx_kl": LARGEST_KL}
    found: dict[str, str] = {}
    for name, limit in limits.items():
        value = scalars.get(name, 0.0)
        if not abs(value) <= limit:
            returns = f" and no return is plausible beyond {scale:.3g}" if known and name != "approx_kl" else ""
            found[name] = f"{name} is {value:.3g}, where at most {limit:.3g} is plausible{returns}. {CURE}"
    if scalars.get("refused_gradients", 0.0) > 0:
        found["refused_gradients"] = (
            "Some gradients were not finite and were not applied: metrics.jsonl counts them as refused_gradients. "
            "Use a smaller --lr if there are many."
        )
    return found


class Health:
    """Watches the reports of one run. `stretch` is how many times longer the discount reaches than an episode lasts:
    where a time limit cuts episodes off, a value may exceed every return by that much. `largest_reward` is given where
    rewards are normalized: values are of another size than the returns of episodes then.
    """

    def __init__(
        self,
        gamma: float,
        reward_scale: float = 1.0,
        max_episode_steps: int | None = None,
        largest_reward: float = 0.0,
    ) -> None:
        reach = 1 / (1 - gamma) if gamma < 1 else 0.0
        stretch = max(1.0, reach / max_episode_steps) if max_episode_steps else 1.0
        self._scale = stretch * abs(reward_scale)
        self._least = largest_reward * (reach or max_episode_steps or 0.0) * abs(reward_scale)
        self._largest: float | None = None
        self._found: dict[str, str] = {}

    @property
    def warnings(self) -> tuple[str, ...]:
        """Everything that was found so far."""
        return tuple(self._found.values())

    def look(self, scalars: Mapping[str, float], scores: Iterable[float]) -> list[str]:
        """What is wrong now and was not before. `scores` are returns of recent episodes."""
        largest = max(map(abs, scores), default=None)
        if largest is not None:
            self._largest = max(self._largest or 0.0, largest)
        returns = None if self._largest is None else max(self._scale * self._largest, self._least)
        new = {name: text for name, text in symptoms(scalars, returns).items() if name not in self._found}
        self._found |= new
        return list(new.values())
