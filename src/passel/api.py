"""What passel does, as functions: train, resume, load, evaluate. The command line calls these and nothing else."""

from __future__ import annotations

import dataclasses
import multiprocessing
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from passel.algos import ALGORITHMS
from passel.arena import USABLE, Arena, free_memory, total_bytes
from passel.config import AUTO, RunConfig, as_dict, overriding
from passel.envs.build import check_makes
from passel.envs.level_sets import level_set
from passel.envs.levels import is_level_set
from passel.envs.make import describe
from passel.envs.spaces import discrete_sibling
from passel.interrupts import Interrupts
from passel.nets.torsos import FILTERS, is_image
from passel.normalizer import PREFIX, Statistics
from passel.place import estimate
from passel.place.base import Placement
from passel.place.board import Board
from passel.place.budget import oversubscribed, threads_per_worker
from passel.place.env_args import env_args
from passel.place.exactness import check_exact, exactness
from passel.place.inline import Inline
from passel.place.normalization import choose as choose_normalization
from passel.place.parts import Parts, divide, measure, remembered
from passel.place.plan import Plan
from passel.place.processes import Processes
from passel.policy import Policy
from passel.recipes.auto import choose, is_open, resolve_open
from passel.recipes.resolve import resolve_config, resolve_saved, schedules, start_lines
from passel.run import checkpoint
from passel.run.card import levels_of, machine_card
from passel.run.folder import CARD, SIGNATURE, RunFolder, check_out, default_name
from passel.run.summary import Summary
from passel.supervisor import History, Supervisor
from passel.trained import Env, check_weights, environment, load, moments_of, name_of, spec_of, vectors_of, weights_of
from passel.trust import sign_or_tell
from passel.types import EnvSpec, PasselError, counted, printable
from passel.view.display import Display, guarded
from passel.view.terminal import View, make_view

PLACEMENTS: dict[str, type[Placement]] = {"inline": Inline, "processes": Processes}


@dataclass(frozen=True)
class Run:
    """A run that has ended: where it is, what came out, and where the time of its workers went."""

    path: Path
    summary: Summary
    shares: Mapping[str, float]
    threshold: float | None
    #: The shares of each role alone: workers that only act and workers that only learn spend their time differently.
    roles: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)

    @property
    def policy(self) -> Policy:
        """The run's best policy by the evaluations during training; its last one if there were none."""
        return load(self.path)


def train(env: Env | None = None, *, view: View | None = None, began: float | None = None, **settings: Any) -> Run:
    """Train an agent and return the run.

        run = passel.train("LunarLander-v3", sync="hogwild", workers=2)
        run = passel.train(lambda: MyEnv(), steps=100_000, hidden=[64, 64])

    `settings` are the flags of `passel train`, with underscores. Raises PasselError, with the cause and the cure, for
    anything that cannot be run.
    """
    began = time.perf_counter() if began is None else began
    if env is not None:
        check_makes(env)
    said = dict(settings) if env is None else {**settings, "env": name_of(env)}
    if said.get("start_from"):
        said = inherited(said["start_from"], said)
    config, numbers = resolve_open(said)
    _check_may_start(config)
    if config.out:
        check_out(Path(config.out))
    target: Env = config.env if env is None or isinstance(env, str) else env
    plan, told = _first_plan(said, config, numbers, target)
    config, numbers = plan.config, plan.numbers
    _check_solvable(said, plan)
    view = Display(make_view(quiet=config.quiet)) if view is None else guarded(view)
    path = Path(config.out) if config.out else default_name(as_dict(config))
    arena = _make_arena(plan, view)
    plan.prepare(arena)
    if config.start_from:
        _begin_from(config.start_from, plan, arena)
    card, made = _card(plan, arena), {"provisional": True, "numbered": not config.out}
    # An interrupt that was noted while modules were imported is raised here, before there is a folder.
    with Interrupts() as interrupts, RunFolder.create(path, as_dict(config, numbers), card, **made) as folder:
        _sign(folder, config, view)
        folder.event("started", workers=plan.workers)
        told += start_lines(said, config, numbers)
        notices = [] if said.get("schedule_steps") else plan.unfinished_schedules()
        return _run(plan, arena, folder, view, History(), interrupts, began, told=told, notices=notices)


