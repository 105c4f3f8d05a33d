"""The search behind an algorithm's defaults: Optuna's, over several environments at once, by steps.

    python bench/search.py dqn --trials 40
    python bench/search.py ppo --trials 40 --envs CartPole Pendulum

A trial is one set of settings, trained on every environment of the search (bench/anywhere.py says which: the others are
for confirming), one worker in this process. Its value is the mean over environments of the normalized score, half of it
the last evaluation and half the mean of the curve: what learns soon counts, and what holds. Trials are kept in
bench/results/search_<algo>.log, which two of these commands may use at the same time, and which goes on where it
stopped. A trial that is far behind after some environments is pruned.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from anywhere import ENVS, made_of
from common import machine, parser, table, write

#: Random play, and what counts as good: scores of a well-tuned agent at such budgets.
SCALES: dict[str, tuple[float, float]] = {
    "CartPole": (22.0, 500.0),
    "Acrobot": (-500.0, -80.0),
    "LunarLander": (-180.0, 250.0),
    "Pendulum": (-1200.0, -170.0),
    "InvertedPendulum": (6.0, 1000.0),
    "MinAtar Breakout": (0.5, 10.0),
    "MinAtar Asterix": (0.5, 6.0),
    "Catch": (-0.6, 1.0),
}
#: Steps of a trial, where the study's budget would take too long to be searched with.
CUT = {
    **{"CartPole": 60_000, "Acrobot": 60_000, "LunarLander": 150_000, "InvertedPendulum": 60_000},
    **{"MinAtar Breakout": 100_000, "MinAtar Asterix": 100_000},
}


def suggest_dqn(trial: Any) -> dict[str, Any]:
    return {
        "lr": trial.suggest_float("lr", 1e-4, 5e-3, log=True),
        "batch": trial.suggest_categorical("batch", [32, 64, 128, 256]),
        "hidden": [trial.suggest_categorical("width", [64, 128, 256])] * 2,
        "layer_norm": "yes" if trial.suggest_categorical("layer_norm", [True, False]) else "no",
        "n_step": trial.suggest_int("n_step", 1, 6),
        "updates_per_step": trial.suggest_categorical("updates_per_step", [0.25, 0.5, 1.0]),
        "target_every": 1,
        "target_tau": trial.suggest_float("target_tau", 2e-3, 5e-2, log=True),
        "envs": trial.suggest_categorical("envs", [1, 4, 8, 16]),
        "epsilon_fraction": trial.suggest_float("epsilon_fraction", 0.05, 0.3),
        "epsilon_end": trial.suggest_categorical("epsilon_end", [0.01, 0.02, 0.05]),
        "gamma": trial.suggest_categorical("gamma", [0.98, 0.99, 0.995]),
        "lr_end": trial.suggest_categorical("lr_end", ["none", 1e-4]),
        "double": trial.suggest_categorical("double", [True, False]),
    }


def suggest_ppo(trial: Any) -> dict[str, Any]:
    envs, horizon = trial.suggest_categorical("rollout", ["4x256", "8x64", "8x128", "8x256", "16x64", "16x128"]).split(
        "x"
    )
    return {
        "envs": int(envs),
        "horizon": int(horizon),
        "batch": trial.suggest_categorical("batch", [32, 64, 128, 256]),
        "epochs": trial.suggest_categorical("epochs", [4, 10, 20]),
        "lr": trial.suggest_float("lr", 1e-4, 3e-3, log=True),
        "lr_end": trial.suggest_categorical("lr_end", ["none", 0.0]),
        "gamma": trial.suggest_categorical("gamma", [0.98, 0.99, 0.995]),
        "gae_lambda": trial.suggest_categorical("gae_lambda", [0.9, 0.95, 0.98]),
        "entropy": trial.suggest_categorical("entropy", [0.0, 0.001, 0.01]),
        "clip": trial.suggest_categorical("clip", [0.1, 0.2, 0.3]),
        "max_grad_norm": trial.suggest_categorical("max_grad_norm", [0.5, 2.0]),
    }


SUGGEST = {"dqn": suggest_dqn, "ppo": suggest_ppo}
#: Where the search begins: numbers that others use as defaults, and what is known from single environments.
_PPO: dict[str, Any] = {
    **{"rollout": "16x128", "batch": 64, "epochs": 10, "lr": 3e-4, "lr_end": "none", "gamma": 0.99, "gae_lambda": 0.95},
    **{"entropy": 0.0, "clip": 0.2, "max_grad_norm": 0.5},
}
_DQN: dict[str, Any] = {
    **{"lr": 1e-3, "batch": 128, "width": 128, "n_step": 3, "updates_per_step": 0.25, "target_tau": 1e-2, "envs": 8},
    **{
        "epsilon_fraction": 0.1,
        "epsilon_end": 0.02,
        "gamma": 0.99,
        "lr_end": "none",
        "double": True,
        "layer_norm": True,
    },
}
FIRST: dict[str, list[dict[str, Any]]] = {
    "ppo": [
        _PPO,
        {**_PPO, "rollout": "8x128", "lr": 1e-3, "lr_end": 0.0, "entropy": 0.001},
        {**_PPO, "rollout": "8x64", "batch": 128, "epochs": 20, "lr": 1e-3, "lr_end": 0.0, "gae_lambda": 0.9},
        {**_PPO, "lr": 1e-3, "lr_end": 0.0, "gamma": 0.995, "entropy": 0.01},
    ],
    "dqn": [
        _DQN,
        {**_DQN, "layer_norm": False},
        {**_DQN, "updates_per_step": 0.5, "envs": 4, "lr_end": 1e-4},
        {**_DQN, "updates_per_step": 1.0, "batch": 64, "envs": 4, "lr": 5e-4, "target_tau": 5e-3},
        {**_DQN, "width": 256, "lr": 5e-4, "updates_per_step": 0.5, "envs": 4},
    ],
}
#: Evaluations of a trial's run, and episodes of each.
LOOKS, EPISODES = 10, 5


def score(name: str, algo: str, settings: dict[str, Any], seed: int) -> float:
    """The normalized score of one run."""
    import passel
    from passel.run.folder import RunFolder

    env, steps = ENVS[name], min(ENVS[name][algo], CUT.get(name, 10**9))
    with tempfile.TemporaryDirectory(prefix="passel-search-") as folder:
        run = passel.train(
            env["env"] if ":" not in env["env"] else lambda: made_of(env["env"]),
            algo=algo,
            steps=steps,
            seed=seed,
            workers=1,
            sync="solo",
            place="inline",
            out=f"{folder}/run",
            until_solved=False,
            eval_every=steps // LOOKS,
            select_episodes=EPISODES,
            eval_episodes=0,
            tensorboard=False,
            quiet=True,
            **settings,
        )
        rows = RunFolder.open(run.path, lock=False).read_metrics()
    curve = list({row["eval_steps"]: row["eval_mean"] for row in rows if row.get("eval_steps")}.values())
    worst, best = SCALES[name]
    scaled = [min(max((mean - worst) / (best - worst), -0.2), 1.1) for mean in curve]
    return (scaled[-1] + sum(scaled) / len(scaled)) / 2


def main() -> None:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    made = parser(__doc__)
    made.add_argument("algo", choices=list(SUGGEST), help="Algorithm.")
    made.add_argument("--trials", type=int, default=40, help="Trials to add (default 40).")
    made.add_argument("--minutes", type=float, help="Begin no trial after this time.")
    made.add_argument("--seeds", type=int, default=1, help="Seeds of each trial (default 1).")
    made.add_argument(
        "--envs", nargs="+", choices=list(SCALES), default=list(SCALES), help="Environments of the search."
    )
    said = made.parse_args()
    names = [name for name in said.envs if said.algo in ENVS[name]]
    # The quickest first: what fails there need not be tried on the slow ones.
    names.sort(key=lambda name: min(ENVS[name][said.algo], CUT.get(name, 10**9)))

    def objective(trial: Any) -> float:
        import passel

        settings, scores = SUGGEST[said.algo](trial), []
        for place, name in enumerate(names):
            for seed in range(1, said.seeds + 1):
                try:
                    # Seeds of a search are far from those of a study.
                    scores.append(score(name, said.algo, settings, 5000 + seed))
                except passel.PasselError as error:  # it has diverged
                    trial.set_user_attr("failed", f"{name}: {error}")
                    scores.append(-0.2)
            trial.set_user_attr(name, round(sum(scores[-said.seeds :]) / said.seeds, 3))
            trial.report(sum(scores) / len(scores), place)
            if trial.should_prune():
                raise optuna.TrialPruned
        return sum(scores) / len(scores)

    said.out.mkdir(parents=True, exist_ok=True)
    log = Path(said.out / f"search_{said.algo}.log")
    study = optuna.create_study(
        study_name=said.algo,
        storage=JournalStorage(JournalFileBackend(str(log))),
        direction="maximize",
        load_if_exists=True,
        sampler=optuna.samplers.TPESampler(n_startup_trials=12, multivariate=True, constant_liar=True),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=8, n_warmup_steps=1),
    )
    for settings in FIRST[said.algo]:
        study.enqueue_trial(settings, skip_if_exists=True)
    card = machine()
    study.optimize(objective, n_trials=said.trials, timeout=said.minutes * 60 if said.minutes else None)
    ended = [trial for trial in study.trials if trial.value is not None and trial.state.name == "COMPLETE"]
    best = sorted(ended, key=lambda trial: -(trial.value or 0.0))[:10]
    rows = [
        [f"{trial.value:.3f}", *(str(trial.user_attrs.get(name, "")) for name in names), str(trial.params)]
        for trial in best
    ]
    text = table(["value", *names, "settings"], rows)
    facts = {"trials": len(study.trials), "complete": len(ended), "best": best[0].params if best else None}
    write(
        f"search_{said.algo}",
        f"Defaults of {said.algo.upper()}: the ten best of {len(study.trials)} trials",
        said.out,
        card,
        [text],
        facts,
    )


if __name__ == "__main__":
    main()
