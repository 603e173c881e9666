"""What an attack maximises: a loss, and how it is averaged over the weight samples of a random network.

Every loss takes outputs and labels and returns one number per example, larger for the attacker's success. In its
targeted form the labels are the target classes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from advbnn.errors import ArgumentError, check_types, one_of

AVERAGES = ("loss", "probability", "logits")


def cross_entropy(logits: Tensor, y: Tensor, targeted: bool = False) -> Tensor:
    """-log p_y; targeted: log p_y."""
    loss = functional.cross_entropy(logits, y, reduction="none")
    return -loss if targeted else loss


def margin(logits: Tensor, y: Tensor, targeted: bool = False) -> Tensor:
    """max_{j != y} z_j - z_y, positive exactly when the attack has succeeded; targeted: its negative."""
    own = logits.gather(1, y[:, None]).squeeze(1)
    other = logits.scatter(1, y[:, None], -torch.inf).amax(1)
    return own - other if targeted else other - own


def dlr(logits: Tensor, y: Tensor, targeted: bool = False) -> Tensor:
    """The margin over z_(1) - z_(3), invariant to the scale of the logits (Croce and Hein, 2020).

    If all classes but two have a logit of -inf, it is the margin.
    """
    if logits.shape[1] < 3:
        raise ArgumentError(f"loss='dlr' needs at least 3 classes, the model has {logits.shape[1]}; use loss='margin'")
    top = logits.topk(3, dim=1).values
    return margin(logits, y, targeted) / _scale(top, top[:, 2])


def _scale(top: Tensor, low: Tensor) -> Tensor:
    """z_(1) - low for sorted logits `top`; 1 where the third logit is -inf."""
    return torch.where(top[:, 2] == -torch.inf, 1.0, top[:, 0] - low + torch.finfo(top.dtype).eps)


def gaussian_nll(outputs: Tensor, y: Tensor, targeted: bool = False) -> Tensor:
    """|y - f|^2 / 2: the negative log-likelihood of a Gaussian with variance 1, up to a constant."""
    if outputs.shape != y.shape:
        shapes = f"{tuple(y.shape)} and {tuple(outputs.shape)}"
        raise ArgumentError(f"loss='nll' needs y and the model's output in the same shape, got {shapes}")
    loss = (outputs - y).square().flatten(1).sum(1) / 2 if y.ndim > 1 else (outputs - y).square() / 2
    return -loss if targeted else loss


Loss = Callable[[Tensor, Tensor, bool], Tensor]
LOSSES: dict[str, Loss] = {"ce": cross_entropy, "margin": margin, "dlr": dlr, "nll": gaussian_nll}


@dataclass(frozen=True, kw_only=True)
class Objective:
    """A loss, and its average over weight samples.

    It averages the `"loss"` (eq. 3), or it is the loss of the mean `"probability"`, which is the prediction of the
    ensemble (eq. 18), or of the mean output, the `"logits"`.
    """

    loss: str = "ce"
    average: str = "loss"
    targeted: bool = False

    def __post_init__(self) -> None:
        check_types(self)
        one_of("loss", self.loss, LOSSES)
        one_of("average", self.average, AVERAGES)
        if self.loss == "nll" and self.average == "probability":
            raise ArgumentError("average='probability' needs a classifier; with loss='nll' use 'loss' or 'logits'")

    @property
    def classifies(self) -> bool:
        """Whether the outputs are logits and the labels classes."""
        return self.loss != "nll"

    @property
    def needs_mean(self) -> bool:
        """Whether the gradient of a weight sample's share is known only when the mean over all samples is.

        It is not so for the cross-entropy of the mean probability: the gradient is a mean of those of the samples.
        """
        separable = type(self) is Objective and (self.loss, self.average) == ("ce", "probability")
        return self.average != "loss" and not separable

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss of each example, [n], to be maximised."""
        return LOSSES[self.loss](outputs, y, self.targeted)

    def of_sample(self, outputs: Tensor, y: Tensor) -> Tensor | float:
        """A term of each weight sample, whose mean is added to the loss of a mean; 0 for most objectives."""
        return 0.0


class TargetedDLR(Objective):
    """(z_t - z_y) / (z_(1) - (z_(3) + z_(4)) / 2) for labels in pairs (y, t) (Croce and Hein, 2020).

    If z_(4) is -inf, z_(3) replaces it; if z_(3) is -inf, the loss is the margin.
    """

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss of each example; `y` has shape [n, 2]."""
        if outputs.shape[1] < 4:
            raise ArgumentError(f"targets needs at least 4 classes, the model has {outputs.shape[1]}; leave it out")
        own, target = outputs.gather(1, y).unbind(1)
        top = outputs.topk(4, dim=1).values
        third, fourth = top[:, 2], top[:, 3]
        return (target - own) / _scale(top, (third + torch.where(fourth == -torch.inf, third, fourth)) / 2)
