"""A published randomized defence: its source, its randomness, its claims, and how these were measured."""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from advbnn.attacks import PGD
from advbnn.attacks.threat import Threat
from advbnn.modules import evaluating, without_parameter_gradients
from advbnn.randomness import derive_seed, resample, seeded

EVERY_PASS, BETWEEN, NEVER = "every forward pass", "between attack and score", "never"


PGD_20 = PGD(Threat("linf", 8 / 255), steps=20, step_size=2 / 255, random_start=True)
"""The attack of most sources."""


@dataclass(frozen=True)
class Claim:
    """An accuracy in percent that the source states for CIFAR-10.

    Args:
        where: where the source states it.
        norm: of the attack, with its radius `eps`; None for an attack that minimises the distance.
        quoted: the number is not from the source itself, but from work that quotes it.
    """

    attack: str
    accuracy: float
    clean: float | None
    architecture: str
    where: str
    norm: str = "linf"
    eps: float | None = 8 / 255
    quoted: bool = False


@dataclass(frozen=True)
class AuthorsProtocol:
    """The evaluation that a source ran, as its code has it.

    Args:
        attack: the attack, without averaged gradients.
        redrawn: `EVERY_PASS`: each step of the attack and the score see a fresh draw. `BETWEEN`: one draw for the whole
            attack, another for the score, so that transfer between draws is measured.
        predicted_labels: the attack moves away from the prediction instead of the label. A wrong prediction is then
            attacked towards being right.
        passes: forward passes whose mean probability is the prediction.
    """

    attack: PGD
    redrawn: str = EVERY_PASS
    predicted_labels: bool = False
    passes: int = 1

    def correct(self, model: nn.Module, x: Tensor, y: Tensor, seed: int) -> Tensor:
        """Whether the prediction is right for each image, [n]."""
        with evaluating(model), without_parameter_gradients(model):
            resample(model, derive_seed(seed, "attacked draw"))
            # hidden, so that the attack does not draw anew what the source keeps
            seen = OneDraw(model) if self.redrawn == BETWEEN else model
            labels = y
            if self.predicted_labels:
                with torch.no_grad(), seeded(derive_seed(seed, "labels"), x.device):
                    labels = model(x).argmax(1)
            x_adv = self.attack(seen, x, labels, seed)
            if self.redrawn != NEVER:
                resample(model, derive_seed(seed, "scored draw"))
            with torch.no_grad(), seeded(derive_seed(seed, "score"), x.device):
                probs = [OneDraw(model)(x_adv).softmax(1) for _ in range(self.passes)]
        return torch.stack(probs).mean(0).argmax(1) == y


@dataclass(frozen=True)
class Published:
    """A published randomized defence.

    Args:
        network: how a network becomes the defence, with the numbers of the source; None for what is not made from one
            network: see `recipe`.
        random: what is random, in words.
        redrawn: when it is drawn anew: `EVERY_PASS`, or `BETWEEN` for a draw that is kept until `resample`.
        shared: whether all images of a batch share one draw.
        trained: whether it is trained against an attack; if not, it is put onto a trained network.
        samples: forward passes that the deployed classifier averages, by the `rule` of `predict`.
        differences: where the source's code and its paper differ, or ours and the source's.
        recipe: how it is trained, if not by `defense(name, "cifar10")`.
    """

    name: str
    title: str
    paper: str
    random: str
    redrawn: str
    protocol: AuthorsProtocol
    code: str = ""
    network: Any = None
    shared: bool = True
    trained: bool = True
    claims: tuple[Claim, ...] = ()
    differences: tuple[str, ...] = ()
    venue: str = ""
    samples: int = 1
    rule: str = "probability"
    recipe: str = ""


class OneDraw(nn.Module):
    """A model whose modules cannot be found, so that nothing draws its kept randomness anew or changes its mode."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._model = (model,)  # in a tuple, it is no submodule
        self.training = False

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self._model[0](x))
