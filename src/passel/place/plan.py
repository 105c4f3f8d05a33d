"""The plan joins the four axes: algorithm × scheme × placement × environment.

It lays out the arena and builds a worker over it; which cells of the product run is in refusals.py. A plan is data: it
is sent to a worker when the worker is started.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import gymnasium as gym
import numpy as np
import torch

from passel.algos import ALGORITHMS
from passel.algos.base import Algorithm
from passel.arena import Arena, Spec, Tensors, fence, prefixed
from passel.clock import Clock
from passel.config import RunConfig
from passel.envs.base import Envs
from passel.envs.levels import Copies
from passel.envs.make import make_envs
from passel.envs.make import specs as env_specs
from passel.maths.schedules import linear
from passel.normalizer import PREFIX, Normalized, Normalizer, Statistics
from passel.place.board import Board
from passel.place.budget import threads_of_learner
from passel.place.builders import BUILDERS
from passel.place.cast import LEARNER, Cast
from passel.place.cast import cast as cast_for
from passel.place.diets import DIETS, Diet
from passel.place.diets.dreams import MODEL
from passel.place.env_args import env_args
from passel.place.normalization import DRAWN, window
from passel.place.orders import Orders
from passel.place.parts import Parts
from passel.place.schedules import in_steps, unfinished
from passel.place.shop import CRITIC, Links, Shop, StartedEnvs
from passel.place.split import CriticHalf, HalfLinks, Lessons, half_specs
from passel.place.worker import Worker
from passel.streams import Stream, derive
from passel.sync import SCHEMES
from passel.sync.base import Kit, Scheme, Server, Sync, SyncSettings
from passel.sync.optimiser import OptimiserSettings
from passel.types import EnvSpec, Ints, counted

#: Numbers of every worker that learns.
LEARNER_SCALARS = ("learning_rate", "grad_norm")
#: Of an inline run: the worker whose turn is next, where the last step of a run cut a round short.
NEXT_TURN = "board/next_turn"


@dataclass(frozen=True)
class Plan:
    """Everything that decides what a run does, resolved and checked."""

    config: RunConfig
    numbers: Any
    env: str | Callable[[], gym.Env[Any, Any]]
    spec: EnvSpec
    threads: int
    #: How often this run has been resumed: back-ends that cannot rebuild an episode start from another seed then.
    resumed: int = 0
    #: Who holds which levels, if the environment is a set of them.
    parts: Parts | None = None

    @property
    def algorithm(self) -> type[Algorithm]:
        return ALGORITHMS[self.config.algo]

    @property
    def diet(self) -> Diet:
        return DIETS[self.algorithm.diet](self)

    @property
    def env_args(self) -> dict[str, Any] | None:
        return env_args(self.config)

    @property
    def evaluation_args(self) -> dict[str, Any] | None:
        return env_args(self.config, learning=False)

    @property
    def workers(self) -> int:
        return self.config.workers

    @cached_property
    def cast(self) -> Cast:
        """Who acts and who learns."""
        return cast_for(self.workers, self.config.learners, apart=self.algorithm.apart, dreams=self.algorithm.dreams)

    @cached_property
    def normalized(self) -> Normalized | None:
        """What of the environment is normalized; None: nothing."""
        return Normalized.by(self.config.normalize, self.spec)

    @property
    def rests_matter(self) -> bool:
        """Whether the moment of a rest changes an inline run: then a clock must not choose it, or the same seed would
        not give the same weights.
        """
        apart = self.cast.apart or (self.algorithm.dreams and self.workers > 1)
        gossips = self.config.sync == "gossip" and self.workers > 2
        shared = getattr(self.numbers, "memory", "local") == "global" and self.workers > 1
        return self.config.place == "inline" and (apart or gossips or shared)

    def threads_of(self, rank: int) -> int:
        """How many threads worker `rank` may use."""
        if self.cast.roles[rank] != LEARNER:
            return self.threads
        counts = len(self.cast.actors), len(self.cast.learners)
        return threads_of_learner(*counts, self.threads, self.spec.net_shape, self.config.threads)

    @property
    def measures_staleness(self) -> tuple[int, ...]:
        """The ranks that know how old what is learnt from is: learners, or actors where nothing carries its age."""
        known = not self.cast.apart or self.diet.carries_age
        return self.cast.learners if known else self.cast.actors

    @property
    def scalar_names(self) -> tuple[str, ...]:
        """The numbers of its own that this run shows."""
        return (*self.algorithm.scalar_names, *LEARNER_SCALARS, *self.diet.scalar_names, "refused_gradients")

    def rows(self, rank: int) -> int:
        """How many environments worker `rank` steps at once."""
        return self.config.envs if self.parts is None else self.parts.rows(rank, self.config.envs)

    def groups(self, rank: int) -> Ints | None:
        """Which level each of the worker's rows is, where they are apart."""
        return None if self.parts is None else self.parts.groups(rank, self.config.envs)

    @cached_property
    def schemes(self) -> dict[str, Scheme]:
        """One scheme for each network of the algorithm."""
        algo = self.make_algorithm(_blank(self.algorithm.specs(self.numbers, self.spec)))
        numbers, config = self.numbers, self.config
        settings = SyncSettings(
            optimiser=OptimiserSettings(
                kind=numbers.optimizer,
                lr=numbers.lr,
                eps=numbers.optimizer_eps,
                momentum=numbers.momentum,
                decay=getattr(numbers, "rms_decay", OptimiserSettings.decay),
                centred=getattr(numbers, "centred", False),
            ),
            max_grad_norm=numbers.max_grad_norm,
            every=config.sync_every,
            shards=config.shards,
            transport=config.transport,
            topology=config.topology,
            l1=config.l1,
            group_size=config.group_size,
            seed=derive(config.seed, "sync"),
        )
        return {
            name: self._scheme(name)(len(flat), len(self.learners_of(name)), self._settings(name, settings))
            for name, flat in algo.flats.items()
        }

    def _scheme(self, name: str) -> type[Scheme]:
        own = self.numbers.model_sync if name == MODEL else "same"
        return SCHEMES[self.config.sync if own == "same" else own]

    def _settings(self, name: str, usual: SyncSettings) -> SyncSettings:
        """Models have an optimiser of their own: what suits values need not suit them."""
        if name != MODEL:
            return usual
        return replace(usual, optimiser=OptimiserSettings(lr=self.numbers.model_lr), every=1)

    def learners_of(self, name: str) -> tuple[int, ...]:
        """The ranks that push gradients to this network, in the order of their places in its scheme."""
        return self.cast.dreamers if name == MODEL else self.cast.learners

    def make_algorithm(self, tensors: Tensors) -> Algorithm:
        """The same initial weights in every worker and in every run of this seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(self.config.seed, "weights"))
            return self.algorithm(self._numbers_in_steps, self.spec, tensors)

    def specs(self) -> dict[str, Spec]:
        """The layout of the arena: everything that must outlive a turn, by name."""
        numbers, spec, workers = self.numbers, self.spec, self.workers
        specs = prefixed("board", Board.specs(workers, len(self.server_names)))
        if self.config.place == "inline":
            specs |= {NEXT_TURN: Spec((1,), torch.int64, optional=True)}
        for name, scheme in self.schemes.items():
            specs |= prefixed(f"sync/{name}", scheme.specs())
        specs |= self.diet.shared_specs()
        if self.normalized is not None:
            specs |= prefixed(PREFIX, Statistics.specs(len(self.cast.actors), self.normalized.width))
        for rank in range(workers):
            parts: dict[str, Spec] = {"acting": Stream.SPEC, "sampling": Stream.SPEC, **self.diet.own_specs(rank)}
            if rank in self.cast.actors:
                parts |= prefixed("envs", self._env_specs(rank))
                if self.normalized is not None:
                    own = Normalizer.specs(self.normalized, window(self.config.algo, numbers), self.rows(rank))
                    parts |= prefixed(PREFIX, own)
            if rank in self.cast.learners:
                parts |= prefixed("algo", self.algorithm.specs(numbers, spec))
            if self.split:
                parts |= prefixed("half", half_specs(self.schemes[CRITIC].size))
            specs |= prefixed(f"worker/{rank}", parts)
        return specs

    def prepare(self, arena: Arena) -> None:
        """Fill a new arena with the run's first weights."""
        tensors = _blank(self.algorithm.specs(self.numbers, self.spec))
        for name, flat in self.make_algorithm(tensors).flats.items():
            arena[f"sync/{name}/vector"].copy_(flat.values)

    def start(self, arena: Arena) -> None:
        """Make a new or a resumed arena ready for workers."""
        arena["board/scalars"].fill_(math.nan)  # nobody has said anything yet
        for name, scheme in self.schemes.items():
            scheme.start(arena.below(f"sync/{name}"))

    def settle(self, arena: Arena) -> None:
        """Everybody is at rest: make each network's vector the one that stands for all learners."""
        fence()
        for name, scheme in self.schemes.items():
            scheme.settle(arena.below(f"sync/{name}"))

    def links(self, kit: Kit) -> Links:
        halves = [HalfLinks.made_by(kit) for _ in range(self.workers if self.split else 0)]
        return Links({name: scheme.links(kit) for name, scheme in self.schemes.items()}, kit.lock(), halves)

    @property
    def split(self) -> bool:
        """Whether each worker has another half that learns what the critic should."""
        return bool(getattr(self.numbers, "split", False))

    @property
    def server_names(self) -> list[str]:
        """The roles beside the workers, each of which `build_server` builds by its number."""
        shards = sum(scheme.server_count for scheme in self.schemes.values())
        critics = self.workers if self.split else 0
        return [f"shard {number}" for number in range(shards)] + [f"critic {rank}" for rank in range(critics)]

    def build_server(self, arena: Arena, links: Links, number: int) -> Server:
        shards = [(name, index) for name, scheme in self.schemes.items() for index in range(scheme.server_count)]
        if number < len(shards):
            name, index = shards[number]
            return self.schemes[name].servers(arena.below(f"sync/{name}"), links.schemes[name])[index]
        return self.build_half(arena, links, number - len(shards))

    def build_half(self, arena: Arena, links: Links, rank: int) -> CriticHalf:
        """The half of worker `rank` that learns what the critic should."""
        own = arena.below(f"worker/{rank}")
        algo = self.make_algorithm(own.below("algo"))
        lessons = self.diet.serve(arena, own, rank, algo, np.random.default_rng(), links.memory_lock)
        sync = self.attach(algo, arena, links, rank, CRITIC)
        return CriticHalf(rank, cast(Any, algo), sync, cast(Lessons, lessons), own.below("half"), links.halves[rank])

    def attach(self, algo: Algorithm, arena: Arena, links: Links, rank: int, name: str) -> Sync:
        tensors = arena.below(f"sync/{name}")
        place = self.learners_of(name).index(rank)
        sync = self.schemes[name].attach(algo.flats[name], tensors, links.schemes[name], place)
        sync.weight = 1.0 if self.parts is None else self.parts.weight(rank)
        return sync

    def build_worker(self, arena: Arena, links: Links, rank: int) -> Worker:
        """Worker `rank`, over an arena that may be new or half-way through a run."""
        own = arena.below(f"worker/{rank}")
        started = self._start_envs(own, rank) if rank in self.cast.actors else None
        try:
            return self._join(arena, links, rank, own, started)
        except BaseException:
            if started is not None:
                started.envs.close()  # they may hold a process
            raise

    def _start_envs(self, own: Tensors, rank: int) -> StartedEnvs:
        """Environments that are new or continue. Where an episode does not, nothing is summed across the gap."""
        envs = self.make_envs(own.below("envs"), rank)
        try:
            obs = envs.restore() if self.resumed else envs.reset()
        except BaseException:
            envs.close()
            raise
        if self.resumed and not envs.continued:
            self.diet.interrupt(own)
            if self.normalized is not None:
                Normalizer.interrupt(own.below(PREFIX))
        return StartedEnvs(envs, obs)

    def _join(self, arena: Arena, links: Links, rank: int, own: Tensors, started: StartedEnvs | None) -> Worker:
        """The worker's parts, joined."""
        board = Board(arena.below("board"))
        shop = Shop(
            arena=arena,
            own=own,
            links=links,
            rank=rank,
            orders=Orders(
                board,
                rank,
                learns=rank in self.cast.learners,
                limit=self.config.steps,
                schedule=self.schedule_steps,
                lr=self.lr,
                joint=self._joint(arena, self.cast.learner_of(rank)),
            ),
            clock=Clock(board.seconds(rank)),
            acting=Stream(own["acting"], derive(self.config.seed, "acting", rank)),
            sampling=Stream(own["sampling"], derive(self.config.seed, "sampling", rank)),
            algo=self._algorithm_of(rank, own),
            started=started,
            normalizer=self._normalizer(arena, own, rank),
        )
        role = BUILDERS[self.cast.roles[rank]](self, shop)
        return Worker(shop.orders, role, shop.algo, shop.clock, [shop.acting, shop.sampling], len(self.scalar_names))

    def _normalizer(self, arena: Arena, own: Tensors, rank: int) -> Normalizer | None:
        if self.normalized is None or rank not in self.cast.actors:
            return None
        statistics, actor = Statistics(arena.below(PREFIX)), self.cast.actors.index(rank)
        return Normalizer(
            own.below(PREFIX),
            statistics,
            actor,
            self.normalized,
            gamma=self.numbers.gamma,
            later=self.algorithm.diet in DRAWN,
        )

    def _algorithm_of(self, rank: int, own: Tensors) -> Algorithm:
        """This worker's copy. One that never learns has nothing to keep."""
        learns = rank in self.cast.learners
        algo = self.make_algorithm(
            own.below("algo") if learns else _blank(self.algorithm.specs(self.numbers, self.spec))
        )
        if rank in self.cast.actors:
            before = [self.rows(other) for other in self.cast.actors if other < rank]
            algo.take_rows(sum(before), sum(self.rows(other) for other in self.cast.actors))
        return algo

    def _joint(self, arena: Arena, learner: int) -> list[tuple[Ints, int]]:
        """The updates that need every learner, and this one's place among them."""
        return [
            (arena[f"sync/{name}/pushes"].numpy(), self.learners_of(name).index(learner))
            for name, scheme in self.schemes.items()
            if scheme.collective and not self.left_out(name, learner)
        ]

    def left_out(self, name: str, rank: int) -> bool:
        """Whether this network is somebody else's business than the worker's."""
        return (self.split and name == CRITIC) or rank not in self.learners_of(name)

    def _env_specs(self, rank: int) -> dict[str, Spec]:
        if self.parts is None:
            return env_specs(self.spec, self.config.envs)
        return self.parts.levels.record_specs(self.parts.held[rank], self.config.envs)

    def make_envs(self, tensors: Tensors, rank: int) -> Envs:
        seed = derive(self.config.seed, "envs", rank * 1_000 + (0 if self.spec.exact_resume else self.resumed))
        if self.parts is not None:
            copies = Copies(self.config.envs, seed, self.threads, tensors)
            return self.parts.levels.make(self.parts.held[rank], copies)
        return make_envs(
            self.env,
            self.config.envs,
            seed,
            backend=self.spec.backend,  # type: ignore[arg-type]
            threads=self.threads,
            env_args=self.env_args,
            tensors=tensors,
        )

    def too_short(self) -> str:
        """A sentence if the run ends before its first update; empty if not, or if that is not known."""
        needed, cure = self.diet.first_update()
        if self.config.steps >= needed:
            return ""
        return (
            f"--steps {self.config.steps} ends before the first update, which comes after about {needed} steps: "
            f"nothing is learnt. Use --steps {needed} or more, or {cure}."
        )

    def notices(self, arena: Arena) -> list[str]:
        """What the user should know about how it goes, each once."""
        return [*self.diet.notices(arena), *self._lost_episodes(arena)]

    def _lost_episodes(self, arena: Arena) -> list[str]:
        anew = sum(int(arena[name].sum()) for name in arena if name.endswith("/anew"))
        if not anew:
            return []
        return [
            f"{counted(anew, 'interrupted episode')} of {self.spec.id} could not be continued and "
            "began anew: the same seed and actions did not lead to the same observation, or the episode was longer "
            "than its record. Nothing is learnt across the gap. For an exact resume, let reset(seed=...) decide all "
            "that follows."
        ]

    @property
    def schedule_steps(self) -> int:
        """The steps over which settings change: the run's first total, however long it was made afterwards."""
        return self.config.schedule_steps or self.config.steps

    def lr(self, step: int) -> float:
        """The learning rate when all workers together have taken `step` steps."""
        first, last = self.numbers.lr, self.numbers.lr_end
        over = self._numbers_in_steps.lr_steps
        return float(first if last is None else linear(first, last, step, over))

    @cached_property
    def _numbers_in_steps(self) -> Any:
        return in_steps(self.numbers, self.schedule_steps)

    def unfinished_schedules(self) -> list[str]:
        """A sentence for each schedule in steps that the run ends before."""
        return unfinished(self.numbers, self.schedule_steps, epsilon=self.algorithm.anneals_epsilon)


def _blank(specs: dict[str, Spec]) -> Tensors:
    return Tensors({name: torch.zeros(spec.shape, dtype=spec.dtype) for name, spec in specs.items()})
