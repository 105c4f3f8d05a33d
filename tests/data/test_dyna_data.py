"""The trail of real steps, the memory of imagined ones, where dreams start, and the throttle between the two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import passel
from passel.arena import Spec
from passel.data.dreams import LEAST_KEPT, Dreams
from passel.data.experience import ReplayExperience
from passel.data.imagined import Imagined
from passel.data.limiter import Limiter
from passel.data.nstep import NStep
from passel.data.replay import Replay
from passel.data.running_scale import RunningScale
from passel.data.starts import Explore, Sweeping, Uniform
from passel.data.sweeping import most_urgent, passed_back
from passel.data.trail import Trail
from passel.data.two_memories import ModelLessons, TwoMemories, Waking
from passel.types import Batch, Floats, Ints, Step, Transitions, Vision

OBS = (2,)


def tensors(specs: dict[str, Spec]) -> dict[str, Tensor]:
    return {name: torch.zeros(spec.shape, dtype=spec.dtype) for name, spec in specs.items()}


def make_trail(capacity: int = 50, envs: int = 1) -> Trail:
    return Trail(tensors(Trail.trail_specs(capacity, OBS)), torch.zeros(envs, dtype=torch.int64))


def step_of(obs: Floats, *, ended: Ints | None = None, truncated: bool = False, real: Ints | None = None) -> Step:
    n = len(obs)
    over = np.zeros(n, np.bool_) if ended is None else np.asarray(ended, np.bool_)
    return Step(
        obs=obs,
        next_obs=obs + 1,
        reward=obs[:, 0].copy(),
        discount=np.where(over & (not truncated), 0, 1).astype(np.float32),
        truncated=over & truncated,
        real=np.ones(n, np.bool_) if real is None else np.asarray(real, np.bool_),
    )


def walk(trail: Trail, length: int, *, start: int = 0, end: bool = True) -> None:
    """One environment's episode, whose states are numbered."""
    for number in range(start, start + length):
        obs = np.full((1, 2), number, np.float32)
        trail.follow(obs, np.array([number % 3]), step_of(obs, ended=np.array([end and number == start + length - 1])))


class TestTrail:
    def test_every_step_knows_the_one_before(self) -> None:
        """Against a list, over random episodes of three environments that end, are cut, or waste a step; with wraps."""
        rng = np.random.default_rng(0)
        trail, written, last = make_trail(capacity=40, envs=3), list[int](), [-1, -1, -1]
        for number in range(60):
            real, ended = rng.random(3) < 0.9, rng.random(3) < 0.2
            obs = np.column_stack([np.arange(3), np.full(3, number)]).astype(np.float32)
            trail.follow(obs, rng.integers(0, 2, 3), step_of(obs, ended=ended, truncated=number % 2 == 0, real=real))
            for env in np.flatnonzero(real):
                last[env], before = (-1 if ended[env] else len(written)), last[env]
                written.append(before)
        low, high = trail.window()
        assert (low, high) == (len(written) - 40, len(written))
        counts = np.arange(low, high)
        expected = [written[count] if written[count] >= low else -1 for count in counts]
        assert trail.before(counts).tolist() == expected
        batch, found = trail.steps(counts)
        assert (found == counts).all()
        led = np.array(expected) >= 0
        previous, _ = trail.steps(np.array(expected)[led])
        assert (previous.obs[:, 0] == batch.obs[led, 0]).all(), "the step before is of the same environment"
        assert (previous.obs[:, 1] < batch.obs[led, 1]).all()

    def test_a_step_is_kept_as_it_was(self) -> None:
        trail = make_trail()
        walk(trail, 5)
        batch, _ = trail.steps(np.arange(5))
        assert batch.obs[:, 0].tolist() == [0, 1, 2, 3, 4]
        assert (batch.next_obs == batch.obs + 1).all()
        assert batch.discount.tolist() == [1, 1, 1, 1, 0]
        assert batch.action.tolist() == [0, 1, 2, 0, 1]

    def test_steps_that_are_overwritten_again_and_again_are_looked_at_each_time(self) -> None:
        """The writer goes on while a dreamer reads: three steps during the first gather, three during the second."""
        trail = make_trail(capacity=10)
        walk(trail, 10, end=False)
        gather, number = trail._ring.gather, [10]

        def late(slots: Ints) -> Any:
            if number[0] < 16:
                walk(trail, 3, start=number[0], end=False)
                number[0] += 3
            return gather(slots)

        trail._ring.gather = late  # type: ignore[method-assign]
        batch, counts = trail.steps(np.arange(10))
        assert counts.tolist() == [6, 7, 8, 9]
        assert batch.obs[:, 0].tolist() == counts.tolist(), "each count with its own step"

    def test_over_the_same_tensors_it_goes_on(self) -> None:
        kept, last = tensors(Trail.trail_specs(20, OBS)), torch.zeros(1, dtype=torch.int64)
        walk(Trail(kept, last), 3, end=False)
        again = Trail(kept, last)
        walk(again, 2, start=3)
        assert again.before(np.arange(5)).tolist() == [-1, 0, 1, 2, 3]


