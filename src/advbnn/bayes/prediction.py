"""Prediction with a random network: the mean over weight samples, and its uncertainty (eq. 18 and 19)."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from advbnn.bayes.protocol import members
from advbnn.errors import ArgumentError, ArgumentTypeError, positive_whole, unknown
from advbnn.modules import all_finite, evaluating, explain_input_errors, not_finite_error
from advbnn.randomness import seeded

RULES = ("probability", "loss", "vote")


@dataclass(frozen=True)
class Prediction:
    """The prediction of an ensemble of weight samples for each of n inputs. Entropies are in nats.

    Attributes:
        probs: mean probability of each class over the samples, [n, classes].
        label: the predicted class by the chosen rule, [n].
        entropy: entropy of the mean probability: the total uncertainty, [n].
        expected_entropy: mean entropy of the single samples: the uncertainty that remains for known weights, [n].
        mutual_information: their difference: how much the samples disagree, [n].
    """

    probs: Tensor
    label: Tensor
    entropy: Tensor
    expected_entropy: Tensor
    mutual_information: Tensor


@torch.no_grad()
def predict(
    model: nn.Module, x: Tensor, samples: int = 20, seed: int | None = None, rule: str = "probability"
) -> Prediction:
    """Classify `x` with `samples` weight samples of the network, in evaluation mode.

    Args:
        model: any network that returns logits [n, classes]; it need not be random.
        samples: the number of weight samples, m in eq. 18.
        seed: makes the prediction repeatable and leaves torch's random state unchanged.
        rule: how the samples give a label: `"probability"`, the largest mean probability (eq. 18); `"loss"`, the
            smallest expected loss (eq. 19); `"vote"`, the class that most samples choose, with ties decided by the
            larger mean probability.
    """
    if rule not in RULES:
        raise unknown("rule", rule, RULES)
    return prediction_of(sampled_log_probs(model, x, samples, seed), rule)


@torch.no_grad()
def sampled_log_probs(model: nn.Module, x: Tensor, samples: int, seed: int | None = None) -> Tensor:
    """log p(c | x, w_k) for each class c and each of `samples` weight samples w_k, [samples, n, classes].

    For a seed, the first m samples are those of `samples=m`. Arguments as for `predict`.
    """
    positive_whole("samples", samples)
    if not isinstance(x, Tensor):
        raise ArgumentTypeError(f"x must be a tensor, got {type(x).__name__}; torch.as_tensor makes one of an array")
    with evaluating(model), seeded(seed, x.device), explain_input_errors(model, "x", x.shape, x.dtype, x.device):
        outputs = [_logits(model, x) for _ in range(samples)]
    # checked after all passes are queued, and together, to wait for the device once
    finite, probabilities = torch.stack([all_finite(x).to(outputs[0].device), are_probabilities(outputs[0])]).tolist()
    if not finite:
        raise not_finite_error(x)
    _refuse_probabilities(probabilities)
    return torch.stack(outputs).log_softmax(-1)


def prediction_of(log_probs: Tensor, rule: str = "probability") -> Prediction:
    """The prediction of the ensemble whose samples have the given log probabilities, [samples, n, classes]."""
    log_mean = log_probs.logsumexp(0) - math.log(len(log_probs))
    probs = log_mean.exp()
    entropy, expected_entropy = _entropy(log_mean), _entropy(log_probs).mean(0)
    mutual_information = (entropy - expected_entropy).clamp_min(0)  # negative only by rounding
    mean = probs if rule == "probability" else contributions(log_probs, rule).mean(0)
    return Prediction(probs, mean.argmax(-1), entropy, expected_entropy, mutual_information)


def contributions(log_probs: Tensor, rule: str) -> Tensor:
    """What each sample adds for each class, so that the label of any ensemble is the class with the largest mean.

    For the three rules: the probability, its logarithm, and the vote. Ties of votes are decided by the probability: a
    mean below 1, divided by twice the size of the ensemble, never outweighs a vote.
    """
    if rule == "loss":
        return log_probs
    probs = log_probs.exp()
    if rule == "probability":
        return probs
    votes = nn.functional.one_hot(log_probs.argmax(-1), log_probs.shape[-1])
    return votes + probs / (2 * len(log_probs))


class Ensemble(nn.Module):
    """The ensemble as a module: the log of the mean probability over `samples` weight samples (eq. 18).

    Its output can be used as logits (its softmax is the mean probability), so libraries that know nothing of random
    networks can attack or evaluate the classifier that is really deployed. With a seed the weight samples are the
    same at every call and the module is a deterministic function of its input; with `seed=None` they are fresh. With
    `samples=None` it is the exact mean over the members of a posterior with finite support. A gradient through it keeps
    the activations of all samples.
    """

    def __init__(self, model: nn.Module, samples: int | None = 20, seed: int | None = 0) -> None:
        super().__init__()
        if samples is None and not members(model):
            kind = type(model).__name__
            raise ArgumentError(
                f"samples=None needs a posterior with finite support, and {kind} has none; give a number"
            )
        self.samples = None if samples is None else positive_whole("samples", samples)
        self.model, self.seed = model, seed
        self.training = model.training
        self._checked = False

    def forward(self, x: Tensor) -> Tensor:
        """log (1/m) sum_k p(y | x, w_k), [n, classes]."""
        if self.samples is None:
            parts = [(one.weight, one.net.train(self.training)) for one in members(self.model)]
            return torch.stack([_logits(net, x).log_softmax(-1) + math.log(weight) for weight, net in parts]).logsumexp(
                0
            )
        with seeded(self.seed, x.device):
            outputs = [_logits(self.model, x) for _ in range(self.samples)]
        # only once: a check waits for the device, and a compiler cannot trace it
        if not self._checked and not torch.compiler.is_compiling():
            _refuse_probabilities(bool(are_probabilities(outputs[0])))
            self._checked = True
        return torch.stack(outputs).log_softmax(-1).logsumexp(0) - math.log(self.samples)

    def extra_repr(self) -> str:
        return f"samples={self.samples}, seed={self.seed}"


def are_probabilities(outputs: Tensor) -> Tensor:
    """Whether all rows are non-negative and sum to 1, as after a softmax and hardly ever for logits; one bool."""
    off = (outputs.sum(-1) - 1).abs().amax() if outputs.numel() else torch.ones((), device=outputs.device)
    # a sum in bfloat16 has a larger error than one in float32
    return (off <= max(1e-3, torch.finfo(outputs.dtype).eps)) & (outputs >= 0).all()


def _logits(model: nn.Module, x: Tensor) -> Tensor:
    logits: Any = model(x)
    if not isinstance(logits, Tensor) or logits.dim() != 2:
        came = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ArgumentError(f"model must return one tensor of logits [n, classes], got {came}; wrap it to return those")
    if logits.shape[1] < 2:
        remedy = "for regression use advbnn.regress, for two classes give it two outputs"
        raise ArgumentError(f"model must return logits for two classes or more, got {tuple(logits.shape)}; {remedy}")
    return logits


def _refuse_probabilities(found: bool) -> None:
    if found:
        raise ArgumentError("model returned probabilities, not logits: remove the softmax, or return its logarithm")


def _entropy(log_probs: Tensor) -> Tensor:
    # a probability of zero contributes nothing, though its logarithm is infinite
    return -torch.where(log_probs == -torch.inf, 0.0, log_probs.exp() * log_probs).sum(-1)
