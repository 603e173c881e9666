"""How the code of a published defence trains it: the numbers of `defense(name, "cifar10", "authors_code")`."""

from dataclasses import dataclass, field
from typing import Any

from advbnn.attacks import PGD
from advbnn.attacks.threat import Threat
from advbnn.defenses.objective import RobustELBO
from advbnn.defenses.optimizers import AdamOptimizer, SGDOptimizer
from advbnn.defenses.schedules import Constant, Stages

MOVED_STATISTICS = "the source's training attack also moves the running statistics of BatchNorm"
"""A difference of several."""

PREDICTED_LABELS = "the source attacks the predicted label in training"
OWN_HALVES = "clean and perturbed images share noise and batch statistics; in the source each half has its own"


@dataclass(frozen=True, kw_only=True)
class AuthorsTraining:
    """The training that a source runs on CIFAR-10, as its code has it; the BatchNorm of its attack is in `Published`.

    Learning rates fall where they do when the code runs. The last epoch is kept; most sources keep that of the highest
    accuracy on the test set.

    Args:
        architecture: the network of the source, or `"resnet18"` where this library does not have it.
        network: the settings of the defence where they are not those of `Published`.
        differences: what the source does and these settings do not.
    """

    attack: PGD
    optimizer: SGDOptimizer | AdamOptimizer
    schedule: Constant | Stages
    architecture: str = "resnet18"
    network: Any = None
    objective: RobustELBO = field(default_factory=RobustELBO)
    batch_size: int = 128
    drop_last: bool = False
    differences: tuple[str, ...] = ()


RESNET18_200 = AuthorsTraining(
    attack=PGD(Threat("linf", 8 / 255), steps=10, step_size=2 / 255, random_start=True),
    optimizer=SGDOptimizer(lr=0.1, momentum=0.9, weight_decay=5e-4),
    # milestones 100 and 150, but the scheduler steps at the beginning of an epoch: one epoch early
    schedule=Stages(epochs=(99, 50, 51), fresh_optimizer=False),
    differences=(MOVED_STATISTICS,),
)
"""What RNA, RPF and CTRW share."""
