"""What is logged of a posterior's standard deviations, by reference values, and the warning that goes with it."""

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


def test_mean_and_largest() -> None:
    found = posterior_scale(linear([[0.0, 0.0], [0.0, 0.0]], [[1.0, 2.0], [3.0, 6.0]]))
    assert (found.mean_std, found.max_std) == pytest.approx((3.0, 6.0))


def test_the_share_of_a_weight_is_its_variance_over_the_second_moment_of_its_row() -> None:
    found = posterior_scale(linear([[1.0, 2.0], [0.0, 1.0]], [[2.0, 1.0], [3.0, 1.0]]))
    assert found.noise_share == pytest.approx(9 / (9 + 1 + 1))  # the first row has 4 / (1 + 4 + 4 + 1)
    assert found.channel == "weight[1]"


def test_the_share_does_not_change_with_the_scale_of_a_row() -> None:
    small, large = (posterior_scale(linear([[0.3 * k, 0.1 * k]], [[0.2 * k, 0.5 * k]])) for k in (1, 100))
    assert small.noise_share == pytest.approx(large.noise_share)


def test_a_parameter_without_rows_of_several_weights_takes_nothing_over() -> None:
    found = posterior_scale(bayesianize(nn.BatchNorm2d(3), init_std=5.0))
    assert found.noise_share == 0
    assert found.max_std == pytest.approx(5.0)


def test_parts_of_a_larger_network_are_named_by_their_path() -> None:
    found = posterior_scale(nn.Sequential(nn.Flatten(), linear([[0.0, 0.0]], [[1.0, 9.0]])))
    assert found.channel == "1.weight[0]"


def test_the_standard_deviation_is_that_of_the_weight_with_the_largest_share() -> None:
    found = posterior_scale(linear([[10.0, 90.0], [0.0, 0.1]], [[50.0, 1.0], [3.0, 0.1]]))
    assert (found.channel, found.channel_std, found.max_std) == ("weight[1]", pytest.approx(3.0), pytest.approx(50.0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_no_hindrance(dtype: torch.dtype) -> None:
    bnn = bayesianize(nn.Linear(2, 400, bias=False), init_std=0.5)
    with torch.no_grad():
        bnn.log_std.weight[357, 1] = math.log(300)
    found = posterior_scale(bnn.to(dtype))
    assert found.channel == "weight[357]"
    assert found.noise_share > 0.99
    assert found.mean_std == pytest.approx((799 * 0.5 + 300) / 800, rel=0.02)


def test_a_row_without_any_weight_has_no_share() -> None:
    with torch.no_grad():
        bnn = linear([[0.0, 0.0], [1.0, 1.0]], [[1.0, 1.0], [1.0, 1.0]])
        bnn.log_std.weight[0] = -2000.0
    assert posterior_scale(bnn).noise_share == pytest.approx(0.25)


def test_a_network_without_random_weights_has_no_spread() -> None:
    with pytest.raises(ValueError, match="no Bayesian part"):
        posterior_scale(nn.Linear(2, 2))


def test_at_the_start_of_a_training_nothing_is_taken_over() -> None:
    how = defense("adv_bnn", "cifar10")
    assert posterior_scale(how.wrap(how.build(classes=10, shape=(3, 32, 32), seed=0))).noise_share < 0.1


@pytest.mark.parametrize("std", [0.05, 500.0])
def test_a_run_says_once_that_the_noise_of_a_weight_has_taken_a_channel_over(tmp_path: Path, std: float) -> None:
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
