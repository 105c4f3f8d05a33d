"""What passel does, as functions: train, resume, load, evaluate. The command line calls these and nothing else."""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from passel.algos import ALGORITHMS
from passel.arena import USABLE, Arena, free_memory, total_bytes
from passel.config import RunConfig, as_dict
from passel.envs.level_sets import level_set
from passel.envs.levels import is_level_set
from passel.envs.make import describe
from passel.envs.spaces import discrete_sibling
from passel.interrupts import Interrupts
from passel.nets.torsos import FILTERS, is_image
from passel.place.base import Placement
from passel.place.budget import threads_per_worker
from passel.place.env_args import env_args
from passel.place.inline import Inline
from passel.place.parts import Parts, divide, measure, remembered
from passel.place.plan import Plan
from passel.place.processes import Processes
from passel.policy import Policy
from passel.recipes.resolve import resolve_config
from passel.run import checkpoint
from passel.run.card import machine_card
from passel.run.folder import RunFolder, default_name
from passel.run.summary import Summary
from passel.supervisor import History, Supervisor
from passel.trained import Env, load, name_of, spec_of, weights_of
from passel.types import EnvSpec, PasselError
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

    @property
    def policy(self) -> Policy:
        """The policy of the run's last checkpoint."""
        return load(self.path)


def train(env: Env | None = None, *, view: View | None = None, began: float | None = None, **settings: Any) -> Run:
    """Train an agent and return the run.

        run = passel.train("LunarLander-v3", sync="hogwild", workers=2)
        run = passel.train(lambda: MyEnv(), steps=100_000, hidden=[64, 64])

    `settings` are the flags of `passel train`, with underscores. Raises PasselError, with the cause and the cure, for
    anything that cannot be run.
    """
    began = time.perf_counter() if began is None else began
    said = dict(settings) if env is None else {**settings, "env": name_of(env)}
    if said.get("start_from"):
        said = inherited(said["start_from"], said)
    config, numbers = resolve_config(said)
    target: Env = config.env if env is None or isinstance(env, str) else env
    plan = make_plan(config, numbers, target)
    _check_solvable(said, plan)
    view = Display(make_view(quiet=config.quiet)) if view is None else guarded(view)
    path = Path(config.out or default_name(as_dict(config)))
    arena = _make_arena(plan, view)
    plan.prepare(arena)
    if config.start_from:
        _begin_from(config.start_from, plan, arena)
    card = _card(plan, arena)
    # An interrupt that was noted while modules were imported is raised here, before there is a folder.
    with Interrupts() as interrupts, RunFolder.create(path, as_dict(config, numbers), card) as folder:
        folder.event("started", workers=plan.workers)
        return _run(plan, arena, folder, view, History(), interrupts, began, discard=True)


def inherited(path: str | Path, said: Mapping[str, Any]) -> dict[str, Any]:
    """What the user said, over the algorithm, the scheme and the algorithm's settings of the run at `path`."""
    content = RunFolder.open(Path(path), lock=False).read_config()
    config, numbers = resolve_config(content)
    algo = said.get("algo", config.algo)
    if algo != config.algo:
        raise PasselError(f"{path} was trained by {config.algo}, whose weights --algo {algo} cannot use. Leave it out.")
    kept = {"algo", "sync", *(field.name for field in dataclasses.fields(numbers))}
    return {key: value for key, value in as_dict(config, numbers).items() if key in kept} | dict(said)


def _begin_from(path: str, plan: Plan, arena: Arena) -> None:
    """Put the weights of another run into a new arena, if they fit. Its optimiser begins anew."""
    folder = RunFolder.open(Path(path), lock=False)
    spec, hidden = spec_of(path), tuple(folder.read_config()["hidden"])
    for what, its, ours in (
        ("observations of shape", spec.obs_shape, plan.spec.obs_shape),
        ("a number of actions of", spec.n_actions, plan.spec.n_actions),
        ("actions between", spec.action_bounds, plan.spec.action_bounds),
        ("hidden layers of", hidden, plan.numbers.hidden),
    ):
        if its != ours:
            raise PasselError(
                f"the weights of {path} do not fit: they are for {what} {its}, and {plan.spec.id} has {ours} here. "
                "Choose an environment and settings of the same shape."
            )
    for name, vector in weights_of(path).items():
        if vector.shape != arena[f"sync/{name}/vector"].shape:
            raise PasselError(f"the weights of {path} do not fit this run's {name} network. Use the same settings.")
        arena[f"sync/{name}/vector"].copy_(vector)


