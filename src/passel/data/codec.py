"""A frame made small and back: LZ4, the fastest of those that were measured, or nothing.

A gray Atari frame of 7,056 bytes is some 400 as a block of LZ4, after 2 µs, and a frame again 1 µs later; zstd makes it
a quarter smaller and takes three to four times as long (bench/results/replay_memory.md compares).
"""

from __future__ import annotations

from typing import Any, Literal

import lz4.block

from passel.types import Array

Compression = Literal["lz4", "none"]


def packed(frame: Array, compression: Compression) -> Any:
    """The frame's bytes, compressed; as they are if that makes them no smaller. So a length equal to the frame's says
    that nothing is to be undone.
    """
    if compression == "none":
        return frame.data
    block = lz4.block.compress(frame, store_size=False)
    return block if len(block) < frame.nbytes else frame.data


def unpack(block: memoryview, frame: memoryview) -> bool:
    """Put the bytes back into `frame`. False if `block` is not what `packed` made: another writer came in between."""
    if len(block) == len(frame):
        frame[:] = block
        return True
    try:
        frame[:] = lz4.block.decompress(block, uncompressed_size=len(frame))
    except (lz4.block.LZ4BlockError, ValueError):
        return False
    return True
