"""Experience at rest: built into transitions, kept in a ring, drawn again uniformly or by priority."""

from passel.data.memory import Memory
from passel.data.nstep import NStep
from passel.data.prioritised import PrioritisedReplay
from passel.data.replay import Replay

__all__ = ["Memory", "NStep", "PrioritisedReplay", "Replay"]
