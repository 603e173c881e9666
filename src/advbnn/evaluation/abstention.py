"""Abstaining from uncertain predictions: the entropy above which to abstain."""

import math
from dataclasses import dataclass

from torch import Tensor, nn

from advbnn.bayes.prediction import predict
from advbnn.data.imageset import Examples
from advbnn.errors import ArgumentError, within
from advbnn.evaluation.batchwise import Batch, batchwise
from advbnn.modules import device_of, dtype_of


@dataclass(frozen=True)
class Cutoff:
    """The largest entropy that is still classified, in nats, the fraction of images classified, and their accuracy."""

    entropy: float
    coverage: float
    accuracy: float


def cutoff(
    model: nn.Module, images: Examples, coverage: float = 0.9, samples: int = 20, seed: int = 0, batch_size: int = 250
) -> Cutoff:
    """The smallest entropy that covers at least a fraction `coverage` of the images.

    It holds on average for images of the same distribution. It promises nothing about others, least of all about
    attacked ones. The model must not have been trained on these images. Their labels do not set the cutoff. `samples`
    and `seed` are those that predictions will use.
    """

    def work(x: Tensor, y: Tensor, batch: Batch) -> dict[str, Tensor]:
        x, y = x.to(device_of(model, x.device), dtype_of(model)), y.to(device_of(model, y.device))
        prediction = predict(model, x, samples, seed)
        return {"entropy": prediction.entropy, "correct": prediction.label == y}

    found = batchwise(work, images, batch_size=batch_size).tensors
    limit = threshold(found["entropy"], coverage)
    kept = found["entropy"] <= limit
    return Cutoff(limit, kept.double().mean().item(), found["correct"][kept].double().mean().item())


def threshold(uncertainty: Tensor, coverage: float) -> float:
    """The smallest of the values [n] that at least a fraction `coverage` of them, in (0, 1], does not exceed."""
    within("coverage", coverage, "(0, 1]", "0.9 classifies nine of ten")
    if uncertainty.ndim != 1 or len(uncertainty) == 0 or bool(uncertainty.isnan().any()):
        raise ArgumentError(f"uncertainty must be [n] without NaN, n at least 1, got shape {list(uncertainty.shape)}")
    # rounding may put the product slightly above the intended whole number
    kept = max(1, math.ceil(coverage * len(uncertainty) - 1e-9))
    return uncertainty.sort().values[kept - 1].item()
