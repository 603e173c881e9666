"""How each data set is measured: the paper's radii and sizes, and a smaller version for digits."""

from dataclasses import dataclass, replace
from typing import Any

from advbnn.attacks import PGD, paper_pgd
from advbnn.evaluation.curves import ENSEMBLE_SIZES, IMAGENET_RADII, RADII, STEPS
from advbnn.paper import published as paper

AUTHORS = "PGD-20"
"""The name of the authors' attack in records."""

RANDOM = ("rse", "bnn", "adv_bnn")
"""The defences with random networks; for the others there is nothing to average."""


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """What is measured, and how.

    Args:
        radii: of Figure 2, including 0; `table_radii` of Table 1, without 0; `transfer_radius` of Figure 3;
            `study_radii` of Figure 4, besides 0.
        sizes: numbers of weight samples in Figure 4, left; `steps` of the attack in Figure 4, right.
        step_size: of the authors' attack; `eot` samples of the averaged one; `samples` of the classifier.
        alpha_factors: factors of alpha in additional trainings.
        images: test images of Table 1 and Figures 2 and 3; all when None.
        averaged_images: test images of the averaged attack, which costs `eot` times as much.
        study_images: images of Figure 4 and of the local Lipschitz value.
        audit: the level of the audit, with its radii and number of images.
        batch_size: images attacked at a time; they share each weight sample.
    """

    radii: tuple[float, ...]
    table_radii: tuple[float, ...]
    transfer_radius: float
    study_radii: tuple[float, float]
    sizes: tuple[int, ...] = ENSEMBLE_SIZES
    steps: tuple[int, ...] = STEPS
    step_size: float = 0.007
    eot: int = 10
    samples: int = 20
    alpha_factors: tuple[float, ...] = (0.1, 0.01)
    images: int | None = None
    averaged_images: int | None = 2000
    study_images: int | None = 1000
    audit: str = "standard"
    audit_radii: tuple[float, ...]
    audit_images: int | None = 1000
    batch_size: int = 1000

    @property
    def averaged(self) -> str:
        """The name of the averaged attack in records."""
        return f"{AUTHORS}, {self.eot} EOT samples"

    def authors_attack(self, eps: float, steps: int = 20) -> PGD:
        """PGD without random start, one weight sample per step; the step size does not depend on the radius."""
        return replace(paper_pgd(eps, steps), step_size=self.step_size)

    def averaged_attack(self, eps: float) -> PGD:
        """The same with gradients averaged over `eot` weight samples."""
        return replace(self.authors_attack(eps), eot=self.eot)

    def limited(self, limit: int | None) -> "Protocol":
        """The protocol with at most `limit` images everywhere."""
        if limit is None:
            return self
        names = ("images", "averaged_images", "study_images", "audit_images")
        changes: dict[str, Any] = {name: min(limit, getattr(self, name) or limit) for name in names}
        return replace(self, **changes)


_LIKE_CIFAR10 = Protocol(
    radii=RADII,
    table_radii=paper.RADII["cifar10"],
    transfer_radius=0.06,
    study_radii=(0.015, 0.035),
    audit_radii=paper.RADII["cifar10"],
)

PROTOCOLS = {
    "cifar10": _LIKE_CIFAR10,
    "stl10": _LIKE_CIFAR10,
    "imagenet143": Protocol(
        radii=IMAGENET_RADII,
        table_radii=paper.RADII["imagenet143"],
        transfer_radius=0.02,
        study_radii=(0.01, 0.02),
        audit_radii=paper.RADII["imagenet143"],
    ),
    # Radii and step size in about the paper's proportion to the training radius, here 0.15; twenty of the paper's own
    # steps would not reach it.
    "digits": Protocol(
        radii=tuple(3 * k / 80 for k in range(9)),
        table_radii=(0.075, 0.15, 0.225, 0.3),
        transfer_radius=0.225,
        study_radii=(0.075, 0.15),
        sizes=(1, 2, 3, 5, 7, 10, 14, 20, 30, 50),
        steps=(3, 6, 13, 26, 55, 112),
        step_size=0.0336,
        eot=5,
        images=150,
        averaged_images=150,
        study_images=100,
        audit="quick",
        audit_radii=(0.15,),
        audit_images=150,
        batch_size=250,
    ),
}
"""By the data set whose hyper-parameters are used."""
