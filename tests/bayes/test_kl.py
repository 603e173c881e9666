"""KL(q || p): what it covers, by which prior, and what it does not depend on."""

import pytest
import torch
from torch import nn

from advbnn.bayes.kl import kl_divergence
from advbnn.bayes.mean_field import Bayesian, bayesianize
from advbnn.bayes.priors import GaussianPrior, unit_norm_scales
from advbnn.models import build
from small_nets import conv_net, images


def reference_kl(bnn: Bayesian, std: float = 0.05) -> torch.Tensor:
    return sum(
        torch.distributions.kl_divergence(
            torch.distributions.Normal(mu, s.exp()), torch.distributions.Normal(torch.zeros_like(mu), std)
        ).sum()
        for _, mu, s in bnn.posterior()
    )


def test_divergence_covers_every_random_weight() -> None:
    bnn = bayesianize(conv_net().double(), init_std=0.07)
    torch.testing.assert_close(kl_divergence(bnn), reference_kl(bnn))


def test_divergence_of_vgg_by_scope() -> None:
    """The authors' VGG returns the divergence of 5,130 weights out of 14.7 million."""
    net = build("vgg16", classes=10, image_size=32)
    bnn = bayesianize(net)
    classifier = sum(
        ((p.detach().double() / 0.05) ** 2 / 2).sum() for p in net.classifier.parameters()
    )  # equal spreads: only the means count
    assert kl_divergence(bnn, scope="classifier").item() == pytest.approx(classifier.item(), rel=1e-5)
    assert kl_divergence(bnn).item() > 500 * classifier.item()
    convolutions = kl_divergence(bnn, scope=lambda name, p: p.dim() == 4)
    rest = kl_divergence(bnn, scope=lambda name, p: p.dim() != 4)
    torch.testing.assert_close(convolutions + rest, kl_divergence(bnn))


def test_prior_mean_one_takes_the_batchnorm_scales_out_of_the_divergence() -> None:
    net = build("vgg16", classes=10, image_size=32)
    centred = bayesianize(net, prior=GaussianPrior(std=0.05, mean=unit_norm_scales(net)))
    plain = kl_divergence(bayesianize(net))
    scales = 4224  # BatchNorm scales of VGG16, each 1 and so 1 / (2 * 0.05^2) = 200 from a prior at 0
    share = (plain - kl_divergence(centred)).item()
    assert share == pytest.approx(scales * 200, rel=1e-4)
    assert share > 0.5 * plain.item()


def test_divergence_does_not_depend_on_forward_passes() -> None:
    bnn = bayesianize(conv_net())
    before = kl_divergence(bnn)
    bnn(images())
    assert torch.equal(kl_divergence(bnn), before)


def test_refuses_an_unknown_scope_with_the_nearest_name() -> None:
    bnn = bayesianize(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="scope='clasifier'.*did you mean 'classifier'"):
        kl_divergence(bnn, scope="clasifier")
    with pytest.raises(ValueError, match="no Bayesian part"):
        kl_divergence(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="chooses no"):
        kl_divergence(bnn, scope=lambda name, p: False)
