"""Prediction with a random network: the mean over weight samples, and its uncertainty (eq. 18 and 19).

A posterior with few enough members is not sampled: the mean over all of them, with their weights, is exact.
"""

import math
import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from advbnn.bayes.outputs import (
    are_probabilities,
    check_module,
    check_same_outputs,
    must_be_sampled,
    outputs_and_weights,
    sampled_outputs,
    some_are_probabilities,
)
from advbnn.bayes.protocol import EXACT_UP_TO, members
from advbnn.display import notebook
from advbnn.errors import ArgumentError, one_of, positive_whole, whole
from advbnn.modules import dtype_of, not_finite_error
from advbnn.names import RULES
from advbnn.randomness import seeded, with_fresh_state

_BYTES = 10  # images in [0, 1] stay below, whatever constant they are divided by


@dataclass(frozen=True, repr=False)
class Prediction:
    """The prediction of an ensemble of weight samples for each of n inputs. Entropies are in nats.

    Attributes:
        probs: mean probability of each class over the samples, [n, classes].
        label: the predicted class by the chosen rule, [n].
        entropy: entropy of the mean probability: the total uncertainty, [n].
        expected_entropy: mean entropy of the single samples: the uncertainty that remains for known weights, [n].
        mutual_information: their difference: how much the samples disagree, [n].
        samples: the number of weight samples; if `exact`, the number of members.
        exact: whether the mean is over all members of a posterior with finite support, with their weights.
    """

    probs: Tensor
    label: Tensor
    entropy: Tensor
    expected_entropy: Tensor
    mutual_information: Tensor
    samples: int = 1
    exact: bool = False

    def __repr__(self) -> str:
        n = len(self.label)
        labels = " ".join(map(str, self.label[:10].tolist())) + (" ..." if n > 10 else "")
        sure = f"mean confidence {self._confidence.mean():.1%}, entropy {self.entropy.mean():.3g} nats, " if n else ""
        return f"Prediction(labels {labels}; {n} inputs, {sure}{self._ensemble})"

    def _repr_html_(self) -> str:
        """One row per input, for notebooks."""
        columns = ("input", "label", "probability", "entropy", "mutual information")
        first = slice(notebook.MOST_ROWS)
        values = (self.label, self._confidence, self.entropy, self.mutual_information)
        rows = [
            (number, label, f"{confidence:.1%}", f"{entropy:.3f}", f"{disagreement:.3f}")
            for number, (label, confidence, entropy, disagreement) in enumerate(
                zip(*(value[first].tolist() for value in values), strict=True)
            )
        ]
        caption = f"Predictions of {self._ensemble}; entropies in nats"
        return notebook.table(caption, columns, rows, len(self.label))

    @property
    def _confidence(self) -> Tensor:
        """The mean probability of the label, [n]."""
        return self.probs.gather(-1, self.label[:, None]).squeeze(-1)

    @property
    def _ensemble(self) -> str:
        if self.exact:
            return f"the exact mean over {self.samples} members"
        return f"{self.samples} weight sample{'' if self.samples == 1 else 's'}"


@torch.no_grad()
def predict(
    model: nn.Module,
    x: Tensor,
    samples: int = 20,
    seed: int | None = None,
    rule: str = "probability",
    exact_up_to: int = EXACT_UP_TO,
) -> Prediction:
    """Classify `x` with `samples` weight samples of the network, in evaluation mode.

    Args:
        model: any network that returns logits [n, classes]; it need not be random. One that keeps its random state
            between passes and offers `resample(seed)` gets a fresh state for every sample. One whose first three passes
            agree and use no random numbers of torch is taken for deterministic, and passed once: a network that keeps
            its state for longer has to offer `resample(seed)`.
        samples: the number of weight samples, m in eq. 18; unused if the mean is exact.
        seed: makes the prediction repeatable and leaves torch's random state unchanged.
        rule: how the samples give a label: `"probability"`, the largest mean probability (eq. 18); `"loss"`, the
            smallest expected loss (eq. 19); `"vote"`, the class that most samples choose, with ties decided by the
            larger mean probability.
        exact_up_to: a network with finite support, and at most so many members, is not sampled: the prediction is the
            exact mean over its members. 0 always samples.
    """
    one_of("rule", rule, RULES)
    log_probs, weights = _log_probs(model, x, samples, seed, exact_up_to)
    found = prediction_of(log_probs, rule, weights)
    dtype = torch.promote_types(dtype_of(model), torch.float32)
    numbers = ("probs", "entropy", "expected_entropy", "mutual_information")
    return replace(found, **{name: getattr(found, name).to(dtype) for name in numbers})


