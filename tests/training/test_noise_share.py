"""The standard deviations of a posterior against reference values, and the message about dominant noise."""

import math
from pathlib import Path

import pytest
import torch
from torch import nn

from advbnn import bayesianize, data
from advbnn.defenses.profiles import defense
from advbnn.training.loop import fit
from advbnn.training.noise_share import DOMINANT, posterior_scale


def linear(mu: list[list[float]], std: list[list[float]]) -> nn.Module:
    bnn = bayesianize(nn.Linear(2, len(mu), bias=False))
    with torch.no_grad():
        bnn.net.weight.copy_(torch.tensor(mu))
        bnn.log_std.weight.copy_(torch.tensor(std).log())
    return bnn


@pytest.mark.parametrize("scale", [1, 100])
def test_the_share_of_a_weight_is_its_variance_over_the_second_moment_of_its_row(scale: float) -> None:
    """Whatever the scale of the row; not the share of the largest standard deviation, which is in the first row."""
    bnn = linear([[10.0, 90.0], [0.0, scale]], [[500.0, 1.0], [3.0 * scale, scale]])
    with torch.no_grad():
        bnn.net.weight[0, 1] = 1e4
    found = posterior_scale(nn.Sequential(nn.Flatten(), bnn))
    assert found.noise_share == pytest.approx(9 / (9 + 1 + 1))
    assert (found.channel, found.channel_std) == ("1.weight[1]", pytest.approx(3.0 * scale))
    assert (found.mean_std, found.max_std) == pytest.approx(((501 + 4 * scale) / 4, 500.0))


def test_a_parameter_without_rows_of_several_weights_has_no_share() -> None:
    found = posterior_scale(bayesianize(nn.BatchNorm2d(3), init_std=5.0))
    assert (found.noise_share, found.max_std) == (0, pytest.approx(5.0))


def test_a_row_of_zeros_has_no_share() -> None:
    with torch.no_grad():
        bnn = linear([[0.0, 0.0], [1.0, 1.0]], [[1.0, 1.0], [1.0, 1.0]])
        bnn.log_std.weight[0] = -2000.0
    assert posterior_scale(bnn).noise_share == pytest.approx(0.25)


def test_a_deterministic_network_is_refused() -> None:
    with pytest.raises(ValueError, match="no Bayesian part"):
        posterior_scale(nn.Linear(2, 2))


@pytest.mark.parametrize("std", [0.05, 500.0])
def test_a_run_logs_once_that_the_noise_of_a_weight_dominates(tmp_path: Path, std: float) -> None:
    splits = data.load("digits")
    few = data.Splits(splits.train.subset(range(128)), splits.test)
    how = defense("bnn", "digits", schedule={"epochs": 3})
    bnn = how.wrap(how.build(classes=10, shape=(1, 8, 8), seed=0))
    first = next(p for p in bnn.log_std.parameters() if p.dim() == 4)
    with torch.no_grad():
        first[1, 0, 0, 0] = math.log(std)
    result = fit(bnn, few, how, out=tmp_path / "run", log_every=1)
    share = [line["max_noise_share"] for line in result.history]
    said = (tmp_path / "run" / "log.txt").read_text().count("the noise of one weight, with standard deviation 500")
    assert (min(share) > DOMINANT, said) == ((True, 1) if std > 1 else (False, 0))
