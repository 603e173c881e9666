"""Averages of weights: their values, their buffers, and that the model is restored."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim.swa_utils import AveragedModel, update_bn

from advbnn.bayes.mean_field import bayesianize
from advbnn.randomness import seeded
from advbnn.training.averaging import WeightAverage, refresh_batchnorm
from quick import same


def small_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 3))


def perturb(model: nn.Module) -> None:
    """Changes all parameters and statistics."""
    with torch.no_grad():
        for tensor in (*model.parameters(), *(b for b in model.buffers() if b.is_floating_point())):
            tensor.add_(torch.rand_like(tensor))


def test_the_equal_average_is_the_mean_and_agrees_with_torch() -> None:
    model = small_net()
    average, reference = WeightAverage(model, decay=None), AveragedModel(model)
    states = []
    for _ in range(7):
        perturb(model)
        average.update(model)
        reference.update_parameters(model)
        states.append(copy.deepcopy(model))
    average.copy_to(model)
    for (name, weight), theirs in zip(model.named_parameters(), reference.module.parameters(), strict=True):
        torch.testing.assert_close(weight, torch.stack([s.get_parameter(name) for s in states]).mean(0))
        torch.testing.assert_close(weight, theirs)
    assert all(torch.equal(b, states[-1].get_buffer(name)) for name, b in model.named_buffers())


@given(values=st.lists(st.floats(-10, 10), min_size=1, max_size=40), decay=st.floats(0.0, 0.99))
@settings(max_examples=40)
def test_the_moving_average_is_its_recursion_and_stays_in_range(values: list[float], decay: float) -> None:
    model = nn.Linear(1, 1, bias=False).double()
    average = WeightAverage(model, decay=decay)
    expected = 0.0
    for t, value in enumerate(values, start=1):
        nn.init.constant_(model.weight, value)
        average.update(model)
        expected += max(1 / t, 1 - decay) * (value - expected)
    average.copy_to(model)
    assert model.weight.item() == pytest.approx(expected, abs=1e-9)
    assert min(values) - 1e-9 <= model.weight.item() <= max(values) + 1e-9


def test_half_precision_is_averaged_in_single() -> None:
    model = nn.Linear(1, 1, bias=False).to(torch.bfloat16)
    nn.init.constant_(model.weight, 1.0)
    average = WeightAverage(model, decay=0.999)
    for _ in range(1000):
        average.update(model)
    nn.init.constant_(model.weight, 1.5)
    for _ in range(1000):
        average.update(model)
    # each of these changes is below bfloat16's resolution
    assert average.state_dict()["average"][0].item() == pytest.approx(1.5 - 0.5 * 0.999**1000, rel=1e-4)
    average.copy_to(model)
    assert model.weight.dtype == torch.bfloat16


def test_applied_restores_the_model_bit_for_bit() -> None:
    model = small_net()
    average = WeightAverage(model)
    perturb(model)
    before, places = copy.deepcopy(model), [p.data_ptr() for p in model.parameters()]
    reference = small_net()
    average.copy_to(reference)
    with average.applied(model):
        assert same(model, reference)
        refresh_batchnorm(model, [torch.rand(8, 4)])
    assert same(model, before)
    with pytest.raises(RuntimeError, match="inside"), average.applied(model):
        perturb(model)
        raise RuntimeError("inside")
    assert same(model, before)
    assert places == [p.data_ptr() for p in model.parameters()]  # an optimizer still holds the same tensors


def test_refreshed_statistics_are_the_mean_over_the_batches() -> None:
    net = nn.Sequential(nn.BatchNorm1d(4, momentum=0.1), nn.Linear(4, 2)).eval()
    net.train()(torch.full((2, 4), 100.0))  # statistics to be replaced
    net.eval()
    batches = [torch.randn(16, 4) * 3 + 1 for _ in range(5)]
    refresh_batchnorm(net, [(x, None) for x in batches])
    torch.testing.assert_close(net[0].running_mean, torch.stack([x.mean(0) for x in batches]).mean(0))
    torch.testing.assert_close(net[0].running_var, torch.stack([x.var(0) for x in batches]).mean(0))
    assert net[0].num_batches_tracked == 5 and net[0].momentum == 0.1
    reference = copy.deepcopy(net).train()
    update_bn(batches, reference)
    torch.testing.assert_close(net.state_dict(), reference.state_dict())


def test_refreshing_keeps_modes_weights_and_frozen_statistics_and_runs_the_rest_in_evaluation_mode() -> None:
    net = nn.Sequential(small_net(), nn.BatchNorm1d(3))
    net[1].eval()
    before, modes, x = copy.deepcopy(net), [m.training for m in net.modules()], torch.rand(8, 4)
    state = torch.get_rng_state()
    refresh_batchnorm(net, [x])
    assert torch.equal(torch.get_rng_state(), state)  # no dropout
    assert [m.training for m in net.modules()] == modes
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), before.parameters(), strict=True))
    assert same(net[1], before[1]) and not same(net[0], before[0])


def test_refreshing_a_bayesian_network_samples_fresh_weights_for_every_batch() -> None:
    bnn = bayesianize(nn.Sequential(nn.Linear(3, 2, bias=False), nn.BatchNorm1d(2)), init_std=0.5)
    x = torch.randn(10, 3)
    with seeded(1):
        refresh_batchnorm(bnn, [x] * 4)
    first = bnn.net[0].weight
    means = [(bnn.sample(eps)["0.weight"] @ x.T).mean(1) for eps in bnn.noise(4, seed=1)]
    assert not torch.allclose((first @ x.T).mean(1), means[0], atol=1e-3)
    torch.testing.assert_close(bnn.net[1].running_mean, torch.stack(means).mean(0))


def test_statistics_survive_a_failure() -> None:
    net = small_net()
    perturb(net)
    before = copy.deepcopy(net)
    with pytest.raises(ValueError, match="batches "):
        refresh_batchnorm(net, iter(()))
    assert same(net, before)
    with pytest.raises(RuntimeError):
        refresh_batchnorm(net, [torch.rand(8, 4), torch.rand(8, 9)])
    assert same(net, before)
    assert net[1].momentum == 0.1 and net[1].training
    plain = nn.Linear(2, 2)
    refresh_batchnorm(plain, iter(()))  # nothing to estimate
