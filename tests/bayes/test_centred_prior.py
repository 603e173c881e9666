"""A prior centred on pretrained weights: the KL, what is saved, and what is refused."""

import copy
import math

import pytest
import torch
from torch import nn

import advbnn
from advbnn.bayes.priors import GaussianPrior, ScaleMixturePrior
from advbnn.errors import ArgumentError


def kl(model: nn.Module) -> torch.Tensor:
    return advbnn.kl_divergence(model).detach()


def net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def test_the_kl_is_that_of_the_distance_from_the_checkpoint() -> None:
    """With sigma = sigma_0 it is |mu - m|^2 / (2 sigma_0^2): zero at the checkpoint."""
    plain = net()
    bnn = advbnn.bayesianize(plain, prior=GaussianPrior(0.1, mean=plain.state_dict()), init_std=0.1)
    assert float(kl(bnn)) == pytest.approx(0.0, abs=1e-4)
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter += 0.2
    count = sum(p.numel() for p in plain.parameters())
    assert float(kl(bnn)) == pytest.approx(count * 0.2**2 / (2 * 0.1**2), rel=1e-3)


def test_a_function_is_called_once_so_that_the_centre_stays() -> None:
    plain = net()
    bnn = advbnn.bayesianize(plain, prior=GaussianPrior(0.1, mean=lambda name, p: p), init_std=0.1)
    with torch.no_grad():
        plain[0].weight += 1.0
    assert float(kl(bnn)) == pytest.approx(12 / (2 * 0.1**2), rel=1e-3)


def test_the_centre_is_saved_copied_and_moved_with_the_weights() -> None:
    plain = net(1)
    bnn = advbnn.bayesianize(plain, prior=GaussianPrior(0.1, mean=plain.state_dict()))
    other = advbnn.bayesianize(net(2), prior=GaussianPrior(0.1, mean=net(3).state_dict()))
    other.load_state_dict(bnn.state_dict())
    expected = float(kl(bnn))
    assert float(kl(other)) == pytest.approx(expected)
    twin = copy.deepcopy(bnn).double()
    with torch.no_grad():
        plain[0].weight += 1.0
    assert float(kl(twin)) == pytest.approx(expected, rel=1e-5)
    assert repr(bnn).count("tensor(") == 0


def test_other_priors_take_it_too() -> None:
    plain = net()
    prior = ScaleMixturePrior(std=0.1, narrow_std=0.1, mean=plain.state_dict(), samples=200)
    bnn = advbnn.bayesianize(plain, prior=prior, init_std=0.1)
    # both parts are the posterior itself; the estimate has this standard error
    error = math.sqrt(bnn.noise_size / 2 / 200)
    assert abs(float(kl(bnn))) < 5 * error


def test_tensors_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"prior\.mean.*'0\.weight'.*shape"):
        advbnn.bayesianize(net(), prior=GaussianPrior(mean={"0.weight": torch.zeros(4)}))
    with pytest.raises(ArgumentError, match="NaN"):
        advbnn.bayesianize(net(), prior=GaussianPrior(mean={"0.bias": torch.full((4,), torch.nan)}))
    with pytest.raises(ArgumentError, match=r"prior\.mean.*'0\.wieght'.*0\.weight"):
        advbnn.bayesianize(net(), prior=GaussianPrior(mean={"0.wieght": torch.zeros(4, 3)}))