class TestScale:
    def test_means_and_spreads_are_numpys(self) -> None:
        rng = np.random.default_rng(0)
        scale, rows = RunningScale(tensors(RunningScale.specs(2))), []
        for _ in range(30):
            obs = rng.normal(5, 3, (4, 2)).astype(np.float32)
            step = step_of(obs, real=rng.random(4) < 0.8)
            step.next_obs[:] = obs * 2
            scale.add(obs, step)
            rows.append(np.column_stack([obs, step.next_obs - obs, step.reward])[step.real])
        mean, std = scale.read()
        np.testing.assert_allclose(mean, np.concatenate(rows).mean(axis=0), rtol=1e-5)
        np.testing.assert_allclose(std, np.concatenate(rows).std(axis=0), rtol=1e-4)

    def test_what_stands_still_has_a_spread_of_one(self) -> None:
        scale = RunningScale(tensors(RunningScale.specs(2)))
        for number in range(50):
            obs = np.array([[0.1, number]], np.float32)
            scale.add(obs, step_of(obs))
        assert scale.read()[1][[0, 2, 3]].tolist() == [1, 1, 1], "a constant, and two changes of always 1"


def rows(values: list[int]) -> Transitions:
    obs = np.repeat(np.array(values, np.float32)[:, None], 2, axis=1)
    return Transitions(obs, np.zeros(len(obs), np.int64), obs[:, 0], np.full(len(obs), 0.5, np.float32), obs)


