"""Atari by ale-py: against Gymnasium's own wrappers, and what is for learning only against what is scored."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

import passel
from passel.api import make_plan
from passel.arena import Arena
from passel.data.rollout import RolloutExperience, RolloutShape
from passel.envs import atari_games, describe, make_envs, specs
from passel.envs.atari_backend import AtariEnvs
from passel.envs.atari_games import LoopGames, Played, VectorGames
from passel.envs.atari_protocol import PROTOCOLS, Protocol, game_of, is_atari, read_protocol, reference_scores
from passel.envs.make import choose, make_filmed
from passel.envs.seeds import derive_seed
from passel.recipes.resolve import resolve_config
from passel.types import Array, EnvSpec, Floats, Grid, Ints, Judgement, PasselError

ale_py = pytest.importorskip("ale_py")
BREAKOUT, PONG = "ALE/Breakout-v5", "ALE/Pong-v5"
PLAIN: dict[str, Any] = {"protocol": "nature", "life_loss": False, "clip_rewards": False}


def oracle(env: str) -> gym.Env[Any, Any]:
    """The game as Gymnasium's wrappers give it, without no-ops: those are pressed by hand, as many as ale-py drew."""
    gym.register_envs(ale_py)
    raw = gym.make(env, frameskip=1, repeat_action_probability=0.0, disable_env_checker=True)
    return FrameStackObservation(AtariPreprocessing(raw, noop_max=0, frame_skip=4, screen_size=84), 4)


def first_noops(env: str, n: int, seed: int) -> list[int]:
    """How many frames passed in each row before its first observation."""
    seeds = np.array([derive_seed(seed, i, 0) for i in range(n)])
    raw = ale_py.vector_env.AtariVectorEnv(game_of(env).lower(), n, stack_num=1, noop_max=30, use_fire_reset=False)
    _, info = raw.reset(seed=seeds)
    return list(info["episode_frame_number"])


def press_noops(wrapped: gym.Env[Any, Any], noops: int) -> Array:
    """Gymnasium's first observation after so many frames without an action."""
    wrapped.reset(seed=0)
    preprocessing: Any = wrapped.env
    for _ in range(noops):
        preprocessing.env.step(0)
    preprocessing.ale.getScreenGrayscale(preprocessing.obs_buffer[0])
    preprocessing.obs_buffer[1].fill(0)
    first = preprocessing._get_obs()
    for _ in range(4):
        wrapped.obs_queue.append(first)  # type: ignore[attr-defined]
    return np.stack([first] * 4)


@pytest.mark.parametrize(("env", "steps"), [(BREAKOUT, 200), (PONG, 120)])
def test_frames_rewards_and_ends_are_gymnasiums(env: str, steps: int) -> None:
    """The first game of each row, bit by bit, without sticky actions. Only the last frame of a game is left out: where
    one ends within the four frames of a step, the two show other ones of them.
    """
    n = 2
    envs, noops = make_envs(env, n, seed=3, env_args=PLAIN), first_noops(env, n, 3)
    obs, copies = envs.reset(), [oracle(env) for _ in range(n)]
    for i in range(n):
        np.testing.assert_array_equal(obs[i], press_noops(copies[i], noops[i]))
    rng, playing, rewarded = np.random.default_rng(4), np.ones(n, bool), 0.0
    for _ in range(steps):
        actions = rng.integers(envs.spec.n_actions, size=n)
        step = envs.step(actions)
        for i in np.flatnonzero(playing):
            expected, reward, terminated, truncated, _ = copies[i].step(actions[i])
            assert (step.reward[i], step.discount[i]) == (reward, 1 - terminated)
            assert not truncated
            rewarded += abs(float(reward))
            playing[i] = not terminated
            if playing[i]:
                np.testing.assert_array_equal(step.next_obs[i], expected)
                np.testing.assert_array_equal(step.obs[i], expected)
    assert rewarded > 0
    assert noops[0] != noops[1], "rows begin apart"


def test_the_loop_plays_as_the_vector_does() -> None:
    """Modes and difficulties are played by a loop of ours: in the default mode it is the same game, to a rounding."""
    rules = read_protocol({**PLAIN, "noops": 0})
    vector, loop = VectorGames(BREAKOUT, 2, rules, 1), LoopGames(BREAKOUT, 2, rules)
    (frame, lives), (same, same_lives) = vector.reset([5, 6]), loop.reset([5, 6])
    rng, ends, equal = np.random.default_rng(0), 0, []
    for _ in range(260):
        equal.append(float((frame == same).mean()))
        assert np.abs(frame.astype(int) - same).max() <= 1
        np.testing.assert_array_equal(lives, same_lives)
        actions = rng.integers(4, size=2)
        fast, slow = vector.step(actions), loop.step(actions)
        for name in ("reward", "over", "cut"):
            np.testing.assert_array_equal(getattr(fast, name), getattr(slow, name))
        ends += int(fast.over.sum())
        frame, lives, same, same_lives = fast.frame, fast.lives, slow.frame, slow.lives
    assert ends >= 2
    assert np.mean(equal) > 0.999


