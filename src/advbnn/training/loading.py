"""A finished run as the network that it trained."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from advbnn.bayes.sample_bank import SampleBank
from advbnn.defenses.optimizers import Langevin
from advbnn.errors import ConfigError, RunError
from advbnn.files import read_json, read_text
from advbnn.training import checkpoint
from advbnn.training.checkpoint import load_weights, notes_of
from advbnn.training.config import Config
from advbnn.training.run_folder import CHECKPOINTS, CONFIG, FACTS, LAST, MODEL, NOISE_STD, structure_of


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A network and the run that it comes from.

    Attributes:
        model: the network, in evaluation mode.
        config: the settings of the run.
        folder: where it lies.
        finished: whether the run came to its end; if not, these are the weights of its last checkpoint.
        noise_std: the learned noise of a Gaussian likelihood, for `regress` and `score_regression`; else None, and for
            a run of an earlier version, which has not kept it with the weights.
    """

    model: nn.Module
    config: Config
    folder: Path
    finished: bool
    noise_std: float | None


def load_trained(
    folder: Path | str, *, net: nn.Module | None = None, device: torch.device | str = "cpu", last: bool = False
) -> Trained:
    """The network that a run has trained.

    Args:
        folder: the run folder.
        net: a network built like the one that was given to `fit`, for a run of a network of your own; left out, the
            defence's architecture is built.
        device: where to put it.
        last: of a run with early stopping the network of the last epoch, in place of the best.
    """
    folder = Path(folder)
    if folder.is_file():
        raise RunError(f"{folder} is not a run folder but a file; give the folder that it lies in, {folder.parent}")
    for file in (CONFIG, FACTS):
        if not (folder / file).exists():
            raise RunError(
                f"{folder} is not a run folder: it has no {file}; give one that `advbnn train` or fit has written"
            )
    config = _config(folder / CONFIG)
    facts = read_json(folder / FACTS)
    if net is None:
        model = config.defense.build(classes=facts["data"]["classes"], shape=tuple(facts["data"]["shape"]))
    else:
        model = config.defense.wrap(net)
        _check_randomness(folder, model, facts["model"].get("structure"))
    if isinstance(config.defense.optimizer, Langevin):
        model = SampleBank(model)
    finished = (folder / MODEL).exists()
    if finished:
        weights = folder / (LAST if last and config.defense.early_stopping is not None else MODEL)
        if not weights.exists():
            raise RunError(
                f"{folder} has no {LAST}: it was removed, or an earlier version has kept the best weights alone"
            )
        load_weights(model, weights)
        notes = notes_of(weights)
    else:
        newest = checkpoint.latest(folder / CHECKPOINTS)
        if newest is None:
            raise RunError(f"{folder} has no weights yet: its run was stopped before the first checkpoint; resume it")
        newest.load_weights(model)
        notes = newest.notes()
    return Trained(
        model=model.to(device).eval(),
        config=config,
        folder=folder,
        finished=finished,
        noise_std=float(notes[NOISE_STD]) if NOISE_STD in notes else None,
    )


def _config(file: Path) -> Config:
    try:
        return Config.from_run(read_text(file))
    except ConfigError as error:
        raise RunError(f"{file} cannot be read: {error}; put back what the run has written there") from error


def _check_randomness(folder: Path, model: nn.Module, structure: list[str] | None) -> None:
    """Weights do not tell which prior they were trained with, nor the noise that is added to the layers."""
    trained, found = (_randomness(lines) for lines in (structure or (), structure_of(model)))
    if structure is not None and trained != found:  # a run of an earlier version does not say
        raise RunError(
            f"{folder} holds a network with {'; '.join(trained)}, and net makes one with {'; '.join(found)}; give "
            "load_trained the network as it was given to fit, such as bayesianize(net, prior=...)"
        )


def _randomness(structure: Iterable[str]) -> list[str]:
    return [line.strip() for line in structure if line.strip().startswith(("prior=", "noise="))]