class TestImagined:
    def memory(
        self, dreamers: int = 1, age: int = 3, capacity: int = 40
    ) -> tuple[list[Imagined], Callable[[int], None]]:
        version = [0]
        kept = tensors(Imagined.dated_specs(capacity, OBS, dreamers))
        made = [Imagined(kept, writer, lambda: version[0], age) for writer in range(dreamers)]

        def set_version(number: int) -> None:
            version[0] = number

        return made, set_version

    @pytest.mark.parametrize("dreamers", [1, 3])
    def test_what_is_older_than_k_versions_is_never_drawn(self, dreamers: int) -> None:
        memories, set_version = self.memory(dreamers)
        rng, made = np.random.default_rng(0), list[tuple[int, int]]()
        for version in range(0, 30, 2):
            set_version(version)
            for writer, memory in enumerate(memories):
                values = [100 * version + 10 * writer + k for k in range(int(rng.integers(0, 3)))]
                memory.remember(rows(values), version)
                made += [(value, version) for value in values]
            set_version(version + 1)
            young = {value for value, born in made if born >= version + 1 - 3}
            assert memories[0].fresh_rows() == len(young)
            if young:
                drawn = set(memories[-1].sample(200, rng).obs[:, 0].astype(int).tolist())
                assert drawn == young, "all that is young, and nothing else"

    def test_when_all_is_too_old_nothing_can_be_drawn(self) -> None:
        (memory,), set_version = self.memory()
        memory.remember(rows([1, 2]), 0)
        set_version(3)
        assert memory.fresh_rows() == 2
        set_version(4)
        assert memory.fresh_rows() == 0
        with pytest.raises(passel.PasselError, match="too old"):
            memory.sample(1, np.random.default_rng(0))

    def test_what_was_enough_is_enough_though_the_models_learn_before_it_is_drawn(self) -> None:
        (memory,), set_version = self.memory()
        memory.remember(rows([1, 2]), 0)
        set_version(3)
        assert memory.fresh_rows() == 2
        set_version(4)
        assert set(memory.sample(50, np.random.default_rng(0)).obs[:, 0].tolist()) == {1, 2}
        with pytest.raises(passel.PasselError, match="too old"):
            memory.sample(1, np.random.default_rng(0))

    def test_what_is_overwritten_while_it_is_read_is_drawn_anew_by_the_same_moment(self) -> None:
        """A dreamer writes and the models learn during the gather: by the newest version all would be too old."""
        (memory,), set_version = self.memory(capacity=4)
        memory.remember(rows([1, 2, 3, 4]), 0)
        set_version(3)
        gather, torn = memory._ring.gather, [True]

        def slow(slots: Ints) -> Any:
            fetched = gather(slots)
            if torn[0]:
                torn[0] = False
                memory.remember(rows([5, 6]), 0)
                set_version(9)
            return fetched

        memory._ring.gather = slow  # type: ignore[method-assign]
        memory.fresh_rows()
        drawn = set(memory.sample(50, np.random.default_rng(0)).obs[:, 0].tolist())
        assert drawn == {3, 4, 5, 6}
        assert not memory.fresh_rows()

    def test_a_ring_that_has_turned_round_still_knows_its_versions(self) -> None:
        (memory,), set_version = self.memory(capacity=8)
        for version in range(20):
            set_version(version)
            memory.remember(rows([version] * 2), version)
        assert set(memory.sample(100, np.random.default_rng(0)).obs[:, 0].tolist()) == {16, 17, 18, 19}
        memory.check_valid()


class Table:
    """A critic over numbered states: Q is a table, so that sweeping can be done by hand."""

    def __init__(self, values: Floats) -> None:
        self.values = values

    def td_abs(self, batch: Batch, gamma: float) -> Floats:
        here, there = batch.obs[:, 0].astype(int), batch.next_obs[:, 0].astype(int)
        goal = batch.reward + np.float32(gamma) * batch.discount * self.values[there]
        error: Floats = np.abs(goal - self.values[here]).astype(np.float32)
        return error


