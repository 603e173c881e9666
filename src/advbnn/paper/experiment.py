"""What is reproduced: the data, whose hyper-parameters are used, and what is changed from them."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from advbnn.data import check_source
from advbnn.defenses.config_io import merged, nested
from advbnn.defenses.defense import Defense
from advbnn.defenses.networks import Noisy, Variational
from advbnn.defenses.profiles import DATASETS
from advbnn.errors import ArgumentError, ConfigError, FileError, positive_whole, unknown
from advbnn.machine.files import read_json, write_atomically
from advbnn.paper.protocol import PROTOCOLS, Protocol
from advbnn.training.config import Config, check_radius, parse_settings
from advbnn.training.run_folder import CONFIG

EXPERIMENTS = ("table1", "fig2", "fig3", "fig4", "lipschitz", "alpha")

FILE, RUNS, RECORDS, WEIGHTS = "reproduction.json", "runs", "records", "weights.json"
"""In the folder of a reproduction: its settings, the folders of its trainings and of its records, and the SHA-256
of the weights that they were made with."""

_IMAGES = "test_sha256"
BESIDE = "beside"
"""The fact in `FILE` that names the reproduction to compare with, as a path relative to the folder."""

_KL_SETTINGS = tuple(f"objective.{name}" for name in ("alpha", "kl_scope", "kl_warmup", "kl_warmup_epochs"))
_HAVE_OPTIONS = ("data", "defense", "profile", "like", "root", "seed", "engine")


@dataclass(frozen=True, kw_only=True)
class Run:
    """A training; `label` is the name of its folder, and of its network in records."""

    label: str
    defense: str
    config: Config

    @property
    def task(self) -> str:
        return f"training {self.label}"


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """The settings that all runs and measurements of a reproduction share.

    Args:
        data: a data set's name, or the path of an image folder.
        like: the data set whose hyper-parameters and radii are used.
        profile: whose hyper-parameters: `"authors_code"`, `"paper"` or `"ours"`.
        settings: changes to every training, as `"key=value"`. Settings of the attack, of the weight noise or of the
            KL apply only to the defences that have them.
        limit: the largest number of images that anything is measured on.
    """

    data: str
    like: str
    profile: str
    settings: tuple[str, ...] = ()
    limit: int | None = None

    @classmethod
    def choose(
        cls,
        data: str,
        profile: str | None = None,
        like: str | None = None,
        settings: Sequence[str] = (),
        limit: int | None = None,
    ) -> "Experiment":
        if like is None and data not in DATASETS:
            check_source(data, "data")
            raise ArgumentError(f"data={data!r} is an image folder: choose with --like whose hyper-parameters to use")
        if like not in (None, data) and data in DATASETS:
            raise ArgumentError(f"like is for image folders; {data!r} has its own hyper-parameters, leave it out")
        if (like or data) not in DATASETS:
            raise unknown("like", str(like), DATASETS)
        if limit is not None:
            positive_whole("limit", limit)
        profile = profile or ("ours" if (like or data) == "digits" else "authors_code")
        folder = data if data in DATASETS else str(Path(data).resolve())
        return cls(data=folder, like=like or data, profile=profile, settings=tuple(settings), limit=limit)

    @property
    def title(self) -> str:
        """A short name, such as `"cifar10-authors_code"`."""
        return f"{Path(self.data).name}-{self.profile}"

    @property
    def protocol(self) -> Protocol:
        """How the data is measured."""
        return PROTOCOLS[self.like].limited(self.limit)

    def run(
        self, defense: str, seed: int = 0, factor: float = 1.0, root: str | None = None, engine: str = "auto"
    ) -> Run:
        """The training of a defence, with alpha multiplied by `factor`."""
        table = {**self._table(defense), "seed": seed, "engine": engine} | ({"root": root} if root is not None else {})
        original = Config.from_table(table).defense
        changes = {key: value for key, value in _parsed(self.settings).items() if _applies(key, original)}
        table = merged(table, nested(changes))
        label = defense if seed == 0 else f"{defense}-seed{seed}"
        config = Config.from_table(table)
        check_radius(config)
        now = config.defense
        if type(now.network) is not type(original.network) or (now.attack is None) != (original.attack is None):
            culprits = " ".join(f"--set {key}" for key in changes if key.partition(".")[0] in ("network", "attack"))
            raise ConfigError(f"{culprits} turns {defense} into another defence; leave it out, choose with --defenses")
        if factor != 1:
            alpha = float(f"{config.defense.objective.alpha * factor:.12g}")
            config = Config.from_table(merged(table, {"objective": {"alpha": alpha}}))
            label = f"{label}-alpha{alpha:g}"
        return Run(label=label, defense=defense, config=config)

    def unused_settings(self, defenses: Iterable[str]) -> list[str]:
        """The changed settings that apply to none of these defences."""
        originals = [Config.from_table(self._table(name)).defense for name in defenses]
        return [key for key in _parsed(self.settings) if not any(_applies(key, original) for original in originals)]

    def _table(self, defense: str) -> dict[str, Any]:
        return {"data": self.data, "defense": defense, "profile": self.profile, "like": self.like}

    def check(self, out: Path, **facts: Any) -> None:
        """Refuses a folder that holds another reproduction, or one whose images have another `test_sha256`."""
        if out.exists() and not out.is_dir():
            raise ArgumentError(f"{out} is a file; give --out a folder; it need not exist")
        if (out / CONFIG).exists():
            raise ArgumentError(f"{out} is the folder of a run; give --out another folder")
        if not (out / FILE).exists():
            return
        found, known = stored(out)
        before, now = (asdict(each) | {"data": source(each.data)} for each in (found, self))
        before, now = before | {_IMAGES: known.get(_IMAGES)}, now | {_IMAGES: facts.get(_IMAGES)}
        if None in (before[_IMAGES], now[_IMAGES]):  # older ones do not say
            del now[_IMAGES]
        listed = ", ".join(f"{k} was {before[k]!r} and is now {now[k]!r}" for k in now if before[k] != now[k])
        if listed:
            raise ArgumentError(f"{out} holds a reproduction with other settings: {listed}; give --out another folder")

    def write(self, out: Path, **facts: Any) -> None:
        """Writes the settings and further facts, needed to read its records, into a folder."""
        self.check(out, **facts)
        write_atomically(out / FILE, (json.dumps({**asdict(self), **facts}, indent=1) + "\n").encode())


def stored(out: Path) -> tuple[Experiment, dict[str, Any]]:
    """The settings of the reproduction in a folder, and the facts that were written with them."""
    if not (out / FILE).is_file():
        raise ArgumentError(f"{out} holds no reproduction: there is no {FILE}; `advbnn reproduce` makes one")
    content = read_json(out / FILE)
    try:
        own = {name: content.pop(name) for name in Experiment.__dataclass_fields__ if name in content}
        return Experiment(**own | {"settings": tuple(own["settings"])}), content
    except (AttributeError, KeyError, TypeError) as error:
        raise FileError(f"{out / FILE} is damaged ({error}); restore it from a copy") from error


def check_beside(experiment: Experiment, folder: Path) -> None:
    """Refuses a reproduction of other data, or one that was measured differently."""
    other = stored(folder)[0]
    mine, theirs = ({"data": source(e.data), "like": e.like, "limit": e.limit} for e in (experiment, other))
    for name in mine:
        if mine[name] != theirs[name]:
            raise ArgumentError(
                f"{folder} was measured differently: {name} is {theirs[name]!r} there and {mine[name]!r} here; "
                "--beside needs the same data, measured in the same way"
            )


def source(data: str) -> str:
    """What identifies the data: the path of an image folder differs between machines, its name does not."""
    return data if data in DATASETS else f"the folder {Path(data).name}"


def _parsed(settings: Sequence[str]) -> dict[str, Any]:
    changes = parse_settings(settings)
    for key in changes:
        if key.partition(".")[0] in _HAVE_OPTIONS:
            raise ConfigError(f"--set {key} is not possible, it differs between trainings: use the option for it")
    return changes


def _applies(key: str, original: Defense) -> bool:
    part, _, name = key.partition(".")
    if part == "attack":
        return original.attack is not None  # a setting must not give an attack to a training without one
    if key in _KL_SETTINGS:
        return isinstance(original.network, Variational)
    of_others = part == "network" and any(hasattr(kind, name) for kind in (Noisy, Variational))
    return not of_others or hasattr(original.network, name)
