"""The trainings of published defences against the numbers of their sources, and that they train."""

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from advbnn import models
from advbnn.data import Splits, from_tensors
from advbnn.defenses.config_io import to_table
from advbnn.defenses.objective import RobustELBO
from advbnn.defenses.optimizers import AdamOptimizer, SGDOptimizer
from advbnn.defenses.profiles import defense
from advbnn.defenses.published import Published
from advbnn.defenses.registry import ONE_NETWORK, PUBLISHED
from advbnn.defenses.schedules import Constant, Stages
from advbnn.training.config import Config, load_config
from advbnn.training.loop import fit

ROOT = Path(__file__).parents[2]
TRAINED = {name: entry for name, entry in ONE_NETWORK.items() if entry.trained}
ALL = pytest.mark.parametrize("name", TRAINED)


class Source(NamedTuple):
    """What the code of a source has. `falls` are the epochs before the first one with a lower learning rate."""

    architecture: str
    optimizer: str
    lr: float
    weight_decay: float
    epochs: int
    falls: tuple[int, ...]
    attack: tuple[int, float, float]  # steps, step size, radius
    batch_size: int = 128
    random_start: bool = True
    clean: float = 0.0
    attack_mode: str = "eval"


EIGHT, TWO = 8 / 255, 2 / 255
# the scheduler of RNA, RPF, CTRW and DCS steps at the beginning of an epoch, so that all milestones are one early
SOURCES = {
    "ctrw": Source("resnet18", "sgd", 0.1, 5e-4, 200, (99, 149), (10, TWO, EIGHT), attack_mode="train"),
    "dcs": Source("resnet18", "sgd", 0.1, 5e-4, 200, (59, 119), (7, TWO, EIGHT), attack_mode="train"),
    "double_win": Source("preact_resnet18", "sgd", 0.1, 5e-4, 160, (80, 120), (7, TWO, EIGHT), attack_mode="train"),
    "ig_bnn": Source("vgg16", "adam", 1e-3, 0.0, 199, (), (10, TWO, EIGHT), batch_size=512),
    "learn2perturb": Source("resnet18", "nesterov", 0.1, 3e-4, 350, (150, 250), (7, 0.01, EIGHT), clean=0.5),
    "lwta": Source("resnet18", "sgd", 0.1, 2e-4, 150, tuple(range(74, 150)), (10, 0.007, 0.031), random_start=False),
    "pni": Source("resnet18", "nesterov", 0.1, 3e-4, 160, (80, 120), (7, 0.01, 0.031), clean=0.5),
    "rna": Source("resnet18", "sgd", 0.1, 5e-4, 200, (99, 149), (10, TWO, EIGHT), attack_mode="train"),
    "rpf": Source("resnet18", "sgd", 0.1, 5e-4, 200, (99, 149), (10, TWO, EIGHT), attack_mode="train"),
    "wca": Source("resnet18", "adam", 0.01, 0.0, 600, (200, 400), (10, 0.01, 0.03)),
}


def test_every_defence_that_is_trained_has_one() -> None:
    assert set(TRAINED) == set(SOURCES) == {name for name, entry in PUBLISHED.items() if entry.training is not None}
    with pytest.raises(ValueError, match="'common'"):
        defense("sap", "cifar10", "authors_code")


@ALL
def test_the_numbers_are_those_of_the_source(name: str) -> None:
    source, found = SOURCES[name], defense(name, "cifar10", "authors_code")
    assert (found.name, found.profile, found.changed, found.chosen_by_us) == (name, "authors_code", (), ())
    assert (found.architecture, found.batch_size, found.augment) == (source.architecture, source.batch_size, True)
    attack, optimizer, schedule = found.attack, found.optimizer, found.schedule
    assert attack is not None
    assert (attack.steps, attack.step_size, attack.threat.eps) == source.attack
    assert (attack.random_start, attack.threat.norm, attack.loss, attack.eot) == (source.random_start, "linf", "ce", 1)
    assert found.attack_mode == source.attack_mode
    assert (optimizer.lr, optimizer.weight_decay) == (source.lr, source.weight_decay)
    if isinstance(optimizer, SGDOptimizer):
        assert ("nesterov" if optimizer.nesterov else "sgd", optimizer.momentum) == (source.optimizer, 0.9)
    else:
        assert isinstance(optimizer, AdamOptimizer) and source.optimizer == "adam"
    assert schedule.total_epochs == source.epochs and not any(map(schedule.restarts, range(source.epochs)))
    scales = [schedule.scale(epoch) for epoch in range(source.epochs)]
    falls = [epoch + 1 for epoch, (before, after) in enumerate(pairwise(scales)) if after < before]
    assert tuple(falls) == source.falls
    factor = 0.5 if name == "lwta" else 0.1
    assert scales[-1] == pytest.approx(factor ** len(falls))
    gain = 5.0 if name == "ig_bnn" else 0.0
    assert found.objective == RobustELBO(clean=source.clean, information_gain=gain)
    assert found.drop_last == (name == "wca")
    if name == "ig_bnn":  # the default of the script, which the only command, of another dataset, changes
        assert found.network == replace(ONE_NETWORK[name].network, count=10)
    else:
        assert found.network == ONE_NETWORK[name].network