class TestSweeping:
    def test_the_order_is_that_of_prioritized_sweeping_in_a_table(self) -> None:
        """A brute-force queue, one step at a time, over chains of states; each that is popped is learnt at once."""
        rng, gamma = np.random.default_rng(3), 0.9
        trail, steps = make_trail(), list[tuple[int, int, float, bool]]()
        for first, length in ((0, 7), (10, 5), (20, 9)):
            walk(trail, length, start=first)
            for n in range(first, first + length):
                before = len(steps) - 1 if n > first else -1
                steps.append((n, before, float(n), n == first + length - 1))
        table = Table(rng.normal(10, 5, 40).astype(np.float32))
        by_hand, queue = table.values.copy(), dict.fromkeys(range(len(steps)), np.inf)
        sweeping, popped, expected = Sweeping(trail, table, gamma), [], []
        for _ in range(60):
            state, _ = sweeping.choose(1, rng)
            popped.append(int(state[0, 0]))
            if not queue:
                break
            count = min(queue, key=lambda c: (-queue[c], c))
            del queue[count]
            here, before, reward, over = steps[count]
            expected.append(here)
            goal = np.float32(reward + (0 if over else gamma * by_hand[here + 1]))
            error = abs(float(goal - by_hand[here]))
            if before >= 0 and gamma * error > 0.5 * error:  # of one step, the usual surprise is its own
                queue[before] = max(queue.get(before, 0.0), float(np.float32(gamma) * np.float32(error)))
            by_hand[here] = goal
            table.values[here] = goal
        assert popped[: len(expected)] == expected
        assert len(expected) > len(steps), "some were looked at again, for what came after them surprised"

    def test_the_most_urgent_come_first_and_equals_in_their_order(self) -> None:
        rng = np.random.default_rng(0)
        for n in (1, 4, 30, 100):
            priority = rng.integers(0, 9, 50).astype(np.float32)
            expected = sorted(np.flatnonzero(priority > 0), key=lambda i: (-priority[i], i))[:n]
            assert most_urgent(priority, n).tolist() == expected

    def test_a_small_surprise_is_not_passed_back_and_a_priority_never_falls(self) -> None:
        surprise, now = np.array([1, 4, 8], np.float32), np.array([0, 9, 1], np.float32)
        assert passed_back(surprise, 0.5, now, threshold=1.0).tolist() == [0, 9, 4]

    def test_new_steps_come_before_all_others(self) -> None:
        trail = make_trail()
        walk(trail, 6, end=False)
        sweeping = Sweeping(trail, Table(np.zeros(40, np.float32)), 0.9)
        sweeping.choose(6, np.random.default_rng(0))
        walk(trail, 1, start=6)
        assert sweeping.choose(1, np.random.default_rng(0))[0][0, 0] == 6


class Doubtful:
    """Doubts as much as the state's first number says; every action leads one further."""

    n_actions = 2

    def __init__(self, ends_at: float = np.inf) -> None:
        self.ends_at = ends_at

    def doubt(self, obs: Floats, action: Ints) -> Floats:
        return obs[:, 0]

    def imagine(self, obs: Floats, action: Ints) -> Vision:
        return Vision(
            obs + 1, obs[:, 0] * 10, (obs[:, 0] + 1 >= self.ends_at).astype(np.float32), self.doubt(obs, action)
        )


class Still:
    """Explores with action 1, and is greedy for action 0."""

    def act(self, obs: Floats, step: int, rng: np.random.Generator) -> Ints:
        return np.ones(len(obs), np.int64)

    def act_greedily(self, obs: Floats) -> Ints:
        return np.zeros(len(obs), np.int64)


class TestStarts:
    def test_uniform_is_all_real_states(self) -> None:
        trail = make_trail()
        walk(trail, 8)
        states, action = Uniform(trail).choose(500, np.random.default_rng(0))
        assert set(states[:, 0].tolist()) == set(range(8))
        assert action is None

    def test_exploration_goes_to_the_edge_of_what_is_known(self) -> None:
        trail = make_trail()
        walk(trail, 20)
        states, action = Explore(trail, Doubtful(), limit=10.0).choose(50, np.random.default_rng(0))
        assert action is not None
        assert (states[:, 0] <= 10).mean() > 0.9
        assert states[:, 0].mean() > 7, "evenly drawn, it would be 5 within the limit"


