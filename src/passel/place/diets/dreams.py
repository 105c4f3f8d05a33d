"""Replay of what is real, and beside it what is imagined: Dyna."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

from passel.algos.dyna import Dyna, LearntWorld
from passel.arena import Arena, Spec, Tensors, prefixed
from passel.data.dream_gain import DreamGain, ended_at
from passel.data.dreams import Dreams, World
from passel.data.experience import ReplayExperience
from passel.data.imagined import Imagined
from passel.data.limiter import Limiter
from passel.data.memory import Memory
from passel.data.running_scale import RunningScale
from passel.data.starts import Explore, Starts, Sweeping, Uniform
from passel.data.trail import Trail
from passel.data.two_memories import ModelLessons, TwoMemories, Waking
from passel.envs.grounded import GroundedWorld
from passel.envs.grounded import why_not as why_not_grounded
from passel.place.board import Board
from passel.place.diets.replay import ReplayDiet
from passel.place.diets.shared_replay import SLACK
from passel.types import Floats

if TYPE_CHECKING:
    from passel.place.shop import Shop

#: Lessons by which models may be behind the real steps, or ahead of them, where several workers share the work.
LEAD = 32
#: Batches of real steps by which an imagined update is measured.
MEASURED = 2
#: The network that dreamers teach.
MODEL = "model"


class DreamDiet(ReplayDiet):
    """DQN's memory for what is real; beside it the trail that models learn from, the memory of what was imagined, and
    the limiters that keep them in step.
    """

    scalar_names = ("dream_ratio", "model_error", "model_doubt", "dream_gain")

    def shared_specs(self) -> dict[str, Spec]:
        numbers, spec, players = self.numbers, self.plan.spec, self.plan.cast
        workers, dreamers = self.plan.workers, len(players.dreamers)
        counts = Limiter.specs(workers, workers)
        return {
            **super().shared_specs(),
            **prefixed("trail", Trail.trail_specs(numbers.capacity, spec.obs_shape)),
            **prefixed("imagined", Imagined.dated_specs(numbers.dream_capacity, spec.obs_shape, dreamers)),
            **prefixed("scale", RunningScale.specs(spec.obs_shape[0])),
            "models": Spec((2,)),
            **(prefixed("gain", DreamGain.specs(workers)) if self.measured else {}),
            **prefixed("limiter/ratio", counts),
            **prefixed("limiter/reuse", counts),
            **prefixed("limiter/models", counts),
        }

    def own_specs(self, rank: int) -> dict[str, Spec]:
        if rank not in self.plan.cast.actors:
            return {}
        return {**super().own_specs(rank), "last": Trail.last_spec(self.plan.rows(rank))}

    @property
    def dreams(self) -> bool:
        return bool(self.numbers.dream_ratio > 0)

    @property
    def taught(self) -> bool:
        """Whether there is a model to teach."""
        return self.dreams and not self.numbers.grounded

    @property
    def measured(self) -> bool:
        """Whether dreaming ends when imagined updates no longer help."""
        return self.dreams and self.numbers.dream_stop == "gain"

    def why_not(self) -> str | None:
        spec = self.plan.spec
        if len(spec.obs_shape) != 1:
            return (
                f"--algo dyna dreams of states that are vectors, and {spec.id} shows {spec.obs_shape}. "
                "Use --algo dqn, or another environment."
            )
        if self.numbers.grounded and spec.backend == "remote":
            return "--grounded needs a copy of the environment in this process, and a server's is not. Leave it out."
        if self.numbers.grounded:
            return why_not_grounded(self.plan.env, self.plan.env_args)
        return super().why_not()

    def first_update(self) -> tuple[int, str]:
        """Not known: dreams are learnt from too."""
        return 0, ""

    def interrupt(self, own: Tensors) -> None:
        super().interrupt(own)
        if "last" in own:  # only the worker that acts has it
            own["last"].zero_()  # what comes next follows nothing

    def waking(self, shop: Shop) -> Waking:
        """The side of the worker that acts."""
        arena, own = shop.arena, shop.own
        replay = self.serve(arena, own, shop.rank, shop.algo, shop.sampling.rng, shop.links.memory_lock)
        return Waking(
            cast(ReplayExperience, replay),
            Trail(arena.below("trail"), own["last"]),
            RunningScale(arena.below("scale")),
            self.models(shop),
        )

    def lessons(self, shop: Shop, waking: Waking | None) -> TwoMemories:
        """What worker `rank` learns the values from."""
        numbers = self.numbers
        return TwoMemories(
            waking,
            self._imagined(shop),
            self._memory(shop.arena, 0, shop.links.memory_lock),
            self._limiter(shop, "ratio", ratio=self.numbers.dream_ratio, batch=self.numbers.batch),
            self._reuse(shop),
            shop.sampling.rng,
            batch=numbers.batch,
            dreams=self.dreams,
            over=partial(self.over, shop.arena, shop.orders.board),
            beta=self._beta if numbers.prioritized else lambda _: 1.0,
        )

    @property
    def _many_read(self) -> bool:
        """What is real everybody learns from, when dreaming has ended."""
        return self.plan.workers > 1

    def over(self, arena: Arena, board: Board) -> bool:
        """Whether dreaming has ended."""
        return bool(board.steps >= self.last_dream or self._ended_at(arena))

    def _ended_at(self, arena: Arena) -> int:
        """The step at which imagined updates had stopped to help; 0: they help, or nobody asks."""
        return ended_at(arena["gain/judged"].numpy()) if self.measured else 0

    def gain(self, shop: Shop, memory: Memory) -> DreamGain | None:
        """What measures whether imagined updates help by the real ones in `memory`; None where nobody asks."""
        if not self.measured:
            return None
        rows, seed = MEASURED * self.numbers.batch, self.plan.config.seed
        return DreamGain(shop.arena.below("gain"), shop.rank, cast(Dyna, shop.algo), memory, rows=rows, seed=seed)

    @property
    def last_dream(self) -> float:
        """The step at which dreaming ends."""
        fraction: float = self.numbers.dream_fraction
        return fraction * self.plan.schedule_steps if fraction < 1 else math.inf

    def notices(self, arena: Arena) -> list[str]:
        said = super().notices(arena)
        if self.dreams and self.over(arena, Board(arena.below("board"))):
            step, cause = self.last_dream, f"--dream-fraction {self.numbers.dream_fraction:g}"
            if ended := self._ended_at(arena):
                step, cause = ended, "imagined updates no longer lowered the TD error of real steps"
            said.append(
                f"Dreaming ended after {step:,.0f} steps ({cause}): the values are learnt from real experience alone, "
                "with as many updates as before."
            )
        return said

    def models(self, shop: Shop) -> Limiter | None:
        """How often models are taught: so many lessons for each real step."""
        batch, rate = self.numbers.model_batch, self.numbers.model_updates_per_step
        return self._limiter(shop, "models", ratio=rate * batch, batch=batch, lead=LEAD) if self.taught else None

    def model_lessons(self, shop: Shop, limiter: Limiter) -> ModelLessons:
        rows = self.numbers.model_batch * self.numbers.ensemble
        return ModelLessons(Trail(shop.arena.below("trail")), limiter, shop.sampling.rng, rows=rows)

    def world(self, shop: Shop) -> LearntWorld:
        scale = RunningScale(shop.arena.below("scale"))
        return cast(Dyna, shop.algo).world(scale.read, self.cells(shop))

    def cells(self, shop: Shop) -> Floats:
        """The models' usual error, and the last dream's median doubt."""
        both: Floats = shop.arena["models"].numpy()
        return both

    def dreaming(self, shop: Shop, world: LearntWorld) -> Dreams:
        numbers, algo = self.numbers, cast(Dyna, shop.algo)
        trail = Trail(shop.arena.below("trail"))
        starts: dict[str, Callable[[], Starts]] = {
            "uniform": lambda: Uniform(trail),
            "sweeping": lambda: Sweeping(trail, algo, numbers.gamma),
            "explore": lambda: Explore(trail, world, numbers.max_disagreement),
        }
        place: World = GroundedWorld(self.plan.env, self.plan.env_args) if numbers.grounded else world
        return Dreams(
            starts[numbers.dream](),
            place,
            algo,
            self._imagined(shop),
            self._reuse(shop),
            shop.acting.rng,
            gamma=numbers.gamma,
            rollouts=numbers.batch,
            depth=numbers.dream_depth,
            limit=numbers.max_disagreement,
            version=self._newest(shop.arena),
        )

    def _newest(self, arena: Arena) -> Callable[[], int]:
        """How many updates the models have seen."""
        return partial(self.plan.schemes[MODEL].version, arena.below(f"sync/{MODEL}"))

    def _imagined(self, shop: Shop) -> Imagined:
        dreamers = self.plan.cast.dreamers
        writer = dreamers.index(shop.rank) if shop.rank in dreamers else 0  # who does not dream does not write
        return Imagined(shop.arena.below("imagined"), writer, self._newest(shop.arena), self.numbers.dream_age)

    def _reuse(self, shop: Shop) -> Limiter:
        return self._limiter(shop, "reuse", ratio=self.numbers.dream_reuse, batch=self.numbers.batch)

    def _limiter(self, shop: Shop, name: str, *, ratio: float, batch: int, lead: int = SLACK) -> Limiter:
        """Alone, nobody can wait for anybody; with others, nobody should wait for a single batch of theirs."""
        tensors = shop.arena.below(f"limiter/{name}")
        slack = batch * (1 if self.plan.workers == 1 else lead)
        return Limiter(tensors, shop.rank, ratio=ratio, batch=batch, warmup=0, slack=slack)
