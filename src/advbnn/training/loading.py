"""A run folder as the network that it trained."""

import copy
import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import nn

from advbnn.bayes.modes import Modes
from advbnn.bayes.sample_bank import SampleBank
from advbnn.bayes.swag import SWAG
from advbnn.data import Examples, Splits
from advbnn.defenses.defense import Defense, structure_of
from advbnn.defenses.optimizers import LangevinSampler
from advbnn.errors import ArgumentTypeError, CheckpointError, FileError, RunError, shown
from advbnn.modules import usable_device
from advbnn.randomness import seeded
from advbnn.training import checkpoint
from advbnn.training.checkpoint import WEIGHTS, load_weights, notes_of
from advbnn.training.config import Config
from advbnn.training.run_folder import (
    CHECKPOINTS,
    CONFIG,
    COPY,
    FACTS,
    LAST,
    MODEL,
    MODES,
    NOISE_STD,
    read_facts,
    resume_command,
    stored_config,
    verify_weights,
)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A network, in evaluation mode, and its run.

    Attributes:
        finished: whether training is complete; if not, the weights are from the last checkpoint, and of several modes
            the mixture has those that are finished.
        classes: the names of the classes in the order of the outputs; None if the run does not say.
        step: the number of updates, if the training of a single network is not complete.
        noise_std: the learned noise of a Gaussian likelihood, for `regress` and `score_regression`; else None.
    """

    model: nn.Module
    config: Config
    folder: Path
    finished: bool
    noise_std: float | None
    classes: tuple[str, ...] | None = None
    step: int | None = None

    @property
    def unfinished(self) -> str:
        """How far an unfinished run is, `"step 40"` or `"2 of 5 modes"`; empty for a finished one."""
        if self.finished:
            return ""
        return (
            f"{len(self.model)} of {self.config.modes.count} modes"
            if isinstance(self.model, Modes)
            else f"step {self.step}"
        )

    def load_data(self, root: Path | None = None) -> Splits[Any]:
        """The data of the run, if it still has the classes that the network was trained on.

        `root` is the folder of a named dataset, if its files are elsewhere than in training.
        """
        config = self.config if root is None else replace(self.config, root=str(root))
        splits = config.load_data()
        self.check_classes(splits.train)
        return splits

    def check_classes(self, data: Examples) -> None:
        """Refuse data whose classes have other names than in training, such as renamed class folders."""
        if self.classes is None or self.classes == data.classes:
            return
        pairs = zip_longest(self.classes, data.classes, fillvalue="nothing")
        number, (then, now) = next((i, pair) for i, pair in enumerate(pairs) if pair[0] != pair[1])
        raise RunError(
            f"{self.folder} was trained on {data.name} with other classes: class {number} was {then!r} and is now "
            f"{now!r}; give the classes, or the class folders, their former names, or train again"
        )


def load_trained(
    folder: Path | str, *, net: nn.Module | None = None, device: torch.device | str = "cpu", last: bool = False
) -> Trained:
    """The network that a run has trained.

    Args:
        net: a network built like the one passed to `fit`, if that was your own; by default the defence's architecture
            is built.
        last: for a run with early stopping, the last epoch instead of the best.
    """
    if not isinstance(folder, str | Path):
        raise ArgumentTypeError(f"folder must be the path of a run folder, got {shown(folder)}")
    folder, device = Path(folder), usable_device(device)
    if folder.is_file():
        raise RunError(f"{folder} is a file, not a run folder; give the folder that contains it, {folder.parent}")
    if not (folder / CONFIG).exists():
        raise RunError(f"{folder} is not a run folder: it has no {CONFIG}; give one that `advbnn train` or fit wrote")
    config = stored_config(folder)
    facts = _facts(folder, config)
    load, names = _load_modes if config.modes.count > 1 else _load_one, facts["data"].get("class_names")
    model, noise_std, step = load(folder, config, facts, net, last)
    return Trained(
        model=model.to(device).eval(),
        config=config,
        folder=folder,
        finished=(folder / MODEL).exists(),
        step=step,
        classes=None if names is None else tuple(names),
        noise_std=noise_std,
    )


def _load_one(
    folder: Path, config: Config, facts: dict[str, Any], net: nn.Module | None, last: bool
) -> tuple[nn.Module, float | None, int | None]:
    """The network, its learned noise, and the step of the checkpoint that it is from, if the run is not finished."""
    defense = config.defense
    model = _network(defense, facts["data"], net)
    # another prior or noise than in training, which the weights do not show
    trained, found = (_randomness(lines) for lines in (facts["model"].get("structure", []), structure_of(model)))
    if trained != found:
        given, remedy = "net has", "pass the network as it was passed to fit, such as bayesianize(net, prior=...)"
        if net is None:
            given, remedy = f"{CONFIG} says", f"{CONFIG} or {FACTS} was changed or damaged, restore them from a copy"
        raise RunError(f"{folder} holds a network with {'; '.join(trained)}, but {given} {'; '.join(found)}; {remedy}")
    finished, step = (folder / MODEL).exists(), None
    model = _posterior(model, defense, finished)
    if finished:
        name = LAST if last and defense.early_stopping is not None else MODEL
        if not (folder / name).exists():
            raise RunError(f"{folder} has no {LAST}: it was removed; leave last out to load the best epoch")
        weights = verify_weights(folder, name)
    else:
        newest = checkpoint.latest(folder / CHECKPOINTS)
        if newest is None:
            raise RunError(f"{folder} has no weights yet: the run stopped before its first checkpoint; resume it")
        weights, step = newest.folder / WEIGHTS, newest.step
    load_weights(model, weights)
    return model, _noise_of(weights), step


def _load_modes(
    folder: Path, config: Config, facts: dict[str, Any], net: nn.Module | None, last: bool
) -> tuple[nn.Module, float | None, None]:
    """The same of all modes of a run; of one that is not finished, of those that are."""
    defense = config.defense
    if (folder / MODEL).exists() and not (last and defense.early_stopping is not None):
        nets = [_network(defense, facts["data"], copy.deepcopy(net)) for _ in config.modes.names]
        model = Modes(_posterior(one, defense, finished=True) for one in nets)
        weights = verify_weights(folder, MODEL)
        load_weights(model, weights)
        return model, _noise_of(weights), None
    ready = [folder / MODES / name for name in config.modes.names if (folder / MODES / name / MODEL).exists()]
    if not ready:
        raise RunError(f"{folder} has no finished mode yet; resume the run, or load one of its modes/")
    parts = [load_trained(one, net=copy.deepcopy(net), last=last) for one in ready]
    shares = config.modes.weights if len(ready) == config.modes.count else None
    return Modes((one.model for one in parts), shares), mean_noise(one.noise_std for one in parts), None


def mean_noise(stds: Iterable[float | None]) -> float | None:
    """The learned noise of a mixture: its variance is the mean over those that have one."""
    squares = [std**2 for std in stds if std is not None]
    return math.sqrt(sum(squares) / len(squares)) if squares else None


def _noise_of(weights: Path) -> float | None:
    notes = notes_of(weights)
    return float(notes[NOISE_STD]) if NOISE_STD in notes else None


def _network(defense: Defense, data: dict[str, Any], net: nn.Module | None) -> nn.Module:
    if net is None:
        return defense.build(classes=data["classes"], shape=tuple(data["shape"]))
    with seeded(0):  # a defence may add random initial weights
        return defense.wrap(net)


def _posterior(model: nn.Module, defense: Defense, finished: bool) -> nn.Module:
    """The network as a run stores it: with samples or moments of its weights."""
    swag = defense.swag
    if isinstance(defense.optimizer, LangevinSampler) or (swag is not None and finished and swag.statistics == "anew"):
        return SampleBank(model)
    return model if swag is None else SWAG(model, swag.rank, swag.scale)


def _facts(folder: Path, config: Config) -> dict[str, Any]:
    """run.json; if that is damaged, its copy in the last checkpoint."""
    try:
        return read_facts(folder)
    except FileError as error:
        with suppress(CheckpointError):
            newest = checkpoint.latest(folder / CHECKPOINTS)
            if newest is not None and COPY in newest.facts:
                return dict(newest.facts[COPY])
        remedy = "without a checkpoint it cannot be written again"
        if config.modes.count > 1:  # whose modes have the checkpoints
            remedy = f"or resume the run, which writes it again: {resume_command(folder)}"
        raise RunError(f"{error}; {remedy}") from error


def _randomness(structure: Iterable[str]) -> list[str]:
    return [line.strip() for line in structure if line.strip().startswith(("prior=", "noise="))]
