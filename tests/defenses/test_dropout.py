import torch
from torch import nn

from advbnn.defenses.dropout import MonteCarloDropout
from advbnn.randomness import seeded


def test_units_before_the_classifier_are_dropped_in_evaluation_mode() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(1000, 2, bias=False))
    nn.init.ones_(net[1].weight)
    model = MonteCarloDropout(rate=0.25).wrap(net).eval()
    with torch.no_grad(), seeded(0):
        sums = model(torch.ones(500, 1000))[:, 0] / 1000
    # mean 1, variance p / (1 - p) / units
    assert abs(sums.mean().item() - 1) < 5 * (0.25 / 0.75 / 1000 / 500) ** 0.5
    assert abs(sums.var().item() / (0.25 / 0.75 / 1000) - 1) < 5 * (2 / 500) ** 0.5
