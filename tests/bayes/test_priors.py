"""KL to the priors: closed forms against torch, estimators against quadrature."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributions import Normal

from advbnn.bayes.priors import GaussianPrior, Prior, ScaleMixturePrior, SpikeAndSlabPrior, unit_norm_scales

numbers = st.floats(-3, 3)
log_stds = st.floats(-5, 1)
stds = st.floats(0.01, 3)


@given(mu=numbers, s=log_stds, std=stds, mean=numbers)
@settings(max_examples=60, deadline=None)
def test_gaussian_equals_torch_and_is_never_negative(mu: float, s: float, std: float, mean: float) -> None:
    m, t = torch.full((3,), mu, dtype=torch.float64), torch.full((3,), s, dtype=torch.float64)
    ours = GaussianPrior(std=std, mean=mean).kl("w", m, t)
    reference = torch.distributions.kl_divergence(Normal(m, t.exp()), Normal(torch.full_like(m, mean), std)).sum()
    torch.testing.assert_close(ours, reference, rtol=1e-9, atol=1e-12)
    assert ours >= -1e-12


def test_a_function_is_shown_by_its_name_and_numbers_as_they_are() -> None:
    assert repr(GaussianPrior()) == "GaussianPrior(std=0.05, mean=0.0)"
    chosen = GaussianPrior(std=lambda name, parameter: 0.1)
    assert "<lambda>" in repr(chosen) and "0x" not in repr(chosen)  # an address would differ in every process


def test_half_precision_parameters_are_summed_in_single_precision() -> None:
    mu, s = torch.full((100_000,), 0.5, dtype=torch.bfloat16), torch.full((100_000,), -1.0, dtype=torch.bfloat16)
    kl = GaussianPrior(std=1.0).kl("w", mu, s)
    assert kl.dtype == torch.float32
    assert kl.item() == pytest.approx(100_000 * (1 + (math.exp(-2) + 0.25) / 2 - 0.5), rel=1e-4)


def test_std_and_mean_may_be_chosen_by_name_by_function_or_by_tensor() -> None:
    mu, s = torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    mapped = GaussianPrior(std={"*": 1.0, "b": 2.0}, mean={"b": 3.0})
    torch.testing.assert_close(mapped.kl("a", mu, s), torch.zeros((), dtype=torch.float64))
    torch.testing.assert_close(mapped.kl("b", mu, s), GaussianPrior(2.0, 3.0).kl("", mu, s))
    by_function = GaussianPrior(std=lambda name, p: 2.0, mean=lambda name, p: p.detach())
    centred = torch.tensor([5.0, -7.0], dtype=torch.float64)
    torch.testing.assert_close(by_function.kl("w", centred, s), GaussianPrior(2.0).kl("w", mu, s))


def test_unit_norm_scales_names_the_scales_of_normalisation_layers_only() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.LayerNorm(3), nn.BatchNorm2d(2, affine=False))
    assert unit_norm_scales(net) == {"1.weight": 1.0, "2.weight": 1.0}
    assert unit_norm_scales(nn.GroupNorm(1, 2)) == {"weight": 1.0}


def quadrature(mu: float, std: float, log_prior) -> float:
    """E_q[log q - log p] on a fine grid."""
    w = torch.linspace(mu - 12 * std, mu + 12 * std, 400_001, dtype=torch.float64)
    log_q = Normal(torch.tensor(mu, dtype=torch.float64), std).log_prob(w)
    return torch.trapezoid(log_q.exp() * (log_q - log_prior(w)), w).item()


def mixture(weight: float, first: float, second: float, mean: float):
    def log_prior(w: torch.Tensor) -> torch.Tensor:
        p = weight * Normal(mean, first).log_prob(w).exp() + (1 - weight) * Normal(mean, second).log_prob(w).exp()
        return p.log()

    return log_prior


@pytest.mark.parametrize(
    ("prior", "log_prior"),
    [
        (ScaleMixturePrior(std=1.0, narrow_std=0.2, weight=0.3, samples=64), mixture(0.3, 1.0, 0.2, 0.0)),
        (SpikeAndSlabPrior(0.8, 0.1, spike_weight=0.6, mean=0.2, samples=64), mixture(0.6, 0.1, 0.8, 0.2)),
    ],
    ids=["mixture", "spike-and-slab"],
)
def test_mixture_estimators_are_unbiased(prior: Prior, log_prior) -> None:
    torch.manual_seed(0)
    mu, std = 0.3, 0.25
    exact = quadrature(mu, std, log_prior)
    m, s = torch.full((2000,), mu, dtype=torch.float64), torch.full((2000,), math.log(std), dtype=torch.float64)
    estimates = torch.stack([prior.kl("w", m, s) / 2000 for _ in range(20)])
    standard_error = estimates.std() / math.sqrt(20)
    assert abs(estimates.mean() - exact) < 5 * standard_error + 1e-6
    assert standard_error < 0.02 * abs(exact)


def test_more_samples_lower_the_variance() -> None:
    torch.manual_seed(0)
    mu, s = torch.zeros(50), torch.zeros(50)
    std = [torch.stack([ScaleMixturePrior(samples=n).kl("w", mu, s) for _ in range(300)]).std() for n in (1, 16)]
    assert std[0] / std[1] == pytest.approx(4, rel=0.35)


@pytest.mark.parametrize("std", [0.0, math.nan, math.inf])
def test_a_std_must_be_positive_and_finite(std: float) -> None:
    for value in (std, {"a": std}):
        with pytest.raises(ValueError, match="std .*where"):
            GaussianPrior(std=value)
    zero = torch.zeros(2)
    for by_function in (lambda name, p: std, lambda name, p: torch.tensor([0.1, std])):
        with pytest.raises(ValueError, match="std .*.w."):
            GaussianPrior(std=by_function).kl("w", zero, zero)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ScaleMixturePrior(narrow_std=0.0), "narrow_std"),
        (lambda: SpikeAndSlabPrior(spike_std=0.0), "spike_std"),
        (lambda: GaussianPrior(mean=math.nan), "mean"),
        (lambda: ScaleMixturePrior(weight=1.0), "weight.*GaussianPrior"),
        (lambda: SpikeAndSlabPrior(samples=0), "samples"),
        (lambda: GaussianPrior(std={"a": 1.0}).kl("b", torch.zeros(1), torch.zeros(1)), r"'b'.*'\*'"),
    ],
)
def test_other_bad_settings_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
