"""KL(q || p): which weights it covers, with which prior."""

import pytest
import torch
from torch import nn
from torch.distributions import Normal

from advbnn.bayes.kl import kl_divergence, names_in_scope
from advbnn.bayes.mean_field import bayesianize
from advbnn.bayes.modes import Modes
from advbnn.bayes.priors import GaussianPrior, unit_norm_scales
from advbnn.errors import ArgumentError
from advbnn.models import build
from small_nets import conv_net, images


def test_kl_covers_every_random_weight_and_no_sample() -> None:
    bnn = bayesianize(conv_net().double(), init_std=0.07)
    bnn(images().double())
    terms = [
        torch.distributions.kl_divergence(Normal(mu, s.exp()), Normal(torch.zeros_like(mu), 0.05)).sum()
        for _, mu, s in bnn.posterior()
    ]
    torch.testing.assert_close(kl_divergence(bnn), torch.stack(terms).sum())
    assert names_in_scope(bnn) == [name for name, _, _ in bnn.posterior()]


def test_kl_of_vgg_by_scope() -> None:
    """The authors' VGG returns the KL of 5,130 weights out of 14.7 million."""
    net = build("vgg16", classes=10, image_size=32)
    bnn = bayesianize(net)
    # prior and posterior have equal standard deviations, so only the means count
    classifier = sum(((p.detach().double() / 0.05) ** 2 / 2).sum() for p in net.classifier.parameters())
    assert kl_divergence(bnn, scope="classifier").item() == pytest.approx(classifier.item(), rel=1e-5)
    assert sum(net.get_parameter(name).numel() for name in names_in_scope(bnn, "classifier")) == 5130
    convolutions = kl_divergence(bnn, scope=lambda name, p: p.dim() == 4)
    rest = kl_divergence(bnn, scope=lambda name, p: p.dim() != 4)
    torch.testing.assert_close(convolutions + rest, kl_divergence(bnn))


def test_prior_mean_one_takes_the_batchnorm_scales_out_of_the_kl() -> None:
    net = build("vgg16", classes=10, image_size=32)
    centred = bayesianize(net, prior=GaussianPrior(std=0.05, mean=unit_norm_scales(net)))
    plain = kl_divergence(bayesianize(net))
    # 4224 BatchNorm scales, each 1 and so 1 / (2 * 0.05^2) = 200 from a prior at 0
    share = (plain - kl_divergence(centred)).item()
    assert share == pytest.approx(4224 * 200, rel=1e-4)
    assert share > 0.5 * plain.item()


def test_a_mixture_has_no_kl_of_its_own() -> None:
    """The sum over modes, which is the KL of independent parts, would be wrong."""
    first, second = bayesianize(conv_net()), bayesianize(conv_net())
    with pytest.raises(ArgumentError, match="mixture.*weight"):
        kl_divergence(nn.Sequential(Modes([first, second])))
    assert kl_divergence(Modes([first])) == kl_divergence(first)


def test_a_prior_may_be_a_module_with_parameters() -> None:
    class LearnedStd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.log_std = nn.Parameter(torch.zeros(()))

        def kl(self, name: str, mu: torch.Tensor, log_std: torch.Tensor) -> torch.Tensor:
            return torch.distributions.kl_divergence(Normal(mu, log_std.exp()), Normal(0.0, self.log_std.exp())).sum()

    bnn = bayesianize(nn.Linear(2, 2), prior=LearnedStd())
    kl_divergence(bnn).backward()
    assert bnn.prior.log_std.grad.abs() > 0 and "prior.log_std" in bnn.state_dict()


def test_unknown_scopes_and_models_without_random_weights_are_refused() -> None:
    bnn = bayesianize(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="scope='clasifier'.*'classifier'"):
        kl_divergence(bnn, scope="clasifier")
    with pytest.raises(ValueError, match="no Bayesian part.*bayesianize"):
        kl_divergence(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="scope "):
        kl_divergence(bnn, scope=lambda name, p: False)
