"""Prediction with a random network: the mean over weight samples, and its uncertainty (eq. 18 and 19)."""

import math
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from advbnn.errors import ArgumentError, ArgumentTypeError, positive_whole, unknown
from advbnn.modules import all_finite, evaluating, explain_input_errors, not_finite_error
from advbnn.randomness import seeded

RULES = ("probability", "loss", "vote")
_BYTES = 10  # images in [0, 1] stay below, whatever constant they are divided by
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


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
    positive_whole("samples", samples)
    if rule not in RULES:
        raise unknown("rule", rule, RULES)
    if not isinstance(x, Tensor):
        raise ArgumentTypeError(f"x must be a tensor, got {type(x).__name__}; torch.as_tensor makes one of an array")
    with evaluating(model), seeded(seed, x.device), explain_input_errors(model, "x", x.shape, x.dtype, x.device):
        outputs = [_logits(model, x) for _ in range(samples)]
    log_probs = torch.stack(outputs).log_softmax(-1)  # [samples, n, classes]
    log_mean = log_probs.logsumexp(0) - math.log(samples)
    probs = log_mean.exp()
    # checked after all passes are queued, and together, to wait for the device once
    checks = (all_finite(x), are_probabilities(outputs[0]), all_finite(probs), look_like_bytes(x))
    finite, probabilities, defined, bytes_found = torch.stack([check.to(probs.device) for check in checks]).tolist()
    if not finite:
        raise not_finite_error(x)
    _refuse_probabilities(probabilities)
    if not defined:
        raise ArgumentError("model returned NaN or infinite logits; check its weights and its precision")
    if bytes_found:
        remedy = "divide it by 255 if the network was trained on images in [0, 1]"
        warnings.warn(
            f"x has no value below 0 and some above {_BYTES}, like images of 0 to 255; {remedy}", stacklevel=3
        )
    entropy, expected_entropy = _entropy(log_mean), _entropy(log_probs).mean(0)
    mutual_information = (entropy - expected_entropy).clamp_min(0)  # negative only by rounding
    return Prediction(probs, _label(log_probs, probs, rule), entropy, expected_entropy, mutual_information)


class Ensemble(nn.Module):
    """The ensemble as a module: the log of the mean probability over `samples` weight samples (eq. 18).

    Its output can be used as logits (its softmax is the mean probability), so libraries that know nothing of random
    networks can attack or evaluate the classifier that is really deployed. With a seed the weight samples are the
    same at every call and the module is a deterministic function of its input; with `seed=None` they are fresh. A
    gradient through it keeps the activations of all samples.
    """

    def __init__(self, model: nn.Module, samples: int = 20, seed: int | None = 0) -> None:
        super().__init__()
        self.model, self.samples, self.seed = model, positive_whole("samples", samples), seed
        self.training = model.training
        self._checked = False

    def forward(self, x: Tensor) -> Tensor:
        """log (1/m) sum_k p(y | x, w_k), [n, classes]."""
        with seeded(self.seed, x.device):
            outputs = [_logits(self.model, x) for _ in range(self.samples)]
        # only once: a check waits for the device, and a compiler cannot trace it
        if not self._checked and not torch.compiler.is_compiling():
            _refuse_probabilities(bool(are_probabilities(outputs[0])))
            self._checked = True
        return torch.stack(outputs).log_softmax(-1).logsumexp(0) - math.log(self.samples)

    def extra_repr(self) -> str:
        return f"samples={self.samples}, seed={self.seed}"


def look_like_bytes(x: Tensor) -> Tensor:
    """Whether floating-point images seem to be on the scale 0 to 255, one bool."""
    if x.ndim != 4 or not x.numel() or x.layout != torch.strided or x.dtype not in _FLOATS:
        return torch.zeros((), dtype=torch.bool, device=x.device)
    low, high = x.aminmax()
    return (low >= 0) & (high > _BYTES)


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


def _label(log_probs: Tensor, probs: Tensor, rule: str) -> Tensor:
    if rule == "probability":
        return probs.argmax(-1)
    if rule == "loss":
        return log_probs.mean(0).argmax(-1)
    votes = nn.functional.one_hot(log_probs.argmax(-1), log_probs.shape[-1]).sum(0)
    # a mean probability is below 1, so half of it never outweighs a vote
    return (votes + probs / 2).argmax(-1)
