"""The settings of a run, in a few lines of TOML: data, defence, profile, and what differs from the profile.

    data = "cifar10"
    defense = "adv_bnn"
    profile = "authors_code"
    batch_size = 256

    [objective]
    alpha = 0.1

Every other key is a field of `Defense`; tables are its parts. An unknown key is an error.
"""

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advbnn import data
from advbnn.data import Splits
from advbnn.defenses import config_io
from advbnn.defenses.defense import OWN, Defense
from advbnn.defenses.profiles import DATASETS, IMAGES, NAMES, SOURCES, defense
from advbnn.errors import (
    ConfigError,
    check_types,
    did_you_mean,
    first_few,
    one_of,
    positive_whole,
    shown,
    unknown,
    within,
)
from advbnn.models.initial_weights import CLASSIFIERS
from advbnn.names import ENGINES, PRECISIONS
from advbnn.randomness import check_seed
from advbnn.training.mode_plan import ModePlan

CONFIG = "config.toml"

INDIFFERENT = ("root", "cache", "engine", "log_every", "save_every", "tensorboard")
"""Settings that do not decide what is trained: a run may change them when it resumes."""

_EXAMPLES = {"data": "digits", "defense": "adv_bnn"}
"""The keys that a file must have, with an example."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """All settings of a run.

    Args:
        data: the name of a dataset, or the path of an image folder.
        root: the folder of a named dataset; by default the environment variable `ADVBNN_DATA`.
        size: image folders and imagenet143: the side of the images in pixels.
        cache: image folders and imagenet143: the folder for decoded images.
        defense: how to train. Its hyper-parameters start from those for `data`; for an image folder, from those of
            `"images"`, or of the dataset that the key `like` names.
        init: a safetensors file to start from, or one for each mode; see `load_initial`.
        init_classifier: `"kept"`, or `"fresh"` for a checkpoint with another number of classes.
        modes: the number of modes and how they are trained, or the number alone; see `ModePlan`.
        seed: decides all randomness, including the initial weights; this and the rest as for `fit`.
    """

    data: str = "digits"
    root: str | None = None
    size: int | None = None
    cache: str | None = None
    defense: Defense = dataclasses.field(default_factory=Defense)
    init: tuple[str, ...] = ()
    init_classifier: str = "kept"
    modes: ModePlan = dataclasses.field(default_factory=ModePlan)
    seed: int = 0
    engine: str = "auto"
    precision: str = "auto"
    log_every: int = 50
    save_every: float = 60.0
    tensorboard: bool = False

    def __post_init__(self) -> None:
        check_types(self)
        check_seed(self.seed)
        choices = {"engine": ENGINES, "precision": ("auto", *PRECISIONS), "init_classifier": CLASSIFIERS}
        for name, options in choices.items():
            one_of(name, getattr(self, name), options)
        if self.size is not None:
            positive_whole("size", self.size, most=100_000)
        positive_whole("log_every", self.log_every, most=1_000_000_000)
        within("save_every", self.save_every, "[0, inf]", "seconds between checkpoints")

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> "Config":
        """The settings in a nested table, such as a parsed TOML file."""
        own, parts = _split(table)
        config = config_io.updated(cls(), own)
        name, profile, like = parts.pop("defense", None), parts.pop("profile", None), parts.pop("like", None)
        if name is None:
            raise _missing("defense")
        if name not in NAMES:
            raise ConfigError(str(unknown("defense", name, NAMES)))
        try:
            if like is None:
                data.check_source(config.data, "data")
                like = config.data if config.data in DATASETS else IMAGES
            one_of("like", like, SOURCES)
            config = dataclasses.replace(config, defense=defense(name, like, profile, **parts))
            config.modes.check(config.defense)
            return config
        except ValueError as error:
            raise ConfigError(str(error)) from error

    @classmethod
    def from_run(cls, text: str) -> "Config":
        """The settings in the config.toml of a run; its defence may have a name that no profile has."""
        table = config_io.parse(text)
        if table.get("defense", NAMES[0]) in NAMES:
            return cls.from_table(table)
        own, parts = _split(table)
        value = config_io.updated(Defense(), {"name": parts.pop("defense"), **parts})
        return dataclasses.replace(config_io.updated(cls(), own), defense=value)

    def to_toml(self) -> str:
        """All settings, including the profile's, as text that reads back as the same configuration."""
        unset = [name for name in ("root", "size", "cache") if getattr(self, name) is None]
        usual = Config()
        unset += [key for key in ("modes", "init", "init_classifier") if getattr(self, key) == getattr(usual, key)]
        return _comment(self.defense) + config_io.to_toml({k: v for k, v in self._table().items() if k not in unset})

    def difference(self, other: "Config") -> str | None:
        """The first setting in which `other` trains something else, with both values; None if there is none."""
        ours, theirs = (
            {key: value for key, value in config_io.flat(config._table()).items() if key not in INDIFFERENT}
            for config in (self, other)
        )
        return first_difference(ours, theirs)

    def _table(self) -> dict[str, Any]:
        table = config_io.to_table(self)
        parts = table.pop("defense")
        return {**table, "defense": parts.pop("name"), **parts}

    def load_data(self) -> Splits[Any]:
        """The dataset, checked before training."""
        data.check_source(self.data, "data")
        return data.load(self.data, self.root, size=self.size, cache=self.cache)