@ALL
def test_the_common_recipe_stays_the_default(name: str) -> None:
    assert defense(name, "cifar10") == defense(name, "cifar10", "common")
    assert defense(name, "cifar10").profile == "common"


@ALL
def test_a_network_is_built_and_trained_by_it(name: str) -> None:
    """With a small network in place of that of the source, two updates, and two steps of the attack."""
    shape = {"channels": 3, "image_size": 8}
    network = {key: value for key, value in shape.items() if hasattr(ONE_NETWORK[name].network, key)}
    if name == "ig_bnn":
        network = {"count": 2}
    schedule = {"epochs": [1]} if isinstance(TRAINED[name].training.schedule, Stages) else {"epochs": 1}
    small: dict[str, Any] = {"architecture": "small_cnn", "batch_size": 8, "attack": {"steps": 2}, "augment": False}
    value = defense(name, "cifar10", "authors_code", network=network, schedule=schedule, **small)
    x = torch.rand(16, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    examples = from_tensors(x, torch.arange(16) % 10)
    model = value.build(classes=10, shape=(3, 8, 8), seed=0)
    before = {key: parameter.detach().clone() for key, parameter in model.named_parameters()}
    trained = fit(model, Splits(examples, examples), value, seed=0).model
    after = dict(trained.named_parameters())
    assert all(after[key].isfinite().all() for key in before)
    assert any(not torch.equal(after[key], before[key]) for key in before)


@ALL
def test_the_network_of_the_source_takes_the_defence(name: str) -> None:
    value = defense(name, "cifar10", "authors_code")
    assert value.architecture in models.NAMES
    if name == "ig_bnn":  # ten networks are nine too many for a test
        value = replace(value, network=replace(value.network, count=2))
    model = value.build(classes=10, shape=(3, 32, 32), seed=0).train()
    with torch.no_grad():
        model(torch.rand(4, 3, 32, 32))  # running statistics and quantisation ranges
        assert model.eval()(torch.rand(2, 3, 32, 32)).shape == (2, 10)


@ALL
def test_a_file_of_three_lines_is_enough(name: str, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(f'data = "cifar10"\ndefense = "{name}"\nprofile = "authors_code"\n')
    config = load_config(path)
    assert config.defense == defense(name, "cifar10", "authors_code")
    assert Config.from_run(config.to_toml()) == config
    # what the file of the leaderboard sets stays set, and is named
    other = load_config(ROOT / "configs" / f"cifar10-{name}.toml", ["profile=authors_code"]).defense
    assert other.profile == "authors_code" and other.attack == config.defense.attack
    assert {"schedule", "batch_size"} <= set(other.changed) and to_table(other)["schedule"]["epochs"] == 15
    assert other.optimizer.kind == ("adam" if name == "wca" else "sgd")  # a rate of the one is not for the other


def test_the_page_has_the_numbers() -> None:
    text = (ROOT / "docs" / "defenses.md").read_text(encoding="utf-8")
    for entry in TRAINED.values():
        assert row(entry) in text, row(entry)


def row(entry: Published) -> str:
    """A line of the table in the documentation."""
    training = entry.training
    assert training is not None
    sgd = isinstance(training.optimizer, SGDOptimizer)
    optimizer = f"{'SGD' if sgd else 'Adam'} {training.optimizer.lr:g}"
    if isinstance(training.optimizer, SGDOptimizer) and training.optimizer.nesterov:
        optimizer += ", Nesterov"
    attack = training.attack
    size, radius = (_fraction(value) for value in (attack.first_step, attack.threat.eps))
    start = "" if attack.random_start else ", from the image"
    cells = (
        f"`{entry.name}`",
        training.architecture,
        optimizer,
        _rate(training.schedule),
        f"{training.optimizer.weight_decay * 1e4:g}e-4".replace("0e-4", "0"),
        str(training.batch_size),
        f"PGD-{attack.steps}, {size}, {radius}{start}",
        " ".join(f"{line[0].upper()}{line[1:]}." for line in training.differences),
    )
    return f"| {' | '.join(cells)} |"


def _fraction(value: float) -> str:
    exact = Fraction(value * 255).limit_denominator(1000)
    return f"{exact}/255" if exact.denominator == 1 else f"{value:g}"


def _rate(schedule: Constant | Stages) -> str:
    if isinstance(schedule, Constant):
        return f"{schedule.total_epochs}, constant"
    first, *others = schedule.epochs
    if schedule.factor == 0.5:
        return f"{schedule.total_epochs}, half in each after {first}"
    return f"{schedule.total_epochs}, a tenth after {first} and {first + others[0]}"
