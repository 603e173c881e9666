"""Predicting with a random network: the mean over draws, and how uncertain it is (eq. 18 and 19)."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from advbnn.errors import ArgumentError, ArgumentTypeError, unknown
from advbnn.modules import evaluating, explain_input_errors
from advbnn.randomness import seeded

RULES = ("probability", "loss", "vote")


@dataclass(frozen=True)
class Prediction:
    """What an ensemble of draws says of each of n inputs. Entropies are in nats.

    Attributes:
        probs: mean probability of each class over the draws, [n, classes].
        label: the predicted class by the chosen rule, [n].
        entropy: entropy of the mean probability: all of the uncertainty, [n].
        expected_entropy: mean entropy of the single draws: what is left when the weights are known, [n].
        mutual_information: their difference: how much the draws disagree, [n].
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
    """Classify `x` by `samples` draws of the network.

    The model runs in evaluation mode and is handed back in the mode it had.

    Args:
        model: any network that returns logits [n, classes]; a deterministic one simply agrees with itself.
        x: a batch of inputs, finite ones.
        samples: the number of draws, m in eq. 18.
        seed: makes the prediction repeatable and leaves torch's random state as it was.
        rule: how draws become a label: `"probability"`, the largest mean probability (eq. 18); `"loss"`, the least
            expected loss (eq. 19); `"vote"`, the class that most draws choose, ties going to the larger mean
            probability.
    """
    _check_samples(samples)
    if rule not in RULES:
        raise unknown("rule", rule, RULES)
    if not isinstance(x, Tensor):
        raise ArgumentTypeError(f"x must be a tensor, got {type(x).__name__}; torch.as_tensor makes one of an array")
    with evaluating(model), seeded(seed, x.device), explain_input_errors(model, "x", x.shape, x.dtype):
        outputs = [_logits(model, x) for _ in range(samples)]
    _check_inputs_and_outputs(x, outputs[0])
    draws = torch.stack(outputs).log_softmax(-1)  # [samples, n, classes]
    log_mean = draws.logsumexp(0) - math.log(samples)
    probs = log_mean.exp()
    entropy = _entropy(log_mean)
    expected_entropy = _entropy(draws).mean(0)
    return Prediction(
        probs=probs,
        label=_decide(draws, probs, rule),
        entropy=entropy,
        expected_entropy=expected_entropy,
        # never negative but for rounding
        mutual_information=(entropy - expected_entropy).clamp_min(0),
    )


class Ensemble(nn.Module):
    """The ensemble as a module of its own: the log of the mean probability over `samples` draws (eq. 18).

    Its output can stand wherever logits are asked for (its softmax is the mean probability), so libraries that
    know nothing of random networks can attack or evaluate the classifier that is really deployed. With a seed
    the draws are the same at every call and the module is a deterministic function of its input; with
    `seed=None` they are fresh. A gradient through it keeps the activations of all draws.
    """

    def __init__(self, model: nn.Module, samples: int = 20, seed: int | None = 0) -> None:
        super().__init__()
        _check_samples(samples)
        self.model, self.samples, self.seed = model, samples, seed
        self.training = model.training
        self._checked = False

    def forward(self, x: Tensor) -> Tensor:
        """log (1/m) sum_k p(y | x, w_k), [n, classes]."""
        with seeded(self.seed, x.device):
            outputs = [_logits(self.model, x) for _ in range(self.samples)]
        # once, as a look at every pass would keep the device waiting, and a compiler cannot look at all
        if not self._checked and not torch.compiler.is_compiling():
            _refuse_probabilities(bool(are_probabilities(outputs[0])))
            self._checked = True
        return torch.stack(outputs).log_softmax(-1).logsumexp(0) - math.log(self.samples)

    def extra_repr(self) -> str:
        """The number of draws and the seed, for `print`."""
        return f"samples={self.samples}, seed={self.seed}"


def are_probabilities(outputs: Tensor) -> Tensor:
    """Whether all rows are non-negative and sum to 1, as those of a softmax and hardly ever logits; one bool."""
    off = (outputs.sum(-1) - 1).abs().amax() if outputs.numel() else torch.ones((), device=outputs.device)
    # a sum in bfloat16 is off by more than one in float32
    return (off <= max(1e-3, torch.finfo(outputs.dtype).eps)) & (outputs >= 0).all()


def _logits(model: nn.Module, x: Tensor) -> Tensor:
    logits: Any = model(x)
    if not isinstance(logits, Tensor) or logits.dim() != 2:
        came = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ArgumentError(f"model must return one tensor of logits [n, classes], got {came}; wrap it to return those")
    if logits.shape[1] < 2:
        raise ArgumentError(
            f"model must return a logit for each of two classes or more, got shape {tuple(logits.shape)}, of which the "
            "softmax is always 1; for regression use advbnn.regress, for two classes give it two outputs"
        )
    return logits


def all_finite(x: Tensor) -> Tensor:
    """Whether all inputs are finite, one bool; sparse ones and floats of one byte cannot be asked, and pass."""
    can_be_asked = x.layout == torch.strided and x.is_floating_point() and x.dtype.itemsize > 1
    return x.isfinite().all() if can_be_asked else torch.ones((), dtype=torch.bool, device=x.device)


def not_finite(x: Tensor) -> ArgumentError:
    """The error for inputs that hold NaN or infinity: whatever a network answers to these means nothing."""
    bad = int((~x.isfinite()).reshape(len(x), -1).any(1).sum())
    return ArgumentError(
        f"x must hold finite numbers, got NaN or infinity in {bad} of {len(x)} inputs; leave these out, or look for "
        "what made them, such as a division by zero"
    )


def _check_inputs_and_outputs(x: Tensor, outputs: Tensor) -> None:
    # asked when all draws are under way, and brought over together, to wait for the device once
    finite, probabilities = torch.stack([all_finite(x).to(outputs.device), are_probabilities(outputs)]).tolist()
    if not finite:
        raise not_finite(x)
    _refuse_probabilities(probabilities)


def _refuse_probabilities(found: bool) -> None:
    if found:
        raise ArgumentError(
            "model returned probabilities (rows are non-negative and sum to 1), and their softmax would be taken: "
            "remove the softmax, or return its logarithm"
        )


def _entropy(log_probs: Tensor) -> Tensor:
    # a probability of zero contributes nothing, though its logarithm is infinite
    return -torch.where(log_probs == -torch.inf, 0.0, log_probs.exp() * log_probs).sum(-1)


def _decide(draws: Tensor, probs: Tensor, rule: str) -> Tensor:
    if rule == "probability":
        return probs.argmax(-1)
    if rule == "loss":
        return draws.mean(0).argmax(-1)
    votes = nn.functional.one_hot(draws.argmax(-1), draws.shape[-1]).sum(0)
    # a mean probability is below 1, so half of it never outweighs a vote
    return (votes + probs / 2).argmax(-1)


def _check_samples(samples: int) -> None:
    if samples < 1:
        raise ArgumentError(f"samples must be at least 1, got {samples}; 10 to 20 draws are usual")
