"""A trained policy, ready to act: no processes, no memory, no optimiser."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from passel.algos.base import Algorithm
from passel.arena import Tensors
from passel.normalizer import Scaling
from passel.types import Array, EnvSpec, PasselError, printable

HARMLESS = 4096  # a width that costs no memory, also of a layer that this network does not have
END = 1 << 62  # steps: where every schedule has come to its end


def why_not(algorithm: type[Algorithm], numbers: Any, spec: EnvSpec, vectors: Mapping[str, Tensor]) -> str | None:
    """Why these vectors are not the weights of this algorithm's networks; None if they are.

    Nothing is allocated: the numbers may come from a damaged file, and ask for any size. The networks are built on
    torch's meta device, which has shapes and no memory, after what numpy would allocate was compared with the weights.
    """
    for name, vector in vectors.items():
        if vector.dim() != 1 or vector.dtype != torch.float32:
            return f"{name} is {vector.dtype} {tuple(vector.shape)}, and must be a float32 vector"
    weights = sum(len(vector) for vector in vectors.values())
    widths = [spec.n_actions, *spec.action_shape]
    for name in ("hidden", "model_hidden", "filters", "atoms", "ensemble"):
        value = getattr(numbers, name, 0)
        widths += value if isinstance(value, tuple) else [value]
    if max(widths) > max(weights, HARMLESS):
        return f"a layer of {max(widths)} has more than all {weights} weights"
    try:
        with torch.device("meta"):
            blank = {name: torch.zeros(s.shape, dtype=s.dtype) for name, s in algorithm.specs(numbers, spec).items()}
            flats = algorithm(numbers, spec, Tensors(blank)).flats
    except (RuntimeError, TypeError, ValueError, OverflowError, IndexError) as error:
        return f"no network can be built ({type(error).__name__}: {printable(error, 100)})"
    expected, found = ({name: len(flat) for name, flat in those.items()} for those in (flats, vectors))
    return None if expected == found else f"networks of {expected} weights, and there are {found}"


class Policy:
    """Acts greedily on one observation or on a batch.

    policy = passel.load("runs/x")
    action = policy.act(obs)            # an int (or a vector) for one observation, an array for a batch
    """

    #: The step of the checkpoint that it was loaded from; None if it comes from a run that goes on.
    step: int | None = None

    def __init__(
        self,
        algorithm: type[Algorithm],
        numbers: Any,
        spec: EnvSpec,
        vectors: Mapping[str, Tensor],
        scaling: Scaling | None = None,
    ) -> None:
        blank = {name: torch.zeros(s.shape, dtype=s.dtype) for name, s in algorithm.specs(numbers, spec).items()}
        with torch.random.fork_rng(devices=[]):  # the weights are replaced; the user's generator must not notice
            self._algorithm = algorithm(numbers, spec, Tensors(blank))
        # Where the rows of a run explore differently, all rows here are as the last of them, which explores least.
        self._algorithm.take_rows(1, 2)
        self.spec = spec
        #: How observations are normalized before the networks see them; None: they are not. It does not change.
        self.scaling = scaling
        for name, flat in self._algorithm.flats.items():
            flat.values.copy_(vectors[name])

    def moved_to(self, spec: EnvSpec) -> Policy:
        """The same policy, for another environment that it can play."""
        looks = spec.obs_shape == self.spec.obs_shape
        actions = (spec.n_actions, spec.action_bounds) == (self.spec.n_actions, self.spec.action_bounds)
        if not (looks and actions and spec.obs_dtype == self.spec.obs_dtype):
            raise PasselError(
                f"{spec.id} shows {spec.obs_shape} of {spec.obs_dtype} and has {spec.n_actions} actions, and this "
                f"policy has learnt from {self.spec.obs_shape} of {self.spec.obs_dtype} with {self.spec.n_actions}. "
                "Give it an environment of the same shape."
            )
        moved = copy.copy(self)
        moved.spec = spec
        return moved

    @property
    def networks(self) -> dict[str, torch.nn.Module]:
        """The policy's networks, by name. What they take is normalized, if observations are: `scaling(obs)`."""
        return {name: flat.module for name, flat in self._algorithm.flats.items()}

    def act(self, obs: Any, rng: np.random.Generator | None = None) -> int | Array:
        """The best action: an int for one observation, an array [B] for a batch of them. Where actions are vectors, an
        array [A] within the environment's bounds for one, and [B, A] for a batch.

        With `rng` it acts as it did when it learnt, exploration included: a policy that was trained to be random may be
        much the better for it.
        """
        array = np.asarray(obs, dtype=self.spec.obs_dtype)
        one = array.shape == self.spec.obs_shape
        if not one and array.shape[1:] != self.spec.obs_shape:
            raise PasselError(
                f"an observation of {self.spec.id} has shape {self.spec.obs_shape}, and this one has {array.shape}. "
                "Give one observation or a batch [B, ...] of them."
            )
        batch = array[None] if one else array
        if self.scaling is not None:
            batch = self.scaling(batch)
        actions = self._algorithm.act_greedily(batch) if rng is None else self._algorithm.act(batch, END, rng)
        actions = self.spec.legal(actions)
        if not one:
            return actions
        only: Array = actions[0]
        return only if self.spec.action_shape else int(only)
