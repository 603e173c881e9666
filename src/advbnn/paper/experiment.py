"""What is reproduced: on which data, by whose numbers, and with which changes. All that decides the outcome."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from advbnn.defenses.config_io import merged, nested
from advbnn.defenses.defense import Defense, Noisy, Variational
from advbnn.defenses.profiles import DATASETS, DEFENSES
from advbnn.errors import ArgumentError, ConfigError, unknown
from advbnn.files import read_json, write_atomically
from advbnn.paper.protocol import PROTOCOLS, Protocol
from advbnn.training.config import Config, check_data, check_radius, parse_settings
from advbnn.training.run_folder import CONFIG

EXPERIMENTS = ("table1", "fig2", "fig3", "fig4", "lipschitz", "alpha")

FILE = "reproduction.json"

BESIDE = "beside"
"""The fact that names, from its own folder, the reproduction that one is to be compared with."""

_OF_THE_DIVERGENCE = tuple(f"objective.{name}" for name in ("alpha", "kl_scope", "kl_warmup", "kl_warmup_epochs"))

_OWN = ("data", "defense", "profile", "like", "root", "seed", "engine")


@dataclass(frozen=True, kw_only=True)
class Run:
    """A training that is needed.

    Attributes:
        label: the name of its folder, and of its network in records.
        defense: one of the paper's five.
        config: all its settings.
        factor: what alpha was multiplied with, for the experiment on alpha; else 1.
    """

    label: str
    defense: str
    config: Config
    factor: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """The settings that all runs and measurements of a reproduction share.

    Args:
        data: a data set's name, or the path of an image folder.
        like: the data set whose hyper-parameters and radii are used.
        profile: whose numbers: `"authors_code"`, `"paper"` or `"ours"`.
        settings: changes of every training, as `"key=value"`; those of the attack, of what makes a network random, or
            of its divergence are for the defences that have it.
        limit: the most images that anything is measured on.
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
        """The settings, with what was left out filled in."""
        if like is None and data not in DATASETS:
            check_data(data)
            raise ArgumentError(f"data={data!r} is an image folder: say with --like whose hyper-parameters to use")
        if like is not None and data in DATASETS and like != data:
            raise ArgumentError(f"like is for image folders; {data!r} has hyper-parameters of its own, leave it out")
        if (like or data) not in DATASETS:
            raise unknown("like", str(like), DATASETS)
        if limit is not None and limit < 1:
            raise ArgumentError(f"limit must be a number of images, at least 1, got {limit}")
        return cls(
            data=data if data in DATASETS else str(Path(data).resolve()),
            like=like or data,
            profile=profile or ("ours" if (like or data) == "digits" else "authors_code"),
            settings=tuple(settings),
            limit=limit,
        )

    @property
    def title(self) -> str:
        """A short name: of the data and of the profile."""
        return f"{Path(self.data).name}-{self.profile}"

    @property
    def protocol(self) -> Protocol:
        """How all is measured."""
        return PROTOCOLS[self.like].limited(self.limit)

    def run(
        self, defense: str, seed: int = 0, factor: float = 1.0, root: str | None = None, engine: str = "auto"
    ) -> Run:
        """The training of a defence.

        Args:
            defense: one of the paper's five.
            seed: of the training.
            factor: what the profile's alpha is multiplied with.
            root: where the files of the data set are.
            engine: how a step runs.
        """
        if defense not in DEFENSES:
            raise unknown("defense", defense, DEFENSES)
        table: dict[str, Any] = {
            "data": self.data,
            "defense": defense,
            "profile": self.profile,
            "like": self.like,
            "seed": seed,
            "engine": engine,
            **({"root": root} if root is not None else {}),
        }
        original = Config.from_table(table).defense
        changes = {key: value for key, value in _parsed(self.settings).items() if _applies(key, original)}
        table = merged(table, nested(changes))
        label = defense if seed == 0 else f"{defense}-seed{seed}"
        config = Config.from_table(table)
        check_radius(config)
        if _nature(config.defense) != _nature(original):
            guilty = " ".join(f"--set {key}" for key in changes if key.partition(".")[0] in ("network", "attack"))
            raise ConfigError(
                f"{guilty} makes another defence of {defense}, which would still be called so; leave it out, and "
                "choose with --defenses"
            )
        if factor != 1:
            alpha = float(f"{config.defense.objective.alpha * factor:.12g}")
            config = Config.from_table(merged(table, {"objective": {"alpha": alpha}}))
            label = f"{label}-alpha{alpha:g}"
        return Run(label=label, defense=defense, config=config, factor=factor)

    def idle_settings(self, defenses: Iterable[str]) -> list[str]:
        """The keys that change nothing, since they are of a part that none of these defences has."""
        table = {"data": self.data, "profile": self.profile, "like": self.like}
        originals = [Config.from_table({**table, "defense": name}).defense for name in defenses]
        return [key for key in _parsed(self.settings) if not any(_applies(key, original) for original in originals)]

    def check(self, out: Path) -> None:
        """Makes sure that a folder holds this reproduction, or none."""
        if out.exists() and not out.is_dir():
            raise ArgumentError(f"{out} is a file; give --out a folder, which need not exist")
        if (out / CONFIG).exists():
            raise ArgumentError(f"{out} is the folder of a run; give --out another, which need not exist")
        if not (out / FILE).exists():
            return
        before, now = asdict(stored(out)[0]), asdict(self)
        differing = [name for name in now if before[name] != now[name]]
        if "data" in differing and source(self.data) == source(before["data"]):
            differing.remove("data")
        if differing:
            listed = ", ".join(f"{name} was {before[name]!r} and is now {now[name]!r}" for name in differing)
            raise ArgumentError(f"{out} holds a reproduction with other settings: {listed}; give --out another folder")

    def write(self, out: Path, **facts: Any) -> None:
        """Writes the settings into a folder, with facts that are to be known when its records are read."""
        self.check(out)
        write_atomically(out / FILE, (json.dumps({**asdict(self), **facts}, indent=1) + "\n").encode())


