"""The numbers of the paper's five defences: from the paper, from its authors' code, and our own for small sets.

The published defences of `advbnn.defenses.registry` share one recipe, so that they differ in their randomness alone;
each has that of its authors' code beside it.

Where paper and code differ, both are here. `Defense.chosen_by_us` names what a source leaves open.
"""

from dataclasses import replace
from typing import Any, NamedTuple, cast

from advbnn.attacks import PGD, paper_pgd
from advbnn.attacks.threat import Threat
from advbnn.defenses.authors_training import AuthorsTraining
from advbnn.defenses.config_io import to_table, updated
from advbnn.defenses.defense import Defense
from advbnn.defenses.networks import Noisy, Plain, Variational
from advbnn.defenses.objective import RobustELBO
from advbnn.defenses.optimizers import AdamOptimizer, SGDOptimizer
from advbnn.defenses.registry import ONE_NETWORK, Randomized
from advbnn.defenses.schedules import OneCycle, Stages
from advbnn.errors import ArgumentError, one_of
from advbnn.names import DATA_SETS

DEFENSES = ("none", "rse", "adv", "bnn", "adv_bnn")
NAMES = (*DEFENSES, *ONE_NETWORK)
DATASETS = DATA_SETS
IMAGES = "images"
"""In place of a dataset: a few hundred or thousand images of one's own."""
SOURCES = (*DATASETS, IMAGES)
_OURS = ("digits", IMAGES)
_ADVERSARIAL, _VARIATIONAL = ("adv", "adv_bnn"), ("bnn", "adv_bnn")
_COMMON = ("none", "adv", "rse")


class _Values(NamedTuple):
    """The values of a profile for one dataset; pairs are (BNN, Adv-BNN)."""

    architecture: str
    eps: float
    stages: tuple[int, ...]
    alpha: tuple[float, float]
    prior_std: tuple[float, float]
    kl_scope: str = "all"


_PAPER = {
    "cifar10": _Values("vgg16", 8 / 256, (80, 60, 40, 20), (1.0, 1.0), (0.05, 0.05)),
    "stl10": _Values("model_a_playground", 8 / 256, (60, 40, 20), (0.02, 0.02), (0.15, 0.15)),
    "imagenet143": _Values("vgg16", 0.01, (30, 20, 20, 10), (0.02, 0.02), (0.15, 0.15)),
}

# The code's VGG returns the KL of its classifier only, its Model A the KL of all layers.
_AUTHORS_CODE = {
    "cifar10": _Values("vgg16", 8 / 256, (80, 60, 40, 20), (0.01, 1.0), (0.05, 0.05), "classifier"),
    "stl10": _Values("model_a", 8 / 256, (60, 40, 20), (0.01, 0.02), (0.15, 0.08)),
    # The last training script runs Adv-BNN with alpha 1 and 0.08; the README says 0.02 and 0.1.
    "imagenet143": _Values("vgg16", 0.01, (30, 20, 20, 10), (0.01, 1.0), (0.15, 0.08), "classifier"),
}

_OPEN_IN_THE_PAPER = (
    *("norm_scales", "network.init_std", "network.first", "network.inner", "attack.step_size"),
    *("attack_mode", "optimizer", "schedule", "batch_size", "augment"),
)


def defense(name: str, data: str = "digits", profile: str | None = None, **overrides: Any) -> Defense:
    """One of the paper's five defences, or of the published randomized ones, with the numbers of a profile.

    Args:
        name: `"none"`, `"rse"`, `"adv"`, `"bnn"`, `"adv_bnn"`, or a name of `advbnn.defenses.registry.ONE_NETWORK`.
        data: the dataset of the experiment: `"cifar10"`, `"stl10"`, `"imagenet143"` or `"digits"`; `"images"` for a
            few hundred or thousand colour images of your own.
        profile: `"paper"` or `"authors_code"` (the default); for digits and images `"ours"`. `"common"` on CIFAR-10 is
            one recipe for `"none"`, `"adv"`, `"rse"` (here trained adversarially) and the published defences (for these
            the default). `"authors_code"` of a published defence, on CIFAR-10, is the training of its source; see
            `AuthorsTraining`.
        overrides: other values of the fields of `Defense`, above all `architecture`, `network`, `attack`, `objective`,
            `optimizer`, `schedule`, `batch_size` and `augment`; a dict changes part of a field:
            `defense("adv_bnn", "cifar10", batch_size=256, objective={"alpha": 0.1})`.
    """
    one_of("name", name, NAMES)
    one_of("data", data, SOURCES)
    makers = {"ours": _ours} if data in _OURS else {"authors_code": _authors_code, "paper": _paper}
    if data == "cifar10" and name in ONE_NETWORK:
        makers = {"common": _common_recipe}
        if ONE_NETWORK[name].training is not None:
            makers["authors_code"] = _published
    elif data == "cifar10" and name in _COMMON:
        makers["common"] = _common_recipe
    elif name in ONE_NETWORK and data not in _OURS:
        raise ArgumentError(f"data={data!r} has no recipe for {name!r}; use cifar10 or digits, or give all settings")
    profile = profile or next(iter(makers))
    one_of(f"profile for {data}", profile, makers)
    original = makers[profile](name, data)
    changed = updated(original, overrides)
    return replace(changed, changed=tuple(_differences(to_table(original), to_table(changed))))


def _paper(name: str, data: str) -> Defense:
    """Section 4 and appendix C. What they leave open is taken from the code, but with SGD and without restarts."""
    values = _PAPER[data]
    shared = _common(name, data, values)
    return replace(
        shared,
        profile="paper",
        optimizer=SGDOptimizer(lr=0.01, momentum=0.9, weight_decay=0.0 if name in _VARIATIONAL else 5e-4),
        schedule=Stages(epochs=values.stages, fresh_optimizer=False),
        chosen_by_us=tuple(key for key in _OPEN_IN_THE_PAPER if _applies(key, shared)),
    )


