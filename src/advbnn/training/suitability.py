"""Checks, before training begins, that network, data and defence fit together."""

import torch
from torch import Tensor, nn

from advbnn.attacks.oracle import check_outputs
from advbnn.bayes.likelihoods import Categorical
from advbnn.bayes.modes import Modes
from advbnn.bayes.protocol import gaussian_parameters
from advbnn.data import Batches, Examples
from advbnn.data.augment import to_float
from advbnn.data.streams import StreamBatches
from advbnn.defenses.defense import Defense
from advbnn.defenses.optimizers import LangevinSampler
from advbnn.errors import ArgumentError, ArgumentTypeError, InputError
from advbnn.machine.processes import World
from advbnn.modules import device_of, dtype_of, evaluating, training
from advbnn.randomness import seeded
from advbnn.training.averaging import restored


def check_arguments(net: object, defense: object) -> None:
    """Refuse arguments of `fit` of the wrong type."""
    if not isinstance(net, nn.Module):
        raise ArgumentTypeError(f"net must be a torch.nn.Module that returns logits, got {type(net).__name__}")
    if isinstance(net, Modes) and len(net) > 1:
        remedy = "train a network with modes=K, or each of its networks with a fit of its own"
        raise ArgumentError(f"net is a mixture of {len(net)} modes, which are trained one by one; {remedy}")
    if next(net.parameters(), None) is None:
        raise ArgumentError(f"net must have parameters to train, and this {type(net).__name__} has none")
    if not isinstance(defense, Defense):
        remedy = "make one with advbnn.defense('adv_bnn', 'cifar10')"
        raise ArgumentTypeError(f"defense must be a Defense, got {defense!r}; {remedy}")


def check_suitable(model: nn.Module, examples: Examples, defense: Defense, processes: World) -> None:
    """Refuse, with the remedy, what cannot be trained or would train something else."""
    regression, likelihood = examples.targets.is_floating_point(), defense.objective.likelihood
    if regression == isinstance(likelihood, Categorical):
        kind, remedy = ("real numbers", "Gaussian") if regression else ("class labels", "Categorical")
        raise ArgumentError(
            f"{examples.name} has {kind} as targets, which do not fit a {type(likelihood).__name__} likelihood; "
            f"set objective.likelihood to {remedy}()"
        )
    bayesian = bool(gaussian_parameters(model))
    langevin = isinstance(defense.optimizer, LangevinSampler)
    if bayesian and langevin:
        raise ArgumentError("Langevin dynamics samples the weights of a plain network, and this model is Bayesian")
    if processes.size > 1 and langevin:
        raise ArgumentError("Langevin dynamics runs in one process; start one chain per process, with its own seed")
    decay = getattr(defense.optimizer, "weight_decay", 0.0)
    if bayesian and decay:
        raise ArgumentError(
            f"optimizer.weight_decay={decay} would pull the standard deviations of random weights towards 1; the KL "
            "regularizes them, set weight_decay to 0"
        )
    check_forward(model, examples)


def check_last_batch(model: nn.Module, batches: Batches | StreamBatches, defense: Defense) -> None:
    """Refuse a last batch of one example if a BatchNorm layer would have one value per channel, and no variance."""
    together = 2 if defense.objective.takes_clean else 1  # clean and attacked images together
    if together * (batches.size(len(batches) - 1) // batches.world) > 1:
        return
    ((x, _),) = batches.examples.gather([torch.zeros(1, dtype=torch.long)])
    try:
        with torch.no_grad(), training(model), restored(model.buffers()), seeded(0, x.device):
            model(to_float(x))
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise ArgumentError(
            f"batch_size={batches.batch_size} leaves one of {len(batches.examples)} examples in the last batch of an "
            "epoch, too few for the BatchNorm of this network; set drop_last to true, or another batch_size"
        ) from error


def check_forward(model: nn.Module, examples: Examples) -> Tensor:
    """Outputs for two examples; refuses a network that does not accept them, or has too few outputs for the labels."""
    ((x, _),) = examples.gather([torch.arange(min(2, len(examples)))])
    x = to_float(x).to(device_of(model, x.device))
    try:
        # all parts in evaluation mode, so that no running statistics change
        with torch.no_grad(), training(model), evaluating(model), seeded(0, x.device):
            outputs: Tensor = model(x)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise (InputError if x.dtype == dtype_of(model) else ArgumentTypeError)(
            f"net does not accept the inputs of {examples.name}, {x.dtype} of shape {list(x.shape)}: {reason}; pass a "
            f"network for these inputs; its weights are {dtype_of(model)}"
        ) from error
    check_outputs(outputs, x, examples.targets.to(x.device), not examples.targets.is_floating_point())
    return outputs
