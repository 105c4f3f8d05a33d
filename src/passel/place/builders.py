"""Who builds which role: a worker's parts, joined over the arena by what the plan says."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from passel.actor import Actor, Sink
from passel.algos.actor_critic import ActorCritic
from passel.envs.base import Envs
from passel.learner import Draws, Learner
from passel.place.cast import ACTOR, BOTH, DREAMER, LEARNER, PLAYER, WHOLE
from passel.place.diets import ApartDiet
from passel.place.diets.dreams import MODEL, DreamDiet
from passel.place.normalization import DRAWN, Drawn
from passel.place.roles import Acting, Both, Learning, Role
from passel.place.roles_dyna import Dreaming, ModelTeacher, Playing, Whole
from passel.place.shop import CRITIC, Shop
from passel.place.split import Lessons, OtherHalf
from passel.sync.base import Sync
from passel.sync.reader import Reader
from passel.types import Episode

if TYPE_CHECKING:
    from passel.place.plan import Plan


def build_both(plan: Plan, shop: Shop) -> Role:
    """Acts and learns in turn."""
    experience = plan.diet.serve(shop.arena, shop.own, shop.rank, shop.algo, shop.sampling.rng, shop.links.memory_lock)
    if shop.normalizer is not None and plan.algorithm.diet in DRAWN:
        experience = Drawn(experience, shop.normalizer)
    partner = None
    if plan.split:
        lessons = cast(Lessons, experience)
        half = shop.links.halves[shop.rank]
        note = cast(ActorCritic, shop.algo).note_value_loss
        partner = OtherHalf(shop.algo.flats[CRITIC], lessons, shop.own.below("half"), half, note)
    learner = _learner(shop, _syncs(plan, shop), experience, partner)
    envs, actor = _actor(shop, experience)
    return Both(shop.orders, envs, actor, learner, experience)


def build_actor(plan: Plan, shop: Shop) -> Role:
    """Acts with parameters that it fetches; the learner to whom it was dealt learns."""
    readers = {
        name: Reader(shop.algo.flats[name], shop.arena.below(f"sync/{name}"), scheme)
        for name, scheme in plan.schemes.items()
    }
    first = next(iter(readers.values()))
    diet = cast(ApartDiet, plan.diet)
    inlet = diet.inlet(shop.arena, shop.own, shop.rank, shop.algo, shop.links.memory_lock, lambda: first.version)
    envs, actor = _actor(shop, inlet)
    every = plan.numbers.fetch_every or plan.numbers.horizon
    return Acting(shop.orders, envs, actor, shop.algo, readers, inlet, shop.clock, every)


def build_learner(plan: Plan, shop: Shop) -> Role:
    """Learns from what its actors bring."""
    diet = cast(ApartDiet, plan.diet)
    outlet = diet.outlet(shop.arena, shop.rank, shop.sampling.rng, shop.links.memory_lock)
    return Learning(shop.orders, _learner(shop, _syncs(plan, shop), outlet), outlet)


def build_player(plan: Plan, shop: Shop) -> Role:
    """Acts in the one real environment, and learns the values."""
    return _playing(plan, shop, _syncs(plan, shop))


def build_dreamer(plan: Plan, shop: Shop) -> Role:
    """Learns a model, dreams in it, and learns the values from that."""
    return _dreaming(plan, shop, _syncs(plan, shop))


def build_whole(plan: Plan, shop: Shop) -> Role:
    """Acts and dreams in turn."""
    syncs = _syncs(plan, shop)
    playing = _playing(plan, shop, syncs)
    return Whole(shop.orders, playing, _dreaming(plan, shop, syncs, playing))


def _playing(plan: Plan, shop: Shop, syncs: dict[str, Sync]) -> Playing:
    diet = cast(DreamDiet, plan.diet)
    waking = diet.waking(shop)
    lessons = diet.lessons(shop, waking)
    envs, actor = _actor(shop, waking)
    learner = _learner(shop, {name: sync for name, sync in syncs.items() if name != MODEL}, lessons)
    return Playing(shop.orders, envs, actor, learner, lessons, diet.models(shop), diet.gain(shop, lessons.real))


def _dreaming(plan: Plan, shop: Shop, syncs: dict[str, Sync], playing: Playing | None = None) -> Dreaming:
    """One who acts too has one learner of the values for both."""
    diet = cast(DreamDiet, plan.diet)
    if playing is None:
        lessons = diet.lessons(shop, None)
        learner = _learner(shop, {name: sync for name, sync in syncs.items() if name != MODEL}, lessons)
        gain = diet.gain(shop, lessons.real)
    else:
        lessons, learner, gain = playing.lessons, playing.learner, playing.gain
    world, models, teacher = diet.world(shop), diet.models(shop), None
    if models is not None:
        batches = diet.model_lessons(shop, models)
        taught = Learner(world, {MODEL: syncs[MODEL]}, batches, shop.clock, stage="model")
        teacher = ModelTeacher(shop.orders, taught, batches, plan.numbers.model_lr)
    cells, dreaming = diet.cells(shop), diet.dreaming(shop, world)
    return Dreaming(shop.orders, learner, lessons, dreaming, teacher, shop.clock, cells, gain)


def _syncs(plan: Plan, shop: Shop) -> dict[str, Sync]:
    return {
        name: plan.attach(shop.algo, shop.arena, shop.links, shop.rank, name)
        for name in plan.schemes
        if not plan.left_out(name, shop.rank)
    }


def _learner(shop: Shop, syncs: dict[str, Sync], outlet: Draws, partner: OtherHalf | None = None) -> Learner:
    learner = Learner(shop.algo, syncs, outlet, shop.clock, partner)
    board = shop.orders.board
    learner.remember(board.column("staleness")[shop.rank], int(board.column("updates")[shop.rank]))
    return learner


def _actor(shop: Shop, sink: Sink) -> tuple[Envs, Actor]:
    """The worker's environments, and the actor that steps them."""
    assert shop.started is not None
    envs, obs = shop.started.envs, shop.started.obs
    board, rank = shop.orders.board, shop.rank

    def report(episodes: list[Episode]) -> None:
        board.finished(rank, episodes)

    return envs, Actor(envs, obs, shop.algo, sink, shop.acting.rng, shop.clock, report, shop.normalizer)


#: Who builds which role.
BUILDERS: dict[str, Callable[[Plan, Shop], Role]] = {
    BOTH: build_both,
    ACTOR: build_actor,
    LEARNER: build_learner,
    PLAYER: build_player,
    DREAMER: build_dreamer,
    WHOLE: build_whole,
}
