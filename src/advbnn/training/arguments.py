"""The arguments of `fit`: the forms that they may have, and checks that network, data and defence fit together."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from advbnn.attacks.checks import check_outputs
from advbnn.bayes.likelihoods import Categorical
from advbnn.bayes.modes import Modes
from advbnn.bayes.protocol import gaussian_parameters, random_parts
from advbnn.bayes.sample_bank import SampleBank
from advbnn.bayes.swag import SWAG
from advbnn.data import Batches, CutMix, Examples, Splits, named_augmentation
from advbnn.data.augment import to_float
from advbnn.data.streams import Stream, StreamBatches, stream
from advbnn.defenses.defense import Defense
from advbnn.defenses.networks import Variational
from advbnn.defenses.optimizers import LangevinSampler
from advbnn.errors import ArgumentError, ArgumentTypeError, InputError, first_line
from advbnn.machine.processes import World
from advbnn.models.initial_weights import InitialWeights, check_kind
from advbnn.modules import device_of, dtype_of, evaluating, training
from advbnn.randomness import seeded
from advbnn.training.averaging import restored
from advbnn.training.mode_plan import ModePlan


def starts(init: InitialWeights | Sequence[InitialWeights] | None, plan: ModePlan) -> tuple[InitialWeights, ...]:
    """The checkpoints to start from: none, one for all modes, or one for each that starts from no other training."""
    if init is None:
        return ()
    given = tuple(init) if isinstance(init, list | tuple) else (init,)
    for weights in given:
        check_kind(weights)
    needed = sum(plan.start_of(name) is None for name in plan.trainings)
    if len(given) not in (1, needed):
        several = f", or one for each of {needed} modes" if needed > 1 else ""
        of_plan = f" with modes.how={plan.how!r}" if plan.count > 1 else ""
        raise ArgumentError(f"init must be one checkpoint{several}{of_plan}, got {len(given)}")
    return given


def as_splits(net: nn.Module, loader: Any, seed: int) -> Splits[Any]:
    """Batches of a loader as a training set; the network says how many classes there are, if the loader does not."""
    if not isinstance(loader, Iterable) or isinstance(loader, str | bytes | Tensor | Mapping):
        remedy = "advbnn.data.load and from_tensors make its sets; a DataLoader or a list of batches works too"
        raise ArgumentTypeError(f"data must be Splits(train, test), got {type(loader).__name__}; {remedy}")
    train = stream(loader, seed=seed)
    if train.classes and isinstance(net, nn.Module):
        outputs = check_forward(net, train).shape[1]
        if outputs != len(train.classes):
            train = replace(train, classes=tuple(map(str, range(outputs))))
    return Splits(train, train)


def training_batches(examples: Examples, defense: Defense, seed: int, processes: World) -> Batches | StreamBatches:
    """The batches of every epoch, for this process, with the augmentation of the defence."""
    if not isinstance(examples, Stream):
        return Batches(
            examples,
            defense.batch_size,
            seed=seed,
            augmentations=named_augmentation(defense.augment, examples.name),
            drop_last=defense.drop_last,
            rank=processes.rank,
            world=processes.size,
            cutmix=CutMix() if defense.augment == "cutmix" else None,
        )
    if processes.size > 1:
        raise ArgumentError(
            "data: a loader's batches cannot be divided among processes; pass Splits, or use one process"
        )
    if isinstance(defense.augment, str):
        raise ArgumentError(
            f"augment={defense.augment!r} is for sets in memory; augment in the loader, or give fit a function augment"
        )
    return StreamBatches(examples, seed)


def check_arguments(net: object, defense: object) -> None:
    """Refuse arguments of `fit` of the wrong type."""
    if not isinstance(net, nn.Module):
        raise ArgumentTypeError(f"net must be a torch.nn.Module that returns logits, got {type(net).__name__}")
    if isinstance(net, Modes) and len(net) > 1:
        remedy = "train a network with modes=K, or each of its networks with a fit of its own"
        raise ArgumentError(f"net is a mixture of {len(net)} modes, which are trained one by one; {remedy}")
    for path, part in random_parts(net):
        if isinstance(part, SampleBank | SWAG):
            what, inside = type(part).__name__, ".".join(filter(None, ("net", path, "net")))
            raise ArgumentError(
                f"net holds a {what} of collected weights, which are not trained; pass its plain network, {inside}"
            )
    if next(net.parameters(), None) is None:
        raise ArgumentError(f"net must have parameters to train, and this {type(net).__name__} has none")
    if not isinstance(defense, Defense):
        remedy = "make one with advbnn.defense('adv_bnn', 'cifar10')"
        raise ArgumentTypeError(f"defense must be a Defense, got {defense!r}; {remedy}")


def check_suitable(model: nn.Module, examples: Examples, defense: Defense, processes: World) -> None:
    """Refuse, with the remedy, what cannot be trained or would train something else."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ArgumentError("net must have parameters to train, and all are frozen; call requires_grad_() on some")
    regression, likelihood = examples.targets.is_floating_point(), defense.objective.likelihood
    if regression == isinstance(likelihood, Categorical):
        kind, remedy = ("real numbers", "Gaussian") if regression else ("class labels", "Categorical")
        raise ArgumentError(
            f"{examples.name} has {kind} as targets, which do not fit a {type(likelihood).__name__} likelihood; "
            f"set objective.likelihood to {remedy}()"
        )
    bayesian = bool(gaussian_parameters(model))
    adds_own = any(callable(getattr(part, "penalty", None)) for part in model.modules())
    if isinstance(defense.network, Variational) and not bayesian and not adds_own:
        raise ArgumentError(
            f"net has no KL, which is a part of the objective of {defense.name!r}: give this {type(model).__name__} a "
            "method penalty() that returns alpha / N times its KL, or train it with 'none' or 'adv'"
        )
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


def check_length(defense: Defense, steps: int) -> None:
    """Refuse a training, with so many steps per epoch, that ends before it has collected weights."""
    optimizer, swag, updates = defense.optimizer, defense.swag, defense.schedule.total_epochs * steps
    if isinstance(optimizer, LangevinSampler) and optimizer.burn_in + optimizer.every > updates:
        given = f"optimizer.burn_in={optimizer.burn_in} and every={optimizer.every}"
        raise ArgumentError(f"{given} leave no sample in {updates} updates; lower them, or train longer")
    if swag is not None and updates - swag.start * steps < 2:
        raise ArgumentError(f"swag.start={swag.start} leaves a single update to collect; lower it, or train longer")


def check_forward(model: nn.Module, examples: Examples) -> Tensor:
    """Outputs for two examples; refuses a network that does not accept them, or has too few outputs for the labels."""
    ((x, _),) = examples.gather([torch.arange(min(2, len(examples)))])
    x = to_float(x).to(device_of(model, x.device))
    try:
        # all parts in evaluation mode, so that no running statistics change
        with torch.no_grad(), training(model), evaluating(model), seeded(0, x.device):
            outputs: Tensor = model(x)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = first_line(error)
        raise (InputError if x.dtype == dtype_of(model) else ArgumentTypeError)(
            f"net does not accept the inputs of {examples.name}, {x.dtype} of shape {list(x.shape)}: {reason}; pass a "
            f"network for these inputs; its weights are {dtype_of(model)}"
        ) from error
    check_outputs(outputs, x, examples.targets.to(x.device), not examples.targets.is_floating_point())
    return outputs
