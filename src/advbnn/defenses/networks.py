"""How a network becomes that of one of the paper's defences: as it is, with noise, or with random weights."""

from dataclasses import dataclass

from torch import nn

from advbnn.bayes.mean_field import bayesianize
from advbnn.bayes.priors import GaussianPrior, PerParameter, unit_norm_scales
from advbnn.bayes.protocol import random_parts
from advbnn.defenses.rse import add_noise, check_noise, noise_levels
from advbnn.defenses.surgery import Normalised, Normalize, has_layer
from advbnn.errors import one_of, within


@dataclass(frozen=True, kw_only=True)
class Plain(Normalised):
    """The network as it is, or behind the normalisation of `mean` and `std`."""

    def wrap(self, net: nn.Module) -> nn.Module:
        return net if has_layer(net, Normalize) else self.normalised(net)


@dataclass(frozen=True, kw_only=True)
class Noisy:
    """The network with noise before every convolution (RSE); see `add_noise`."""

    first: float = 0.2
    inner: float = 0.1

    def __post_init__(self) -> None:
        check_noise(self.first, self.inner)

    def wrap(self, net: nn.Module) -> nn.Module:
        return net if noise_levels(net) else add_noise(net, self.first, self.inner)


@dataclass(frozen=True, kw_only=True)
class Variational:
    """The network with random weights; see `bayesianize`.

    Args:
        prior_std: sigma_0, the standard deviation of the prior.
        init_std: the posterior standard deviation at the start.
        norm_scale_mean: the prior mean of normalisation scales; 0 in the paper, as for all other weights. These
            scales are factors, so 1 keeps the network's function.
        prior_mean: `"zero"`, or `"init"` for the weights that the network has when it is made Bayesian, such as those
            of a checkpoint; the prior means are then saved with the run.
    """

    prior_std: float = 0.05
    init_std: float = 0.05
    norm_scale_mean: float = 0.0
    prior_mean: str = "zero"

    def __post_init__(self) -> None:
        within("prior_std", self.prior_std, "(0, 1e30]", "it is a standard deviation")
        within("init_std", self.init_std, "(0, 1e6]", "it is a standard deviation")
        within("norm_scale_mean", self.norm_scale_mean, "[-1e6, 1e6]")
        one_of("prior_mean", self.prior_mean, ("zero", "init"))

    def wrap(self, net: nn.Module) -> nn.Module:
        if random_parts(net):
            return net
        mean: PerParameter = dict.fromkeys(unit_norm_scales(net), self.norm_scale_mean) if self.norm_scale_mean else 0.0
        if self.prior_mean == "init":
            mean = {name: parameter.detach() for name, parameter in net.named_parameters()}
        return bayesianize(net, prior=GaussianPrior(std=self.prior_std, mean=mean), init_std=self.init_std)
