"""Running normalization: one statistic for all workers, frozen within a rollout, in evaluations and in a policy."""

from __future__ import annotations

import shutil
import sys
import threading
import tomllib
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

import passel
from harness import newest
from passel import normalizer as normalizers
from passel.algos.dqn import DQN
from passel.algos.ppo import PPO
from passel.api import make_plan
from passel.arena import Arena, prefixed
from passel.maths.moments import Moments
from passel.normalizer import CLIP, PREFIX, Normalized, Normalizer, Statistics
from passel.place.board import Board
from passel.place.inline import InlineKit
from passel.place.normalization import WINDOW
from passel.place.plan import Plan
from passel.recipes.resolve import resolve_config
from passel.run import checkpoint
from passel.sync import SCHEMES
from passel.types import Array, EnvSpec, PasselError, Step
from small import new_arena, run_over, settings_for, small_plan

T, N, D, GAMMA = 5, 3, 2, 0.9
SPEC = EnvSpec("Some-v0", (D,), np.dtype(np.float32), 2)
BOTH = Normalized(obs=True, reward=True, obs_shape=(D,))
COUNTDOWN = "passel.testing.envs:passel/Countdown-v0"
CARTPOLE: dict[str, Any] = {"env": "CartPole-v1", "backend": "gymnasium", "algo": "ppo", "normalize": "obs,reward"}


def fresh(normalized: Normalized = BOTH, actors: int = 1) -> Arena:
    specs = prefixed(PREFIX, Statistics.specs(actors, normalized.width))
    for actor in range(actors):
        specs |= prefixed(f"{actor}", Normalizer.specs(normalized, T, N))
    return Arena(specs)


def over(arena: Arena, actor: int = 0, normalized: Normalized = BOTH) -> Normalizer:
    return Normalizer(arena.below(f"{actor}"), Statistics(arena.below(PREFIX)), actor, normalized, gamma=GAMMA)


class World:
    """N environments that end at random, in every way; some rows are no transition."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._last: Array = self._draw()

    def _draw(self) -> Array:
        return self._rng.normal([1e3, -5], [1e-1, 20], (N, D)).astype(np.float32)

    def look(self) -> Array:
        return self._last

    def step(self) -> Step:
        rng, next_obs = self._rng, self._draw()
        real = rng.random(N) > 0.15
        discount = np.where((rng.random(N) < 0.2) & real, 0, 1).astype(np.float32)
        truncated = (rng.random(N) < 0.2) & (discount > 0)
        reward = np.where(real, rng.normal(3, 40, N), 0).astype(np.float32)
        ended = truncated | (discount == 0)
        obs = np.where(ended[:, None], self._draw(), next_obs) if ended.any() else next_obs
        self._last = obs
        return Step(obs, next_obs, reward, discount, truncated, real)


class Oracle:
    """The same by loops over single rows, as Gymnasium's wrappers have it."""

    def __init__(self) -> None:
        self.rows: list[list[float]] = []
        self._returns = [0.0] * N

    def see(self, obs: Array, step: Step) -> None:
        for i in range(N):
            self._returns[i] = self._returns[i] * GAMMA + float(step.reward[i])
            if step.real[i]:
                self.rows.append([*map(float, obs[i]), self._returns[i]])
            if step.ended[i]:
                self._returns[i] = 0.0


def by_hand(obs: Array, rows: list[list[float]]) -> Array:
    seen = np.array(rows)[:, :D]
    found: Array = np.clip((obs - seen.mean(axis=0)) / np.sqrt(seen.var(axis=0) + 1e-8), -10, 10)
    return found