def stored(out: Path) -> tuple[Experiment, dict[str, Any]]:
    """The settings of the reproduction in a folder, and the facts that were written with them."""
    if not (out / FILE).is_file():
        raise ArgumentError(f"{out} holds no reproduction: there is no {FILE}; `advbnn reproduce` makes one")
    content = read_json(out / FILE)
    names = Experiment.__dataclass_fields__
    own = {name: value for name, value in content.items() if name in names}
    return Experiment(**own | {"settings": tuple(own["settings"])}), {
        name: value for name, value in content.items() if name not in names
    }


def check_beside(experiment: Experiment, folder: Path) -> None:
    """Makes sure that the reproduction in a folder is of the same data, measured in the same way."""
    other = stored(folder)[0]
    for name, mine, theirs in (
        ("data", source(experiment.data), source(other.data)),
        ("like", experiment.like, other.like),
        ("limit", experiment.limit, other.limit),
    ):
        if mine != theirs:
            raise ArgumentError(
                f"{folder} cannot stand beside this reproduction: {name} is {theirs!r} there and {mine!r} here; give "
                "--beside one of the same data, measured in the same way"
            )


def source(data: str) -> str:
    """What identifies the data of a reproduction: where an image folder lies is a matter of the machine."""
    return data if data in DATASETS else f"the folder {Path(data).name}"


def _parsed(settings: Sequence[str]) -> dict[str, Any]:
    changes = parse_settings(settings)
    for key in changes:
        if key.partition(".")[0] in _OWN:
            raise ConfigError(f"--set changes what all trainings share, and {key} is not: use the option for it")
    return changes


def _applies(key: str, original: Defense) -> bool:
    """Whether a setting is one of this defence, or of some others only."""
    part, _, name = key.partition(".")
    if part == "attack":
        return original.attack is not None  # a setting must not give an attack to a training without one
    if key in _OF_THE_DIVERGENCE:
        return isinstance(original.network, Variational)
    of_others = part == "network" and any(hasattr(kind, name) for kind in (Noisy, Variational))
    return not of_others or hasattr(original.network, name)


def _nature(defense: Defense) -> tuple[type, bool]:
    """What makes a defence the one that it is: how its network is random, and whether it is attacked."""
    return type(defense.network), defense.attack is not None
