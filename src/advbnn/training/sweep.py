"""Sweeps: trainings of one file that differ in a few settings or in the seed, each in a run folder of its own.

OUT/objective.alpha=0.1,seed=0    a run folder, as of any run
OUT/objective.alpha=0.1,seed=1    ...
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean, stdev

from advbnn.errors import ConfigError, RunError, positive_whole
from advbnn.training.config import CONFIG, Config, load_config, load_splits, parse_settings
from advbnn.training.loop import fit_config
from advbnn.training.run_folder import METRICS, MODEL, MODES, read_metrics
from advbnn.training.tasks import Task

SEED = "seed"


@dataclass(frozen=True)
class SweepRun:
    """A training, and the settings in which it differs from the others, as text."""

    varies: Mapping[str, str]
    config: Config
    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name


def plan_sweep(file: Path, settings: Sequence[str], seeds: int | None, out: Path) -> list[SweepRun]:
    """All combinations of the values in `settings`, each `"key=value"` or `"key=value,value"`, and so many seeds.

    A single run is in `out` itself. The seeds count up from that of the file.
    """
    choices = {key: values for key, values in map(_choices, settings)}
    if seeds is not None:
        if SEED in choices:
            raise ConfigError("--seeds and --set seed exclude each other; leave one of them out")
        first = load_config(file, [f"{key}={values[0]}" for key, values in choices.items()]).seed
        choices[SEED] = [str(first + number) for number in range(positive_whole("seeds", seeds, most=10_000))]
    several = [key for key, values in choices.items() if len(values) > 1]
    runs: dict[Path, SweepRun] = {}
    for values in product(*choices.values()):
        chosen = dict(zip(choices, values, strict=True))
        varies = {key: chosen[key] for key in several}
        folder = out / _folder_name(varies) if several else out
        if folder in runs:
            raise ConfigError(f"--set: two runs would be in {folder}; give every value once")
        config = load_config(file, [f"{key}={value}" for key, value in chosen.items()])
        runs[folder] = SweepRun(varies, config, folder)
    if several and (out / CONFIG).exists():
        raise RunError(f"{out} is the folder of a single run; give --out another folder for the sweep")
    return list(runs.values())


def _choices(setting: str) -> tuple[str, list[str]]:
    """The key and the values of a setting. Commas in quotes, lists and tables do not separate values."""
    parse_settings([setting])  # refuses what is not key=value
    key, _, text = setting.partition("=")
    values, depth, quote = [""], 0, ""
    for letter in text:
        if letter in "\"'" and quote in ("", letter):
            quote = "" if quote else letter
        depth += 0 if quote else (letter in "[{") - (letter in "]}")
        if letter == "," and not depth and not quote:
            values.append("")
        else:
            values[-1] += letter
    values = [value.strip() for value in values]
    if len(values) > 1 and not all(values):
        raise ConfigError(f"--set {setting}: a value is empty; write key=value,value without a comma at the end")
    return key.strip(), values


def _folder_name(varies: Mapping[str, str]) -> str:
    return ",".join(f"{key}={re.sub(r'[^A-Za-z0-9.+-]+', '_', value).strip('_')}" for key, value in varies.items())


def sweep_tasks(runs: Iterable[SweepRun], *, shared_modes: bool = False) -> list[Task]:
    """A task for each run; with `shared_modes` as many as it has modes, so that several workers train them."""
    tasks = []
    for run in runs:
        parts = run.config.modes.count if shared_modes else 1
        names = [run.name] if parts == 1 else [f"{run.name} ({part + 1}/{parts})" for part in range(parts)]
        tasks += [Task(name, train_run, (run.config, run.folder)) for name in names]
    return tasks


def train_run(device: str, config: Config, folder: Path) -> None:
    fit_config(config, load_splits(config), out=folder, resume=True, device=device)


def scores(run: SweepRun) -> dict[str, float]:
    """The metrics of a finished run: of training at its end, of validation at its best; of modes the mean."""
    if not (run.folder / MODEL).exists():
        return {}
    folders = [run.folder / MODES / name for name in run.config.modes.names] if run.config.modes.count > 1 else []
    each = [_scores(read_metrics(folder / METRICS)) for folder in folders or [run.folder]]
    return {key: mean(one[key] for one in each) for key in each[0] if all(key in one for one in each)}


def _scores(history: Sequence[Mapping[str, float]]) -> dict[str, float]:
    found = {}
    for kind in ("clean", "robust", "validation"):
        for unit, best in (("accuracy", max), ("mse", min)):
            values = [line[f"{kind}_{unit}"] for line in history if f"{kind}_{unit}" in line]
            if values:
                found[f"{kind}_{unit}"] = best(values) if kind == "validation" else values[-1]
    return found


def sweep_table(runs: Sequence[SweepRun]) -> list[list[str]]:
    """A table with its header: a row for each run, then the mean and standard deviation over seeds."""
    found = [scores(run) for run in runs]
    keys = list(runs[0].varies)
    columns = list(dict.fromkeys(key for one in found for key in one))
    rows = [[*keys, *(_heading(column) for column in columns), "run"]]
    for run, one in zip(runs, found, strict=True):
        rows.append([*run.varies.values(), *(_number(column, [one]) for column in columns), str(run.folder)])
    groups: dict[tuple[str, ...], list[dict[str, float]]] = {}
    for run, one in zip(runs, found, strict=True):
        groups.setdefault(tuple(value for key, value in run.varies.items() if key != SEED), []).append(one)
    for values, group in groups.items() if SEED in keys else ():
        done = [one for one in group if one]
        if len(done) > 1:
            rest = iter(values)
            shown = [f"{len(done)} seeds" if key == SEED else next(rest) for key in keys]
            rows.append([*shown, *(_number(column, done) for column in columns), ""])
    return rows


def _heading(column: str) -> str:
    kind, _, unit = column.partition("_")
    return f"{kind} %" if unit == "accuracy" else f"{kind} {unit}"


def _number(column: str, found: Sequence[Mapping[str, float]]) -> str:
    values = [one[column] for one in found if column in one]
    if not values:
        return "-"
    scale, form = (100, ".1f") if column.endswith("_accuracy") else (1, ".4g")
    text = f"{scale * mean(values):{form}}"
    return text if len(values) == 1 else f"{text} ± {scale * stdev(values):{form}}"
