"""How each data set is measured: the paper's radii and sizes; on digits the same in miniature."""

from dataclasses import dataclass, replace

from advbnn.attacks import PGD, paper_pgd
from advbnn.evaluation.curves import ENSEMBLE_SIZES, IMAGENET_RADII, RADII, STEPS
from advbnn.paper import published as paper

AUTHORS = "PGD-20"
"""What the records of the authors' attack are called."""


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How much is measured, and where.

    Args:
        radii: those of Figure 2, 0 included.
        table_radii: those of Table 1, without 0.
        transfer_radius: that of Figure 3.
        study_radii: the two of Figure 4 besides 0.
        sizes: of the ensemble, Figure 4 left.
        steps: of the attack, Figure 4 right.
        step_size: of the authors' attack.
        eot: draws that the averaged attack takes its gradients over.
        samples: draws of the classifier.
        alpha_factors: what alpha is multiplied with in the further trainings of the experiment on alpha.
        images: test images of Table 1, Figures 2 and 3; all when None.
        averaged_images: those of the attack along averaged gradients, which costs `eot` times as much.
        study_images: those of Figure 4 and of the local Lipschitz value.
        audit: the level of the audit.
        audit_radii: the radii that it is made at.
        audit_images: its test images.
        batch_size: images attacked at a time, which share each draw of the weights.
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
        """What the records of the averaged attack are called."""
        return f"{AUTHORS}, {self.eot} draws averaged"

    def authors_attack(self, eps: float, steps: int = 20) -> PGD:
        """PGD from the image itself, along the gradient of one draw a step, which is the same at every radius."""
        return replace(paper_pgd(eps, steps), step_size=self.step_size)

    def averaged_attack(self, eps: float) -> PGD:
        """The same along the mean gradient of several draws."""
        return replace(self.authors_attack(eps), eot=self.eot)

    def limited(self, limit: int | None) -> "Protocol":
        """With no more images than `limit` anywhere."""
        if limit is None:
            return self
        return replace(
            self,
            images=min(limit, self.images or limit),
            averaged_images=min(limit, self.averaged_images or limit),
            study_images=min(limit, self.study_images or limit),
            audit_images=min(limit, self.audit_images or limit),
        )


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
    # Radii and step in about the paper's proportion to the radius of training, 0.15 here: twenty of the paper's own
    # steps would not cover it.
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
        audit_images=100,
        batch_size=250,
    ),
}
"""By the name of the data set whose hyper-parameters are used."""