@torch.no_grad()
def exact_prediction(model: nn.Module, x: Tensor, seed: int, rule: str) -> Prediction:
    """As `predict`, of a network whose mean over its members is known to be exact: nothing is looked at again."""
    log_probs, weights = _log_probs(model, x, 1, seed, EXACT_UP_TO, looks=False)
    if weights is None:
        remedy = "let every pass draw a number, torch.rand(()), or evaluate with exact=False"
        raise ArgumentError(f"model has networks that use random numbers for some inputs only; {remedy}")
    return prediction_of(log_probs, rule, weights)


@torch.no_grad()
def sampled_log_probs(model: nn.Module, x: Tensor, samples: int, seed: int | None = None) -> Tensor:
    """log p(c | x, w_k) for each class c and each of `samples` weight samples w_k, [samples, n, classes].

    For a seed, the first m samples are those of `samples=m`. In double precision. Arguments as for `predict`.
    """
    return _log_probs(model, x, samples, seed, exact_up_to=0)[0]


def _log_probs(
    model: nn.Module, x: Tensor, samples: int, seed: int | None, exact_up_to: int, looks: bool = True
) -> tuple[Tensor, Tensor | None]:
    """The log probabilities of weight samples, or of all members with their weights."""
    positive_whole("samples", samples)
    outputs, weights = _checked_logits(*sampled_outputs(model, x, samples, seed, exact_up_to, looks))
    logits = torch.stack(outputs)
    log_probs = logits.to(_wide(logits)).log_softmax(-1)
    # checked after all passes are queued, and together, to wait for the device once
    checks = (x.isfinite().all(), _are_probabilities(logits, weights), ~log_probs.isnan().any(), look_like_bytes(x))
    finite, probabilities, defined, bytes_found = torch.stack([check.to(log_probs.device) for check in checks]).tolist()
    if not finite:
        raise not_finite_error(x)
    if probabilities:  # a single image may have such logits by chance, but hardly two
        others, _ = sampled_outputs(model, x.flip(-1), samples, seed, exact_up_to, looks)
        _refuse_probabilities(bool(_are_probabilities(torch.stack(others), weights)))
    if not defined:
        raise ArgumentError("model returned NaN or infinite logits; check its weights and its precision")
    if bytes_found:
        remedy = "divide it by 255 if the network was trained on images in [0, 1]"
        warnings.warn(
            f"x has no value below 0 and some above {_BYTES}, like images of 0 to 255; {remedy}", stacklevel=4
        )
    return log_probs, weights


