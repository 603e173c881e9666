"""IG-BNN (Doan et al., ICML 2022): particles that are kept apart; nothing is random when it predicts."""

import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from advbnn.attacks.uncertainty import entropy
from advbnn.defenses.authors_training import AuthorsTraining
from advbnn.defenses.objective import RobustELBO
from advbnn.defenses.optimizers import AdamOptimizer
from advbnn.defenses.published import NEVER, PGD_20, AuthorsProtocol, Published
from advbnn.defenses.schedules import Constant
from advbnn.errors import positive_whole


@dataclass(frozen=True, kw_only=True)
class ParticleEnsemble:
    """`count` copies of the network with new linear layers; see `Particles`."""

    kind = "ig_bnn"
    count: int = 3

    def __post_init__(self) -> None:
        positive_whole("count", self.count)

    def wrap(self, net: nn.Module) -> nn.Module:
        return net if isinstance(net, Particles) else Particles(net, self.count)


class Particles(nn.Module):
    """K networks, whose prediction is the mean of their logits; in training mode the logits of each, [n, K, classes].

    They start as copies; linear layers are initialised anew in all but the first, as in the source, where the
    convolutions of all particles start equal. In training mode dropout is the source's only randomness; add it to the
    network.
    """

    def __init__(self, net: nn.Module, count: int = 3) -> None:
        super().__init__()
        self.particles = nn.ModuleList([net if number == 0 else copy.deepcopy(net) for number in range(count)])
        for particle in list(self.particles)[1:]:
            for layer in particle.modules():
                if isinstance(layer, nn.Linear):
                    layer.reset_parameters()
        self.training = net.training

    def forward(self, x: Tensor) -> Tensor:
        each = torch.stack([particle(x) for particle in self.particles], 1)
        return each if self.training else each.mean(1)


def information_gain(logits: Tensor) -> Tensor:
    """H(softmax(mean_k z_k)) - mean_k H(softmax(z_k)) for the logits of K particles [n, K, classes]: [n], in nats.

    The loss of the source is mean_k CE(z_k(x_adv), y) + 5 |IG(x_adv) - IG(x)|: see `data_terms`.
    """
    return entropy(logits.mean(1)) - entropy(logits).mean(1)


IN_TRAINING = (
    "the source also mixes the gradients of particles by a kernel at two steps of five, with a repulsion that has "
    "no direction, and has dropout in training; both are left out",
    "training attacks the label here with running statistics, the source the prediction with batch statistics",
    "clean and perturbed images share their batch statistics; in the source each half has its own",
)
"""Differences in both recipes."""

PUBLISHED = Published(
    name="ig_bnn",
    title="IG-BNN",
    paper="Doan et al., Bayesian Learning with Information Gain Provably Bounds Risk for a Robust Adversarial Defense",
    venue="ICML 2022",
    code="https://github.com/baogiadoan/IG-BNN",
    network=ParticleEnsemble(),
    random="nothing: the mean of a few networks",
    redrawn=NEVER,
    protocol=AuthorsProtocol(PGD_20, NEVER, predicted_labels=True),
    # the only command of the source is for STL-10; these are the defaults of its script, whose dataset is CIFAR-10
    training=AuthorsTraining(
        architecture="vgg16",
        network=ParticleEnsemble(count=10),
        attack=replace(PGD_20, steps=10),
        optimizer=AdamOptimizer(lr=1e-3),
        schedule=Constant(epochs=199),
        objective=RobustELBO(information_gain=5.0),
        batch_size=512,
        differences=(
            *IN_TRAINING,
            "the source's attack leaves the box [0, 1]",
            "the source holds out 5,000 images, and keeps the epoch that is best on them",
        ),
    ),
    differences=(
        *IN_TRAINING,
        "ResNet-18, SGD and weight decay; the source has VGG16, and Adam without",
        "the source's attacks leave the box [0, 1], and its radii are 0.015 to 0.07",
        "the repository states no accuracy; those of the paper could not be confirmed",
    ),
)
