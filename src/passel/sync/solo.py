"""One learner, one vector, nothing shared: what every other scheme is measured against."""

from __future__ import annotations

import time
from typing import Any

from passel.arena import Tensors, fence
from passel.nets.flat import Flat
from passel.sync.base import Scheme, Sync
from passel.sync.optimiser import make_optimiser


class SoloSync(Sync):
    """Applies each gradient to the one vector. Costs nothing but the step itself."""

    def __init__(self, scheme: Solo, flat: Flat, tensors: Tensors) -> None:
        super().__init__(flat, scheme.settings)
        flat.bind(values=tensors["vector"])
        self._optimiser = make_optimiser(scheme.settings.optimiser, flat.values, tensors.below("optimiser"))
        self._pushes = tensors["pushes"].numpy()

    def pull(self) -> None:
        self.version = int(self._pushes[0])

    def send(self) -> None:
        start = time.perf_counter()
        if self.clip(self.flat.grads):
            self._optimiser.step(self.lr, self.flat.grads)
            fence()
            self._pushes[0] += 1
        self.costs.apply += time.perf_counter() - start


class Solo(Scheme):
    """before: nothing · after: apply · optimiser state: mine"""

    name = "solo"
    summary = "one learner, nothing shared"
    one_learner = True

    def join(self, flat: Flat, tensors: Tensors, links: Any, rank: int) -> Sync:
        return SoloSync(self, flat, tensors)
