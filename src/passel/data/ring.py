"""The rows of a replay memory, in tensors that several processes may share, written without a lock.

Each writer owns one stripe of the slots and writes only there. Two counters a stripe, which only grow, say what holds:

    reserved   raised before rows are written: the slots of older rows are no longer to be trusted
    committed  raised after: the rows are whole

The row with count c lies in slot c % stripe, and may be read while reserved - stripe <= c < committed. A reader looks
at `reserved` again after it has copied the rows, and draws those that were overwritten meanwhile anew: it never waits,
and it never sees half a transition. A writer that dies between the two counters leaves only rows that nobody reads;
its successor goes on from `committed`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from passel.arena import Spec, fence, page_length
from passel.types import Array, Batch, Bools, Floats, Ints, PasselError, Transitions

#: Above this, a float32 no longer holds every integer, and an action would be stored as its neighbour.
LARGEST_ACTION = 2**24

ROWS_A_PAGE = 16_384  # of a ring in pages

REWARD, DISCOUNT, ACTION = 0, 1, 2  # the last three columns of a row


def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    """The type of tensor that shares its bytes with an array of `dtype`."""
    try:
        return torch.from_numpy(np.empty(0, dtype)).dtype
    except TypeError as error:
        raise PasselError(
            f"observations of type {dtype} cannot be kept in a tensor. Wrap the environment so that they are numbers."
        ) from error


@dataclass(frozen=True)
class Window:
    """The counts that may be read, of every stripe: low <= count < high."""

    low: Ints
    high: Ints

    @property
    def sizes(self) -> Ints:
        sizes: Ints = np.maximum(self.high - self.low, 0)
        return sizes


class Ring:
    """A preallocated ring of transitions: `writers` stripes of equal size, one of them ours to write.

    Runs in: every process that adds or samples. Float32 observations share one row with everything else, so that a
    sample is one gather; other types have matrices of their own beside it. The action in a float32 column is exact
    below `LARGEST_ACTION`.
    """

    @staticmethod
    def specs(
        capacity: int, obs_shape: tuple[int, ...], obs_dtype: np.dtype[Any], writers: int = 1, *, paged: bool = False
    ) -> dict[str, Spec]:
        """The tensors of a ring; the capacity is rounded down to a multiple of the writers. `paged` is for large ones:
        their memory is taken as they fill, and a checkpoint writes what is new.
        """
        if writers < 1 or capacity < writers:
            raise PasselError(
                f"{capacity} transitions of memory cannot be divided among {writers} writers. Use a larger --capacity."
            )
        stripe, dtype = capacity // writers, torch_dtype(np.dtype(obs_dtype))
        specs = {
            "reserved": Spec((writers,), torch.int64),
            "committed": Spec((writers,), torch.int64),
            # Holds no element: it is how the tensors themselves say what an observation looks like.
            "obs_like": Spec((0, *obs_shape), dtype),
        }
        pages = "versions" if paged else ""
        if paged:
            specs["versions"] = Spec((writers, page_length(stripe, ROWS_A_PAGE)), torch.int64)
        if dtype == torch.float32:
            return specs | {"rows": Spec((writers, stripe, 2 * math.prod(obs_shape) + 3), pages=pages)}
        matrix = Spec((writers, stripe, math.prod(obs_shape)), dtype, pages=pages)
        return specs | {"rows": Spec((writers, stripe, 3), pages=pages), "obs": matrix, "next_obs": matrix}

    def __init__(self, tensors: Mapping[str, Tensor], writer: int = 0) -> None:
        rows = tensors["rows"]
        self.writers, self.stripe, width = rows.shape
        if not 0 <= writer < self.writers:
            raise PasselError(
                f"there is no stripe for writer {writer} of {self.writers}. Make the memory for more writers."
            )
        self.writer = writer
        self.capacity = self.writers * self.stripe
        self.reserved: Ints = tensors["reserved"].numpy()
        self.committed: Ints = tensors["committed"].numpy()
        self.obs_shape: tuple[int, ...] = tuple(tensors["obs_like"].shape[1:])
        self.packed = "obs" not in tensors
        self.obs_size = size = math.prod(self.obs_shape)
        self.rows: Array = rows.view(self.capacity, width).numpy()
        self.scalars: Array = self.rows[:, -3:]
        self.obs: Array = self.rows[:, :size] if self.packed else _flat(tensors["obs"])
        self.next_obs: Array = self.rows[:, size : 2 * size] if self.packed else _flat(tensors["next_obs"])
        self._versions: Ints | None = tensors["versions"].numpy() if "versions" in tensors else None
        # At most half a stripe is reserved at a time, so that a reader always finds something.
        self._most_at_once = max(1, self.stripe // 2)

    def __len__(self) -> int:
        if self.writers == 1:
            low, high = self.window_of(0)
            return max(0, high - low)
        return int(self.window().sizes.sum())

    def append(self, transitions: Transitions) -> tuple[int, int]:
        """Write to our stripe; the counts that the new rows have: from the first, up to but without the last."""
        first = int(self.committed[self.writer])
        last = first + len(transitions)
        for start in range(first, last, self._most_at_once):
            self._append(transitions, start, min(start + self._most_at_once, last), first)
        return first, last

    def _append(self, transitions: Transitions, start: int, stop: int, first: int) -> None:
        # A predecessor that died may have reserved more: its slots stay distrusted until they are written again.
        self.reserved[self.writer] = max(stop, int(self.reserved[self.writer]))
        fence()
        slot = start % self.stripe
        border = min(stop, start + self.stripe - slot)
        self._write(transitions, start - first, border - first, slot)
        if border < stop:
            self._write(transitions, border - first, stop - first, 0)
        if self._versions is not None:
            length = page_length(self.stripe, self._versions.shape[1])
            self._versions[self.writer, np.arange(start, stop) % self.stripe // length] = stop
        fence()
        self.committed[self.writer] = stop

    def _write(self, transitions: Transitions, start: int, stop: int, slot: int) -> None:
        count, row = stop - start, self.writer * self.stripe + slot
        here, there = slice(row, row + count), slice(start, stop)
        self.obs[here] = transitions.obs[there].reshape(count, self.obs_size)
        self.next_obs[here] = transitions.next_obs[there].reshape(count, self.obs_size)
        scalars = self.scalars[here]
        scalars[:, REWARD] = transitions.reward[there]
        scalars[:, DISCOUNT] = transitions.discount[there]
        scalars[:, ACTION] = transitions.action[there]

    def give_up(self, before: int) -> None:
        """Rows of our stripe with counts below `before` are no longer to be trusted, though their slots are."""
        self.reserved[self.writer] = max(before + self.stripe, int(self.reserved[self.writer]))
        fence()

    def window_of(self, stripe: int) -> tuple[int, int]:
        """What may be read now of one stripe: low <= count < high."""
        # Committed first: then a stripe never shows more counts than it has slots, whatever its writer does meanwhile.
        high = int(self.committed[stripe])
        fence()
        return max(0, int(self.reserved[stripe]) - self.stripe), high

    def window(self) -> Window:
        """The same of all stripes at once."""
        high = self.committed.copy()
        fence()
        return Window(np.maximum(self.reserved - self.stripe, 0), high)

    def overwritten(self, stripe: Ints | int, count: Ints) -> Bools:
        """Which rows have been given up to newer ones by now: asked after a gather, the rows that may be torn."""
        fence()
        late: Bools = count < self.reserved[stripe] - self.stripe
        return late

    def slots(self, stripe: Ints | int, count: Ints) -> Ints:
        """Where in the whole ring the rows lie."""
        return stripe * self.stripe + count % self.stripe

    def gather(self, slots: Ints) -> Fetched:
        """A copy of the rows in `slots`."""
        # numpy's take is three times as fast as index_select on small rows, and as fast on frames.
        rows = self.rows.take(slots, axis=0)
        if self.packed:
            return Fetched(rows, None, None)
        return Fetched(rows, self.obs.take(slots, axis=0), self.next_obs.take(slots, axis=0))

    def expand(self, fetched: Fetched, stripe: Ints | int, count: Ints) -> tuple[Fetched, Ints]:
        """What was gathered, with observations in full, and which rows were overwritten while that was done. Here the
        observations are in the rows, so there is nothing to do.
        """
        return fetched, np.empty(0, np.int64)

    def batch(self, fetched: Fetched, index: Ints | None = None, weight: Floats | None = None) -> Batch:
        """The fetched rows by name: views of columns, except for the action, which becomes an integer."""
        rows, size = fetched.rows, self.obs_size
        scalars = rows[:, -3:]
        obs = rows[:, :size] if fetched.obs is None else fetched.obs
        next_obs = rows[:, size : 2 * size] if fetched.next_obs is None else fetched.next_obs
        return Batch(
            obs=self._shaped(obs),
            action=scalars[:, ACTION].astype(np.int64),
            reward=scalars[:, REWARD],
            discount=scalars[:, DISCOUNT],
            next_obs=self._shaped(next_obs),
            index=index,
            weight=weight,
        )

    def _shaped(self, flat: Array) -> Array:
        return flat if len(self.obs_shape) == 1 else flat.reshape(len(flat), *self.obs_shape)

    def check_valid(self) -> None:
        """Raise AssertionError, with the reason, where a rule of the ring is broken."""
        for writer in range(self.writers):
            reserved, committed = int(self.reserved[writer]), int(self.committed[writer])
            if not 0 <= committed <= reserved:
                raise AssertionError(f"stripe {writer} has committed {committed} rows of {reserved} reserved")
            counts = np.arange(max(0, reserved - self.stripe), committed)
            self._check_scalars(writer, self.scalars[self.slots(writer, counts)])

    def _check_scalars(self, writer: int, scalars: Array) -> None:
        reward, discount, action = scalars[:, REWARD], scalars[:, DISCOUNT], scalars[:, ACTION]
        if not np.isfinite(reward).all():
            raise AssertionError(f"stripe {writer} holds a reward that is not finite")
        if not ((discount >= 0) & (discount <= 1)).all():
            raise AssertionError(f"stripe {writer} holds a discount outside of 0 to 1")
        if not ((action >= 0) & (action < LARGEST_ACTION) & (action == np.floor(action))).all():
            raise AssertionError(f"stripe {writer} holds an action that is no small whole number")


@dataclass(frozen=True)
class Fetched:
    """Copied rows; observations apart where they are not float32."""

    rows: Array
    obs: Array | None
    next_obs: Array | None

    def replace(self, at: Ints, fresh: Fetched) -> None:
        """Put freshly fetched rows in the places `at`."""
        self.rows[at] = fresh.rows
        if self.obs is not None and self.next_obs is not None:
            self.obs[at], self.next_obs[at] = fresh.obs, fresh.next_obs


def _flat(matrix: Tensor) -> Array:
    array: Array = matrix.view(-1, matrix.shape[-1]).numpy()
    return array
