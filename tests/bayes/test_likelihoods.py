"""Likelihoods against torch.distributions."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributions
from torch.nn import functional

from advbnn.bayes.likelihoods import Categorical, Gaussian

Y = torch.arange(8) % 3


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_categorical_likelihood(smoothing: float) -> None:
    logits = torch.randn(8, 3)
    nll = Categorical(label_smoothing=smoothing).nll(logits, Y)
    spread = (1 - smoothing) * functional.one_hot(Y, 3) + smoothing / 3
    torch.testing.assert_close(nll, -(spread * logits.log_softmax(1)).sum(1))


def test_categorical_kl_mean_and_score() -> None:
    p, q = torch.randn(8, 3, dtype=torch.float64), torch.randn(8, 3, dtype=torch.float64)
    exact = distributions.kl_divergence(distributions.Categorical(logits=p), distributions.Categorical(logits=q))
    torch.testing.assert_close(Categorical().kl(p, q), exact)
    mean = Categorical().mean(torch.stack([p, q])).exp()
    torch.testing.assert_close(mean, (p.softmax(1) + q.softmax(1)) / 2)
    assert torch.equal(Categorical().score(p, p.argmax(1)), torch.ones(8, dtype=torch.float64))


@given(st.floats(0.05, 20))
def test_gaussian_likelihood(std: float) -> None:
    f, y = torch.randn(2, 6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    normal, other = distributions.Normal(f, std), distributions.Normal(y, std)
    likelihood = Gaussian(noise_std=std)
    torch.testing.assert_close(likelihood.nll(f, y), -normal.log_prob(y).sum(1))
    torch.testing.assert_close(likelihood.kl(f, y), distributions.kl_divergence(normal, other).sum(1))
    learned = torch.tensor(math.log(std), dtype=torch.float64)
    torch.testing.assert_close(Gaussian().nll(f, y, learned), likelihood.nll(f, y))
    torch.testing.assert_close(likelihood.score(f, y), (f - y).square().mean(1))


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="label_smoothing "):
        Categorical(label_smoothing=1.0)
    with pytest.raises(ValueError, match="noise_std "):
        Gaussian(noise_std=0.0)
    with pytest.raises(ValueError, match=r"y .*\(4,\).*\(4, 1\)"):
        Gaussian().nll(torch.zeros(4, 1), torch.zeros(4))
