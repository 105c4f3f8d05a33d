"""Observations that stack frames, turned into references to frames that are kept once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from passel.arena import Spec
from passel.data.frames import REFERENCE, FrameStore, Rows, record_bytes
from passel.data.ring import torch_dtype
from passel.types import Array, Bools, Step


class Stacks:
    """For each environment, the last observation and the references to its frames.

    The next observation of an environment is the last one moved by a frame, and then only its newest frame is kept.
    That is looked at, never assumed: what does not fit (an episode's first stack, however it is padded) is kept as it
    is. So a stack comes back as it was, also where only learning sees an end (a lost life) and the frames go on.

    Runs in: the actor.
    """

    @staticmethod
    def specs(envs: int, frames: int, frame_bytes: int) -> dict[str, Spec]:
        return {
            "last": Spec((envs, frames, frame_bytes), torch.uint8),
            "references": Spec((envs, frames), torch_dtype(REFERENCE)),
            "known": Spec((envs,), torch.bool),
        }

    @staticmethod
    def margin(envs: int, frames: int, n_step: int) -> int:
        """How many rows may come after a frame was kept that refer to it, at most.

        A stack has no frame that was kept more than K pushes ago, for each push moves it by one; and a transition is
        handed on n pushes after its first observation. With N environments that is N (n + K) steps, the N that are
        being pushed, and N n more that may have been waiting before.
        """
        return envs * (2 * n_step + frames + 2)

    @staticmethod
    def least_bytes(envs: int, frames: int, n_step: int, frame_bytes: int) -> int:
        """What must fit, if every frame resists compression, and every other step is spent on a reset."""
        pushes = 2 * Stacks.margin(envs, frames, n_step) // envs
        return pushes * envs * 2 * frames * record_bytes(frame_bytes)

    def __init__(
        self, tensors: Mapping[str, Tensor], store: FrameStore, rows: Rows, *, writer: int, n_step: int
    ) -> None:
        self._last: Array = tensors["last"].numpy()
        self._references: Array = tensors["references"].numpy()
        self._known: Bools = tensors["known"].numpy()
        envs, frames, _ = self._last.shape
        self._writer = store.writer(writer, rows, self.margin(envs, frames, n_step))
        # Eight bytes at a time, where that comes out even, are compared in a quarter of the time.
        self._word = np.dtype(np.uint64 if self._last.shape[2] % 8 == 0 else np.uint8)

    def keep(self, obs: Array, step: Step) -> tuple[Array, Step]:
        """Keep the frames of one step of all environments; the same step, with references for observations."""
        before, after = self._bytes(obs), self._bytes(step.next_obs)
        known = self._known.copy()
        # Whoever dies from here on leaves nothing that the next one relies on.
        self._known[:] = False
        same = known & self._equal(before, self._last)
        for row in np.flatnonzero(~same):
            self._references[row] = self._whole(before[row])
        references = self._references.copy()
        moved = self._equal(after[:, :-1], before[:, 1:])
        self._references[moved, :-1] = references[moved, 1:]
        self._references[moved, -1] = self._writer.put(after[moved, -1])
        for row in np.flatnonzero(~moved):
            self._references[row] = self._whole(after[row])
        self._last[:] = after
        self._known[:] = True
        found = self._references.copy()
        return references, replace(step, obs=found, next_obs=found)

    def _whole(self, stack: Array) -> Array:
        """A stack that continues no other; a frame that is in it several times is kept once."""
        originals = [next(i for i in range(n + 1) if np.array_equal(stack[i], stack[n])) for n in range(len(stack))]
        kept = sorted(set(originals))
        references = self._writer.put(stack[kept])
        return references[np.searchsorted(kept, originals)]

    def _bytes(self, obs: Array) -> Array:
        """Observations [N, ...] as [N, K, bytes]."""
        return np.ascontiguousarray(obs).reshape(len(obs), -1).view(np.uint8).reshape(self._last.shape)

    def _equal(self, some: Array, others: Array) -> Bools:
        word = self._word
        equal: Bools = (some.view(word) == others.view(word)).reshape(len(some), -1).all(axis=1)
        return equal