def _check_may_start(config: RunConfig) -> None:
    """A daemonic process must have no children: Python would refuse in the middle of the start."""
    if config.place != "inline" and multiprocessing.current_process().daemon:
        raise PasselError(
            f"--place {config.place} starts processes, which a daemonic process (a worker of multiprocessing.Pool) "
            "must not. Use --place inline, or a concurrent.futures.ProcessPoolExecutor."
        )


def _sign(folder: RunFolder, config: RunConfig, view: View) -> None:
    """Mark the run as this user's own, so that its environment is used again without a question."""
    folder.note(SIGNATURE)
    notice = sign_or_tell(folder.path, config.env)
    if notice:
        view.message(notice)


def inherited(path: str | Path, said: Mapping[str, Any]) -> dict[str, Any]:
    """What the user said, over the algorithm, the scheme and the algorithm's settings of the run at `path`."""
    content = RunFolder.open(Path(path), lock=False).read_config()
    config, numbers = resolve_saved(content)
    weights_of(path)  # refuses settings that are not those of its weights
    algo = said.get("algo", AUTO)
    if algo not in (AUTO, config.algo):
        raise PasselError(f"{path} was trained by {config.algo}, whose weights --algo {algo} cannot use. Leave it out.")
    kept = {"algo", "sync", "normalize", *(field.name for field in dataclasses.fields(numbers))}
    under = {key: value for key, value in as_dict(config, numbers).items() if key in kept}
    return overriding(under, said) | {"algo": config.algo}


def _begin_from(path: str, plan: Plan, arena: Arena) -> None:
    """Put the weights of another run into a new arena, if they fit. Its optimiser begins anew."""
    spec, (config, numbers) = spec_of(path), resolve_saved(RunFolder.open(Path(path), lock=False).read_config())
    hidden = numbers.hidden
    for what, its, ours in (
        ("observations of shape", spec.obs_shape, plan.spec.obs_shape),
        ("observations divided by", spec.obs_scale, plan.spec.obs_scale),
        ("a number of actions of", spec.n_actions, plan.spec.n_actions),
        ("actions between", spec.action_bounds, plan.spec.action_bounds),
        ("hidden layers of", hidden, plan.numbers.hidden),
        ("--normalize", config.normalize, plan.config.normalize),
    ):
        if its != ours:
            raise PasselError(
                f"the weights of {path} do not fit: they are for {what} {its}, and {plan.spec.id} has {ours} here. "
                "Choose an environment and settings of the same shape."
            )
    for name, vector in weights_of(path).items():
        own = arena.get(f"sync/{name}/vector")
        if own is None or vector.shape != own.shape or vector.dtype != own.dtype:
            raise PasselError(
                f"the weights of {path} do not fit this run's {printable(name)} network. Use the same settings."
            )
        own.copy_(vector)
    moments = moments_of(path)
    if moments is not None:
        Statistics(arena.below(PREFIX)).begin_with(moments)


def resume(
    path: str | Path,
    env: Env | None = None,
    *,
    steps: int | None = None,
    until_solved: bool | None = None,
    trust: bool = False,
    view: View | None = None,
    quiet: bool = False,
) -> Run:
    """Continue a run from its last good checkpoint: counters, schedules, optimiser, memory and random streams.

    `steps` is the new total, also for later resumes; schedules keep the length that they began with. `env` is needed if
    the run was started from a function, or if another user's run asks for a module or an address; `trust` stands for
    such a run as a whole, and makes it this user's own.
    """
    began = time.perf_counter()
    view = Display(make_view(quiet=quiet)) if view is None else guarded(view)
    with Interrupts() as interrupts, RunFolder.open(Path(path)) as folder:
        saved = _newest(folder, view)
        content = folder.read_config()
        asked = {} if steps is None else {"steps": steps}
        asked |= {} if until_solved is None else {"until_solved": until_solved}
        config, numbers = resolve_saved(content, asked, _schedule_of(content))
        check_weights(saved, folder, config, numbers)
        _check_may_start(config)
        target = environment(folder, config, env, call="resume", trust=trust)
        if isinstance(target, str):
            config = dataclasses.replace(config, env=target)
        if saved.step >= config.steps:
            raise PasselError(
                f"{path} has already taken {saved.step} of {config.steps} steps. Use --steps with a larger number."
            )
        history = History.from_meta(saved.meta)
        if history.solved_at_steps is not None and config.until_solved:
            raise PasselError(
                f"{path} is solved, and --until-solved stops there. Use --no-until-solved to train on, "
                "or `passel eval` to look at it."
            )
        history.resumed += 1
        history.eval = None
        held = levels_of(folder.read_card(), config.workers, folder.path / CARD)
        plan = make_plan(config, numbers, target, resumed=history.resumed, held=held)
        plan = _scaled_as_before(plan, spec_of(path))
        if env is not None:
            load(path).moved_to(plan.spec)  # refuses another shape
        arena = _make_arena(plan, view)
        saved = _restore(saved, folder, arena, view)
        history = dataclasses.replace(History.from_meta(saved.meta), resumed=history.resumed, eval=None)
        if asked:
            folder.write_config(as_dict(config, numbers))
        # The user has consented to the environment that is written there, unless a function stood in for it.
        if trust or (asked and isinstance(target, str)):
            _sign(folder, config, view)
        folder.truncate_metrics(saved.step, history.seconds)
        folder.truncate_episodes(saved.step)
        folder.event("resumed", steps=saved.step, checkpoint=saved.path.name)
        view.message(f"Resuming {path} at step {saved.step:,}.")
        return _run(plan, arena, folder, view, history, interrupts, began, saved.path)


