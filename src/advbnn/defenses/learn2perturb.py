"""Learn2Perturb (Jeddi et al., CVPR 2020): learned Gaussian noise on feature maps, kept from vanishing by a penalty."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from advbnn.attacks import PGD
from advbnn.attacks.threat import Threat
from advbnn.defenses.authors_training import OWN_HALVES, PREDICTED_LABELS, AuthorsTraining
from advbnn.defenses.objective import RobustELBO
from advbnn.defenses.optimizers import SGDOptimizer
from advbnn.defenses.published import EVERY_PASS, AuthorsProtocol, Published
from advbnn.defenses.schedules import Stages
from advbnn.defenses.surgery import CIFAR10_IMAGES, Normalised, has_layer, replaced
from advbnn.errors import ArgumentError, positive_whole, within


@dataclass(frozen=True, kw_only=True)
class PerturbedFeatures(Normalised):
    """Noise before the first ReLU and before the last ReLU of every residual block; see `FeatureNoise`.

    In a network without residual blocks it is added before every ReLU. The noise has one scale for each element of the
    feature map, so the size of the images must be known.
    """

    kind = "learn2perturb"
    channels: int = 3
    image_size: int = 32
    init: float = 0.25
    lowest: float = 0.01
    gamma: float = 1e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("channels", "image_size"):
            positive_whole(name, getattr(self, name))
        for name in ("init", "lowest"):
            within(name, getattr(self, name), "(0, 1e6]", "it is a standard deviation")
        within("gamma", self.gamma, "[0, 1e6]")

    def wrap(self, net: nn.Module) -> nn.Module:
        if has_layer(net, FeatureNoise):
            return net
        shapes = _relu_shapes(net, torch.zeros(1, self.channels, self.image_size, self.image_size))

        def chosen(layers: list[tuple[str, nn.ReLU]]) -> list[tuple[str, nn.ReLU]]:
            last = [(name, relu) for name, relu in layers if name.endswith("relu2")]
            return [*layers[:1], *last] if last else layers

        def make(name: str, relu: nn.ReLU) -> nn.Module:
            return nn.Sequential(FeatureNoise(shapes[name], self.init, self.lowest, self.gamma), relu)

        return self.normalised(replaced(net, nn.ReLU, make, chosen))


class FeatureNoise(nn.Module):
    """h + max(sigma, lowest) * N(0, 1), sigma of the shape of one feature map, one draw for the whole batch and pass.

    `penalty` is -gamma * sum sqrt(sigma): it makes sigma grow, against the loss, also where sigma has come below
    `lowest`; the source clamps sigma there after each step. It also takes a step of its own for the penalty, and
    divides gamma by 1 + 1/2 + ... + 1/t in epoch t; here it is a term of the objective, and gamma is constant. As
    there, sigma has no weight decay.
    """

    undecayed = ("sigma",)

    def __init__(self, shape: tuple[int, ...], init: float = 0.25, lowest: float = 0.01, gamma: float = 1e-4) -> None:
        super().__init__()
        self.sigma = nn.Parameter(torch.full(shape, init))
        self.lowest, self.gamma = lowest, gamma

    def forward(self, h: Tensor) -> Tensor:
        sigma = self.sigma.clamp_min(self.lowest)
        noise = sigma * torch.randn(sigma.shape, device=h.device, dtype=h.dtype)
        return h + noise.to(h.dtype)  # bfloat16 under autocast, as without noise

    def penalty(self) -> Tensor:
        """-gamma * sum sqrt(sigma), a term of the training objective."""
        floor = (self.lowest - self.sigma.detach()).clamp_min(0)  # not clamped: a sigma below would stay there
        return -self.gamma * (self.sigma + floor).sqrt().sum()


@torch.no_grad()
def _relu_shapes(net: nn.Module, x: Tensor) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    trial = copy.deepcopy(net).eval()
    for name, module in trial.named_modules():
        if type(module) is nn.ReLU:
            module.register_forward_pre_hook(lambda _, args, name=name: shapes.update({name: tuple(args[0].shape[1:])}))
    try:
        trial(x.to(next(trial.parameters())))
    except RuntimeError as error:
        given = f"network: channels={x.shape[1]} and image_size={x.shape[-1]}"
        raise ArgumentError(f"{given} must be those of the images that net takes: {error}; set both") from error
    return shapes


PGD_7 = PGD(Threat("linf", 8 / 255), steps=7, step_size=0.01, random_start=True)
OWN_STEP = "the step for the scales is a term of the objective here, whose weight does not fall with the epochs"
LATE = "its noise begins after 10 epochs, and its attack after 20"

PUBLISHED = Published(
    name="learn2perturb",
    title="Learn2Perturb",
    paper="Jeddi et al., Learn2Perturb: an End-to-end Feature Perturbation Learning to Improve Adversarial Robustness",
    venue="CVPR 2020",
    code="https://github.com/Ahmadreza-Jeddi/Learn2Perturb",
    network=PerturbedFeatures(**CIFAR10_IMAGES),
    random="Gaussian noise on feature maps, of learned scales",
    redrawn=EVERY_PASS,
    protocol=AuthorsProtocol(PGD_7),
    training=AuthorsTraining(
        attack=PGD_7,
        optimizer=SGDOptimizer(lr=0.1, momentum=0.9, weight_decay=3e-4, nesterov=True),
        schedule=Stages(epochs=(150, 100, 100), fresh_optimizer=False),
        objective=RobustELBO(clean=0.5),
        differences=(
            "ResNet-18, which the source has too; its script has ResNet-20",
            OWN_STEP,
            PREDICTED_LABELS,
            LATE,
            OWN_HALVES,
        ),
    ),
    differences=(
        OWN_STEP,
        "the source attacks the predicted label in training; its loss is half clean, half perturbed",
        LATE,
        "its EOT of 30 copies shares one draw; its attack leaves the network in training mode, in which it is scored",
        "the repository states no accuracy; those of the paper could not be confirmed",
    ),
)
