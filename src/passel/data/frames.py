"""Frames kept once: rows of a ring that refer to compressed frames, in segments of bytes that several processes share.

An observation that stacks K frames is K references. A reference is the place of a frame in one large block of bytes, in
units of 8; there lie its length and then its bytes. The block is cut into segments, and each writer has its own: it
fills one after the other, and takes one anew when no row that may be read refers to it. So memory is taken as it is
needed, frames of any size are kept in the order in which they came, and where bytes are short the oldest rows go first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from passel.arena import Spec, Tensors, fence
from passel.data.codec import Compression, packed, unpack
from passel.data.ring import Fetched, Ring, torch_dtype
from passel.types import Array, Ints, PasselError

REFERENCE = np.dtype(np.uint32)
UNIT = 8  # bytes: what a reference counts in
HEADER = 4  # bytes: the length before each frame
LARGEST_SEGMENT = 1 << 20  # bytes: a checkpoint writes whole segments
FEWEST_SEGMENTS = 64  # a writer: what is evicted at once when bytes are short is one of them


class Rows(Protocol):
    """The rows that refer to frames, as their writer sees them."""

    def own_window(self) -> tuple[int, int]:
        """What may be read of our own: low <= count < high."""

    def forget_before(self, count: int) -> None:
        """Give up our own rows with lower counts."""


def record_bytes(frame_bytes: int) -> int:
    """What a frame that takes so many bytes occupies."""
    return -(-(HEADER + frame_bytes) // UNIT) * UNIT


class FrameStore:
    """Frames of one size, by reference.

    Runs in: every process that adds or samples. Shared: all of it, if the tensors are; each writer writes only to its
    own segments. What a segment's version says: how many were begun before it, and how far it is filled.
    """

    @staticmethod
    def specs(
        nbytes: int, obs_shape: tuple[int, ...], obs_dtype: np.dtype[Any], frames: int, writers: int = 1
    ) -> dict[str, Spec]:
        """`nbytes` for each writer, and a segment more for what waits to be given up."""
        like = Spec((0, *obs_shape), torch_dtype(np.dtype(obs_dtype)))
        if frames < 1 or obs_shape[0] % frames:
            raise PasselError(f"observations of shape {obs_shape} are no stack of {frames} frames.")
        whole = record_bytes(Spec(obs_shape, like.dtype).nbytes // frames)
        # A whole number of frames as they are: where none are compressed, nothing is left over at the end.
        segment = max(whole, min(LARGEST_SEGMENT, nbytes // FEWEST_SEGMENTS) // whole * whole)
        segments = -(-nbytes // segment) + 2
        if writers * segments * segment // UNIT > np.iinfo(REFERENCE).max:
            raise PasselError(
                f"{writers * nbytes / 1e9:,.1f} GB of frames are more than can be told apart. Use a smaller --capacity."
            )
        return {
            "like": like,
            "bytes": Spec((writers, segments, segment), torch.uint8, pages="versions"),
            "versions": Spec((writers, segments), torch.int64),
            "until": Spec((writers, segments), torch.int64),
            "given_up": Spec((writers,), torch.int64),
        }

    def __init__(self, tensors: Mapping[str, Tensor], frames: int, compression: Compression = "lz4") -> None:
        self._compression: Compression = compression
        self.obs_shape = tuple(tensors["like"].shape[1:])
        self.obs_dtype = tensors["like"].numpy().dtype
        self.frames = frames
        self.frame_bytes = Spec(self.obs_shape, tensors["like"].dtype).nbytes // frames
        block: Array = tensors["bytes"].numpy()
        self._segment: int = block.shape[2]
        self._lengths: Array = block.reshape(-1).view(np.int32)
        self._block = block.reshape(-1).data
        self._versions: Ints = tensors["versions"].numpy()
        self._until: Ints = tensors["until"].numpy()
        self._given_up: Ints = tensors["given_up"].numpy()

    def writer(self, number: int, rows: Rows, margin: int) -> FrameWriter:
        """The one who adds frames for writer `number`. See `FrameWriter`."""
        versions, until, given_up = self._versions[number], self._until[number], self._given_up[number : number + 1]
        first = number * len(versions) * self._segment
        return FrameWriter(
            self._block[first : first + len(versions) * self._segment],
            first,
            versions,
            until,
            given_up,
            rows,
            margin,
            self._compression,
        )

    def take(self, references: Array) -> tuple[Array, list[int]]:
        """Copies of the frames [M, bytes], and the numbers of those that were no longer whole."""
        size, found = self.frame_bytes, references.ravel()
        frames = np.empty((len(found), size), np.uint8)
        out = frames.reshape(-1).data
        # Neighbours in time share frames: each is unpacked once, and then copied.
        _, first, which = np.unique(found, return_index=True, return_inverse=True)
        starts = found[first].astype(np.int64) * UNIT
        lengths = self._lengths[starts // 4]
        broken: list[int] = []
        for place, start, length in zip(first.tolist(), (starts + HEADER).tolist(), lengths.tolist(), strict=True):
            if not unpack(self._block[start : start + length], out[place * size : (place + 1) * size]):
                broken.append(place)
        source = first[which]
        again = np.flatnonzero(source != np.arange(len(found)))
        for place, origin in zip(again.tolist(), source[again].tolist(), strict=True):
            out[place * size : (place + 1) * size] = out[origin * size : (origin + 1) * size]
        return frames, broken + again[np.isin(source[again], broken)].tolist() if broken else broken

    @property
    def nbytes_used(self) -> int:
        """Bytes in all segments that were ever begun."""
        return int(np.count_nonzero(self._versions)) * self._segment


class FrameWriter:
    """Adds frames to one writer's segments. It must be the only one that does.

    A frame may be referred to by rows that are yet to come: by `margin` at most, counted from the moment when its
    segment was full. When that many have come and all before them are given up, the segment is free. Everything is in
    the tensors; the queues here are read from them.
    """

    def __init__(
        self,
        block: memoryview,
        first: int,
        versions: Ints,
        until: Ints,
        given_up: Ints,
        rows: Rows,
        margin: int,
        compression: Compression,
    ) -> None:
        self._block, self._first, self._versions, self._until = block, first, versions, until
        self._given_up, self._rows, self._margin, self._compression = given_up, rows, margin, compression
        self._segment = len(block) // len(versions)
        self._scale = self._segment + 1
        begun = [int(number) for number in np.argsort(versions, kind="stable") if versions[number]]
        #: Segments that are full, the oldest first, and those that were never begun.
        self._full = deque(begun[:-1])
        self._fresh = deque(number for number in range(len(versions)) if not versions[number])
        self._here = begun[-1] if begun else -1
        self._count, self._used = divmod(int(versions[self._here]), self._scale) if begun else (0, self._segment)

    def put(self, frames: Array) -> Array:
        """Keep these frames [M, bytes]; the references to them."""
        references = np.empty(len(frames), REFERENCE)
        if not len(frames):
            return references
        for number, frame in enumerate(frames):
            block = packed(frame, self._compression)
            length = len(block)
            size = record_bytes(length)
            if self._used + size > self._segment:
                self._begin_segment()
            place = self._here * self._segment + self._used
            self._block[place : place + HEADER] = length.to_bytes(HEADER, "little")
            self._block[place + HEADER : place + HEADER + length] = block
            references[number] = (self._first + place) // UNIT
            self._used += size
        self._tell()
        return references

    def _tell(self) -> None:
        """What others, and a checkpoint, know of the segment that is being filled."""
        self._versions[self._here] = self._count * self._scale + self._used

    def _begin_segment(self) -> None:
        low, high = self._rows.own_window()
        if self._here >= 0:
            self._until[self._here] = high + self._margin
            self._tell()
            self._full.append(self._here)
        if self._full and self._until[self._full[0]] <= low:
            self._here = self._full.popleft()
        elif self._fresh:
            self._here = self._fresh.popleft()
        else:
            self._here = self._full.popleft()
            self._evict(int(self._until[self._here]), low, high)
        self._count += 1
        self._used = 0
        self._tell()
        fence()

    def _evict(self, until: int, low: int, high: int) -> None:
        """Bytes are short: give up the rows that need the oldest segment."""
        if until > high:
            raise PasselError(
                "the frames of the steps that are not yet transitions fill the whole memory. Use a larger --capacity."
            )
        self._rows.forget_before(until)
        self._given_up[0] += until - low


class StackRing(Ring):
    """A ring whose rows refer to frames, and whose batches have the frames themselves."""

    def __init__(self, tensors: Mapping[str, Tensor], writer: int, store: FrameStore) -> None:
        super().__init__(tensors, writer)
        self._store = store

    def expand(self, fetched: Fetched, stripe: Ints | int, count: Ints) -> tuple[Fetched, Ints]:
        references = np.concatenate([fetched.obs, fetched.next_obs])
        frames, broken = self._store.take(references)
        late = self.overwritten(stripe, count)
        if broken and not late[np.asarray(broken) // self._store.frames % len(count)].all():
            raise PasselError("the replay memory holds a frame that cannot be read: it was damaged. Resume the run.")
        stacks = frames.view(self._store.obs_dtype).reshape(2, len(count), -1)
        return Fetched(fetched.rows, stacks[0], stacks[1]), late.nonzero()[0]

    def _shaped(self, flat: Array) -> Array:
        return flat.reshape(len(flat), *self._store.obs_shape)


def open_ring(tensors: Mapping[str, Tensor], writer: int) -> Ring:
    """The ring that these tensors are."""
    if "frames/bytes" not in tensors:
        return Ring(tensors, writer)
    return StackRing(tensors, writer, open_store(tensors))


def open_store(tensors: Mapping[str, Tensor], compression: Compression = "lz4") -> FrameStore:
    """The frames that the rows in these tensors refer to."""
    return FrameStore(Tensors(tensors).below("frames"), tensors["obs_like"].shape[1], compression)
