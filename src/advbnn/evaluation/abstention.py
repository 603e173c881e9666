"""Saying nothing when too uncertain: where the line is drawn, and what that line rests on."""

from dataclasses import dataclass

from torch import Tensor, nn

from advbnn.bayes.prediction import predict
from advbnn.data.imageset import Examples
from advbnn.evaluation.batchwise import Batch, batchwise
from advbnn.evaluation.selective import threshold
from advbnn.modules import device_of, dtype_of


@dataclass(frozen=True)
class Cutoff:
    """Where to stop answering.

    Attributes:
        entropy: the largest predictive entropy that is still answered, in nats.
        coverage: the share of the reference images that is answered.
        accuracy: the share of those that is classified correctly.
    """

    entropy: float
    coverage: float
    accuracy: float


def cutoff(
    model: nn.Module,
    reference: Examples,
    coverage: float = 0.9,
    samples: int = 20,
    seed: int = 0,
    batch_size: int = 250,
) -> Cutoff:
    """The smallest entropy under which at least a share `coverage` of the reference images lies.

    The line holds for images of the same kind as these, on average. It promises nothing about others, least of all
    about attacked ones.

    Args:
        model: any module that returns logits.
        reference: images that it was not trained on. Their uncertainty draws the line, their labels only say how
            many of the answers are right.
        coverage: the share to answer.
        samples: draws of the network.
        seed: which draws; those that will be used to predict.
        batch_size: images at a time.
    """

    def work(x: Tensor, y: Tensor, batch: Batch) -> dict[str, Tensor]:
        x, y = x.to(device_of(model, x.device), dtype_of(model)), y.to(device_of(model, y.device))
        prediction = predict(model, x, samples, seed)
        return {"entropy": prediction.entropy, "correct": prediction.label == y}

    found = batchwise(work, reference, batch_size=batch_size).tensors
    line = threshold(found["entropy"], coverage)
    answered = found["entropy"] <= line
    accuracy = found["correct"][answered].double().mean().item()
    return Cutoff(entropy=line, coverage=answered.double().mean().item(), accuracy=accuracy)
