"""Parametric noise injection (He et al., CVPR 2019): weights with Gaussian noise whose scale is learned."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from advbnn.attacks import PGD
from advbnn.attacks.threat import Threat
from advbnn.defenses.authors_training import OWN_HALVES, PREDICTED_LABELS, AuthorsTraining
from advbnn.defenses.objective import RobustELBO
from advbnn.defenses.optimizers import SGDOptimizer
from advbnn.defenses.published import EVERY_PASS, AuthorsProtocol, Claim, Published
from advbnn.defenses.schedules import Stages
from advbnn.defenses.surgery import CIFAR10, Normalised, has_layer, last_linear, layers_of, replaced
from advbnn.errors import check_types, one_of, within

SHARING = ("layer", "channel", "element")


@dataclass(frozen=True, kw_only=True)
class ParametricNoise(Normalised):
    """Noise on the weights of every convolution and of the classifier; see `WeightNoise`."""

    kind = "pni"
    sharing: str = "layer"
    init: float = 0.25

    def __post_init__(self) -> None:
        super().__post_init__()
        check_types(self)
        within("init", self.init, "[0, 1e6]")
        one_of("sharing", self.sharing, SHARING)

    def wrap(self, net: nn.Module) -> nn.Module:
        if has_layer(net, WeightNoise):
            return net
        noisy = replaced(net, nn.Conv2d, self._noisy)
        if layers_of(noisy, nn.Linear):
            noisy = replaced(noisy, nn.Linear, self._noisy, last_linear)
        return self.normalised(noisy)

    def _noisy(self, _: str, layer: nn.Conv2d | nn.Linear) -> nn.Module:
        noise = WeightNoise(layer.weight, self.sharing, self.init)
        parametrize.register_parametrization(layer, "weight", noise)
        return layer


class WeightNoise(nn.Module):
    """w + alpha * std(w) * N(0, 1), fresh in every forward pass, the same for the whole batch.

    std(w), over the whole tensor, gets no gradient. alpha is learned: one number, one per output channel, or one per
    weight. Nothing keeps it from 0, but weight decay does not pull it there, as in the source.
    """

    undecayed = ("alpha",)

    def __init__(self, weight: Tensor, sharing: str = "layer", init: float = 0.25) -> None:
        super().__init__()
        channels = (len(weight), *[1] * (weight.dim() - 1))
        shape = {"layer": (1,), "channel": channels, "element": tuple(weight.shape)}[sharing]
        self.alpha = nn.Parameter(torch.full(shape, init, device=weight.device, dtype=weight.dtype))

    def forward(self, weight: Tensor) -> Tensor:
        noise = torch.randn(weight.shape, device=weight.device, dtype=weight.dtype)
        return weight + self.alpha * weight.detach().std() * noise


PGD_7 = PGD(Threat("linf", 0.031), steps=7, step_size=0.01, random_start=True)

PUBLISHED = Published(
    name="pni",
    title="Parametric noise injection",
    paper="He, Rakin & Fan, Parametric Noise Injection: Trainable Randomness to Improve Deep Neural Network "
    "Robustness against Adversarial Attack",
    venue="CVPR 2019",
    code="https://github.com/elliothe/CVPR_2019_PNI",
    network=ParametricNoise(**CIFAR10),
    random="Gaussian noise on all weights, of a learned scale",
    redrawn=EVERY_PASS,
    protocol=AuthorsProtocol(PGD_7),
    training=AuthorsTraining(
        attack=PGD_7,
        optimizer=SGDOptimizer(lr=0.1, momentum=0.9, weight_decay=3e-4, nesterov=True),
        schedule=Stages(epochs=(80, 40, 40), fresh_optimizer=False),
        objective=RobustELBO(clean=0.5),
        differences=(
            "ResNet-18; the source has ResNet-20",
            PREDICTED_LABELS,
            "its first five epochs are clean",
            OWN_HALVES,
        ),
    ),
    claims=(
        Claim("PGD-7", 45.9, 84.9, "ResNet-20", "README, one scale per layer", eps=0.031),
        Claim("PGD-7", 48.4, 85.2, "ResNet-20", "README, one scale per channel", eps=0.031),
        Claim("PGD-7", 49.1, 80.7, "ResNet-20", "README, one scale per weight", eps=0.031),
    ),
    differences=(
        PREDICTED_LABELS,
        "its loss is half clean, half perturbed, after five clean epochs",
    ),
)
