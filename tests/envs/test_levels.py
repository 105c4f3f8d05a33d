"""Sets of levels: rows of one batch, each of which plays its own level; and lists in TOML files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from passel.envs.level_sets import from_anywhere, level_set
from passel.envs.levels import Copies, LevelSet, is_level_set
from passel.envs.make import describe
from passel.types import PasselError

COUNTDOWN = "passel.testing.envs:passel/Countdown-v0"

TOY = f"""
[[train]]
id = "{COUNTDOWN}"
name = "three"
kwargs = {{ terminate_after = 3 }}

[[train]]
id = "{COUNTDOWN}"
name = "two"
kwargs = {{ truncate_after = 2 }}

[[held_out]]
id = "{COUNTDOWN}"
"""


def write(folder: Path, text: str) -> str:
    path = folder / "set.toml"
    path.write_text(text)
    return f"levels:{path}"


@pytest.fixture
def toy(tmp_path: Path) -> LevelSet:
    return level_set(write(tmp_path, TOY))


def test_a_file_has_a_part_to_train_on_and_a_part_held_out(toy: LevelSet) -> None:
    assert (toy.train, toy.held_out) == (("three", "two"), (COUNTDOWN,))
    spec = toy.describe()
    assert (spec.obs_shape, spec.n_actions, spec.backend, spec.exact_resume) == ((2,), 2, "levels", True)
    assert describe(toy.name) == spec
    assert is_level_set(toy.name)
    assert not is_level_set("CartPole-v1")


def test_rows_play_their_own_levels_by_hand(toy: LevelSet) -> None:
    """Rewards are 1, 2, 3: `three` terminates with a score of 6, `two` is truncated with one of 3."""
    envs = toy.make(toy.train, Copies(2, seed=0))
    assert toy.rows(toy.train, 2) == envs.n == 4
    assert toy.groups(toy.train, 2).tolist() == [0, 0, 1, 1]  # type: ignore[union-attr]
    obs = envs.reset()
    assert obs[:, 0].tolist() == [0, 0, 0, 0]
    actions = np.zeros(4, np.int64)
    first = envs.step(actions)
    assert first.obs is first.next_obs
    second = envs.step(actions)
    assert second.truncated.tolist() == [False, False, True, True]
    assert [episode.score for episode in second.episodes] == [3, 3]
    assert second.next_obs[:, 0].tolist() == [2, 2, 2, 2]
    assert second.obs[:, 0].tolist() == [2, 2, 0, 0]
    third = envs.step(actions)
    assert third.discount.tolist() == [0, 0, 1, 1]
    assert [(episode.score, episode.length) for episode in third.episodes] == [(6, 3), (6, 3)]
    assert third.reward.tolist() == [3, 3, 1, 1]
    envs.close()
    envs.close()


def test_copies_of_a_level_and_levels_of_a_set_begin_differently(tmp_path: Path) -> None:
    levels = level_set(write(tmp_path, '[[train]]\nid = "CartPole-v1"\n[[train]]\nid = "CartPole-v1"\nname = "b"\n'))
    envs = levels.make(levels.train, Copies(2, seed=0))
    assert len(np.unique(envs.reset()[:, 0])) == 4
    envs.close()


def test_one_level_of_a_set_is_a_set_of_one(toy: LevelSet) -> None:
    alone = level_set(f"{toy.name}@{COUNTDOWN}")
    assert (alone.train, alone.held_out) == ((COUNTDOWN,), ())
    assert alone.name == f"{toy.name}@{COUNTDOWN}"
    envs = alone.make(alone.train, Copies(1, seed=0))
    envs.reset()
    assert sum(float(envs.step(np.zeros(1, np.int64)).reward[0]) for _ in range(5)) == 15
    envs.close()


def test_a_resumed_set_goes_on_in_mid_episode(tmp_path: Path) -> None:
    import torch

    levels = level_set(write(tmp_path, '[[train]]\nid = "CartPole-v1"\n[[train]]\nid = "CartPole-v1"\nname = "b"\n'))
    names = levels.train
    tensors = {name: torch.zeros(s.shape, dtype=s.dtype) for name, s in levels.record_specs(names, 1).items()}
    envs = levels.make(names, Copies(1, seed=7, tensors=tensors))
    obs = envs.reset()
    for number in range(5):
        obs = envs.step(np.array([number % 2, 1])).obs
    envs.close()
    again = levels.make(names, Copies(1, seed=7, tensors=tensors))
    assert np.array_equal(again.restore(), obs)
    again.close()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "has no level to train on"),
        ("[[trian]]\nid = 'x'", 'there is no "trian" in a set of levels .* Did you mean train?'),
        ("[[train]]\nenv_id = 'x'", 'there is no "env_id" .* Did you mean id?'),
        ("[[train]]\nname = 'x'", "level 1 of train .* has no id. Add one"),
        ("[train]\nid = 'x'", r"train in .* must be a list of tables. Write \[\[train\]\]"),
        ("[[train]]\nid = 'x'\nkwargs = 3", "must be a table"),
        ("[[train]]\nid = 'a'\n[[train]]\nid = 'a'", 'are called "a". Give one of them another name'),
        ("[[train]\n", "is not valid TOML"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_cure(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(PasselError, match=sentence):
        level_set(write(tmp_path, text))


def test_what_is_wrong_with_a_name_is_said_with_its_cure(toy: LevelSet, tmp_path: Path) -> None:
    with pytest.raises(PasselError, match=r"there is no file .*none.toml"):
        level_set(f"levels:{tmp_path}/none.toml")
    with pytest.raises(PasselError, match='there is no set of levels "nothing"'):
        level_set("levels:nothing")
    with pytest.raises(PasselError, match=r'has no level "thre"\. Did you mean three?'):
        level_set(f"{toy.name}@thre")


def test_levels_that_one_policy_cannot_play_are_refused_by_name(tmp_path: Path) -> None:
    levels = level_set(write(tmp_path, '[[train]]\nid = "CartPole-v1"\n[[held_out]]\nid = "Acrobot-v1"\n'))
    with pytest.raises(PasselError, match=r"CartPole-v1 has observations of shape \(4,\) and Acrobot-v1 \(6,\)"):
        levels.describe()


def test_a_file_is_named_so_that_it_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "me@home"
    folder.mkdir()
    write(folder, TOY)
    monkeypatch.chdir(folder)
    assert from_anywhere("levels:set.toml") == f"levels:{folder}/set.toml"
    assert from_anywhere("levels:../me@home/set.toml@two") == f"levels:{folder}/set.toml@two"
    assert from_anywhere("levels:procgen:jumper@3") == "levels:procgen:jumper@3"
    assert level_set(f"levels:{folder}/set.toml").train == ("three", "two")
    assert level_set(f"levels:{folder}/set.toml@two").train == ("two",)
