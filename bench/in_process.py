"""The environments of a server without the socket, in the server's own interpreter: a contender of remote_envs.py.

    python in_process.py FOLDER_OF_SERVE_ENV COPIES SECONDS ID [flags of serve_env.py]

Prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np


def main() -> None:
    folder, copies, seconds, *words = sys.argv[1:]
    sys.path.append(folder)
    import serve_env

    said = serve_env.parser().parse_args(words)
    lens = serve_env.Lens(said.gray, said.resize, said.channels_first)
    maker = serve_env.Maker(said.ids[0], {}, said.joypad, said.skip)
    facts = serve_env.look_at(maker, lens, said.skip)
    games = [maker.make() for _ in range(int(copies))]
    for i, game in enumerate(games):
        game.reset(serve_env.derive_seed(0, i, 0))
    dice, done, began = np.random.default_rng(0), 0, time.perf_counter()
    while time.perf_counter() - began < float(seconds):
        obs = np.empty((len(games), *facts.shape), facts.dtype)
        for i, action in enumerate(dice.integers(facts.n_actions, size=len(games)).tolist()):
            seen, _, terminated, truncated = games[i].step(action)
            lens.write(seen, obs[i])
            if terminated or truncated:
                lens.write(games[i].reset(serve_env.derive_seed(0, i, done)), obs[i])
        done += len(games)
    print(json.dumps({"steps_per_second": done / (time.perf_counter() - began)}))


main()
