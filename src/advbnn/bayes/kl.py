"""KL(q(w) || p(w)) of a network with random weights, a function of its parameters (eq. 6 and 12)."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from advbnn.bayes.mean_field import Bayesian, Choice
from advbnn.errors import ArgumentError, unknown


def kl_divergence(model: nn.Module, scope: str | Choice = "all") -> Tensor:
    """KL(q(w) || p(w)), summed over the random weights of every Bayesian part of `model` (eq. 6 and 12).

    Args:
        model: a `Bayesian`, or any module that contains some, such as one built from `advbnn.bayes.layers`.
        scope: `"all"`, the paper's objective; `"classifier"`, the last linear layer alone, which is what the
            authors' published VGG regularises; or a predicate on (name, mean parameter).
    """
    chosen = _terms_in_scope(model, scope)
    divergences = [term.prior.kl(term.local_name, term.mu, term.log_std) for term in chosen]
    return torch.stack([d.to(divergences[0].device) for d in divergences]).sum()


def names_in_scope(model: nn.Module, scope: str | Choice = "all") -> list[str]:
    """Names of the random parameters that `kl_divergence(model, scope)` sums over."""
    return [term.name for term in _terms_in_scope(model, scope)]


def _terms_in_scope(model: nn.Module, scope: str | Choice) -> "list[_Term]":
    terms = list(_divergence_terms(model))
    if not terms:
        raise ArgumentError("model has no Bayesian part, so no divergence; convert it with advbnn.bayesianize(net)")
    if callable(scope):
        chosen = [term for term in terms if scope(term.name, term.mu)]
    elif scope == "all":
        chosen = terms
    elif scope == "classifier":
        owner = _classifier(terms)
        chosen = [term for term in terms if term.owner is owner]
    else:
        raise unknown("scope", scope, ("all", "classifier"))
    if not chosen:
        raise ArgumentError("scope chooses no random parameter; see the names in bnn.posterior()")
    return chosen


class _Term:
    """One random parameter of a model, with the names it has in the model and in its own Bayesian part."""

    def __init__(self, path: str, part: Bayesian, local_name: str, mu: nn.Parameter, log_std: nn.Parameter) -> None:
        self.name = f"{path}.{local_name}" if path else local_name
        self.local_name, self.mu, self.log_std, self.prior = local_name, mu, log_std, part.prior
        self.owner = part.net.get_submodule(local_name.rpartition(".")[0])


def _divergence_terms(model: nn.Module) -> Iterator[_Term]:
    for path, part in model.named_modules():
        if isinstance(part, Bayesian):
            for name, mu, log_std in part.posterior():
                yield _Term(path, part, name, mu, log_std)


def _classifier(terms: list[_Term]) -> nn.Module:
    owners = [term.owner for term in terms]
    linear = [owner for owner in owners if isinstance(owner, nn.Linear)]
    return (linear or owners)[-1]
