import math

import pytest
import torch
from torch import nn

from advbnn.bayes.sgld import PSGLD, SGLD
from advbnn.defenses.optimizers import AdamOptimizer, LangevinSampler, SGDOptimizer, set_learning_rate


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
