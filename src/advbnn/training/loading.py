"""A run folder as the network that it trained."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from advbnn.bayes.sample_bank import SampleBank
from advbnn.defenses.defense import structure_of
from advbnn.defenses.optimizers import LangevinSampler
from advbnn.errors import RunError
from advbnn.files import read_json
from advbnn.modules import usable_device
from advbnn.training import checkpoint
from advbnn.training.checkpoint import WEIGHTS, load_weights, notes_of
from advbnn.training.config import Config
from advbnn.training.run_folder import CHECKPOINTS, CONFIG, FACTS, LAST, MODEL, NOISE_STD, stored_config


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A network, in evaluation mode, and its run.

    Attributes:
        finished: whether training is complete; if not, the weights are from the last checkpoint.
        noise_std: the learned noise of a Gaussian likelihood, for `regress` and `score_regression`; else None.
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
        net: a network built like the one passed to `fit`, if that was your own; by default the defence's architecture
            is built.
        device: where to put the network.
        last: for a run with early stopping, the last epoch instead of the best.
    """
    folder, device = Path(folder), usable_device(device)
    if folder.is_file():
        raise RunError(f"{folder} is a file, not a run folder; give the folder that contains it, {folder.parent}")
    for file in (CONFIG, FACTS):
        if not (folder / file).exists():
            raise RunError(f"{folder} is not a run folder: it has no {file}; give one that `advbnn train` or fit wrote")
    config = stored_config(folder)
    facts = read_json(folder / FACTS)
    if net is None:
        model = config.defense.build(classes=facts["data"]["classes"], shape=tuple(facts["data"]["shape"]))
    else:
        model = config.defense.wrap(net)
        # another prior or noise than in training, which the weights do not show
        trained, found = (_randomness(lines) for lines in (facts["model"].get("structure", []), structure_of(model)))
        if trained != found:
            raise RunError(
                f"{folder} holds a network with {'; '.join(trained)}, but net has {'; '.join(found)}; pass the "
                "network as it was passed to fit, such as bayesianize(net, prior=...)"
            )
    if isinstance(config.defense.optimizer, LangevinSampler):
        model = SampleBank(model)
    finished = (folder / MODEL).exists()
    if finished:
        weights = folder / (LAST if last and config.defense.early_stopping is not None else MODEL)
        if not weights.exists():
            raise RunError(f"{folder} has no {LAST}: it was removed; leave last out to load the best epoch")
    else:
        newest = checkpoint.latest(folder / CHECKPOINTS)
        if newest is None:
            raise RunError(f"{folder} has no weights yet: the run stopped before its first checkpoint; resume it")
        weights = newest.folder / WEIGHTS
    load_weights(model, weights)
    notes = notes_of(weights)
    return Trained(
        model=model.to(device).eval(),
        config=config,
        folder=folder,
        finished=finished,
        noise_std=float(notes[NOISE_STD]) if NOISE_STD in notes else None,
    )


def _randomness(structure: Iterable[str]) -> list[str]:
    return [line.strip() for line in structure if line.strip().startswith(("prior=", "noise="))]
