"""A replay memory of a million Breakout frames: what it takes, how fast it fills and is drawn from, what a checkpoint
costs, and which compression is worth its time.

    python bench/replay_memory.py

Frames are ale-py's, of random play. Some are played, and then pushed over and over through everything that a training
run has between a step and a batch (frames are never compared across episodes, so repeats save nothing). Each memory is
filled in a process of its own, whose resident size is read from the kernel before and after. Times are seconds of one
core, which a busy machine changes less than seconds of the clock; those of checkpoints are of the clock. Codecs that
are not installed are left out of the comparison: pip install cramjam zstandard blosc2 numcodecs.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from common import call, machine, middle, number, parser, table, write

SHAPE, STACK, ENVS, N_STEP = (4, 84, 84), 4, 16, 1
FRAME = 84 * 84
MILLION = 1_000_000
BATCHES = (32, 512)
ROUNDS = 9


def play(steps: int) -> tuple[Any, Any]:
    """The newest frame of each step of ENVS random games, [T][N] compressed, and where games ended, [T, N]."""
    import lz4.block
    from ale_py.vector_env import AtariVectorEnv

    envs = AtariVectorEnv("breakout", num_envs=ENVS, num_threads=2, reward_clipping=False)
    rng, frames, ended = np.random.default_rng(0), [], []
    envs.reset(seed=0)
    for _ in range(steps // ENVS):
        obs, _, terminated, truncated, _ = envs.step(rng.integers(0, 4, ENVS))
        frames.append([lz4.block.compress(stack[-1].copy(), store_size=False) for stack in obs])
        ended.append(terminated | truncated)
    return frames, np.array(ended)


class Feed:
    """The played frames as steps of environments that stack them, without end."""

    def __init__(self, frames: list[list[bytes]], ended: Any) -> None:
        self._frames, self._ended, self._time = frames, ended, 0
        self.obs = np.zeros((ENVS, *SHAPE), np.uint8)
        self._fill(self.obs, np.ones(ENVS, bool))

    def _fill(self, obs: Any, anew: Any) -> None:
        import lz4.block

        row = self._frames[self._time % len(self._frames)]
        self._time += 1
        obs[:, :-1] = obs[:, 1:]
        obs[anew, :-1] = 0
        for env, block in enumerate(row):
            obs[env, -1] = np.frombuffer(lz4.block.decompress(block, FRAME), np.uint8).reshape(84, 84)

    def step(self) -> Any:
        """The boundary of ale-py's vector: the step after an end is spent on the reset."""
        from passel.types import Step

        now = (self._time - 1) % len(self._frames)
        anew, ended = self._ended[now], self._ended[(now + 1) % len(self._frames)]
        obs = self.obs.copy()
        self._fill(obs, anew)
        self.obs = obs
        ones = np.ones(ENVS, np.float32)
        return Step(obs, obs, ones, ones - ended, np.zeros(ENVS, bool), ~anew)


def resident() -> int:
    """Bytes of this process that are its own in memory, shared blocks included."""
    text = Path("/proc/self/smaps_rollup").read_text()
    return int(next(line.split()[1] for line in text.splitlines() if line.startswith("Pss:"))) * 1024


