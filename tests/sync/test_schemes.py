"""What every scheme does alike: refuse a loss that is none, clip, count versions and costs, and take local steps."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from passel.arena import Tensors
from passel.nets.flat import Flat
from passel.place.inline import InlineKit
from passel.sync import SCHEMES
from passel.sync.base import NonFiniteError, SyncSettings, patiently
from passel.sync.optimiser import OptimiserSettings
from teams import ADAM, ASYNCHRONOUS, PLAIN_SGD, SHARING, Team, Weights, by_hand, examples, perceptron, total

every_scheme = pytest.mark.parametrize("name", SCHEMES)


@every_scheme
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_loss_that_is_no_number_changes_nothing(name: str, value: float) -> None:
    team = Team(name, partial(Weights, 5))
    sync = team.syncs[0]
    sync.pull()
    sync.push(total(sync))
    before = team.vector.clone()
    sync.pull()
    with pytest.raises(NonFiniteError, match="loss is"):
        sync.push(total(sync) * value)
    assert torch.equal(team.vector, before)
    assert team.scheme.version(team.tensors) == 1
    assert sync.costs.pushes == 1


@every_scheme
def test_push_returns_the_loss_and_version_counts_updates(name: str) -> None:
    team = Team(name, partial(Weights, 4), settings=SyncSettings(PLAIN_SGD))
    sync = team.syncs[0]
    for update in range(3):
        sync.pull()
        assert sync.version == update
        assert sync.push(total(sync)) == -4.0 * update
    assert sync.costs.pushes == 3
    assert sync.costs.staleness == 0


@pytest.mark.parametrize("name", [name for name, scheme in SCHEMES.items() if scheme.collective])
def test_to_work_out_what_all_have_told_is_not_waiting(name: str) -> None:
    team = Team(name, partial(Weights, 100_000))
    sync = team.syncs[0]
    for _ in range(3):
        sync.pull()
        sync.push(total(sync))
    sync.pull()
    assert sync.costs.wait == 0
    assert sync.costs.apply > 0


@every_scheme
def test_the_learning_rate_of_the_moment_is_used(name: str) -> None:
    team = Team(name, partial(Weights, 4), settings=SyncSettings(OptimiserSettings("sgd", lr=99.0)))
    sync = team.syncs[0]
    for lr in (1.0, 0.5, 0.25):
        sync.pull()
        sync.lr = lr
        sync.push(total(sync))
        sync.pull()
    assert team.vector.tolist() == [-1.75] * 4


@pytest.mark.parametrize("name", ["locked", "hogwild"])
def test_staleness_counts_the_updates_of_others_between_pull_and_push(name: str) -> None:
    team = Team(name, partial(Weights, 4), 3, SyncSettings(PLAIN_SGD))
    for sync in team.syncs:
        sync.pull()
    for sync in team.syncs:
        sync.push(total(sync))
    assert [sync.costs.staleness for sync in team.syncs] == [0, 1, 2]
    assert [sync.version for sync in team.syncs] == [0, 0, 0]
    team.syncs[0].pull()
    assert team.syncs[0].version == 3


@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=20), st.floats(0.01, 50))
def test_clip_keeps_the_direction_and_bounds_the_norm(values: list[float], limit: float) -> None:
    sync = Team("solo", partial(Weights, len(values)), settings=SyncSettings(PLAIN_SGD, max_grad_norm=limit)).syncs[0]
    grads = torch.tensor(values)
    norm = sum(value * value for value in values) ** 0.5
    sync.clip(grads)
    scale = min(1.0, limit / norm) if norm else 1.0
    torch.testing.assert_close(grads, torch.tensor(values) * scale, rtol=1e-4, atol=1e-5)


def test_no_limit_means_no_clip() -> None:
    grads = torch.full((3,), 1e6)
    Team("solo", partial(Weights, 3)).syncs[0].clip(grads)
    assert grads.tolist() == [1e6] * 3


@every_scheme
def test_what_a_checkpoint_keeps_is_the_same_under_every_scheme(name: str) -> None:
    """So that a run may be resumed under another scheme."""
    settings = SyncSettings(ADAM)
    kept = {key: spec for key, spec in SCHEMES[name](10, 1, settings).specs().items() if spec.keep}
    assert kept == {key: spec for key, spec in SCHEMES["solo"](10, 1, settings).specs().items() if spec.keep}
    assert set(kept) == {"vector", "pushes", "optimiser/step", "optimiser/exp_avg", "optimiser/exp_avg_sq"}


@pytest.mark.parametrize(("name", "every"), [("solo", 1), *((name, every) for name in SHARING for every in (1, 3))])
def test_a_learner_that_attaches_half_way_continues_as_if_nothing_had_happened(name: str, every: int) -> None:
    """What a checkpoint keeps is enough: everything else is thrown away and made again."""
    settings, rows = SyncSettings(ADAM, max_grad_norm=0.5, every=every), examples(10)
    whole = Team(name, perceptron, settings=settings)
    for row in rows:
        whole.learn(0, row)
    first = Team(name, perceptron, settings=settings)
    for row in rows[:5]:
        first.learn(0, row)
    first.syncs[0].pull()
    second = Team(name, partial(perceptron, seed=7), settings=settings)
    for key, spec in second.scheme.specs().items():
        second.tensors[key].zero_()
        if spec.keep:
            second.tensors[key].copy_(first.tensors[key])
    second.scheme.start(second.tensors)
    links = second.scheme.links(InlineKit())
    second.servers = second.scheme.servers(second.tensors, links)
    second.syncs = [second.scheme.attach(second.flats[0], second.tensors, links, 0)]
    for row in rows[5:]:
        second.learn(0, row)
    assert torch.equal(second.vector, whole.vector)
    assert second.scheme.version(second.tensors) == whole.scheme.version(whole.tensors)


@pytest.mark.parametrize("name", SHARING)
def test_one_learner_with_local_steps_goes_where_it_would_have_gone_alone(name: str) -> None:
    """The exchange follows the pseudo-gradient by its length: base - (base - values) = values, but for rounding."""
    rows = examples(12)
    team = Team(name, perceptron, settings=SyncSettings(ADAM, every=4))
    for row in rows:
        team.learn(0, row)
    expected = by_hand(perceptron(), rows, ADAM)
    torch.testing.assert_close(team.vector, expected, rtol=1e-5, atol=1e-6)
    assert team.scheme.version(team.tensors) == 3


@pytest.mark.parametrize("name", SHARING)
def test_between_two_exchanges_nobody_sees_local_steps(name: str) -> None:
    team = Team(name, partial(Weights, 4), 2, SyncSettings(PLAIN_SGD, every=3))
    sync, other = team.syncs
    for update in range(2):
        sync.pull()
        sync.push(total(sync))
        assert sync.flat.values.tolist() == [-1.0 - update] * 4
    other.pull()
    assert other.flat.values.tolist() == [0.0] * 4


def test_local_steps_of_allreduce_end_in_the_mean_of_all_vectors() -> None:
    team = Team("allreduce", perceptron, 3, SyncSettings(ADAM, every=5))
    rows = [examples(5, seed=seed) for seed in range(3)]
    for number in range(5):
        for rank in range(3):
            team.learn(rank, rows[rank][number])
    expected = torch.stack([by_hand(perceptron(), own, ADAM) for own in rows]).mean(dim=0)
    torch.testing.assert_close(team.vector, expected, rtol=1e-5, atol=1e-6)
    for flat in team.flats:
        assert torch.equal(flat.values, team.flats[0].values)


@pytest.mark.parametrize("name", ASYNCHRONOUS)
def test_local_steps_of_a_shared_vector_add_up(name: str) -> None:
    team = Team(name, perceptron, 2, SyncSettings(ADAM, every=5))
    rows = [examples(5, seed=seed) for seed in range(2)]
    start = team.tensors["vector"].clone()
    for number in range(5):
        for rank in range(2):
            team.learn(rank, rows[rank][number])
    progress = [by_hand(perceptron(), own, ADAM) - start for own in rows]
    torch.testing.assert_close(team.vector, start + progress[0] + progress[1], rtol=1e-5, atol=1e-6)


def test_local_steps_clip_each_gradient_and_never_the_exchange() -> None:
    settings = SyncSettings(PLAIN_SGD, max_grad_norm=1.0, every=3)
    team = Team("hogwild", partial(Weights, 1), settings=settings)
    for _ in range(3):
        team.syncs[0].pull()
        team.syncs[0].push(100 * total(team.syncs[0]))
    assert team.vector.tolist() == [-3.0]


@pytest.mark.parametrize("name", SHARING)
def test_the_settings_that_were_asked_for_are_not_changed_by_local_steps(name: str) -> None:
    asked = SyncSettings(ADAM, max_grad_norm=2.0, every=4)
    scheme = SCHEMES[name](10, 2, asked)
    assert scheme.requested == asked
    assert scheme.settings == replace(asked, optimiser=PLAIN_SGD, max_grad_norm=None)
    assert {f"local/{rank}/vector" for rank in range(2)} <= set(scheme.specs())


def test_whose_gradients_are_averaged_agree_on_the_mean_of_what_they_told() -> None:
    team = Team("allreduce", partial(Weights, 3), 2, SyncSettings(PLAIN_SGD))
    for told in ((1.0, 3.0), (-4.0, 0.5)):
        for sync, number in zip(team.syncs, told, strict=True):
            sync.told = number
            sync.push(total(sync))
        for sync in team.syncs:
            sync.pull()
            assert sync.agreed == sum(told) / 2
    assert team.vector.tolist() == [-2.0] * 3, "the number travels beside the gradient, not in it"


def test_with_local_steps_they_agree_at_the_exchange_and_on_nothing_in_between() -> None:
    team = Team("allreduce", partial(Weights, 3), 2, SyncSettings(PLAIN_SGD, every=2))
    for told, agreed in (((9.0, 9.0), 0.0), ((1.0, 3.0), 2.0), ((5.0, 5.0), 0.0), ((-4.0, 0.5), -1.75)):
        for sync, number in zip(team.syncs, told, strict=True):
            sync.told = number
            sync.push(total(sync))
        for sync in team.syncs:
            sync.pull()
            assert sync.agreed == agreed


def test_local_steps_of_allreduce_leave_the_common_vector_alone_until_the_exchange() -> None:
    """What is evaluated, checkpointed and acted with stands for all learners, and is nobody's own."""
    team = Team("allreduce", partial(Weights, 4), 2, SyncSettings(PLAIN_SGD, every=3))
    for update in range(1, 8):
        for rank, sync in enumerate(team.syncs):
            sync.pull()
            sync.push((1 + 2 * rank) * total(sync))
        assert team.vector.tolist() == [-2.0 * (update - update % 3)] * 4
        if update % 3:
            assert team.flats[0].values.tolist() != team.vector.tolist()


