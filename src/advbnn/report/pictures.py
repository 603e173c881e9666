"""Single images before and after an attack, with what the model makes of them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from advbnn.bayes.prediction import Prediction
from advbnn.data.augment import to_float
from advbnn.data.imageset import Examples, row_numbers
from advbnn.errors import ArgumentError
from advbnn.evaluation.accuracy import Evaluation, Perturbation
from advbnn.evaluation.batchwise import Batch


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a model says of an image.

    Attributes:
        label: the name of the class.
        probability: of that class.
        entropy: the uncertainty of the answer, in nats.
        disagreement: the part of it that comes from draws that contradict each other (mutual information).
    """

    label: str
    probability: float
    entropy: float
    disagreement: float


@dataclass(frozen=True, kw_only=True)
class AttackedImage:
    """An image before and after an attack on a model.

    Attributes:
        model: the label of the model, as in its records.
        attack: what the attack is called.
        eps: its radius.
        truth: the name of the image's class.
        classes: how many classes there are, which bounds the entropy.
        clean: the image, [1 or 3, height, width], in [0, 1].
        adversarial: what the attack made of it.
        before: what the model says of the clean image.
        after: what it says of the other.
    """

    model: str
    attack: str
    eps: float
    truth: str
    classes: int
    clean: Tensor
    adversarial: Tensor
    before: Answer
    after: Answer

    @property
    def largest_entropy(self) -> float:
        """That of a model which knows nothing."""
        return math.log(self.classes)

    @property
    def perturbation(self) -> Tensor:
        """The change, magnified to the full range around grey."""
        change = self.adversarial - self.clean
        return 0.5 + change / (2 * change.abs().max().clamp_min(torch.finfo(change.dtype).tiny))

    @property
    def magnified(self) -> float:
        """How many times the perturbation is magnified."""
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
    """Attacks single images for `write_report` to show.

    Args:
        model: any module that returns logits.
        data: the examples.
        attack: the attack.
        rows: which examples.
        name: what the attack is called.
        label: what records call the model.
        samples: draws that make up an answer; the attack does not see them.
        seed: of the attack and of the draws.
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
            before=_answer(before, row, data.classes),
            after=_answer(after, row, data.classes),
        )
        for row in range(len(x))
    ]


def by_model(images: Sequence[AttackedImage], labels: Sequence[str]) -> Mapping[str, list[AttackedImage]]:
    """The images of each model, in the order of the labels."""
    found: dict[str, list[AttackedImage]] = {label: [] for label in labels}
    for image in images:
        if image.model not in found:
            raise ArgumentError(
                f"images are of model {image.model!r}, of which there are no records; there are {labels}"
            )
        found[image.model].append(image)
    return {label: of_model for label, of_model in found.items() if of_model}


def _answer(prediction: Prediction, row: int, classes: Sequence[str]) -> Answer:
    label = int(prediction.label[row])
    return Answer(
        label=classes[label] if label < len(classes) else str(label),
        probability=prediction.probs[row, label].item(),
        entropy=prediction.entropy[row].item(),
        disagreement=prediction.mutual_information[row].item(),
    )
