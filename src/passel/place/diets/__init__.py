"""How experience reaches an algorithm: a file a diet."""

from __future__ import annotations

from passel.place.diets.base import ApartDiet, Diet
from passel.place.diets.dreams import DreamDiet
from passel.place.diets.replay import ReplayDiet
from passel.place.diets.rollout import RolloutDiet
from passel.place.diets.shared_replay import SharedReplayDiet
from passel.place.diets.slots import SlotDiet
from passel.place.diets.trajectories import TrajectoryDiet

__all__ = ["DIETS", "ApartDiet", "Diet", "DreamDiet", "ReplayDiet"]

DIETS: dict[str, type[Diet]] = {
    "replay": ReplayDiet,
    "rollout": RolloutDiet,
    "trajectories": TrajectoryDiet,
    "shared": SharedReplayDiet,
    "slots": SlotDiet,
    "dreams": DreamDiet,
}