class TestDreams:
    def dreams(
        self, *, depth: int = 3, limit: float = 100.0, ends_at: float = np.inf
    ) -> tuple[Dreams, Imagined, Limiter]:
        trail = make_trail()
        walk(trail, 8, end=False)
        memory = Imagined(tensors(Imagined.dated_specs(1000, OBS, 1)), 0, lambda: 7, age=0)
        limiter = Limiter(tensors(Limiter.specs(1, 1)), ratio=2.0, batch=8, warmup=0, slack=8)
        dreams = Dreams(
            Uniform(trail),
            Doubtful(ends_at),
            Still(),
            memory,
            limiter,
            np.random.default_rng(0),
            gamma=0.9,
            rollouts=40,
            depth=depth,
            limit=limit,
            version=lambda: 7,
        )
        return dreams, memory, limiter

    def test_single_steps(self) -> None:
        dreams, memory, limiter = self.dreams(depth=1)
        dreams.dream(0)
        assert memory.fresh_rows() == limiter.inserts == 40
        batch = memory.sample(500, np.random.default_rng(0))
        assert (batch.next_obs == batch.obs + 1).all()
        assert (batch.reward == 10 * batch.obs[:, 0]).all()
        assert (batch.discount == np.float32(0.9)).all()
        assert (batch.action == 1).all()

    @pytest.mark.parametrize(("ends_at", "limit"), [(np.inf, 100.0), (6, 100.0), (9, 7.0)])
    def test_every_step_has_the_rewards_of_all_that_followed_it(self, ends_at: float, limit: float) -> None:
        """Against a loop, one dream at a time: the states are numbered, so each tells how it must have gone on."""
        dreams, memory, _ = self.dreams(depth=4, ends_at=ends_at, limit=limit)
        dreams.dream(0)
        batch = memory.sample(800, np.random.default_rng(0))
        found = set()
        for obs, action, reward, discount, there in zip(
            batch.obs[:, 0], batch.action, batch.reward, batch.discount, batch.next_obs[:, 0], strict=True
        ):
            total, carry, state = 0.0, 1.0, float(obs)
            while state < there:
                total += carry * 10 * state
                carry *= 0.0 if state + 1 >= ends_at else 0.9
                state += 1
            assert reward == pytest.approx(total, rel=1e-5)
            assert discount == pytest.approx(carry, rel=1e-5)
            ended = there >= ends_at or there > limit
            length = int(there - obs)
            # The first steps explore and go on for four, unless something ends the dream before.
            assert action == 0 or length == 4 or ended
            found.add((int(action), length))
        assert {(1, 4), (0, 3), (0, 2), (0, 1)} <= found
        assert (batch.discount == 0).any() == (ends_at < np.inf and ends_at <= limit)

    def test_it_stops_short_of_what_is_doubtful(self) -> None:
        dreams, memory, _ = self.dreams(depth=9, limit=5.0)
        dreams.dream(0)
        batch = memory.sample(500, np.random.default_rng(0))
        assert batch.obs[:, 0].max() == 5
        assert batch.next_obs[:, 0].max() == 6

    def test_where_all_is_doubtful_the_least_doubtful_first_steps_are_kept(self) -> None:
        dreams, memory, _ = self.dreams(depth=9, limit=-1.0)
        dreams.dream(0)
        assert memory.fresh_rows() == 40 * LEAST_KEPT
        assert memory.sample(100, np.random.default_rng(0)).obs[:, 0].max() <= 3


