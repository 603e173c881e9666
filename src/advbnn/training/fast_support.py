"""What the fast training step cannot do, each with its name."""

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from advbnn.attacks import PGD
from advbnn.bayes.likelihoods import Categorical
from advbnn.bayes.protocol import inner_network, random_parts
from advbnn.defenses.defense import Defense
from advbnn.defenses.kept_draw import KeptDraw
from advbnn.errors import UnsupportedError
from advbnn.modules import training
from advbnn.randomness import has_resample
from advbnn.training.objective import RobustLoss


def check_supported(loss: RobustLoss, defense: Defense) -> None:
    """Raise an `UnsupportedError` that says what has no fast form, if anything."""
    attack = defense.attack
    reasons = {
        "a Gaussian likelihood": not isinstance(loss.objective.likelihood, Categorical),
        "an attack other than PGD": attack is not None and not isinstance(attack, PGD),
        "an attack that compares candidates": attack is not None and (attack.restarts > 1 or attack.pick != "last"),
        "an attack on averaged outputs": attack is not None and attack.eot > 1 and attack.average != "loss",
        "a model with several random parts": bool(random_parts(inner_network(loss.model))),
        "random weights without a Gaussian posterior": bool(random_parts(loss.model)) and not loss.is_bayesian,
        "BatchNorm without a momentum": any(
            isinstance(part, _BatchNorm) and part.momentum is None and part.track_running_stats
            for part in loss.modules()
        ),
        "a random state that is not in buffers": any(
            has_resample(part) and not isinstance(part, KeptDraw) for part in loss.model.modules()
        ),
        "parts in evaluation mode": _has_frozen_parts(loss.model),
        "parameters that are not float32": any(p.dtype != torch.float32 for p in loss.parameters()),
    }
    for reason, applies in reasons.items():
        if applies:
            raise UnsupportedError(f"the fast step does not support {reason}")


def _has_frozen_parts(model: nn.Module) -> bool:
    with training(model):
        return not all(part.training for part in model.modules())