def child(capacity: int, played: int, prioritised: bool, compress: str) -> dict[str, Any]:
    """Fill one memory, and measure it."""
    import torch

    from passel.arena import Arena
    from passel.place.plan import Plan
    from passel.recipes.resolve import resolve_config
    from passel.types import EnvSpec

    torch.set_num_threads(1)
    spec = EnvSpec("ALE/Breakout-v5", SHAPE, np.dtype(np.uint8), 4, frames=STACK)
    said = {"algo": "dqn", "env": "CartPole-v1", "sync": "solo", "steps": 10, "capacity": capacity, "n_step": N_STEP}
    said |= {"prioritized": prioritised, "compress": compress, "envs": ENVS, "batch": 32}
    config, numbers = resolve_config(said)
    plan = Plan(replace(config, env=spec.id), numbers, spec.id, spec, 1)
    diet = plan.diet
    specs = {**diet.shared_specs(), **{f"own/{name}": s for name, s in diet.own_specs(0).items()}}
    feed = Feed(*play(played))
    rng = np.random.default_rng(1)
    before = resident()
    arena = Arena(specs, shared=True)
    found: dict[str, Any] = {"said": diet.size(), "ceiling": arena.nbytes, "empty": resident() - before}
    experience: Any = diet.serve(arena, arena.below("own"), 0, None, rng, None)  # type: ignore[arg-type]
    actions = np.zeros(ENVS, np.int64)

    def push(steps: int) -> float:
        """Seconds spent in the memory alone."""
        spent = 0.0
        for _ in range(-(-steps // ENVS)):
            obs, step = feed.obs, feed.step()
            start = time.process_time()
            experience.push(obs, actions, step, 0)
            spent += time.process_time() - start
        return spent

    memory = experience._memory
    spent, pushed = push(capacity), capacity
    while len(memory) < capacity and not arena["memory/0/frames/given_up"].sum():
        spent, pushed = spent + push(10_000), pushed + 10_000
    found |= {"rows": len(memory), "push_us": 1e6 * spent / pushed, "full": resident() - before, "process": resident()}
    found["given_up"] = int(arena["memory/0/frames/given_up"].sum())
    for size in BATCHES:
        found |= drawing(memory, size, rng, prioritised)
    memory.check_valid()
    if compress == "lz4":
        found |= saved(arena, push, capacity)
    found["resident_in_the_end"] = resident() - before
    return found


def drawing(memory: Any, size: int, rng: np.random.Generator, prioritised: bool) -> dict[str, float]:
    """Seconds of one core for a batch, and for an update that learns from it, in turn."""
    update, calls = updater(), max(10, 3200 // size)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        start = time.process_time()
        for _ in range(calls):
            batch = memory.sample(size, rng, 0.4)
            if prioritised:
                memory.update_priorities(batch.index, batch.weight)
        drawn = time.process_time()
        update(batch)
        times[0].append((drawn - start) / calls)
        times[1].append(time.process_time() - drawn)
    ratio = middle([learnt / drawn for drawn, learnt in zip(*times, strict=True)])
    return {f"draw_{size}": middle(times[0]), f"update_{size}": middle(times[1]), f"ratio_{size}": ratio}


def saved(arena: Any, push: Callable[[int], float], capacity: int) -> dict[str, Any]:
    """A first checkpoint, a second one a tenth of the memory later, and the second read back into a new arena."""
    from passel.arena import Arena
    from passel.run import checkpoint

    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", ".")) as folder:
        base = None
        for name, step in (("first", 1), ("second", 2)):
            if base is not None:
                push(capacity // 10)
            start = time.perf_counter()
            base = checkpoint.save(Path(folder), step, {"memory": arena.kept()}, {}, pages=arena.paged(), base=base)
            found[f"{name}_seconds"] = time.perf_counter() - start
            found[f"{name}_bytes"] = sum(file.stat().st_size for file in base.iterdir() if file.stat().st_nlink == 1)
            found[f"{name}_whole"] = sum(file.stat().st_size for file in base.iterdir())
        start = time.perf_counter()
        again, back = Arena(arena.specs), checkpoint.load(base)
        again.load(back.groups["memory"])
        for page in back.pages():
            again.load_page(*page)
        found["load_seconds"] = time.perf_counter() - start
        for name, pages in arena.paged().items():
            for page in pages.written():
                assert (pages.page(page) == again.pages_of(name).page(page)).all(), f"{name} came back changed"
    return found


def codecs() -> list[list[str]]:
    """Every codec that is here, on the same frames: bytes, and microseconds to pack and to unpack into place."""
    frames, _ = play(20_000)
    import lz4.block

    raw = [
        np.frombuffer(lz4.block.decompress(block, FRAME), np.uint8)
        for row in frames[len(frames) // 2 :]
        for block in row
    ][:3000]
    out = np.empty(FRAME, np.uint8)

    def put(unpack: Callable[[Any], Any]) -> Callable[[Any], None]:
        def into(block: Any) -> None:
            out.data[:] = unpack(block)

        return into

    known: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
        "lz4": (lambda f: lz4.block.compress(f, store_size=False), put(lambda b: lz4.block.decompress(b, FRAME))),
        "lz4, high compression": (
            lambda f: lz4.block.compress(f, mode="high_compression", compression=4, store_size=False),
            put(lambda b: lz4.block.decompress(b, FRAME)),
        ),
        "zlib, level 1": (lambda f: zlib.compress(f, 1), put(zlib.decompress)),
    }
    have = {name: _import(name) for name in ("cramjam", "zstandard", "blosc2", "numcodecs")}
    if module := have["cramjam"]:
        known["lz4 by cramjam, straight into place"] = (
            lambda f: module.lz4.compress_block(f, store_size=False),
            lambda b: module.lz4.decompress_block_into(b, out, output_len=FRAME),
        )
    if zstd := have["zstandard"]:
        packer, unpacker = zstd.ZstdCompressor(level=1), zstd.ZstdDecompressor()
        known["zstd, level 1"] = (packer.compress, put(unpacker.decompress))
    if blosc := have["blosc2"]:
        known["blosc2, lz4, straight into place"] = (
            lambda f: blosc.compress2(f, codec=blosc.Codec.LZ4, typesize=1, nthreads=1),
            lambda b: blosc.decompress2(b, dst=out, nthreads=1),
        )
    if numcodecs := have["numcodecs"]:
        codec = numcodecs.LZ4()
        known["lz4 by numcodecs, straight into place"] = (codec.encode, lambda b: codec.decode(b, out=out))
    rows = []
    for name, (pack, unpack) in known.items():
        blocks = [bytes(pack(frame)) for frame in raw]
        pack_us, unpack_us = (
            min(_microseconds(f, values) for _ in range(5)) for f, values in ((pack, raw), (unpack, blocks))
        )
        rows.append([name, number(np.mean([len(b) for b in blocks])), number(pack_us, 1), number(unpack_us, 1)])
    return rows


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _microseconds(function: Callable[[Any], Any], values: list[Any]) -> float:
    start = time.process_time()
    for value in values:
        function(value)
    return 1e6 * (time.process_time() - start) / len(values)


def updater() -> Callable[[Any], None]:
    """An update of the Nature network as DQN makes it: what batches are drawn for."""
    import torch

    from passel.algos.dqn import DQN, DQNConfig
    from passel.arena import Tensors
    from passel.types import EnvSpec

    spec = EnvSpec("ALE/Breakout-v5", SHAPE, np.dtype(np.uint8), 4, frames=STACK)
    config = DQNConfig(hidden=(512,), double=False)
    tensors = {name: torch.zeros(s.shape, dtype=s.dtype) for name, s in DQN.specs(config, spec).items()}
    algo = DQN(config, spec, Tensors(tensors))
    module = algo.flats["q"].module
    optimiser = torch.optim.Adam(module.parameters(), lr=1e-4)

    def update(data: Any) -> None:
        loss = algo.loss(data).losses["q"]
        optimiser.zero_grad(set_to_none=False)
        loss.backward()
        optimiser.step()

    return update


def main() -> None:
    flags = parser(__doc__)
    flags.add_argument("--capacity", type=int, default=MILLION, help="Transitions of the compressed memories.")
    flags.add_argument("--raw-capacity", type=int, default=100_000, help="Transitions of the one without compression.")
    flags.add_argument(
        "--played", type=int, default=60_000, help="Frames that are played, and then used over and over."
    )
    flags.add_argument("--child", help=argparse.SUPPRESS)
    said = flags.parse_args()
    if said.child:
        print(json.dumps(child(**json.loads(said.child))))
        return
    card = machine()
    found = {}
    for name, capacity, prioritised, compress in (
        ("uniform", said.capacity, False, "lz4"),
        ("prioritized", said.capacity, True, "lz4"),
        ("uniform, not compressed", said.raw_capacity, False, "none"),
    ):
        asked = {"capacity": capacity, "played": said.played, "prioritised": prioritised, "compress": compress}
        print(f"filling {name}", file=sys.stderr, flush=True)
        found[name] = call([said.python, __file__, "--child", json.dumps(asked)], timeout=900) | asked
        print(f"    {found[name]}", file=sys.stderr, flush=True)
    packing = codecs()
    write(
        "replay_memory",
        "A replay memory of Breakout frames",
        said.out,
        card,
        sections(found, packing, said.played),
        {"memories": found, "codecs": packing},
    )


def sections(found: dict[str, dict[str, Any]], packing: list[list[str]], played: int) -> list[str]:
    gb = {name: f["full"] / 1e9 for name, f in found.items()}
    sizes = [
        [
            name,
            f"{f['rows']:,}",
            number(gb[name], 3),
            number(f["full"] / f["rows"]),
            number(f["ceiling"] / 1e9 * MILLION / f["capacity"], 2),
            number(f["push_us"], 1),
        ]
        for name, f in found.items()
    ]
    rates = [
        [
            name,
            size,
            number(1 / f[f"draw_{size}"]),
            number(1e6 * f[f"draw_{size}"] / size, 1),
            number(1e3 * f[f"update_{size}"], 1),
            number(f[f"ratio_{size}"] / 2),
        ]
        for name, f in found.items()
        for size in BATCHES
    ]
    saves = [
        [
            name,
            number(f["first_bytes"] / 1e6),
            number(f["first_seconds"], 1),
            number(f["second_bytes"] / 1e6),
            number(f["second_seconds"], 2),
            number(f["second_whole"] / 1e6),
            number(f["load_seconds"], 1),
        ]
        for name, f in found.items()
        if "first_bytes" in f
    ]
    first = next(iter(found.values()))
    return [
        f"Stacks of {STACK} frames of 84 x 84; {N_STEP} step; {ENVS} environments; {played:,} frames of random play, "
        "over and over. Microseconds and milliseconds are of one core. What a run says before it takes the memory:",
        f"> {first['said']}",
        "## Resident memory",
        "What the kernel counts when the memory is full, beyond the process as it was before: frames, rows, "
        "references, priorities, the last observation of each environment. The ceiling is what is reserved, and what "
        "the start of a run checks against the machine. Pushing is everything from a step to a stored transition.",
        table(["memory", "transitions", "resident, GB", "bytes each", "ceiling for 1M, GB", "push, µs a step"], sizes),
        "## Drawing batches",
        "States and next states as uint8 [B, 4, 84, 84]; with priorities, each batch's are updated too. Beside it, one "
        "DQN update of the Nature network, in turn with the draws. The last column is how many times faster batches "
        "come, from one core, than they are learnt from if two cores make the update twice as fast.",
        table(["memory", "batch", "batches/s", "µs a transition", "update, ms", "learnt / drawn"], rates),
        "## Checkpoints",
        "A first one, and a second after a tenth of the memory is new; then the second is read back, verified, and "
        "compared byte for byte. Priorities may have changed anywhere, so these (8 bytes each) are always written.",
        table(["memory", "first, MB", "s", "second, MB written", "s", "second, MB in all", "read back, s"], saves),
        "## Codecs",
        "The same frames one by one; unpacking ends in the place where the frame is wanted.",
        table(["codec", "bytes a frame", "pack, µs", "unpack, µs"], packing),
    ]


if __name__ == "__main__":
    main()
