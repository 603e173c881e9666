"""Single images before and after an attack, with the predictions of the model."""

import base64
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from advbnn.bayes.prediction import Prediction
from advbnn.data.augment import to_float
from advbnn.data.imageset import Examples, row_numbers
from advbnn.errors import ArgumentError
from advbnn.evaluation.accuracy import Evaluation
from advbnn.evaluation.batchwise import Batch
from advbnn.evaluation.checks import Perturbation


@dataclass(frozen=True, kw_only=True)
class ImagePrediction:
    """The predicted class for an image, its probability, and the predictive entropy in nats.

    `disagreement` is the part of the entropy that comes from differing weight samples (mutual information).
    """

    label: str
    probability: float
    entropy: float
    disagreement: float


@dataclass(frozen=True, kw_only=True)
class AttackedImage:
    """An image [1 or 3, height, width] in [0, 1] before and after an attack on a model, with both predictions.

    `model` is the label of the model in its records, `truth` the name of the true class.
    """

    model: str
    attack: str
    eps: float
    truth: str
    classes: int
    clean: Tensor
    adversarial: Tensor
    before: ImagePrediction
    after: ImagePrediction

    @property
    def largest_entropy(self) -> float:
        """The entropy of a uniform prediction."""
        return math.log(self.classes)

    @property
    def perturbation(self) -> Tensor:
        """The change, magnified to the full range around grey."""
        return (0.5 + self.magnified * (self.adversarial - self.clean)).clamp(0, 1)

    @property
    def magnified(self) -> float:
        """The factor by which the perturbation is magnified."""
        largest = (self.adversarial - self.clean).abs().max().item()
        return 0.5 / largest if largest > 0 else 1.0


def attacked_images(
    model: nn.Module,
    data: Examples,
    attack: Perturbation,
    rows: Sequence[int],
    *,
    name: str,
    label: str,
    samples: int = 20,
    seed: int = 0,
) -> list[AttackedImage]:
    """Attacks single images, the `rows` of the data, for `write_report` to show.

    `name` is that of the attack, `label` that of the model in its records. The attack does not see the `samples` weight
    samples of the predictions.
    """
    evaluation = Evaluation(model, data, samples=samples, seeds=[seed], label=label)
    x, y = next(iter(data.gather([row_numbers(rows, len(data))])))
    x, y = evaluation.prepared(to_float(x), y)
    x_adv = evaluation.craft(attack, x, y, seed, Batch(0))
    before, after = evaluation.classify(x, seed), evaluation.classify(x_adv, seed)
    return [
        AttackedImage(
            model=label,
            attack=name,
            eps=attack.threat.eps,
            truth=data.classes[int(y[row])],
            classes=len(data.classes),
            clean=x[row].detach().cpu(),
            adversarial=x_adv[row].detach().cpu(),
            before=_prediction(before, row, data.classes),
            after=_prediction(after, row, data.classes),
        )
        for row in range(len(x))
    ]


def by_model(images: Sequence[AttackedImage], labels: Sequence[str]) -> Mapping[str, list[AttackedImage]]:
    """The images of each model, in the order of the labels."""
    if unknown := {image.model for image in images} - {*labels}:
        raise ArgumentError(f"images show model {min(unknown)!r}, which has no records; there are records of {labels}")
    found = {label: [image for image in images if image.model == label] for label in labels}
    return {label: of_model for label, of_model in found.items() if of_model}


def png(pixels: Tensor) -> bytes:
    """A PNG file of an image [1 or 3, height, width] with values in [0, 1]."""
    from PIL import Image

    if pixels.ndim != 3 or pixels.shape[0] not in (1, 3) or 0 in pixels.shape:
        raise ArgumentError(f"pixels must be an image [1 or 3, height, width], got shape {list(pixels.shape)}")
    levels = (pixels.detach().cpu().float().clamp(0, 1) * 255).round().to(torch.uint8)
    file = io.BytesIO()
    Image.fromarray((levels[0] if len(levels) == 1 else levels.permute(1, 2, 0)).numpy()).save(file, "png")
    return file.getvalue()


def data_uri(pixels: Tensor) -> str:
    """An image as a data URI, so that a page needs no other file."""
    return f"data:image/png;base64,{base64.b64encode(png(pixels)).decode()}"


def _prediction(prediction: Prediction, row: int, classes: Sequence[str]) -> ImagePrediction:
    label = int(prediction.label[row])
    return ImagePrediction(
        label=classes[label] if label < len(classes) else str(label),
        probability=prediction.probs[row, label].item(),
        entropy=prediction.entropy[row].item(),
        disagreement=prediction.mutual_information[row].item(),
    )