def prediction_of(log_probs: Tensor, rule: str = "probability", weights: Tensor | None = None) -> Prediction:
    """The prediction of the ensemble whose samples have the given log probabilities, [samples, n, classes].

    The samples count equally, or by their `weights`, which sum to 1.
    """
    log_mean = _log_mean(log_probs, weights)
    probs = log_mean.exp()
    entropy, expected_entropy = _entropy(log_mean), _mean(_entropy(log_probs), weights)
    # the difference of two entropies is rounded: negative, or above zero for samples that are all the same
    same = (log_probs == log_probs[:1]).all(-1).all(0)
    mutual_information = (entropy - expected_entropy).clamp_min(0).masked_fill(same, 0)
    label = probs.argmax(-1)
    if rule == "loss":
        # a weighted infinity is an infinity: every weight is positive
        label = _mean(log_probs, weights).argmax(-1)
    elif rule == "vote":
        votes = _mean(nn.functional.one_hot(log_probs.argmax(-1), log_probs.shape[-1]).to(probs), weights)
        tied = votes >= votes.amax(-1, keepdim=True) - 1e-5
        label = torch.where(tied, probs, -1).argmax(-1)
    return Prediction(
        probs, label, entropy, expected_entropy, mutual_information, samples=len(log_probs), exact=weights is not None
    )


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
    same at every call and the module is a deterministic function of its input; with `seed=None` they are fresh. A
    network with finite support, and at most `exact_up_to` members, is not sampled: the mean is over its members. With
    `samples=None` it is so for any number of members. A gradient through it keeps the activations of all samples; of
    members only as many as `activations.outputs_of` says.
    """

    def __init__(
        self, model: nn.Module, samples: int | None = 20, seed: int | None = 0, exact_up_to: int = EXACT_UP_TO
    ) -> None:
        super().__init__()
        check_module(model)
        if samples is None and not members(model):
            kind = type(model).__name__
            raise ArgumentError(
                f"samples=None needs a posterior with finite support, and {kind} has none; give a number"
            )
        self.samples = None if samples is None else positive_whole("samples", samples)
        self.model, self.seed = with_fresh_state(model), seed
        self.exact_up_to = len(members(model)) if samples is None else whole("exact_up_to", exact_up_to, 0)
        self.training = model.training
        self._checked = False

    def forward(self, x: Tensor) -> Tensor:
        """log (1/m) sum_k p(y | x, w_k), [n, classes]."""
        # only once: a check waits for the device, and a compiler cannot trace it
        checks = not self._checked and not torch.compiler.is_compiling()
        parts = members(self.model, self.exact_up_to)
        if checks and must_be_sampled(parts, x):
            if self.samples is None:
                raise ArgumentError("samples=None needs members that are not random themselves; give a number")
            self.exact_up_to, parts = 0, ()
        with seeded(self.seed, x.device):
            found = outputs_and_weights(self.model, x, self.samples or 1, parts)
        outputs, weights = _checked_logits(*found)
        logits = torch.stack(outputs)
        if checks:
            _refuse_probabilities(bool(_are_probabilities(logits, weights)))
            self._checked = True
        return _log_mean(logits.log_softmax(-1), weights)

    def extra_repr(self) -> str:
        return f"samples={self.samples}, seed={self.seed}, exact_up_to={self.exact_up_to}"


def look_like_bytes(x: Tensor) -> Tensor:
    """Whether floating-point images seem to be on the scale 0 to 255, one bool."""
    if x.ndim != 4 or not x.numel() or not x.is_floating_point():
        return torch.zeros((), dtype=torch.bool, device=x.device)
    low, high = x.aminmax()
    return (low >= 0) & (high > _BYTES)


def _checked_logits(outputs: list[Any], weights: list[float] | None) -> tuple[list[Tensor], Tensor | None]:
    for output in outputs:
        _check_logits(output)
    check_same_outputs(*(output.shape for output in outputs))
    found = outputs[0]
    return outputs, None if weights is None else torch.tensor(weights, dtype=_wide(found), device=found.device)


def _wide(outputs: Tensor) -> torch.dtype:
    """Double precision: in float32 small logits would become ties, and in bfloat16 means would not sum to 1."""
    return torch.float32 if outputs.device.type == "mps" else torch.float64


def _check_logits(logits: Any) -> None:
    if not isinstance(logits, Tensor) or logits.dim() != 2:
        came = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ArgumentError(f"model must return one tensor of logits [n, classes], got {came}; wrap it to return those")
    if not logits.is_floating_point():
        raise ArgumentError(f"model must return logits of a floating-point type, got {logits.dtype}; use .float()")
    if logits.shape[1] < 2:
        remedy = "for regression use advbnn.regress, for two classes give it two outputs"
        raise ArgumentError(f"model must return logits for two classes or more, got {tuple(logits.shape)}; {remedy}")


def _are_probabilities(logits: Tensor, weights: Tensor | None) -> Tensor:
    """Whether one of the members returns probabilities, or all weight samples do: of many, some look so by chance."""
    return are_probabilities(logits) if weights is None else some_are_probabilities(logits)


def _refuse_probabilities(found: bool) -> None:
    if found:
        raise ArgumentError("model returned probabilities, not logits: remove the softmax, or return its logarithm")


def _entropy(log_probs: Tensor) -> Tensor:
    # a probability of zero contributes nothing, though its logarithm is infinite
    return -torch.where(log_probs == -torch.inf, 0.0, log_probs.exp() * log_probs).sum(-1)


def _mean(values: Tensor, weights: Tensor | None) -> Tensor:
    """The mean over the samples, [m, ...] -> [...]."""
    return values.mean(0) if weights is None else torch.tensordot(weights.to(values), values, 1)


def _log_mean(log_probs: Tensor, weights: Tensor | None) -> Tensor:
    """The log of the mean probability over the samples, [m, n, classes] -> [n, classes]."""
    if weights is None:
        return log_probs.logsumexp(0) - math.log(len(log_probs))
    return (log_probs + weights.to(log_probs).log()[:, None, None]).logsumexp(0)