def _authors_code(name: str, data: str) -> Defense:
    """The last scripts of the authors' repository; for CIFAR-10, from its history."""
    values = _AUTHORS_CODE[data]
    sgd = SGDOptimizer(lr=0.01, momentum=0.9, weight_decay=5e-4)
    return replace(
        _common(name, data, values),
        profile="authors_code",
        norm_scales="uniform",
        optimizer=AdamOptimizer(lr=0.01) if name in _VARIATIONAL else sgd,
        schedule=Stages(epochs=values.stages, fresh_optimizer=True),
        # the repository has no script for a BNN on CIFAR-10
        chosen_by_us=("network.prior_std", "network.init_std") if (name, data) == ("bnn", "cifar10") else (),
    )


def _common(name: str, data: str, values: _Values) -> Defense:
    """The settings that both sources share."""
    which = 1 if name == "adv_bnn" else 0
    std, elbo = values.prior_std[which], RobustELBO(alpha=values.alpha[which], kl_scope=values.kl_scope)
    return Defense(
        name=name,
        like=data,
        architecture=values.architecture,
        network=_network(name, Variational(prior_std=std, init_std=std)),
        attack=paper_pgd(values.eps, steps=10) if name in _ADVERSARIAL else None,
        objective=_objective(name, elbo),
    )


def _common_recipe(name: str, data: str) -> Defense:
    """ResNet-18 with the recipe that most sources of randomized defences share (Madry et al., 2018; Rice et al., 2020):
    PGD-10 at 8/255, SGD 0.1 with weight decay 5e-4, 200 epochs with drops at 100 and 150. The mode of the attack is
    that of the defence; see `Published`."""
    attack = PGD(Threat("linf", 8 / 255), steps=10, step_size=2 / 255, random_start=True)
    return Defense(
        name=name,
        profile="common",
        like=data,
        architecture="resnet18",
        network=_network(name, Variational()),
        objective=_objective(name),
        attack=attack if name == "rse" or _is_adversarial(name) else None,
        attack_mode=_attack_mode(name),
        optimizer=SGDOptimizer(lr=0.1, momentum=0.9, weight_decay=5e-4),
        schedule=Stages(epochs=(100, 50, 50), fresh_optimizer=False),
    )


def _published(name: str, data: str) -> Defense:
    """The training of a published defence by its source; see `AuthorsTraining`."""
    entry = ONE_NETWORK[name]
    training = cast(AuthorsTraining, entry.training)
    return Defense(
        name=name,
        profile="authors_code",
        like=data,
        architecture=training.architecture,
        network=training.network or entry.network,
        objective=training.objective,
        attack=training.attack,
        attack_mode=entry.attack_mode,
        optimizer=training.optimizer,
        schedule=training.schedule,
        batch_size=training.batch_size,
        drop_last=training.drop_last,
    )


def _ours(name: str, data: str) -> Defense:
    """Small enough for a CPU: seconds on the digits, see results/digits; a minute or two on a few hundred images, see
    benchmarks/records/small-data-cpu.json."""
    digits = data == "digits"
    attack = PGD(Threat("linf", 0.15), steps=4, step_size=0.06)
    if not digits:
        attack = PGD(Threat("linf", 8 / 255), steps=4, step_size=3 / 255)
    return Defense(
        name=name,
        profile="ours",
        like=data,
        architecture="small_cnn",
        network=_shaped(_network(name, Variational(prior_std=0.05, init_std=0.02, norm_scale_mean=1.0)), digits),
        attack=attack if _is_adversarial(name) else None,
        attack_mode=_attack_mode(name),
        objective=_objective(name, RobustELBO(alpha=0.02 if digits else 0.005)),
        optimizer=AdamOptimizer(lr=0.01),
        schedule=OneCycle(epochs=15 if digits else 30),
        batch_size=64 if digits else 32,
        augment=False,
    )


def _shaped(network: Any, digits: bool) -> Any:
    """Noise that has the shape of the images gets that of the digits, or of colour images of 32 pixels."""
    shape = {"channels": 1, "image_size": 8} if digits else {"channels": 3, "image_size": 32}
    return replace(network, **shape) if hasattr(network, "image_size") else network


def _is_adversarial(name: str) -> bool:
    return ONE_NETWORK[name].trained if name in ONE_NETWORK else name in _ADVERSARIAL


def _attack_mode(name: str) -> str:
    return ONE_NETWORK[name].attack_mode if name in ONE_NETWORK else "eval"


def _network(name: str, variational: Variational) -> Plain | Noisy | Variational | Randomized:
    if name in ONE_NETWORK:
        network: Randomized = ONE_NETWORK[name].network
        return network
    return Noisy() if name == "rse" else variational if name in _VARIATIONAL else Plain()


def _objective(name: str, variational: RobustELBO | None = None) -> RobustELBO:
    if name in _VARIATIONAL and variational is not None:
        return variational
    return RobustELBO(information_gain=5.0) if name == "ig_bnn" else RobustELBO()


def _applies(key: str, value: Defense) -> bool:
    owner, _, field = key.partition(".")
    if key == "attack_mode":
        return value.attack is not None
    return not field or hasattr(getattr(value, owner), field)


def _differences(before: Any, after: Any, path: str = "") -> list[str]:
    """The full keys under which two nested tables differ."""
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return [path] if before != after else []
    if before.get("kind") != after.get("kind"):
        return [path]
    parts = [_differences(before.get(key), after[key], f"{path}.{key}" if path else key) for key in after]
    return [difference for part in parts for difference in part]
