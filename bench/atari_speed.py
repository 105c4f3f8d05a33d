"""Steps a second of Breakout through the boundary: ale-py's vector, the loop that knows modes, and EnvPool.

    python bench/atari_speed.py
    python bench/atari_speed.py --repeats 9 --seconds 3

Random actions, resets included, nothing learnt. Contenders take turns in one process; only one of them steps at a time.
On a machine that is busy with other work trust the CPU time of a step, all threads together, more than the speed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from common import Progress, machine, measure, middle, number, parser, table, write
from passel.envs import make_envs

TITLE = "Breakout's bare speed"
#: What each is: the id, the back-end, its threads, its arguments.
KINDS: dict[str, tuple[str, Any, int, dict[str, Any]]] = {
    "ale, 1 thread": ("ALE/Breakout-v5", "ale", 1, {"protocol": "nature"}),
    "ale, 2 threads": ("ALE/Breakout-v5", "ale", 2, {"protocol": "nature"}),
    "ale with a mode": ("ALE/Breakout-v5", "ale", 1, {"protocol": "nature", "mode": 0}),
    "envpool, 1 thread": ("Breakout-v5", "envpool", 1, {}),
    "envpool, 2 threads": ("Breakout-v5", "envpool", 2, {}),
}
FIRST = "ale, 1 thread"


def contender(name: str, copies: int, seconds: float) -> Callable[[int], dict[str, Any]]:
    env, backend, threads, arguments = KINDS[name]
    envs = make_envs(env, copies, 0, backend=backend, threads=threads, env_args=arguments)
    envs.reset()
    rng = np.random.default_rng(0)

    def run(repeat: int) -> dict[str, Any]:
        steps, began, spent = 0, time.perf_counter(), time.process_time()
        while (took := time.perf_counter() - began) < seconds:
            steps += int(envs.step(rng.integers(4, size=copies)).real.sum())
        return {"steps_per_second": steps / took, "cpu_us": 1e6 * (time.process_time() - spent) / steps}

    return run


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--copies", type=int, default=16, help="Games at once (default 16).")
    options.add_argument("--repeats", type=int, default=5, help="Rounds (default 5).")
    options.add_argument("--seconds", type=float, default=2.0, help="Length of a window (default 2).")
    said = options.parse_args()
    contenders = {name: contender(name, said.copies, said.seconds) for name in KINDS}
    progress = Progress(len(KINDS) * said.repeats)
    found = measure(contenders, said.repeats, progress, lambda result: f"{result['steps_per_second']:,.0f} steps/s")
    base = [result["steps_per_second"] for result in found[FIRST]]
    rows = []
    for name, results in found.items():
        speed = [result["steps_per_second"] for result in results]
        ratios = [now / before for now, before in zip(speed, base, strict=True)]
        cost = middle([result["cpu_us"] for result in results])
        spread = f"{middle(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        rows.append([name, number(middle(speed)), spread, number(cost)])
    sections = [
        f"{said.copies} games at once, random play. Medians of {said.repeats} rounds of {said.seconds:g} s, in turn.",
        table(["", "steps/s", f"to {FIRST} (range)", "CPU µs a step"], rows),
    ]
    write("atari_speed", TITLE, said.out, machine(), sections, {"found": found})


if __name__ == "__main__":
    main()
