"""Steps without a fast form are refused with the reason."""

import pytest
from torch import nn

from advbnn.attacks import PGD
from advbnn.attacks.threat import Threat
from advbnn.bayes.likelihoods import Gaussian
from advbnn.bayes.mean_field import bayesianize
from advbnn.defenses.defense import Defense
from advbnn.defenses.objective import RobustELBO
from advbnn.errors import UnsupportedError
from fast_steps import fast, network
from inconsistent_nets import Offering


def with_history(net: nn.Module) -> nn.Module:
    """A network with a tensor that is not a leaf, such as a weight computed by a hook."""
    net.computed = 2 * next(net.parameters())
    return net


@pytest.mark.parametrize(
    ("model", "options", "reason"),
    [
        (bayesianize, {"objective": RobustELBO(likelihood=Gaussian())}, "Gaussian likelihood"),
        (bayesianize, {"attack": PGD(Threat(), pick="best")}, "compares candidates"),
        (lambda net: nn.Sequential(bayesianize(net)), {}, "several random parts"),
        (lambda net: nn.Sequential(net, nn.BatchNorm1d(10, momentum=None)), {}, "without a momentum"),
        (with_history, {}, "cannot be copied"),
        (Offering, {}, "random state"),
    ],
)
def test_unsupported_steps_are_refused_with_the_reason(model, options: dict, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        fast(model(network()), Defense(**options))


@pytest.mark.parametrize("begin", [True, False])
def test_frozen_batchnorm_is_refused(begin: bool) -> None:
    net = nn.Sequential(network(), nn.BatchNorm1d(10)).train(begin)
    net[1].train = lambda mode=True: net[1]  # the usual way to freeze BatchNorm
    net[1].training = False
    with pytest.raises(UnsupportedError, match="evaluation mode"):
        fast(net, Defense())
    fast(net[0].eval(), Defense())  # in evaluation mode as a whole: all of it is trained