class Script:
    """Games that do what the test says: one row, a list of (reward, lives, over, cut)."""

    def __init__(self, told: list[tuple[int, int, bool, bool]]) -> None:
        self.told, self.pressed, self.seeds, self.count = told, list[int](), list[int](), 0

    def _frame(self) -> Array:
        self.count += 1
        return np.full((1, 84, 84), self.count, np.uint8)

    def reset(self, seeds: list[int]) -> tuple[Array, Array]:
        self.seeds += seeds
        return self._frame(), np.array([3])

    def step(self, actions: Ints) -> Played:
        reward, lives, over, cut = self.told.pop(0)
        self.pressed.append(int(actions[0]))
        last = self._frame()
        frame = self._frame() if over or cut else last
        return Played(frame, last, np.array([reward]), np.array([over]), np.array([cut]), np.array([lives]))


def scripted(monkeypatch: pytest.MonkeyPatch, told: list[tuple[int, int, bool, bool]], **rules: Any) -> Any:
    script = Script(list(told))
    monkeypatch.setattr("passel.envs.atari_backend.make_games", lambda *_: script)
    spec = EnvSpec(BREAKOUT, (4, 84, 84), np.dtype(np.uint8), 4, frames=4)
    envs = AtariEnvs(spec, 1, 0, env_args=rules)
    return envs, script


GAME = [(7, 3, False, False), (0, 2, False, False), (-4, 2, False, False), (5, 3, True, False), (1, 3, False, True)]


def newest(obs: Array) -> list[int]:
    return [int(frame[0, 0]) for frame in obs[0]]


def test_life_loss_and_clipping_are_for_learning_only(monkeypatch: pytest.MonkeyPatch) -> None:
    envs, _ = scripted(monkeypatch, GAME, protocol="nature")
    assert newest(envs.reset()) == [1, 1, 1, 1]
    steps = [envs.step(np.array([2])) for _ in GAME]
    assert [float(step.reward[0]) for step in steps] == [1, 0, -1, 1, 1]
    assert [float(step.discount[0]) for step in steps] == [1, 0, 1, 0, 1]
    assert [bool(step.truncated[0]) for step in steps] == [False, False, False, False, True]
    assert [[(e.score, e.length) for e in step.episodes] for step in steps] == [[], [], [], [(8.0, 4)], [(1.0, 1)]]
    assert newest(steps[1].obs) == newest(steps[1].next_obs) == [1, 1, 2, 3], "the game goes on over a lost life"
    assert (newest(steps[3].next_obs), newest(steps[3].obs)) == ([2, 3, 4, 5], [6, 6, 6, 6])
    assert (newest(steps[4].next_obs), newest(steps[4].obs)) == ([6, 6, 6, 7], [8, 8, 8, 8])
    assert all(step.real.all() for step in steps)


def test_without_them_a_row_is_a_whole_game_of_true_rewards(monkeypatch: pytest.MonkeyPatch) -> None:
    envs, _ = scripted(monkeypatch, GAME, **PLAIN)
    envs.reset()
    steps = [envs.step(np.array([2])) for _ in GAME]
    assert [float(step.reward[0]) for step in steps] == [7, 0, -4, 5, 1]
    assert [float(step.discount[0]) for step in steps] == [1, 1, 1, 0, 1]
    assert [bool(step.ended[0]) for step in steps] == [bool(step.episodes) for step in steps]


def test_fire_first_and_after_a_lost_life(monkeypatch: pytest.MonkeyPatch) -> None:
    envs, script = scripted(monkeypatch, GAME, protocol="v5", fire_reset=True)
    envs.reset()
    for _ in GAME:
        envs.step(np.array([2]))
    assert script.pressed == [1, 2, 1, 2, 1]


def test_lives_are_lost_in_the_real_game_and_the_score_is_whole() -> None:
    """Whoever fires and waits loses five lives in a game of Breakout: four for the learner alone, and the last."""
    envs = make_envs(BREAKOUT, 1, seed=0, env_args={"protocol": "nature", "fire_reset": True})
    envs.reset()
    ends, scored, episodes = [], 0.0, []
    while not episodes:
        step = envs.step(np.array([0]))
        scored += float(step.reward[0])
        ends.append(bool(step.discount[0] == 0))
        episodes = step.episodes
    assert sum(ends) == 5
    assert ends[-1]
    assert episodes[0].length == len(ends)
    assert episodes[0].score >= scored


