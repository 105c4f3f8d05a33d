"""How soon a new Q-network of images tells states apart: by its first weights, Adam's epsilon and learning rate.

    python bench/first_lessons.py

The returns of random play on Breakout (discounted, to the end of a life) are learnt by passel's own DQN update, from
batches of 32 at a discount of 0, so that nothing moves but the network. What counts is the share of the returns'
variance that is explained after so many updates, on states that were learnt from too: whether there is a signal at
all, not how well it generalises. Each setting runs with the same data, once for each seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch

from common import BenchError, Progress, machine, parser, table, write
from conv_update import SIZE, SPEC, Passel
from passel.envs.make import make_envs
from passel.nets.network import Network
from passel.place.budget import at_most
from passel.types import Batch, Floats

GAMMA, GAMES, STEPS, CUT = 0.99, 16, 700, 100
RULES: dict[str, Any] = {
    "protocol": "nature",
    "life_loss": None,
    "clip_rewards": None,
    "fire_reset": False,
    "mode": None,
    "difficulty": None,
}


@dataclass(frozen=True)
class Setting:
    start: str  # "torch": as its modules come; "orthogonal": as passel's DQN starts with images
    eps: float
    lr: float

    def __str__(self) -> str:
        return f"{self.start}, epsilon {self.eps:g}, lr {self.lr:g}"


SETTINGS = [
    Setting("torch", 1.5e-4, 1e-4),
    Setting("torch", 1e-8, 1e-4),
    Setting("orthogonal", 1.5e-4, 1e-4),
    Setting("orthogonal", 1e-8, 1e-4),
    Setting("orthogonal", 1e-8, 2.5e-4),
]


@dataclass(frozen=True)
class Play:
    """Random play: states, actions, and what came of them."""

    obs: Any
    action: Any
    returns: Floats

    def batch(self, rows: Any) -> Batch:
        obs = self.obs[rows]
        return Batch(obs, self.action[rows], self.returns[rows], np.zeros(len(rows), np.float32), obs)


def play() -> Play:
    rng = np.random.default_rng(0)
    envs = make_envs(SPEC.id, GAMES, 1, backend="ale", threads=1, env_args=RULES)
    obs, seen, actions, rewards, discounts = envs.reset(), [], [], [], []
    for _ in range(STEPS):
        action = rng.integers(0, SPEC.n_actions, GAMES)
        seen.append(obs.copy())
        step = envs.step(action)
        actions.append(action)
        rewards.append(step.reward.copy())
        discounts.append(step.discount.copy())
        obs = step.obs
    envs.close()
    returns, later = np.zeros((STEPS, GAMES), np.float32), np.zeros(GAMES, np.float32)
    for t in reversed(range(STEPS)):
        returns[t] = later = rewards[t] + GAMMA * discounts[t] * later
    # What follows the last steps is not known.
    kept = slice(STEPS - CUT)
    return Play(np.concatenate(seen[kept]), np.concatenate(actions[kept]), returns[kept].reshape(-1))


def learn(setting: Setting, lived: Play, seed: int, updates: int, looks: int) -> list[float]:
    """The share of variance that is explained, at each of `looks` moments."""
    torch.manual_seed(seed)
    side = Passel(lived.batch(np.arange(SIZE)), optimizer_eps=setting.eps, lr=setting.lr, seed=seed)
    network = cast(Network, side.module)
    if setting.start == "torch":
        for layer in network.modules():
            if isinstance(layer, torch.nn.Linear | torch.nn.Conv2d):
                layer.reset_parameters()
    rng, asked = np.random.default_rng(seed), np.arange(0, len(lived.returns), 40)
    truth, found = lived.returns[asked], []
    for update in range(1, updates + 1):
        side.lesson.held = lived.batch(rng.integers(0, len(lived.returns), SIZE))
        side.update()
        if update % (updates // looks) == 0:
            values = network.values(lived.obs[asked])[np.arange(len(asked)), lived.action[asked]]
            found.append(float(1 - ((values - truth) ** 2).mean() / truth.var()))
    return found


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--updates", type=int, default=900, help="Updates of each setting (default 900).")
    options.add_argument("--seeds", type=int, default=2, help="Seeds of each setting (default 2).")
    said = options.parse_args()
    looks, card, lived = 3, machine(), play()
    progress = Progress(len(SETTINGS) * said.seeds)
    runs: dict[str, list[list[float]]] = {}
    with at_most(1):
        torch.set_num_threads(1)
        for setting in SETTINGS:
            for seed in range(1, said.seeds + 1):
                progress.begin(f"{setting}, seed {seed}")
                explained = learn(setting, lived, seed, said.updates, looks)
                runs.setdefault(str(setting), []).append(explained)
                progress.end(f"{explained[-1]:.2f} explained")
    moments = [said.updates // looks * (look + 1) for look in range(looks)]
    rows = [
        [name, *(", ".join(f"{run[look]:.2f}" for run in found) for look in range(looks))]
        for name, found in runs.items()
    ]
    sections = [
        f"Returns of {len(lived.returns):,} states: mean {lived.returns.mean():.2f}, standard deviation "
        f"{lived.returns.std():.2f}. One number for each seed; 0 is what the mean alone explains.",
        table(["explained after", *(f"{moment:,} updates" for moment in moments)], rows),
    ]
    write("first_lessons", "First lessons: how soon images are told apart", said.out, card, sections, {"runs": runs})


if __name__ == "__main__":
    try:
        main()
    except BenchError as error:
        raise SystemExit(f"first_lessons: {error}") from None
