"""Early stopping: the best epoch of a run on held-out training examples."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from advbnn.data import Batches, Examples
from advbnn.defenses.defense import Defense
from advbnn.machine.processes import World
from advbnn.modules import evaluating
from advbnn.randomness import derive_seed, seeded


class BestEpoch:
    """The network with the largest validation score so far.

    `epoch` is the number of epochs after which it was found, `validated` that of the last validation, with the score
    `latest`; 0 before the first.
    """

    def __init__(self) -> None:
        self.score = self.latest = -math.inf
        self.epoch = self.validated = 0
        self._tensors: dict[str, Tensor] = {}

    @property
    def epochs_since(self) -> int:
        """Epochs from the best one to the last validation."""
        return self.validated - self.epoch

    def offer(self, model: nn.Module, score: float, epoch: int) -> None:
        """Keep a copy of the network if its score is a new best."""
        score = -math.inf if math.isnan(score) else score
        self.latest, self.validated = score, epoch
        if not self._tensors or score > self.score:
            self.score, self.epoch = score, epoch
            self._tensors = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}

    def copy_to(self, model: nn.Module) -> None:
        """Load the best state, if there is one."""
        if self._tensors:
            model.load_state_dict(self._tensors)

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)


def validation_score(
    model: nn.Module, examples: Examples, defense: Defense, samples: int, seed: int, world: World
) -> float:
    """The mean score of the averaged prediction on inputs attacked as in training, over all processes."""
    attack, likelihood = defense.attack, defense.objective.likelihood
    total = torch.zeros((), dtype=torch.float64)
    own = list(range(world.rank, len(examples), world.size))
    batches = Batches(examples.subset(own), defense.batch_size, shuffle=False).epoch(0) if own else ()
    for number, (x, y) in enumerate(batches):
        batch_seed = derive_seed(seed, "validation", number * world.size + world.rank)
        x_adv = x if attack is None else attack(model, x, y, batch_seed)
        with torch.no_grad(), evaluating(model), seeded(derive_seed(batch_seed, "score"), x.device):
            outputs = torch.stack([model(x_adv) for _ in range(samples)])
        total += likelihood.score(likelihood.mean(outputs), y).sum().cpu()
    return float(world.sum(total)) / len(examples)
