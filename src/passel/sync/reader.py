"""Reading a vector that others write: what an actor needs of a scheme."""

from __future__ import annotations

import time

from passel.arena import Tensors, cells, fence
from passel.nets.flat import Flat
from passel.sync.base import Costs, Scheme


class Reader:
    """A copy of the shared vector, renewed when its version has changed. It writes nothing, and nobody waits for it.

        while acting:
            reader.fetch()        # every so often
            ...                   # act with reader.flat.module
            behind = reader.lag   # versions that went by since

    The vector may change while it is copied, as under hogwild: some weights are then an update older than others. What
    an actor notes down about its actions is what it did with the weights it had, so that is no error.

    Runs in: each actor.
    """

    def __init__(self, flat: Flat, tensors: Tensors, scheme: Scheme) -> None:
        self.flat, self.costs = flat, Costs()
        self._scheme, self._tensors, self._pushes = scheme, tensors, cells(tensors["pushes"].numpy())
        #: Under a collective scheme one update is everybody's, elsewhere each is one more.
        self._count = min if scheme.collective else sum
        self.version = -1
        self.fetch()

    @property
    def newest(self) -> int:
        """How many updates the shared vector has seen."""
        return int(self._count(self._pushes))

    @property
    def lag(self) -> int:
        """By how many versions the copy is behind."""
        return self.newest - self.version

    def fetch(self) -> bool:
        """Bring the copy up to date. Returns whether there was anything new."""
        # The version first: what is copied is then at least as new as it says.
        newest = self.newest
        if newest == self.version:
            return False
        start = time.perf_counter()
        fence()
        self._scheme.look(self._tensors, self.flat.values)
        self.version = newest
        self.costs.copy += time.perf_counter() - start
        return True
