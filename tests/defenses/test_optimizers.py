import math

import pytest
import torch
from torch import nn

from advbnn.bayes.sgld import PSGLD, SGLD
from advbnn.defenses.optimizers import (
    AdamOptimizer,
    LangevinSampler,
    SGDOptimizer,
    parameter_groups,
    set_learning_rate,
)
from advbnn.defenses.profiles import defense


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (SGDOptimizer(lr=0.5, momentum=0.9), torch.optim.SGD),
        (AdamOptimizer(lr=0.5, weight_decay=0.1), torch.optim.AdamW),
        (LangevinSampler(lr=0.5), SGLD),
        (LangevinSampler(lr=0.5, preconditioned=True), PSGLD),
    ],
)
def test_settings_build_their_optimizer(settings: SGDOptimizer, expected: type[torch.optim.Optimizer]) -> None:
    optimizer = settings.build([nn.Parameter(torch.zeros(1))], 100)
    assert type(optimizer) is expected and optimizer.param_groups[0]["lr"] == 0.5


def test_a_learning_rate_in_a_tensor_is_changed_in_place() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=torch.tensor(0.1))
    lr = optimizer.param_groups[0]["lr"]
    set_learning_rate(optimizer, 0.25)
    assert optimizer.param_groups[0]["lr"] is lr and lr == 0.25


def test_bad_settings_are_refused() -> None:
    for settings, message in (
        ({"lr": 0.0}, "lr .*0.0"),
        ({"lr": 1e308}, "lr .*1e30.*1e.308"),
        ({"prior_std": 0.0}, "prior_std .*0.0"),
        ({"burn_in": 0}, "burn_in .*0"),
        ({"temperature": math.nan}, "temperature .*nan"),
        ({"preconditioned": "no"}, "preconditioned .*True or False"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            LangevinSampler(**settings)
    for make, message in (
        (lambda: SGDOptimizer(nesterov=True), "nesterov .*momentum"),
        (lambda: SGDOptimizer(momentum=math.inf), "momentum .*inf"),
        (lambda: AdamOptimizer(betas=(0.9, 1.0)), "betas .*1.0"),
        (lambda: AdamOptimizer(weight_decay=-1.0), "weight_decay .*-1"),
    ):
        with pytest.raises(ValueError, match=message):
            make()


class Noise(nn.Module):
    undecayed = ("scale",)

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.weight = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))


def test_weight_decay_leaves_the_scales_of_noise_alone() -> None:
    model = nn.Sequential(Noise(), nn.Linear(2, 2))
    optimizer = SGDOptimizer(lr=0.1, weight_decay=0.5).build(parameter_groups(model), 10)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert torch.equal(model[0].scale, torch.ones(2))
    torch.testing.assert_close(model[0].weight, torch.full((2,), 0.95))


@pytest.mark.parametrize(("name", "free"), [("pni", "alpha"), ("learn2perturb", "sigma")])
def test_the_learned_noise_of_published_defences_does_not_decay(name: str, free: str) -> None:
    model = defense(name, "digits").build(classes=10, shape=(1, 8, 8))
    (group,) = [group for group in parameter_groups(model) if group.get("weight_decay") == 0]
    names = {id(parameter): path for path, parameter in model.named_parameters()}
    assert {names[id(parameter)].rpartition(".")[2] for parameter in group["params"]} == {free}


def test_the_learned_filters_of_random_projection_decay_as_in_their_source() -> None:
    model = defense("rpf", "cifar10").build(classes=10, shape=(3, 32, 32))
    optimizer = SGDOptimizer(lr=0.1, weight_decay=0.5).build(parameter_groups(model), 10)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        decay = 1e-2 if parameter.shape == (16, 3, 3, 3) else 0.5
        torch.testing.assert_close(parameter.detach(), (1 - 0.1 * decay) * before[name])


def test_without_such_noise_there_is_one_group() -> None:
    model = nn.Linear(2, 2)
    assert parameter_groups(model) == list(model.parameters())