class TestOneActor:
    def test_normalizes_by_what_was_seen_before_the_rollout_began(self) -> None:
        arena = fresh()
        normalizer, world, oracle = over(arena), World(0), Oracle()
        for rollout in range(4):
            rows = list(oracle.rows)
            for _ in range(T):
                raw = world.look()
                acted_on = normalizer.observe(raw)
                step = world.step()
                _, found = normalizer.step(step)
                oracle.see(raw, step)
                if not rollout:
                    np.testing.assert_array_equal(acted_on, np.clip(raw, -CLIP, CLIP))
                    np.testing.assert_array_equal(found.reward, np.clip(step.reward, -CLIP, CLIP))
                    continue
                std = np.sqrt(np.array(rows)[:, D].var() + 1e-8)
                np.testing.assert_allclose(acted_on, by_hand(raw, rows), rtol=1e-5, atol=1e-5)
                np.testing.assert_allclose(found.obs, by_hand(step.obs, rows), rtol=1e-5, atol=1e-5)
                np.testing.assert_allclose(found.next_obs, by_hand(step.next_obs, rows), rtol=1e-5, atol=1e-5)
                np.testing.assert_allclose(found.reward, np.clip(step.reward / std, -10, 10), rtol=1e-5)
                assert {array.dtype for array in (acted_on, found.obs, found.next_obs, found.reward)} == {
                    np.dtype(np.float32)
                }
        merged, rows_seen = Statistics(arena.below(PREFIX)).merged(), np.array(oracle.rows)
        assert merged.count == len(rows_seen) < 4 * T * N
        np.testing.assert_allclose(merged.mean, rows_seen.mean(axis=0), rtol=1e-9)
        np.testing.assert_allclose(merged.var, rows_seen.var(axis=0), rtol=1e-9)

    def test_passes_on_all_else_and_changes_nothing_in_place(self) -> None:
        normalizer, world = over(fresh()), World(1)
        for _ in range(2 * T):
            normalizer.observe(world.look())
            step = world.step()
            before = {name: np.array(array) for name, array in vars(step).items()}
            _, found = normalizer.step(step)
            assert found.discount is step.discount
            assert found.truncated is step.truncated
            assert found.real is step.real
            assert found.episodes is step.episodes
            assert all(np.array_equal(before[name], array) for name, array in vars(step).items())

    def test_observations_alone_and_rewards_alone(self) -> None:
        seen = {}
        for choice in ("obs", "reward", "obs,reward"):
            normalized = Normalized.by(choice, SPEC)
            assert normalized is not None
            normalizer, world = over(fresh(normalized), 0, normalized), World(2)
            for _ in range(3 * T):
                obs = normalizer.observe(world.look())
                step = world.step()
                seen[choice] = (obs, normalizer.step(step)[1], step)
        obs, rewards, both = (seen[choice] for choice in ("obs", "reward", "obs,reward"))
        np.testing.assert_allclose(obs[0], both[0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(obs[1].next_obs, both[1].next_obs, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(obs[1].reward, obs[2].reward)
        np.testing.assert_allclose(rewards[1].reward, both[1].reward, rtol=1e-5)
        assert rewards[1].next_obs is rewards[2].next_obs
        assert Normalized.by("none", SPEC) is None

    @pytest.mark.parametrize("cut", range(1, 3 * T))
    def test_goes_on_to_the_bit_where_its_tensors_were(self, cut: int) -> None:
        def play(arena: Arena, world: World, steps: int) -> list[bytes]:
            normalizer, found = over(arena), []
            for _ in range(steps):
                obs = normalizer.observe(world.look())
                _, step = normalizer.step(world.step())
                found += [obs.tobytes(), step.next_obs.tobytes(), step.reward.tobytes()]
            return found

        whole = play(fresh(), World(3), 3 * T)
        arena, again, world = fresh(), fresh(), World(3)
        first = play(arena, world, cut)
        again.load(arena.kept())
        assert first + play(again, world, 3 * T - cut) == whole

    def test_episodes_that_begin_anew_leave_the_rollout_and_its_returns(self) -> None:
        arena, world = fresh(), World(4)
        normalizer = over(arena)
        for _ in range(T + 2):
            normalizer.observe(world.look())
            normalizer.step(world.step())
        counted = Statistics(arena.below(PREFIX)).merged().count
        Normalizer.interrupt(arena.below("0"))
        assert not arena["0/returns"].any()
        again = over(arena)
        for _ in range(T):
            again.observe(world.look())
            again.step(world.step())
        assert counted < Statistics(arena.below(PREFIX)).merged().count <= counted + T * N

    def test_the_largest_float_is_normalized_without_a_warning(self) -> None:
        arena, largest = fresh(), np.float32(np.finfo(np.float32).max)
        normalizer = over(arena)
        for t in range(2 * T):
            obs = np.full((N, D), largest if t % 2 else -largest, np.float32)
            shown = normalizer.observe(obs)
            step = Step(obs, obs, np.full(N, largest), np.ones(N, np.float32), np.zeros(N, bool), np.ones(N, bool))
            assert np.isfinite(shown).all()
            assert np.isfinite(normalizer.step(step)[1].reward).all()
        assert np.isfinite(arena["normalizer/moments"].numpy()).all()


class TestAllActors:
    def test_the_merged_statistic_is_that_of_the_joined_data(self) -> None:
        arena, oracles = fresh(actors=3), []
        for actor in range(3):
            normalizer, world, oracle = over(arena, actor), World(actor), Oracle()
            for _ in range((actor + 1) * T):
                raw = world.look()
                normalizer.observe(raw)
                step = world.step()
                normalizer.step(step)
                oracle.see(raw, step)
            oracles.append(oracle)
        rows = np.array([row for oracle in oracles for row in oracle.rows])
        merged = Statistics(arena.below(PREFIX)).merged()
        assert merged.count == len(rows)
        np.testing.assert_allclose(merged.mean, rows.mean(axis=0), rtol=1e-9)
        np.testing.assert_allclose(merged.var, rows.var(axis=0), rtol=1e-9)

    def test_of_the_newest_two_snapshots_the_one_that_is_asked_for(self) -> None:
        statistics = Statistics(fresh(actors=2).below(PREFIX))
        for number in range(1, 6):
            statistics.publish(1, Moments(float(number), np.full(D + 1, number), np.full(D + 1, number)))
        assert [statistics.of(1, number).count for number in (None, 5, 4, 3, 6)] == [5, 5, 4, 5, 5]
        assert statistics.of(0).count == 0
        assert statistics.merged(4).count == 4

    def test_no_reader_ever_sees_half_a_snapshot(self) -> None:
        """The writer publishes snapshots of which all numbers are equal, as fast as it can, on another thread."""
        width = 200
        tensors = {name: torch.zeros(spec.shape, dtype=spec.dtype) for name, spec in Statistics.specs(1, width).items()}
        writer, reader, over_now = Statistics(tensors), Statistics(tensors), threading.Event()

        def write() -> None:
            number = 0.0
            while not over_now.is_set():
                number += 1
                writer.publish(0, Moments(number, np.full(width, number), np.full(width, number)))

        before, thread = sys.getswitchinterval(), threading.Thread(target=write)
        sys.setswitchinterval(1e-6)
        thread.start()
        try:
            for round_ in range(3_000):
                wanted = reader.number(0) - 1 if round_ % 2 else None
                found = reader.of(0, wanted)
                assert (found.mean == found.count).all()
                assert (found.m2 == found.count).all()
        finally:
            over_now.set()
            thread.join()
            sys.setswitchinterval(before)
        assert writer.number(0) > 10

    def test_a_copy_that_was_overwritten_meanwhile_is_made_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Between the look at the number and the copy, the writer publishes two more and has begun a third."""
        arena = fresh()
        statistics, moments = Statistics(arena.below(PREFIX)), arena["normalizer/moments"]
        statistics.publish(0, Moments(1.0, np.ones(D + 1), np.ones(D + 1)))
        calls: list[int] = []

        def meanwhile() -> None:
            calls.append(1)
            if len(calls) == 1:
                for number in (2.0, 3.0):
                    statistics.publish(0, Moments(number, np.full(D + 1, number), np.full(D + 1, number)))
                moments[0, 4 % 3, 0] = 4.0  # in the place of snapshot 1, and its mean is still to come

        monkeypatch.setattr(normalizers, "fence", meanwhile)
        found = statistics.of(0)
        assert (found.count, found.mean.tolist(), found.m2.tolist()) == (3.0, [3.0] * (D + 1), [3.0] * (D + 1))

    def test_a_fence_stands_between_the_data_and_its_number(self, monkeypatch: pytest.MonkeyPatch) -> None:
        arena, seen = fresh(), []
        statistics = Statistics(arena.below(PREFIX))
        moments, number = arena["normalizer/moments"], arena["normalizer/number"]
        monkeypatch.setattr(normalizers, "fence", lambda: seen.append((float(moments[0, 1, 0]), int(number[0]))))
        statistics.publish(0, Moments(7.0, np.zeros(D + 1), np.zeros(D + 1)))
        assert seen == [(7.0, 0)], "the data is there, and its number is not"
        statistics.of(0)
        assert len(seen) == 3, "before the copy, and after it"


def watched(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> tuple[Arena, dict[int, list[Any]], dict[int, list[Any]]]:
    """An inline run of the plan; of each actor, the statistics that it froze, and what it saw: (obs, step)."""
    frozen: dict[int, list[Any]] = {}
    seen: dict[int, list[Any]] = {}
    freeze, step_of = Normalizer._freeze, Normalizer.step

    def freezing(self: Normalizer) -> None:
        freeze(self)
        frozen.setdefault(self._actor, []).append(self._frozen.copy())

    def seeing(self: Normalizer, step: Step) -> Any:
        seen.setdefault(self._actor, []).append((self._raw, step))
        return step_of(self, step)

    monkeypatch.setattr(Normalizer, "_freeze", freezing)
    monkeypatch.setattr(Normalizer, "step", seeing)
    arena = new_arena(plan)
    run_over(plan, arena)
    return arena, frozen, seen


def joined(seen: dict[int, list[Any]], steps: int) -> Array:
    """The observations of the first `steps` steps of all actors."""
    return np.concatenate([obs[step.real] for steps_of in seen.values() for obs, step in steps_of[:steps]])


class TestInARun:
    def test_under_allreduce_all_workers_normalize_as_one_on_the_joined_data(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plan = small_plan(**CARTPOLE, sync="allreduce", workers=3, horizon=8, envs=2, steps=500)
        _, frozen, seen = watched(plan, monkeypatch)
        rollouts = min(map(len, frozen.values()))
        assert rollouts > 5
        for number in range(rollouts):
            first, *others = (frozen[actor][number] for actor in range(3))
            assert all(np.array_equal(first, other) for other in others), "to the bit"
            if number:
                rows = joined(seen, 8 * number).astype(np.float64)
                np.testing.assert_allclose(first[0, :4], rows.mean(axis=0), rtol=1e-9)
                np.testing.assert_allclose(first[1, :4], np.sqrt(rows.var(axis=0) + 1e-8), rtol=1e-9)

    @pytest.mark.parametrize(
        ("sync", "algo"),
        [
            *((sync, algo) for sync in SCHEMES for algo in ("ppo", "a3c", "dqn")),
            *((sync, "impala") for sync in ("solo", "allreduce")),
        ],
    )
    def test_under_every_scheme_there_is_one_statistic(
        self, sync: str, algo: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        team: dict[str, Any] = {"workers": 1 if sync == "solo" else 2}
        if algo == "impala":
            team = {"workers": 3 if sync == "solo" else 4, "learners": 1 if sync == "solo" else 2}
        every = WINDOW if algo == "dqn" else 8
        shape = {} if algo == "dqn" else {"horizon": 8}
        plan = small_plan(**{**CARTPOLE, "algo": algo}, sync=sync, **team, **shape, envs=2, steps=300)
        arena, frozen, seen = watched(plan, monkeypatch)
        assert Board(arena.below("board")).column("updates").sum() > 5
        merged = Statistics(arena.below(PREFIX)).merged()
        whole = {actor: steps[: len(steps) // every * every] for actor, steps in seen.items()}
        rows = joined(whole, 10_000)
        assert merged.count == len(rows)
        np.testing.assert_allclose(merged.mean[:4], rows.mean(axis=0, dtype=np.float64), rtol=1e-9)
        assert plan.normalized is not None
        scaling = plan.normalized.scaling(merged)
        assert scaling is not None
        np.testing.assert_array_equal(scaling.mean, merged.mean[:4])
        for actor, steps in seen.items():
            assert len(frozen[actor]) == -(-len(steps) // every), "once a rollout"

    @pytest.mark.parametrize("shared", ["no", "yes"])
    def test_the_ratio_is_1_in_the_first_epoch_and_the_rollout_holds_what_was_acted_on(
        self, shared: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A learning rate of nearly nothing: stored and recomputed log-probabilities are of the same observations."""
        plan = small_plan(**CARTPOLE, sync="solo", workers=1, horizon=16, envs=2, steps=200, lr=1e-30, shared=shared)
        ratios: list[Array] = []
        lesson = PPO.lesson

        def watch(self: PPO, logits: Any, batch: Any, progress: float) -> Any:
            ratios.append(np.exp(self._head(logits).logp(batch.action) - batch.logp))
            return lesson(self, logits, batch, progress)

        acted: list[Array] = []
        act = PPO.act
        monkeypatch.setattr(PPO, "lesson", watch)
        monkeypatch.setattr(PPO, "act", lambda self, obs, *rest: acted.append(obs) or act(self, obs, *rest))
        arena = new_arena(plan)
        run_over(plan, arena)
        assert len(ratios) > 50
        assert np.abs(np.concatenate(ratios) - 1).max() < 1e-5
        kept, filled = arena["worker/0/rollout/obs"].numpy(), int(arena["worker/0/rollout/counts"][0])
        assert filled == int(arena["worker/0/normalizer/filled"]) > 0
        np.testing.assert_array_equal(kept[:filled], np.stack(acted[-filled:]))
        assert np.abs(kept[:filled]).max() > 1, "they are normalized: a position of the cart is not so large"

    def test_a_replay_memory_holds_what_is_true_and_batches_are_normalized(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Single steps of CartPole pay 1; what acts and what learns sees the same scale."""
        settings = {**CARTPOLE, "algo": "dqn", "sync": "solo", "workers": 1, "steps": 300, "n_step": 1}
        plan = small_plan(**settings)
        batches: list[Any] = []
        loss = DQN.loss
        monkeypatch.setattr(DQN, "loss", lambda self, batch, progress=0.0: batches.append(batch) or loss(self, batch))
        arena, frozen, seen = watched(plan, monkeypatch)
        true = {obs.tobytes() for obs_of, _ in seen[0] for obs in obs_of}
        kept = arena["memory/0/rows"].numpy()[0, : int(arena["memory/0/committed"]), :4]
        assert len(kept) > 200
        assert {obs.tobytes() for obs in kept} <= true
        assert len(batches) > 10
        used = frozen[0][-1]
        back = batches[-1].obs * used[1, :4] + used[0, :4]
        near = [np.abs(kept - obs).max(axis=1).min() for obs in back]
        assert max(near) < 1e-5
        np.testing.assert_allclose(batches[-1].reward, 1 / used[1, 4], rtol=1e-6)

    def test_in_processes_as_inline(self, tmp_path: Path) -> None:
        settings = settings_for(**CARTPOLE, sync="hogwild", workers=2, horizon=8, envs=2, place="processes")
        run = passel.train(**settings, out=str(tmp_path / "run"), until_solved=False)
        moments = newest(run.path).groups["parameters"]["normalizer/moments"]
        numbers = newest(run.path).groups["parameters"]["normalizer/number"]
        assert (numbers > 0).all()
        assert float(sum(moments[rank, number % 3, 0] for rank, number in enumerate(numbers))) == 16 * numbers.sum()
        assert passel.load(run.path).scaling is not None

    @pytest.mark.parametrize("algo", ["ppo", "impala"])
    def test_scores_are_true(self, algo: str, tmp_path: Path) -> None:
        """1 + 2 + 3 + 4 + 5, in every episode, whatever is learnt from."""
        settings = settings_for(algo=algo, env=COUNTDOWN, sync="solo", workers=1, normalize="reward")
        summary = passel.train(**settings, out=str(tmp_path / "run")).summary
        assert summary.return_mean_100 == 15
        assert summary.eval is not None
        assert (summary.eval.mean, summary.eval.std) == (15, 0)

    def test_off_is_off(self) -> None:
        plan = small_plan(algo="ppo", sync="solo", workers=1)
        assert plan.normalized is None
        arena = new_arena(plan)
        assert not any(PREFIX in name for name in arena)
        worker = plan.build_worker(arena, plan.links(InlineKit()), 0)
        assert worker.role._actor._normalizer is None  # type: ignore[attr-defined]
        worker.close()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> passel.Run:
    """A run on CartPole, which `auto` normalizes."""
    settings = settings_for(algo="ppo", env="CartPole-v1", sync="allreduce", workers=2, horizon=16, steps=1_000)
    path = tmp_path_factory.mktemp("runs") / "run"
    return passel.train(**{**settings, "backend": "gymnasium", "until_solved": False}, out=str(path))


def spread(count: int) -> Array:
    """Observations of a pole that has begun to fall."""
    return np.random.default_rng(0).normal(0, [0.5, 1, 0.1, 1], (count, 4)).astype(np.float32)


class TestAPolicy:
    def test_normalizes_as_the_run_did_in_the_end(self, run: passel.Run) -> None:
        policy = passel.load(run.path)
        moments = Statistics(_below(newest(run.path))).merged()
        assert policy.scaling is not None
        np.testing.assert_array_equal(policy.scaling.mean, moments.mean[:4])
        np.testing.assert_array_equal(policy.scaling.std, moments.std[:4])
        assert moments.count >= 900
        obs = spread(200)
        by_network = policy._algorithm.act_greedily(policy.scaling(obs))
        np.testing.assert_array_equal(policy.act(obs), by_network)
        assert [policy.act(row) for row in obs[:20]] == by_network[:20].tolist()
        assert (policy._algorithm.act_greedily(obs) != by_network).any(), "it matters here"

    def test_is_the_one_that_the_run_evaluated(self, run: passel.Run) -> None:
        """The evaluation of the run, again: the same seed, the same policy, the same episodes."""
        from passel.evaluation import play, summarise
        from passel.streams import derive

        config = tomllib.loads((run.path / "config.toml").read_text())
        seed = derive(config["seed"], "evaluation", run.summary.steps)
        again = summarise(play(passel.load(run.path), "CartPole-v1", config["eval_episodes"], seed))
        assert run.summary.eval is not None
        assert (again.mean, again.std) == (run.summary.eval.mean, run.summary.eval.std)

    def test_is_not_changed_by_playing(self, run: passel.Run) -> None:
        policy = passel.load(run.path)
        assert policy.scaling is not None
        before = policy.scaling.mean.copy(), policy.scaling.std.copy()
        files = {path: path.read_bytes() for path in (run.path / "checkpoints").rglob("*") if path.is_file()}
        policy.act(1e3 * spread(100))
        passel.evaluate(run.path, episodes=2)
        np.testing.assert_array_equal(policy.scaling.mean, before[0])
        np.testing.assert_array_equal(policy.scaling.std, before[1])
        assert {path: path.read_bytes() for path in files} == files

    def test_of_a_run_that_normalizes_nothing_has_no_scaling(self, tmp_path: Path) -> None:
        settings = settings_for(algo="ppo", env="CartPole-v1", sync="solo", workers=1, normalize="none")
        path = passel.train(**settings, out=str(tmp_path / "run")).path
        assert passel.load(path).scaling is None
        old = Path(__file__).parent / "fixtures" / "runs-0.1" / "ppo"
        assert tomllib.loads((old / "config.toml").read_text())["env"] == "CartPole-v1", "which auto would normalize"
        assert passel.load(old).scaling is None


def _below(found: checkpoint.Checkpoint) -> dict[str, torch.Tensor]:
    start = f"{PREFIX}/"
    return {name.removeprefix(start): t for name, t in found.groups["parameters"].items() if name.startswith(start)}


class TestFromAnotherRun:
    def test_the_statistics_come_with_the_weights(self, run: passel.Run, tmp_path: Path) -> None:
        """A learning rate of nearly nothing: the policy is the same, and its statistic goes on from the other's."""
        settings = {"place": "inline", "backend": "gymnasium", "workers": 1, "tensorboard": False, "quiet": True}
        more = passel.train(
            "CartPole-v1", start_from=str(run.path), steps=64, lr=1e-30, envs=2, eval_episodes=2, **settings,
            out=str(tmp_path / "more"),
        )  # fmt: skip
        old, new = (Statistics(_below(newest(path))) for path in (run.path, more.path))
        assert new.merged().count == old.merged().count + 64
        assert tomllib.loads((more.path / "config.toml").read_text())["normalize"] == "obs,reward"
        one, other = passel.load(run.path).scaling, passel.load(more.path).scaling
        assert one is not None
        assert other is not None
        np.testing.assert_allclose(other.mean, one.mean, atol=0.2 * one.std.max())

    def test_weights_for_normalized_observations_are_not_used_on_others(self, run: passel.Run, tmp_path: Path) -> None:
        with pytest.raises(PasselError, match="they are for --normalize obs,reward, and CartPole-v1 has none here"):
            passel.train(
                "CartPole-v1", start_from=str(run.path), normalize="none", place="inline", steps=64, quiet=True,
                out=str(tmp_path / "other"),
            )  # fmt: skip
        assert not (tmp_path / "other").exists()


def spoiled(run: Path, to: Path, change: Any) -> Path:
    """A copy of a run whose newest checkpoint has other statistics."""
    shutil.copytree(run, to)
    found = newest(to)
    groups = {name: dict(group) for name, group in found.groups.items()}
    change(groups["parameters"])
    checkpoint.save(to, found.step + 1, groups, found.meta)
    return to


def _put(name: str, value: Any) -> Any:
    return lambda group: group.__setitem__(f"{PREFIX}/{name}", value(group[f"{PREFIX}/{name}"]))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_put("moments", lambda t: t * float("nan")), "are no moments of anything"),
        (_put("moments", lambda t: t * float("inf")), "are no moments of anything"),
        (_put("moments", lambda t: -t.abs()), "are no moments of anything"),
        (_put("number", lambda t: -t), "are no moments of anything"),
        (_put("moments", lambda t: t[:, :, :-2].contiguous()), r"normalizer/moments is torch.float64 \(2, 3, 9\)"),
        (_put("moments", lambda t: t.float()), r"normalizer/moments is torch.float32"),
        (_put("number", lambda t: t[:0]), "normalizer/number is"),
        (_put("number", lambda t: t[None]), "normalizer/number is"),
        (lambda group: group.pop(f"{PREFIX}/moments"), "it has no statistics"),
    ],
)
def test_statistics_that_are_none_are_refused(change: Any, words: str, run: passel.Run, tmp_path: Path) -> None:
    path = spoiled(run.path, tmp_path / "spoiled", change)
    for use in (passel.load, lambda path: passel.resume(path, steps=5_000, quiet=True)):
        with pytest.raises(PasselError, match=words):
            use(path)


class Plain(gym.Env[Any, Any]):
    """An environment with the space that it is given."""

    def __init__(self, space: Box) -> None:
        self.observation_space, self.action_space = space, Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self.observation_space.sample() * 0, {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample() * 0, 0.0, False, True, {}


def chosen(env: Any, **settings: Any) -> str:
    config, numbers = resolve_config({"env": env if isinstance(env, str) else "Plain", "place": "inline", **settings})
    return make_plan(config, numbers, env).config.normalize


UNBOUNDED = Box(-np.inf, np.inf, (3,), np.float32)
BYTES = Box(0, 255, (8,), np.uint8)
PLANES = Box(-np.inf, np.inf, (3, 64, 64), np.float32)


class TestWhatIsNormalized:
    @pytest.mark.parametrize(
        ("env", "settings", "choice"),
        [
            ("CartPole-v1", {"algo": "ppo"}, "obs,reward"),
            ("CartPole-v1", {"algo": "ppo", "backend": "gymnasium"}, "obs,reward"),
            ("CartPole-v1", {"algo": "ppo", "normalize": "obs"}, "obs"),
            ("CartPole-v1", {"algo": "ppo", "normalize": "none"}, "none"),
            ("CartPole-v1", {"algo": "a3c"}, "none"),
            ("CartPole-v1", {"algo": "a3c", "normalize": "obs,reward"}, "obs,reward"),
            ("CartPole-v1", {"algo": "impala"}, "none"),
            ("CartPole-v1", {"algo": "dqn"}, "none"),
            ("LunarLander-v3", {"algo": "ppo", "backend": "gymnasium"}, "none"),
            ("Pendulum-v1", {"algo": "ppo"}, "none"),
            ("Pendulum-v1", {"algo": "ppo", "normalize": "reward"}, "reward"),
            (lambda: Plain(UNBOUNDED), {"algo": "ppo"}, "obs,reward"),
            (lambda: Plain(BYTES), {"algo": "ppo"}, "none"),
            (lambda: Plain(PLANES), {"algo": "ppo"}, "none"),
            (lambda: Plain(PLANES), {"algo": "ppo", "normalize": "reward"}, "reward"),
        ],
    )
    def test_auto_is_for_vectors_without_bounds(self, env: Any, settings: dict[str, Any], choice: str) -> None:
        assert chosen(env, **settings) == choice

    @pytest.mark.parametrize(
        ("env", "settings", "words"),
        [
            (lambda: Plain(BYTES), {}, "needs observations that are vectors of floats, .* are of type uint8"),
            (lambda: Plain(PLANES), {}, "and those of .* are images. Use --normalize reward, or leave it out"),
            ("Pendulum-v1", {"scale_obs": True}, "--scale-obs and --normalize obs both scale observations"),
        ],
    )
    def test_what_an_environment_cannot_have(self, env: Any, settings: dict[str, Any], words: str) -> None:
        with pytest.raises(PasselError, match=words):
            chosen(env, algo="ppo", normalize="obs", **settings)

    @pytest.mark.parametrize("choice", ["obs", "reward", "obs,reward"])
    @pytest.mark.parametrize("algo", ["apex", "awr", "dyna"])
    def test_what_an_algorithm_cannot_have(self, algo: str, choice: str) -> None:
        with pytest.raises(PasselError, match=rf"--normalize {choice} is for rollouts .* and {algo} has neither"):
            resolve_config({"algo": algo, "env": "CartPole-v1", "normalize": choice})

    def test_a_choice_that_is_none_is_named(self) -> None:
        with pytest.raises(PasselError, match="normalize is 'rewards', and must be one of auto, none, obs, reward"):
            resolve_config({"algo": "ppo", "normalize": "rewards"})

    def test_a_run_writes_down_what_auto_stood_for(self, run: passel.Run) -> None:
        assert tomllib.loads((run.path / "config.toml").read_text())["normalize"] == "obs,reward"
