"""The two kinds of work of a reproduction: to train a network, and to measure networks that are trained."""

from functools import cache
from pathlib import Path
from typing import Any

from advbnn import data
from advbnn.data import Splits
from advbnn.evaluation.accuracy import CLEAN, Evaluation, Options
from advbnn.evaluation.audit.worst_case import audit
from advbnn.evaluation.curves import ensemble_curve, radius_curve, steps_curve
from advbnn.evaluation.lipschitz import lipschitz_records
from advbnn.evaluation.transfer import transfer_matrix
from advbnn.paper.experiment import Experiment, Run
from advbnn.paper.plan import RUNS, Measurement, finished
from advbnn.paper.protocol import AUTHORS
from advbnn.training.config import Config
from advbnn.training.loading import load_trained
from advbnn.training.loop import fit_config
from advbnn.training.run_folder import CONFIG


def train(device: str, run: Run, folder: Path) -> None:
    """Trains a network, or goes on with it; nothing happens if that is done already."""
    config = run.config
    if finished(folder, config):
        return
    if (folder / CONFIG).exists():
        # begun by another command, perhaps: it goes on as it was begun
        config = Config.from_run((folder / CONFIG).read_text(encoding="utf-8"))
    fit_config(config, load_splits(config), out=folder, resume=True, device=device)


def measure(device: str, measurement: Measurement, experiment: Experiment, out: Path, command: str) -> None:
    """Makes the records of a measurement, those that are there excepted."""
    protocol, radii = experiment.protocol, measurement.radii
    trained = {run.label: load_trained(out / RUNS / run.label, device=device) for run in measurement.runs}
    run = measurement.runs[0]
    model, splits = trained[run.label].model, load_splits(run.config)
    test = splits.test
    options = Options(
        samples=protocol.samples,
        seeds=1,
        batch_size=protocol.batch_size,
        label=run.label,
        out=measurement.file(out),
        progress=True,
        command=command,
        engine=run.config.engine,
    )
    everything = options | {"rows": rows(test, protocol.images)}
    averaged = options | {"rows": rows(test, protocol.averaged_images)}
    study = options | {"rows": rows(test, protocol.study_images)}
    match measurement.what:
        case "radius":
            radius_curve(model, test, protocol.authors_attack(1.0), radii, name=AUTHORS, **everything)
        case "averaged":
            radius_curve(model, test, protocol.averaged_attack(1.0), radii, name=protocol.averaged, **averaged)
        case "audit":
            threats = [protocol.authors_attack(eps).threat for eps in radii]
            few = options | {"rows": rows(test, protocol.audit_images)}
            audit(model, test, threats, measurement.level, **few)
        case "transfer":
            del everything["label"]
            models = {label: one.model for label, one in trained.items()}
            transfer_matrix(models, test, protocol.authors_attack(radii[0]), **everything)
        case "ensemble":
            del study["samples"]
            for eps in radii:
                attack = protocol.authors_attack(eps) if eps else None
                ensemble_curve(model, test, attack, protocol.sizes, name=AUTHORS if eps else CLEAN, **study)
        case "steps":
            for eps in radii:
                steps_curve(model, test, protocol.authors_attack(eps), protocol.steps, name=AUTHORS, **study)
        case "lipschitz":
            lipschitz_records(model, splits, protocol.authors_attack(radii[0]), **study)
        case "alpha":
            evaluation = Evaluation(model, test, **everything | {"label": run.defense})
            point: dict[str, Any] = {"curve": "alpha", "at": run.config.defense.objective.alpha}
            evaluation.accuracy(CLEAN, None, **point)
            evaluation.accuracy(AUTHORS, protocol.authors_attack(radii[0]), **point)
            on_fewer = Evaluation(model, test, **averaged | {"label": run.defense})
            on_fewer.accuracy(protocol.averaged, protocol.averaged_attack(radii[0]), **point)
    measurement.file(out).touch()  # it holds for these weights, also where there was nothing to make


def rows(examples: data.Examples, limit: int | None) -> range | None:
    """The first so many; None, which is all of them, where there are no more than that."""
    return None if limit is None or limit >= len(examples) else range(limit)


def load_splits(config: Config) -> Splits[Any]:
    """The data of a run, read once in a process."""
    return _loaded(config.data, config.root, config.size, config.cache)


@cache
def _loaded(source: str, root: str | None, size: int | None, kept: str | None) -> Splits[Any]:
    return data.load(source, root, size=size, cache=kept)