class TestTwoMemories:
    """Real rows have even rewards, imagined ones odd: whatever is drawn tells where it came from."""

    def waking(self, *, updates_per_step: float = 1.0) -> tuple[Waking, Trail, Limiter]:
        replay = ReplayExperience(
            tensors(ReplayExperience.specs()),
            NStep({}, n=1, gamma=0.9),
            Replay(tensors(Replay.specs(100, OBS, np.dtype(np.float32)))),
            np.random.default_rng(0),
            batch=4,
            updates_per_step=updates_per_step,
            warmup=0,
        )
        trail = make_trail()
        models = Limiter(tensors(Limiter.specs(1, 1)), ratio=2.0, batch=4, warmup=0, slack=4)
        return Waking(replay, trail, RunningScale(tensors(RunningScale.specs(2))), models), trail, models

    @pytest.mark.parametrize("ratio", [0.25, 1.0, 4.0, 16.0])
    def test_the_ratio_is_held_to_within_a_batch_and_nothing_is_ever_mixed(self, ratio: float) -> None:
        waking, trail, models = self.waking()
        imagined = Imagined(tensors(Imagined.dated_specs(100, OBS, 1)), 0, lambda: 0, age=0)
        ratios = Limiter(tensors(Limiter.specs(1, 1)), ratio=ratio, batch=4, warmup=0, slack=4)
        reuse = Limiter(tensors(Limiter.specs(1, 1)), ratio=2.0, batch=4, warmup=0, slack=4)
        real_rows = waking.replay._memory
        rng = np.random.default_rng(0)
        lessons = TwoMemories(waking, imagined, real_rows, ratios, reuse, rng, batch=4, dreams=True)
        taught = ModelLessons(trail, models, np.random.default_rng(0), rows=4)
        real = dreamt = 0
        for number in range(400):
            if lessons.room():
                obs = np.full((1, 2), 2 * number, np.float32)
                waking.push(obs, np.array([0]), step_of(obs, ended=np.array([number % 9 == 8])), number)
            if lessons.real_due():
                assert (lessons.batch(number).reward % 2 == 0).all()
                real += 4
            while lessons.dream_due():
                imagined.remember(rows([2 * number + 1] * 4), 0)
                reuse.inserted(4)
            if lessons.imagined_due():
                assert (lessons.batch(number).reward % 2 == 1).all()
                dreamt += 4
            if taught.due():
                assert (taught.batch(number).reward % 2 == 0).all()
            # After the first real batch: never a batch ahead, and never behind by more than one real batch asks for.
            assert -4 <= (real - 4) * ratio - dreamt <= 4 * ratio + 4 or real == 0
        assert real > 20
        assert dreamt > 20
        assert lessons.dream_ratio == pytest.approx(ratio, rel=0.1, abs=0.05 + 4 * ratio / real)

    def test_without_dreams_it_is_dqn(self) -> None:
        waking, _, _ = self.waking()
        nothing = Imagined(tensors(Imagined.dated_specs(10, OBS, 1)), 0, lambda: 0, age=0)
        limits = [Limiter(tensors(Limiter.specs(1, 1)), ratio=r, batch=4, warmup=0, slack=4) for r in (0.0, 2.0)]
        rng = np.random.default_rng(0)
        lessons = TwoMemories(waking, nothing, waking.replay._memory, *limits, rng, batch=4, dreams=False)
        for number in range(50):
            assert lessons.room()
            assert not lessons.dream_due()
            assert not lessons.imagined_due()
            obs = np.full((1, 2), number, np.float32)
            waking.push(obs, np.array([0]), step_of(obs), number)
            if lessons.real_due():
                lessons.batch(number)

    def test_when_dreaming_is_over_as_many_updates_go_on_with_real_rows(self) -> None:
        waking, _, _ = self.waking()
        imagined = Imagined(tensors(Imagined.dated_specs(100, OBS, 1)), 0, lambda: 0, age=0)
        ratios = Limiter(tensors(Limiter.specs(1, 1)), ratio=4.0, batch=4, warmup=0, slack=4)
        reuse = Limiter(tensors(Limiter.specs(1, 1)), ratio=2.0, batch=4, warmup=0, slack=4)
        now = 0
        lessons = TwoMemories(
            waking,
            imagined,
            waking.replay._memory,
            ratios,
            reuse,
            np.random.default_rng(0),
            batch=4,
            dreams=True,
            over=lambda: now >= 200,
        )
        updates = {"real": [0, 0], "other": [0, 0]}
        dreamt_at = []
        for now in range(400):
            if lessons.room():
                obs = np.full((1, 2), 2 * now, np.float32)
                waking.push(obs, np.array([0]), step_of(obs), now)
            if lessons.real_due():
                assert (lessons.batch(now).reward % 2 == 0).all()
                updates["real"][now >= 200] += 1
            while lessons.dream_due():
                imagined.remember(rows([2 * now + 1] * 4), 0)
                reuse.inserted(4)
                dreamt_at.append(now)
            while lessons.imagined_due():
                odd = lessons.batch(now).reward % 2 == 1
                assert odd.all() == odd.any() == (now < 200)
                updates["other"][now >= 200] += 1
        assert 150 < max(dreamt_at) < 200
        for before_and_after in (0, 1):
            assert updates["other"][before_and_after] == pytest.approx(4 * updates["real"][before_and_after], rel=0.1)
