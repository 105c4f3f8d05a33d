"""How learners share the vector. A scheme is a file; this is their register."""

from __future__ import annotations

from passel.sync.allreduce import AllReduce
from passel.sync.base import Scheme
from passel.sync.gossip import Gossip
from passel.sync.proximal import Proximal
from passel.sync.server import ParameterServer
from passel.sync.shared import Hogwild, Locked
from passel.sync.solo import Solo
from passel.sync.tokenring import TokenRing

SCHEMES: dict[str, type[Scheme]] = {
    scheme.name: scheme for scheme in (Solo, Locked, Hogwild, ParameterServer, AllReduce, Gossip, Proximal, TokenRing)
}
