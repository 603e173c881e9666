"""A published randomized defence: its source, its randomness, its claims, and how these were measured."""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from advbnn.attacks import PGD
from advbnn.attacks.threat import Threat
from advbnn.bayes.protocol import members
from advbnn.defenses.authors_training import AuthorsTraining
from advbnn.modules import evaluating, without_parameter_gradients
from advbnn.randomness import derive_seed, resample, seeded, with_fresh_state

EVERY_PASS, BETWEEN, NEVER = "every forward pass", "between attack and score", "never"

PGD_20 = PGD(Threat("linf", 8 / 255), steps=20, step_size=2 / 255, random_start=True)
"""The attack of most sources."""


@dataclass(frozen=True)
class Claim:
    """An accuracy in percent that the source states for CIFAR-10.

    Args:
        where: where the source states it; begins with "by NAME, " if others than the authors measured it.
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
        passes: forward passes whose mean probability is the prediction; of a finite mixture, its exact mean. One pass
            of a mixture chooses a member for each image.
        batch_size: images that are attacked and scored together, and so share a draw where the defence shares it.
    """

    attack: PGD
    redrawn: str = EVERY_PASS
    predicted_labels: bool = False
    passes: int = 1
    batch_size: int = 128

    def correct(self, model: nn.Module, x: Tensor, y: Tensor, seed: int) -> Tensor:
        """Whether the prediction is right for each image, [n]."""
        batches = enumerate(zip(x.split(self.batch_size), y.split(self.batch_size), strict=True))
        return torch.cat([self._correct(model, *batch, derive_seed(seed, "batch", i)) for i, batch in batches])

    def _correct(self, model: nn.Module, x: Tensor, y: Tensor, seed: int) -> Tensor:
        with evaluating(model), without_parameter_gradients(model):
            resample(model, derive_seed(seed, "attacked draw"))
            fresh = with_fresh_state(model) if self.redrawn == EVERY_PASS else model
            # hidden, so that the attack neither draws anew what the source keeps nor helps its gradients
            seen = fresh if members(model) else Hidden(fresh)
            labels = y
            if self.predicted_labels:
                with torch.no_grad(), seeded(derive_seed(seed, "labels"), x.device):
                    labels = model(x).argmax(1)
            x_adv = self.attack(seen, x, labels, seed)
            if self.redrawn != NEVER:
                resample(model, derive_seed(seed, "scored draw"))
            with torch.no_grad(), seeded(derive_seed(seed, "score"), x.device):
                return self._prediction(model, x_adv) == y

    def _prediction(self, model: nn.Module, x: Tensor) -> Tensor:
        mixture = members(model)
        networks = [member.net for member in mixture] or [model] * self.passes
        probs = torch.stack([network(x).softmax(1) for network in networks])
        if not mixture:
            return probs.mean(0).argmax(1)
        weights = torch.tensor([member.weight for member in mixture], dtype=probs.dtype, device=x.device)
        if self.passes > 1:
            return torch.einsum("k,knc->nc", weights, probs).argmax(1)
        chosen = weights.multinomial(len(x), replacement=True)
        return probs.argmax(2).gather(0, chosen[None])[0]


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
        samples: forward passes that the deployed classifier averages.
        differences: where the source's code and its paper differ, or our common recipe and the source's.
        training: how the source trains it, the profile `"authors_code"`; None if it is not trained against an attack,
            no code of its training was found, or it is one of this library's own.
        recipe: how it is trained, if not by `defense(name, "cifar10")`.
        attack_mode: BatchNorm in the attack of its training. `"train"` where the source has it and each draw has
            statistics of its own: running ones are a mean over draws, and an attack with them is on a network that is
            far from the one that is updated.
        baseline: the same training without randomness, by its name in the registry; empty for baselines.
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
    recipe: str = ""
    training: AuthorsTraining | None = None
    attack_mode: str = "eval"
    baseline: str = "adv"


class Hidden(nn.Module):
    """A model whose modules cannot be found: nothing draws its kept randomness anew, changes its mode, or gives it
    straight-through gradients."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._model = (model,)  # in a tuple, it is no submodule
        self.training = False

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self._model[0](x))