def test_the_true_score_is_not_the_sum_of_clipped_rewards() -> None:
    """A brick of the upper rows is worth 4 or 7. In mode 32 the ball breaks through the wall and reaches them soon."""
    envs = make_envs(BREAKOUT, 2, seed=0, env_args={"protocol": "nature", "mode": 32})
    envs.reset()
    rng, learnt, scores = np.random.default_rng(0), np.zeros(2), []
    for _ in range(300):
        step = envs.step(rng.integers(4, size=2))
        learnt += step.reward
        scores += [episode.score for episode in step.episodes]
    assert scores
    assert sum(scores) > learnt.sum() * 1.2


def test_a_game_is_cut_off_at_its_limit() -> None:
    """ale-py's vector and our loop alike: a truncation with the true last frame, and then a new game."""
    for more in ({}, {"mode": 0}):
        envs = make_envs(BREAKOUT, 2, seed=1, env_args={**PLAIN, "max_frames": 40, **more})
        assert envs.spec.max_episode_steps == 10
        obs = envs.reset()
        steps = [envs.step(np.full(2, 2)) for _ in range(20)]
        assert [t for t, step in enumerate(steps, 1) if step.truncated.any()] == [10, 20]
        cut = steps[9]
        assert cut.truncated.all()
        assert (cut.discount == 1).all()
        assert [episode.length for episode in cut.episodes] == [10, 10]
        np.testing.assert_array_equal(cut.next_obs[:, :3], steps[8].obs[:, 1:])
        assert (cut.obs == cut.obs[:, -1:]).all(), "a new game's stack is one frame"
        assert not np.array_equal(cut.obs, cut.next_obs), "the paddle had moved"
        assert obs.dtype == cut.obs.dtype == np.uint8
        envs.close()


def trajectory(seed: int, **rules: Any) -> Array:
    envs = make_envs(PONG, 2, seed, threads=2, env_args={"protocol": "v5", **rules})
    rng = np.random.default_rng(0)
    return np.stack([envs.reset()] + [envs.step(rng.integers(6, size=2)).obs for _ in range(40)])


@pytest.mark.parametrize("rules", [{}, {"mode": 1}])
def test_a_seed_is_a_trajectory_and_rows_differ(rules: dict[str, Any]) -> None:
    """With sticky actions, which are drawn; on two threads, whose order must not matter."""
    first = trajectory(1, **rules)
    np.testing.assert_array_equal(first, trajectory(1, **rules))
    other = trajectory(2, **rules)
    assert not np.array_equal(first, other)
    assert len({first[:, row].tobytes() for row in range(2)}) == 2


def test_steps_are_fresh_arrays() -> None:
    envs = make_envs(PONG, 2, 0)
    obs = envs.reset()
    kept, step = obs.copy(), envs.step(np.zeros(2, np.int64))
    held = step.next_obs.copy()
    for _ in range(5):
        envs.step(np.ones(2, np.int64))
    np.testing.assert_array_equal(obs, kept)
    np.testing.assert_array_equal(step.next_obs, held)