def _newest(folder: RunFolder, view: View, before: int | None = None) -> checkpoint.Checkpoint:
    """The newest checkpoint that a run can be resumed from."""
    skipped: list[str] = []
    saved = checkpoint.latest(folder.path, skipped.append, usable=_check_usable, before=before)
    if saved is None:
        none = f"{folder.path} has no checkpoint to resume from"
        raise PasselError(
            f"{none}: none of its {len(skipped)} can be used. {' '.join(skipped)} Restore one from a copy, or train "
            "again with another --out."
            if skipped
            else f"{none}. Remove it, or train again with another --out."
        )
    for sentence in skipped:
        view.message(sentence)
    return saved


def _check_usable(saved: checkpoint.Checkpoint) -> None:
    """ValueError for a checkpoint without a history or without weights."""
    History.from_meta(saved.meta)
    vectors_of(saved)


def _restore(saved: checkpoint.Checkpoint, folder: RunFolder, arena: Arena, view: View) -> checkpoint.Checkpoint:
    """Fill the arena from a checkpoint, or from the one before it if it does not fit; the one that was used."""
    try:
        arena.load({name: tensor for group in saved.groups.values() for name, tensor in group.items()})
        for name, number, page in saved.pages():
            arena.load_page(name, number, page)
        return saved
    except PasselError as error:
        try:
            older = _newest(folder, view, before=saved.step)
        except PasselError:
            raise error from None
        view.message(f"{saved.path} does not fit ({error}): the one before it, of step {older.step}, is used.")
        return _restore(older, folder, arena, view)


def _schedule_of(content: Mapping[str, Any]) -> dict[str, int]:
    """The length of a run's schedules, if it has any: what was asked for, or the total that it began with."""
    config, numbers = resolve_saved(content)
    return {"schedule_steps": config.schedule_steps or config.steps} if schedules(numbers) else {}


def _scaled_as_before(plan: Plan, spec: EnvSpec) -> Plan:
    """The weights of a run fit the scale that its networks began with; before there was one, it was 1."""
    return dataclasses.replace(plan, spec=dataclasses.replace(plan.spec, obs_scale=spec.obs_scale))


def _first_plan(said: Mapping[str, Any], config: RunConfig, numbers: Any, env: Env) -> tuple[Plan, list[str]]:
    """The plan of a new run, and the line about its algorithm if the environment decided about that: under --algo auto,
    and where no algorithm was named and actions are vectors, in which the default cannot act.

    The environment is described once: that may import packages and ask a server.
    """
    if not is_open(said):
        return make_plan(config, numbers, env), []
    spec = None if is_level_set(env) else _describe(config, env)
    vectors = spec is not None and bool(spec.action_shape)
    images = spec is not None and is_image(spec.net_shape)
    choice = choose(levels=spec is None, vectors=vectors, images=images)
    asked = said.get("algo") == AUTO
    if not asked and not vectors:
        return make_plan(config, numbers, env, spec=spec), []
    described = config
    try:
        if choice.algo != config.algo:
            config, numbers = resolve_config({**said, "algo": choice.algo})
    except PasselError as error:
        if not asked:
            return make_plan(config, numbers, env, spec=spec), []  # refuses the default, with the cure
        raise PasselError(f"--algo auto is {choice.algo} here, because {choice.reason}: {error}") from None
    same = (config.backend, env_args(config)) == (described.backend, env_args(described))
    plan = make_plan(config, numbers, env, spec=spec if same else None)
    return plan, [f"Algo: {choice.algo} ({choice.reason})."]


