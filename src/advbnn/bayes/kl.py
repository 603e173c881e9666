"""KL(q(w) || p(w)) of a network with random weights, a function of its parameters (eq. 6 and 12)."""

import torch
from torch import Tensor, nn

from advbnn.bayes.modes import Modes
from advbnn.bayes.protocol import Choice, GaussianParameter, gaussian_parameters
from advbnn.errors import ArgumentError, unknown


def kl_divergence(model: nn.Module, scope: str | Choice = "all") -> Tensor:
    """KL(q(w) || p(w)), summed over the random weights of every Bayesian part of `model` (eq. 6 and 12).

    Args:
        model: a `Bayesian`, or any module that contains some, such as one built from `advbnn.bayes.layers`. Of a
            mixture, `Modes`, each component has a KL of its own.
        scope: `"all"`, the paper's objective; `"classifier"`, only the last linear layer, which is what the
            authors' published VGG regularises; or a predicate on (name, mean parameter).
    """
    terms = [parameter.kl() for parameter in _in_scope(model, scope)]
    return torch.stack([term.to(terms[0].device) for term in terms]).sum()


def names_in_scope(model: nn.Module, scope: str | Choice = "all") -> list[str]:
    """Names of the random parameters that `kl_divergence(model, scope)` sums over."""
    return [parameter.name for parameter in _in_scope(model, scope)]


def _in_scope(model: nn.Module, scope: str | Choice) -> list[GaussianParameter]:
    parameters = gaussian_parameters(model)
    if any(isinstance(part, Modes) and len(part) > 1 and gaussian_parameters(part) for part in model.modules()):
        remedy = "the mean of kl_divergence(mode) for mode in modes.net, by weight, is an upper bound"
        raise ArgumentError(f"model holds a mixture, whose KL has no closed form; {remedy}")
    if not parameters:
        raise ArgumentError("model has no Bayesian part, so no KL; convert it with advbnn.bayesianize(net)")
    if scope == "all":
        return parameters
    if callable(scope):
        chosen = [p for p in parameters if scope(p.name, p.mu)]
    elif scope == "classifier":
        linear = [p for p in parameters if isinstance(p.owner, nn.Linear)]
        classifier = (linear or parameters)[-1].owner
        chosen = [p for p in parameters if p.owner is classifier]
    else:
        raise unknown("scope", scope, ("all", "classifier"))
    if not chosen:
        raise ArgumentError("scope chooses no random parameter; see the names in bnn.posterior()")
    return chosen