def test_a_resumed_run_begins_other_games(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = describe(PONG)
    assert not spec.exact_resume
    tensors = {name: torch.zeros(s.shape, dtype=s.dtype) for name, s in specs(spec, 1).items()}
    envs, script = scripted(monkeypatch, GAME)
    for _ in range(2):
        AtariEnvs(spec, 1, 0, tensors=tensors).restore()
    envs.reset()
    assert script.seeds == [derive_seed(0, 0, 0), derive_seed(0, 0, 1), derive_seed(0, 0, 0)]


class Witness:
    """Remembers the observations that it was to judge."""

    judges_by_acting = False
    obs: Array

    def values(self, obs: Array) -> Floats:
        return np.zeros(len(obs), np.float32)

    def judge(self, obs: Grid, action: Ints, reward: Floats, discount: Floats, last_obs: Array) -> Judgement:
        self.obs = obs[slice(0, obs.shape[0])]
        return Judgement(reward, reward, reward)


def test_a_rollout_keeps_each_frame_once_and_gives_back_the_stacks() -> None:
    """Over lost lives, whose stacks go on, and cut games, whose stacks begin anew."""
    horizon, rules = 96, {"protocol": "nature", "fire_reset": True, "max_frames": 4 * 70}
    envs = make_envs(BREAKOUT, 2, seed=0, env_args=rules)
    spec = envs.spec
    layout = RolloutExperience.specs(RolloutShape(horizon, 2, spec.obs_shape, spec.obs_dtype, spec.frames))
    assert layout["obs"].nbytes == (horizon + 3) * 2 * 84 * 84
    critic = Witness()
    experience = RolloutExperience(Arena(layout), critic, np.random.default_rng(0), gamma=0.9)
    obs, stacks, lost, cut = envs.reset(), [], 0, 0
    for _ in range(horizon):
        actions = np.zeros(2, np.int64)
        step = envs.step(actions)
        stacks.append(obs)
        experience.push(obs, actions, step, 0)
        obs, lost, cut = step.obs, lost + int((step.discount == 0).sum()), cut + int(step.truncated.sum())
    experience.batch(0)
    np.testing.assert_array_equal(critic.obs, np.stack(stacks))
    assert lost >= 2
    assert cut >= 2


def test_modes_and_difficulties_are_other_games() -> None:
    plain, other = (make_envs(BREAKOUT, 1, 0, env_args={"mode": mode}).reset() for mode in (0, 12))
    assert not np.array_equal(plain, other)
    with pytest.raises(PasselError, match=r"has no mode 3\. It has 0, 4, 8"):
        describe(BREAKOUT, env_args={"mode": 3})
    with pytest.raises(PasselError, match=r"has no difficulty 2\. It has 0, 1"):
        describe(BREAKOUT, env_args={"difficulty": 2})


def test_what_it_is() -> None:
    spec = describe(BREAKOUT)
    assert (spec.backend, spec.obs_shape, spec.obs_dtype, spec.n_actions) == ("ale", (4, 84, 84), np.uint8, 4)
    assert (spec.frames, spec.frame_skip, spec.max_episode_steps) == (4, 4, 27_000)
    assert spec.protocol is not None
    assert (spec.protocol["name"], spec.protocol["sticky"], spec.protocol["life_loss"]) == ("v5", 0.25, False)
    nature = describe(BREAKOUT, env_args={"protocol": "nature"}).protocol
    assert nature is not None
    assert (nature["sticky"], nature["noops"], nature["life_loss"], nature["clip_rewards"]) == (0.0, 30, True, True)
    assert PROTOCOLS["v5"].facts()["scores"] == "whole games, true rewards"


def test_who_plays_what() -> None:
    assert choose(BREAKOUT, "auto") == choose("ale_py:ALE/Breakout-v5", "auto") == "ale"
    assert choose(BREAKOUT, "gymnasium") == "gymnasium"
    assert choose("Breakout-v5", "envpool") == "envpool"
    assert choose("Breakout-v5", "auto") == "gymnasium"
    assert not is_atari("levels:breakout-modes")


def test_every_game_has_a_name_and_the_scores_are_of_games() -> None:
    roms = set(ale_py.roms.get_all_rom_ids())
    playable = [rom for rom in roms if rom not in atari_games.NOT_FOR_ONE]
    assert len(playable) == 104
    for rom in playable:
        assert atari_games.rom_of(f"ALE/{rom.title().replace('_', '')}-v5") == rom
    scores = reference_scores()
    assert len(scores) == 57
    assert set(scores) <= roms
    assert all(human > random for random, human in scores.values())


def test_human_normalised_scores() -> None:
    spec = describe(BREAKOUT)
    assert spec.human_normalised(1.7) == 0.0
    assert spec.human_normalised(30.5) == 1.0
    assert spec.human_normalised(None) is None
    assert describe("CartPole-v1").human_normalised(500.0) is None


@pytest.mark.parametrize(
    ("env", "arguments", "sentence"),
    [
        ("ALE/Brekout-v5", {}, r"no Atari game .* Did you mean ALE/Breakout-v5\?"),
        ("ALE/Combat-v5", {}, "there is no Atari game"),
        (BREAKOUT, {"protocol": "v4"}, "there is no protocol"),
        (BREAKOUT, {"frameskip": 2}, "have no argument frameskip"),
        ("ALE/Freeway-v5", {"fire_reset": True}, "has no FIRE"),
    ],
)
def test_mistakes_have_a_cause_and_a_cure(env: str, arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PasselError, match=sentence):
        describe(env, env_args=arguments)


@pytest.mark.parametrize(
    "setting", [{"protocol": "nature"}, {"fire_reset": True}, {"game_mode": 4}, {"life_loss": True}]
)
def test_rules_without_effect_are_refused(setting: dict[str, Any]) -> None:
    for said in ({"env": "CartPole-v1"}, {"env": BREAKOUT, "backend": "gymnasium"}):
        with pytest.raises(PasselError, match="no Atari game that ale-py plays"):
            resolve_config({**said, **setting})


def test_without_ale_py_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(PasselError, match=r"pip install 'passel\[atari\]'"):
        describe(BREAKOUT)


def test_making_is_silent() -> None:
    program = (
        "import numpy as np; from passel.envs import make_envs\n"
        "for args in ({}, {'mode': 4}):\n"
        "    envs = make_envs('ALE/Breakout-v5', 2, 0, env_args=args)\n"
        "    envs.reset(); envs.step(np.zeros(2, np.int64)); envs.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_filmed_game_is_the_game() -> None:
    filmed = make_filmed(BREAKOUT, "ale", PLAIN)
    obs, _ = filmed.reset(seed=1)
    picture: Any = filmed.render()
    assert obs.shape == (4, 84, 84)
    assert picture.shape == (210, 160, 3)
    assert filmed.observation_space.contains(obs)
    again, _ = filmed.reset(seed=1)
    np.testing.assert_array_equal(obs, again)
    assert filmed.step(1)[0].shape == (4, 84, 84)


TINY: dict[str, Any] = {
    "algo": "ppo",
    "protocol": "nature",
    "fire_reset": True,
    "sync": "solo",
    "place": "inline",
    "steps": 32,
    "envs": 2,
    "horizon": 8,
    "minibatches": 1,
    "epochs": 1,
    "hidden": [8],
    "filters": [1, 1, 1],
    "eval_episodes": 1,
    "eval_every": "none",
    "tensorboard": False,
    "quiet": True,
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> passel.Run:
    """A run on short games: the limit is shortened, as a whole game would take seconds."""
    short = Protocol("nature", sticky=0.0, max_frames=160, life_loss=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PROTOCOLS, "nature", short)
        path = tmp_path_factory.mktemp("atari") / "run"
        return passel.train(BREAKOUT, out=str(path), **TINY)


def test_the_run_says_by_which_rules_it_was_played(trained: passel.Run) -> None:
    card = json.loads((trained.path / "card.json").read_text())["env"]
    assert (card["backend"], card["frames"], card["frame_skip"]) == ("ale", 4, 4)
    assert (card["protocol"]["name"], card["protocol"]["fire_reset"], card["protocol"]["mode"]) == (
        "nature",
        True,
        None,
    )
    assert card["reference_scores"] == [1.7, 30.5]
    config = (trained.path / "config.toml").read_text()
    assert 'protocol = "nature"' in config
    assert "fire_reset = true" in config


def test_the_summary_has_frames_and_both_scores(trained: passel.Run) -> None:
    summary = trained.summary
    assert summary.frames == 4 * summary.steps
    assert summary.eval is not None
    assert summary.eval_human_normalised == pytest.approx((summary.eval.mean - 1.7) / 28.8)
    assert passel.Summary.from_json(summary.to_json()) == summary
    last = json.loads((trained.path / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["frames"] == 4 * last["steps"]
    assert "human_normalised" in last


def test_a_run_is_resumed_and_evaluated_by_its_own_rules(trained: passel.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    short = Protocol("nature", sticky=0.0, max_frames=160, life_loss=True)
    monkeypatch.setitem(PROTOCOLS, "nature", short)
    made: list[Protocol] = []
    make = atari_games.make_games
    monkeypatch.setattr(
        "passel.envs.atari_backend.make_games",
        lambda env, n, rules, threads: made.append(rules) or make(env, n, rules, threads),
    )
    passel.resume(trained.path, steps=64, quiet=True)
    passel.evaluate(trained.path, episodes=1)
    learning, judged, evaluated = made
    assert (learning.name, learning.life_loss, learning.clip_rewards, learning.fire_reset) == (
        "nature",
        True,
        True,
        True,
    )
    assert judged == evaluated
    assert (judged.name, judged.life_loss, judged.clip_rewards, judged.fire_reset) == ("nature", False, False, True)


def test_a_plan_keeps_frames_once_and_stays_within_its_threads() -> None:
    config, numbers = resolve_config({**TINY, "env": BREAKOUT, "threads": 2})
    plan = make_plan(config, numbers, config.env)
    assert plan.specs()["worker/0/rollout/obs"].shape == (8 + 3, 2, 1, 84, 84)
    before = set(Path("/proc/self/task").iterdir())
    envs = make_envs(PONG, 3, 0, threads=plan.threads)
    envs.reset()
    assert len(set(Path("/proc/self/task").iterdir()) - before) == 2
    envs.close()
