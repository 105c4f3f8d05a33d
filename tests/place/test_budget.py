"""What a process may cost: threads, and numbers too small to be worth their time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from passel.place import budget
from passel.place.budget import at_most, oversubscribed, threads_per_worker, tiny_is_zero, usable_cores


def test_tiny_numbers_are_zero_inside_and_themselves_again_outside() -> None:
    tiny = torch.full((4,), 2e-38)
    with tiny_is_zero():
        assert (tiny * 0.01 == 0).all()
        assert (tiny.numpy() * np.float32(0.01) == 0).all()
        assert (tiny * 2 > 0).all(), "what has the usual form stays"
    assert (tiny * 0.01 != 0).all()


def test_threads_are_as_many_as_before_afterwards() -> None:
    before = torch.get_num_threads()
    with at_most(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_vectors_get_one_thread_images_their_part_and_the_user_is_obeyed() -> None:
    assert threads_per_worker(1, (8,)) == 1
    assert threads_per_worker(1, (4, 84, 84)) == usable_cores()
    assert threads_per_worker(10_000, (4, 84, 84)) == 1
    assert threads_per_worker(2, (8,), asked=3) == 3


@pytest.mark.parametrize(
    ("cores", "workers", "learners", "expected"),
    [(2, 2, 1, 1), (8, 5, 1, 4), (8, 2, 1, 4), (8, 8, 2, 1), (16, 6, 2, 4)],
)
def test_a_learner_of_images_has_what_the_actors_leave(
    monkeypatch: pytest.MonkeyPatch, cores: int, workers: int, learners: int, expected: int
) -> None:
    monkeypatch.setattr(budget, "usable_cores", lambda: cores)
    each = budget.threads_per_worker(workers, (4, 84, 84))
    found = budget.threads_of_learner(workers - learners, learners, each, (4, 84, 84))
    assert found == expected
    assert each * (workers - learners) + found * learners <= max(cores, workers)
    assert budget.threads_of_learner(workers - learners, learners, 1, (8,)) == 1
    assert budget.threads_of_learner(workers - learners, learners, 3, (4, 84, 84), asked=3) == 3


@pytest.mark.parametrize(
    ("workers", "threads", "words"),
    [
        (2, 1, ""),
        (1, 2, ""),
        (64, 1, "64 workers on 2 cores: slower and with staler parameters. Use --workers 2."),
        (2, 2, "2 workers with 2 threads each on 2 cores: slower and with staler parameters. Use --workers 1."),
        (1, 8, "1 worker with 8 threads each on 2 cores: slower and with staler parameters. Use --threads 2."),
    ],
)
def test_more_threads_than_cores_are_named(
    workers: int, threads: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "usable_cores", lambda: 2)
    assert oversubscribed(workers, threads) == words