def load_splits(config: Config) -> Splits[Any]:
    """The data of a run, read once per process."""
    return _load(config.data, config.root, size=config.size, cache=config.cache)


_load = functools.cache(data.load)


def load_config(path: Path | str, settings: Iterable[str] = ()) -> Config:
    """The configuration in a TOML file, with changes such as `"attack.threat.eps=0.02"`."""
    path = Path(path)
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; give a TOML file, such as {path / CONFIG}")
    try:
        table = config_io.parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        others = sorted(p.name for p in path.parent.glob("*.toml"))
        found = f"its folder has {first_few(others) or 'no .toml file'}{did_you_mean(path.name, others)}"
        raise ConfigError(f"{path} does not exist; {found}") from None
    except (OSError, UnicodeDecodeError, ConfigError) as error:
        raise ConfigError(f"{path}: {error}") from error
    changes = config_io.nested(parse_settings(settings))
    try:
        # a number of modes changes the number in a table of modes, and a key of that table keeps the number
        config = Config.from_table(table := config_io.merged(_with_mode_table(table), _with_mode_table(changes)))
        if "data" not in table:  # otherwise a forgotten line would train on the digits
            raise _missing("data")
        check_radius(config)
    except ConfigError as error:
        if changes:  # which may be the cause
            raise
        raise ConfigError(f"{path}: {error}") from error
    return config


def parse_settings(settings: Iterable[str]) -> dict[str, Any]:
    """The values of `--set`, each `"key=value"`, by dotted key; the last one wins."""
    changes = {}
    for setting in settings:
        key, equals, value = (part.strip() for part in setting.partition("="))
        if not equals or not key:
            raise ConfigError(f"--set takes key=value, such as --set schedule.epochs=5; got {setting!r}")
        changes[key] = config_io.parse_literal(value)
    return changes


def check_radius(config: Config) -> None:
    """Refuse a linf radius above the range of pixels, unless it is inf: it would allow every image.

    `Config.from_table` accepts it, so that a run trained with it stays readable.
    """
    attack = config.defense.attack
    if attack is not None and attack.threat.holds_everything:
        eps = attack.threat.eps
        raise ConfigError(f'attack.threat.eps: a linf radius of {eps:g} holds every image; did you mean "{eps:g}/255"?')


def first_difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    """The first value in which two tables differ, in words."""
    for key in (*before, *after):
        there, now = before.get(key, "not set"), after.get(key, "not set")
        if there != now:
            return f"{key} = {there!r} there, {now!r} now"
    return None


def _missing(key: str) -> ConfigError:
    return ConfigError(f'{key} is missing: set it, for example {key} = "{_EXAMPLES[key]}"')


def _comment(value: Defense) -> str:
    """The source of the numbers, as TOML comments."""
    lines = [f"# {value.name}, numbers of the profile {value.profile!r}"]
    if value.architecture == OWN:
        lines.append("# the network was passed to fit: it cannot be built from this file")
    if value.chosen_by_us:
        lines.append(f"# left open by the source, chosen by this library: {', '.join(value.chosen_by_us)}")
    if value.changed:
        lines.append(f"# changed from the profile: {', '.join(value.changed)}")
    return "\n".join(lines) + "\n"


def _split(table: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The keys of the run itself, and those of its defence; every key of the nested table is checked."""
    table = _with_mode_table(table)
    modes = table.get("modes", {})
    if not isinstance(modes, Mapping):
        raise ConfigError(f"modes must be a whole number, or a table with count, how and trunk; got {shown(modes)}")
    if isinstance(table.get("init"), str):
        table = {**table, "init": [table["init"]]}
    own = [name for name in config_io.field_names(Config) if name != "defense"]
    keys = [*own, *config_io.keys_of(ModePlan, "modes"), "defense"]
    keys += [key for key in config_io.keys_of(Defense) if key != "name"]
    for key in config_io.flat(table):
        if key not in keys:
            raise config_io.unknown_key(key, keys)
    return {k: v for k, v in table.items() if k in own}, {k: v for k, v in table.items() if k not in own}


def _with_mode_table(table: Mapping[str, Any]) -> dict[str, Any]:
    """The same table, with a number of modes as `{"count": number}`."""
    modes = table.get("modes")
    if type(modes) is not int:
        return dict(table)
    return {**table, "modes": {"count": modes} if modes != 1 else {"count": 1, "how": "independent", "trunk": 0}}
