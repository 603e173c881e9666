"""Whether a network, examples and a defence go together, asked before training begins."""

import torch
from torch import nn

from advbnn.attacks.oracle import check_outputs
from advbnn.bayes.likelihoods import Categorical
from advbnn.bayes.protocol import gaussian_parameters
from advbnn.data import Examples
from advbnn.data.augment import to_float
from advbnn.defenses.defense import Defense
from advbnn.defenses.optimizers import Langevin
from advbnn.distributed import World
from advbnn.errors import ArgumentError
from advbnn.modules import dtype_of, evaluating, training
from advbnn.randomness import seeded


def check_suitable(model: nn.Module, examples: Examples, defense: Defense, processes: World) -> None:
    """Refuse, with the remedy, what could not be trained, or would give something else than was asked for."""
    _check_defense(model, examples, defense, processes)
    _check_passes(model, examples)


def _check_defense(model: nn.Module, examples: Examples, defense: Defense, processes: World) -> None:
    regression, likelihood = examples.targets.is_floating_point(), defense.objective.likelihood
    if regression == isinstance(likelihood, Categorical):
        kind, remedy = ("real numbers", "Gaussian") if regression else ("class labels", "Categorical")
        raise ArgumentError(
            f"{examples.name} has {kind} for targets, which a {type(likelihood).__name__} likelihood cannot explain; "
            f"set objective.likelihood to {remedy}()"
        )
    bayesian = bool(gaussian_parameters(model))
    if bayesian and isinstance(defense.optimizer, Langevin):
        raise ArgumentError(
            "Langevin dynamics samples the weights of a plain network, and the model is Bayesian already"
        )
    decay = getattr(defense.optimizer, "weight_decay", 0.0)
    if bayesian and decay:
        raise ArgumentError(
            f"optimizer.weight_decay={decay} would pull the standard deviations of random weights towards 1; the "
            "divergence from the prior takes its place, set weight_decay to 0"
        )
    if processes.size > 1 and isinstance(defense.optimizer, Langevin):
        raise ArgumentError("Langevin dynamics runs in one process; start one chain a process, each with its own seed")


def _check_passes(model: nn.Module, examples: Examples) -> None:
    """Refuse, with the remedy, a network that cannot take the inputs, or has too few outputs for the labels."""
    ((x, _),) = examples.gather([torch.arange(min(2, len(examples)))])
    x = to_float(x)
    try:
        # in evaluation mode as a whole, for a part in training mode would learn from it
        with torch.no_grad(), training(model), evaluating(model), seeded(0, x.device):
            outputs = model(x)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise (ValueError if x.dtype == dtype_of(model) else TypeError)(
            f"net cannot take the inputs of {examples.name}, {x.dtype} of shape {list(x.shape)}: {reason}; give fit a "
            f"network for such inputs, or inputs of the shape and type that it takes; its weights are {dtype_of(model)}"
        ) from error
    check_outputs(outputs, x, examples.targets.to(x.device), not examples.targets.is_floating_point())