def _describe(config: RunConfig, env: Env) -> EnvSpec:
    return describe(env, config.backend, env_args(config))


def make_plan(
    config: RunConfig,
    numbers: Any,
    env: Env,
    resumed: int = 0,
    held: Mapping[str, Any] | None = None,
    spec: EnvSpec | None = None,
) -> Plan:
    """Look at the environment, unless `spec` says what it is, and join the axes. `held` is what the card of a resumed
    run says about its levels.
    """
    parts = _make_parts(config, env, held) if is_level_set(env) else None
    if spec is None:
        spec = _describe(config, env) if parts is None else parts.levels.describe()
    if numbers.scale_obs and spec.bounds is None:
        raise PasselError(
            f"--scale-obs needs an observation that is a vector with finite bounds, and {spec.id} does not say that it "
            "has them. Leave it out."
        )
    config = dataclasses.replace(config, normalize=choose_normalization(config, numbers, spec))
    check_exact(config, spec)
    _check_filters(numbers, spec)
    _check_actions(config.algo, numbers, spec)
    threads = threads_per_worker(config.workers, spec.net_shape, config.threads)
    plan = Plan(config, numbers, env, spec, threads, resumed, parts)
    estimate.check(plan)
    reason = plan.diet.why_not()
    if reason:
        raise PasselError(reason)
    return plan


def _make_parts(config: RunConfig, env: Env, held: Mapping[str, Any] | None) -> Parts:
    """Who holds which levels: as a resumed run's card says, or by what their steps cost now.

    In one process nobody waits for anybody, and a run must be the same run again: there all levels count as equal.
    """
    levels = level_set(str(env))
    if held:
        return remembered(levels, held["workers"], held["step_us"])
    apart = config.place != "inline" and config.workers > 1 and len(levels.train) > config.workers
    uneven = apart and levels.listed and levels.costs_differ
    return divide(levels, config.workers, measure(levels) if uneven else None)


def _check_filters(numbers: Any, spec: EnvSpec) -> None:
    filters = getattr(numbers, "filters", FILTERS)
    if len(filters) != len(FILTERS):
        raise PasselError(f"--filters has {len(filters)} numbers, and there are {len(FILTERS)} convolutions.")
    if filters != FILTERS and not is_image(spec.net_shape):
        raise PasselError(f"--filters has no effect on {spec.id}, which is no image. Leave it out.")


def _check_actions(algo: str, numbers: Any, spec: EnvSpec) -> None:
    """Whether the algorithm can act there, and whether what is said of a Gaussian has one to be true of."""
    if spec.action_shape and not ALGORITHMS[algo].continuous:
        able = " or ".join(name for name, algorithm in ALGORITHMS.items() if algorithm.continuous)
        sibling = discrete_sibling(spec.id)
        raise PasselError(
            f"--algo {algo} chooses among Discrete actions, and those of {spec.id} are vectors, of length "
            f"{spec.action_shape[0]}. Use --algo {able}{f', or --env {sibling}' if sibling else ''}."
        )
    for field in dataclasses.fields(numbers):
        said = getattr(numbers, field.name) != field.default
        if said and field.metadata.get("gaussian") and not spec.action_shape:
            flag = "--" + field.name.replace("_", "-")
            raise PasselError(f"{flag} has no effect on {spec.id}, whose actions are Discrete. Leave it out.")