def resume(
    path: str | Path,
    env: Callable[[], gym.Env[Any, Any]] | None = None,
    *,
    steps: int | None = None,
    until_solved: bool | None = None,
    view: View | None = None,
    quiet: bool = False,
) -> Run:
    """Continue a run from its last good checkpoint: counters, schedules, optimiser, memory and random streams.

    `steps` is the new total. `env` is needed only if the run was started from a function.
    """
    began = time.perf_counter()
    view = Display(make_view(quiet=quiet)) if view is None else guarded(view)
    with Interrupts() as interrupts, RunFolder.open(Path(path)) as folder:
        saved = checkpoint.latest(folder.path, view.message)
        if saved is None:
            raise PasselError(f"{path} has no checkpoint to resume from. Remove it, or train again with another --out.")
        content = folder.read_config()
        content |= {} if steps is None else {"steps": steps}
        content |= {} if until_solved is None else {"until_solved": until_solved}
        config, numbers = resolve_config(content)
        if saved.step >= config.steps:
            raise PasselError(
                f"{path} has already taken {saved.step} of {config.steps} steps. Use --steps with a larger number."
            )
        history = History(**saved.meta)
        if history.solved_at_steps is not None and config.until_solved:
            raise PasselError(
                f"{path} is solved, and --until-solved stops there. Use --no-until-solved to train on, "
                "or `passel eval` to look at it."
            )
        history.resumed += 1
        history.eval = None
        held = folder.read_card().get("levels")
        plan = make_plan(config, numbers, env or config.env, resumed=history.resumed, held=held)
        arena = _make_arena(plan, view)
        arena.load({name: tensor for group in saved.groups.values() for name, tensor in group.items()})
        for name, number, page in saved.pages():
            arena.load_page(name, number, page)
        folder.truncate_metrics(saved.step, history.seconds)
        folder.event("resumed", steps=saved.step, checkpoint=saved.path.name)
        view.message(f"Resuming {path} at step {saved.step:,}.")
        return _run(plan, arena, folder, view, history, interrupts, began, discard=False, base=saved.path)


def make_plan(
    config: RunConfig, numbers: Any, env: Env, resumed: int = 0, held: Mapping[str, Any] | None = None
) -> Plan:
    """Look at the environment and join the axes. `held` is what the card of a resumed run says about its levels."""
    parts = _make_parts(config, env, held) if is_level_set(env) else None
    spec = describe(env, config.backend, env_args(config)) if parts is None else parts.levels.describe()
    if numbers.scale_obs and spec.bounds is None:
        raise PasselError(
            f"--scale-obs needs an observation that is a vector with finite bounds, and {spec.id} does not say that it "
            "has them. Leave it out."
        )
    _check_filters(numbers, spec)
    _check_actions(config.algo, numbers, spec)
    threads = threads_per_worker(config.workers, spec.obs_shape, config.threads)
    plan = Plan(config, numbers, env, spec, threads, resumed, parts)
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
    if filters != FILTERS and not is_image(spec.obs_shape):
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
    *,
    discard: bool,
    base: Path | None = None,
) -> Run:
    config = plan.config
    plan.start(arena)
    placement = PLACEMENTS[config.place](plan, arena)
    facts = {"algo": config.algo, "sync": config.sync, "place": config.place, "workers": str(config.workers)}
    if plan.spec.protocol is not None:
        facts["protocol"] = str(plan.spec.protocol["name"])
    view.start(plan.spec.id, facts)
    view.message(f"Starting {plan.workers} {'worker' if plan.workers == 1 else 'workers'} ...")
    try:
        try:
            placement.start()
            interrupts.insist()
        except BaseException:
            # Nothing was learnt, so nothing is worth keeping: the disk is left as it was found.
            placement.stop()
            if discard:
                folder.close()
                shutil.rmtree(folder.path)
            raise
        interrupts.polite = True
        supervisor = Supervisor(plan, arena, placement, folder, view, history, interrupts, began, base)
        summary = supervisor.run()
    finally:
        view.stop()
    return Run(supervisor.path, summary, supervisor.shares(), supervisor.threshold)


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
    exact = plan.config.place == "inline" and plan.spec.exact_resume
    return {
        **machine_card(),
        "threads_per_worker": plan.threads,
        "start_method": "none" if plan.config.place == "inline" else "forkserver",
        "arena_mb": round(arena.nbytes / 1e6, 1),
        "determinism": "exact: the same seed gives the same weights, also across a resume"
        if exact
        else "seeded: the streams repeat, the order in which workers meet does not",
        "env": {
            **dataclasses.asdict(plan.spec),
            "obs_shape": list(plan.spec.obs_shape),
            "obs_dtype": np.dtype(plan.spec.obs_dtype).name,
            "envs_per_worker": plan.config.envs,
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