@pytest.mark.parametrize("name", ["solo", *ASYNCHRONOUS])
def test_where_nobody_waits_a_learner_agrees_with_itself(name: str) -> None:
    team = Team(name, partial(Weights, 3), 1 if name == "solo" else 2, SyncSettings(PLAIN_SGD))
    for number, sync in enumerate(team.syncs):
        sync.told = float(number)
        sync.push(total(sync))
        sync.pull()
        assert sync.agreed == number


def test_allreduce_levels_the_counters_that_a_dead_worker_left_behind() -> None:
    scheme = SCHEMES["allreduce"](4, 3, SyncSettings(PLAIN_SGD))
    tensors = Tensors({name: torch.zeros(spec.shape, dtype=spec.dtype) for name, spec in scheme.specs().items()})
    tensors["pushes"].copy_(torch.tensor([5, 4, 5]))
    scheme.start(tensors)
    assert tensors["pushes"].tolist() == [4, 4, 4]
    assert scheme.version(tensors) == 4


@every_scheme
def test_attaching_takes_the_shared_vector_not_the_learner_s_own(name: str) -> None:
    team = Team(name, partial(Weights, 4))
    team.tensors["vector"].fill_(3.0)
    flat = Flat(Weights(4))
    sync = team.scheme.attach(flat, team.tensors, team.scheme.links(InlineKit()), 0)
    assert flat.values.tolist() == [3.0] * 4
    sync.pull()
    assert flat.values.tolist() == [3.0] * 4


def test_patiently_returns_at_once_or_waits_or_gives_up_with_a_reason() -> None:
    assert patiently(lambda: True, "nothing") == 0.0
    ready_at = time.perf_counter() + 0.05
    assert 0.03 < patiently(lambda: time.perf_counter() > ready_at, "the time") < 2.0
    with pytest.raises(TimeoutError, match="for the moon"):
        patiently(lambda: False, "the moon", patience=0.02)


@every_scheme
def test_a_scheme_says_what_it_is(name: str) -> None:
    scheme = SCHEMES[name]
    assert scheme.name == name
    assert scheme.summary
    for column in ("before:", "after:", "state:"):
        assert column in (scheme.__doc__ or ""), "its docstring is its row of the table in the design"