def _run(
    plan: Plan,
    arena: Arena,
    folder: RunFolder,
    view: View,
    history: History,
    interrupts: Interrupts,
    began: float,
    base: Path | None = None,
    told: Sequence[str] = (),
    notices: Sequence[str] = (),
) -> Run:
    """Start the workers and watch them. A folder that is provisional is kept from the moment they have started.

    `told` are lines about the run, and `notices` what the user should know of its settings, for the start.
    """
    config = plan.config
    plan.start(arena)
    placement = PLACEMENTS[config.place](plan, arena)
    facts = {"algo": config.algo, "sync": config.sync, "place": config.place, "workers": str(config.workers)}
    if plan.spec.protocol is not None:
        facts["protocol"] = str(plan.spec.protocol["name"])
    found = exactness(config, plan.spec, plan.rests_matter)
    view.start(plan.spec.id, {**facts, "exactness": found.level.partition(",")[0]})
    for line in (*told, f"Exactness: {found}. {found.cure}".rstrip()):
        view.message(line)
    crowded = oversubscribed(config.workers, plan.threads) if config.place == "processes" else ""
    too_short = "" if history.resumed else plan.too_short()
    for notice in filter(None, (crowded, too_short, *notices)):
        view.message(notice)
        folder.event("notice", text=notice)
    view.message(f"Starting {counted(plan.workers, 'worker')} ...")
    try:
        try:
            placement.start()
            interrupts.insist()
            supervisor = Supervisor(plan, arena, placement, folder, view, history, interrupts, began, base)
            interrupts.polite = True
            folder.keep()
        except BaseException:
            placement.stop()
            raise
        summary = supervisor.run()
    finally:
        view.stop()
    roles = _role_shares(plan, placement.board)
    return Run(supervisor.path, summary, supervisor.shares(), supervisor.threshold, roles)


def _role_shares(plan: Plan, board: Board) -> dict[str, dict[str, float]]:
    """Where the time of the workers of each role went."""
    roles = plan.cast.roles
    seconds = {role: [board.seconds(rank) for rank, its in enumerate(roles) if its == role] for role in set(roles)}
    sums = {role: {stage: sum(own[stage] for own in rows) for stage in rows[0]} for role, rows in seconds.items()}
    return {role: {stage: s / max(sum(own.values()), 1e-9) for stage, s in own.items()} for role, own in sums.items()}


def _make_arena(plan: Plan, view: View) -> Arena:
    """The run's memory, after saying how much it is, or refusing it with what would fit."""
    size = plan.diet.size()
    if size is not None:
        view.message(size)
    specs = plan.specs()
    needed, usable = total_bytes(specs), int(USABLE * free_memory())
    if needed > usable:
        memories = total_bytes(plan.diet.shared_specs())
        fits = plan.diet.largest_capacity(usable - (needed - memories))
        if fits:
            raise PasselError(
                f"the run needs {needed / 1e6:,.0f} MB of memory, and {usable / 1e6:,.0f} MB can be used here. The "
                f"largest --capacity that fits is {fits}."
            )
    return Arena(specs, shared=plan.config.place == "processes")


def _check_solvable(said: Mapping[str, Any], plan: Plan) -> None:
    if said.get("until_solved") and plan.config.solved_at is None and plan.spec.reward_threshold is None:
        raise PasselError(f"{plan.spec.id} does not say when it is solved. Give --solved-at a mean return.")


def _card(plan: Plan, arena: Arena) -> dict[str, Any]:
    """The facts of this run that a reader of its figures must know."""
    found = exactness(plan.config, plan.spec, plan.rests_matter)
    return {
        **machine_card(),
        "threads_per_worker": plan.threads,
        "start_method": "none" if plan.config.place == "inline" else "forkserver",
        "arena_mb": round(arena.nbytes / 1e6, 1),
        "determinism": str(found),
        "more_deterministic": found.cure or None,
        "env": {
            **dataclasses.asdict(plan.spec),
            "obs_shape": list(plan.spec.obs_shape),
            "obs_dtype": np.dtype(plan.spec.obs_dtype).name,
            "envs_per_worker": plan.config.envs,
            "factory": not isinstance(plan.env, str),
        },
        **({} if plan.parts is None else {"levels": _level_facts(plan, plan.parts)}),
    }


def _level_facts(plan: Plan, parts: Parts) -> dict[str, Any]:
    """Who holds which levels, which a resumed run must find again, and what each worker's gradient counts for."""
    return {
        "train": len(parts.levels.train),
        "held_out": list(parts.levels.held_out),
        "workers": [list(held) for held in parts.held],
        "rows": [plan.rows(rank) for rank in range(plan.workers)],
        "weights": [parts.weight(rank) for rank in range(plan.workers)],
        "step_us": dict(parts.costs),
    }
