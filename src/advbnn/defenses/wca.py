"""Weight-covariance alignment (WCA-Net, ICML 2021): learned, correlated noise before the classifier."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from advbnn.attacks import PGD
from advbnn.attacks.threat import Threat
from advbnn.defenses.authors_training import AuthorsTraining
from advbnn.defenses.optimizers import AdamOptimizer
from advbnn.defenses.published import EVERY_PASS, AuthorsProtocol, Claim, Published
from advbnn.defenses.schedules import Stages
from advbnn.defenses.surgery import CIFAR10_IMAGES, Normalised, has_layer, last_linear, replaced
from advbnn.errors import positive_whole, within


@dataclass(frozen=True, kw_only=True)
class AlignedNoise(Normalised):
    """The classifier replaced by an `AlignedClassifier`."""

    kind = "wca"
    width: int = 32
    decay: float = 1e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_whole("width", self.width)
        within("decay", self.decay, "[0, 1e6]", "it is the weight decay of the noise and of the classifier")

    def wrap(self, net: nn.Module) -> nn.Module:
        if has_layer(net, AlignedClassifier):
            return net

        def make(_: str, layer: nn.Linear) -> nn.Module:
            return AlignedClassifier(layer, self.width, self.decay)

        return self.normalised(replaced(net, nn.Linear, make, last_linear))


class AlignedClassifier(nn.Module):
    """W (relu(V h) + L eps) + b with eps ~ N(0, I), L lower triangular, one draw for the whole batch and pass.

    `penalty` is -log tr(W L L^T W^T): the noise is aligned with the classifier's weights and does not vanish. That has
    no lower bound, so the source decays L, W and b, and nothing else: its Adam adds `decay` times them to their
    gradient, which is that of the second term here, decay / 2 (|L|^2 + |W|^2 + |b|^2).

    L starts from U(0, 1). All convolutions lie before the noise, so it hardly hides their gradients.
    """

    def __init__(self, classifier: nn.Linear, width: int = 32, decay: float = 1e-4) -> None:
        super().__init__()
        self.decay = decay
        self.project = nn.Linear(classifier.in_features, width)
        self.classify = nn.Linear(width, classifier.out_features)
        self.factor = nn.Parameter(torch.rand(width, width).tril())
        self.to(classifier.weight.device, classifier.weight.dtype)

    def forward(self, h: Tensor) -> Tensor:
        features = self.project(h).relu()
        noise = self.factor.tril() @ torch.randn(len(self.factor), device=h.device, dtype=h.dtype)
        outputs: Tensor = self.classify(features + noise)
        return outputs

    def penalty(self) -> Tensor:
        """-log tr(W L L^T W^T) + decay / 2 (|L|^2 + |W|^2 + |b|^2), a term of the training objective."""
        factor = self.factor.tril()
        decayed = (factor, *self.classify.parameters())
        size = torch.stack([tensor.square().sum() for tensor in decayed]).sum()
        return -(self.classify.weight @ factor).square().sum().log() + self.decay / 2 * size


NOT_NORMALISED = (
    "its training attack is on the network without the normalisation that it is trained with; ours is on both"
)

PUBLISHED = Published(
    name="wca",
    title="Weight-covariance alignment",
    paper="Eustratiadis et al., Weight-Covariance Alignment for Adversarially Robust Neural Networks",
    venue="ICML 2021",
    code="https://github.com/peustr/WCA-net",
    network=AlignedNoise(**CIFAR10_IMAGES),
    random="correlated Gaussian noise on the 32 features before the classifier",
    redrawn=EVERY_PASS,
    baseline="adv_adam",
    protocol=AuthorsProtocol(PGD(Threat("linf", 8 / 255), steps=10, relative_step_size=0.1, eot=50)),
    training=AuthorsTraining(
        attack=PGD(Threat("linf", 0.03), steps=10, step_size=0.01, random_start=True),
        optimizer=AdamOptimizer(lr=0.01),
        schedule=Stages(epochs=(200, 200, 200), fresh_optimizer=False),
        drop_last=True,
        differences=(
            NOT_NORMALISED,
            "the source's training attack keeps its gradients, so that a step follows the sum of all so far",
            "in the source clean images also move the running statistics of BatchNorm",
        ),
    ),
    claims=(Claim("PGD", 71.4, 93.2, "ResNet-18", "without adversarial training; by Margin-SNN", quoted=True),),
    differences=(
        "the source's best numbers are without adversarial training",
        NOT_NORMALISED,
        "its attack is from a fork of Foolbox that was not found; 50 is the number of its Monte Carlo passes",
    ),
)
