"""A run in ten lines of TOML, or fewer: data, defence, profile, and what differs from it.

    data = "cifar10"
    defense = "adv_bnn"
    profile = "authors_code"
    batch_size = 256

    [objective]
    alpha = 0.1

Every other key is a field of `Defense`, tables are its parts. A key that does not exist is an error.
"""

import dataclasses
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advbnn import data
from advbnn.data import Splits
from advbnn.defenses.config_io import (
    field_names,
    keys_of,
    merged,
    nested,
    parse_literal,
    to_table,
    to_toml,
    unknown_key,
    updated,
)
from advbnn.defenses.defense import OWN, Defense
from advbnn.defenses.profiles import DATASETS, DEFENSES, defense
from advbnn.errors import ConfigError, unknown
from advbnn.training.run_folder import CONFIG


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything about a run.

    Args:
        data: a dataset's name, or the path of an image folder.
        root: where the files of a named dataset are; left out, the environment variable `ADVBNN_DATA`.
        size: image folders and imagenet143: the side of the images in pixels.
        cache: image folders and imagenet143: where decoded images are kept.
        defense: how to train. Its hyper-parameters start from those for `data`; for an image folder the key `like`
            names the dataset whose to take.
        seed: decides all randomness, the initial weights included.
        engine: how a step runs: `"eager"`, `"compile"`, `"graph"`, or the fastest that works here; see `engine`.
        precision: of matrix products: `"full"`, `"bf16"`, or bfloat16 where the engine is fast and on a GPU.
        log_every: steps from one line of metrics to the next.
        save_every: seconds from one checkpoint to the next.
        tensorboard: also write TensorBoard events.
    """

    data: str = "digits"
    root: str | None = None
    size: int | None = None
    cache: str | None = None
    defense: Defense = dataclasses.field(default_factory=Defense)
    seed: int = 0
    engine: str = "auto"
    precision: str = "auto"
    log_every: int = 50
    save_every: float = 60.0
    tensorboard: bool = False

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> "Config":
        """The settings of a nested table, such as a parsed TOML file."""
        own, parts = _split(table)
        config = updated(cls(), own)
        if "like" not in parts:
            check_data(config.data)
        name, profile, like = parts.pop("defense", None), parts.pop("profile", None), parts.pop("like", config.data)
        if name is None:
            raise ConfigError('defense is missing: say which, for example defense = "adv_bnn"')
        if like not in DATASETS:
            raise ConfigError(
                f"data={config.data!r} has no hyper-parameters of its own: set like to the dataset whose to start from "
                f"({', '.join(DATASETS)})"
            )
        if name not in DEFENSES:
            raise ConfigError(str(unknown("defense", name, DEFENSES)))
        try:
            return dataclasses.replace(config, defense=defense(name, like, profile, **parts))
        except ConfigError:
            raise
        except ValueError as error:
            raise ConfigError(str(error)) from error

    @classmethod
    def from_run(cls, text: str) -> "Config":
        """The settings that a run has kept, also those of a defence that no profile knows."""
        try:
            table = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(str(error)) from error
        if table.get("defense", DEFENSES[0]) in DEFENSES:
            return cls.from_table(table)
        own, parts = _split(table)
        value = updated(Defense(), {"name": parts.pop("defense"), **parts})
        return dataclasses.replace(updated(cls(), own), defense=value)

    def to_toml(self) -> str:
        """All settings, the profile's included, as text that reads back as this very configuration."""
        own = {key: value for key, value in to_table(self).items() if key != "defense" and value != "none"}
        return defense_comment(self.defense) + to_toml({**own, **defense_table(self.defense)})

    def load_data(self) -> Splits[Any]:
        """The dataset; everything that can be wrong with it is found here, before training."""
        return data.load(self.data, self.root, size=self.size, cache=self.cache)


def load_config(path: Path | str, settings: Iterable[str] = ()) -> Config:
    """The configuration in a TOML file.

    Args:
        path: the file.
        settings: changes, each as `"key=value"` with dots between the parts of a key: `"attack.threat.eps=0.02"`.
    """
    path = Path(path)
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; give a TOML file, such as {path / CONFIG}")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        near = ", ".join(sorted(p.name for p in path.parent.glob("*.toml"))) or "no .toml file"
        raise ConfigError(f"{path} does not exist; its folder has {near}") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    config = Config.from_table(merged(table, nested(parse_settings(settings))))
    check_radius(config)
    return config


def parse_settings(settings: Iterable[str]) -> dict[str, Any]:
    """What `--set` was given, `"key=value"` each, as keys with dots and values; of a key named twice the last."""
    changes = {}
    for setting in settings:
        key, equals, value = (part.strip() for part in setting.partition("="))
        if not equals or not key:
            raise ConfigError(
                f"--set takes key=value, such as --set batch_size=64 or --set schedule.epochs=5; got {setting!r}"
            )
        changes[key] = parse_literal(value)
    return changes


def check_data(data: str) -> None:
    """Makes sure that data are of a known name, or in a folder."""
    if data not in DATASETS and not Path(data).is_dir():
        raise ConfigError(f"there is no folder {data}, and {unknown('data', data, DATASETS)}")


def check_radius(config: Config) -> None:
    """Refuses a linf radius above the range of pixels, which allows every image; who means that says inf.

    `Config.from_table` takes it, since what has been trained so must stay readable.
    """
    attack = config.defense.attack
    if attack is not None and attack.threat.norm == "linf":
        eps, (low, high) = attack.threat.eps, attack.threat.bounds
        if high - low < eps < math.inf:
            raise ConfigError(
                f"attack.threat.eps: a linf radius of {eps:g} allows every image, as pixels lie in {low:g} to "
                f'{high:g}; do you mean "{eps:g}/255"?'
            )


def _split(table: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The keys of a table that are the run's own, and those of its defence."""
    own = [name for name in field_names(Config) if name != "defense"]
    parts = ["defense", *(name for name in field_names(Defense) if name != "name")]
    keys = [*own, "defense", *(key for key in keys_of(Defense) if key != "name")]
    for key in _named(table, keys):
        if key not in keys:
            raise unknown_key(key, keys)
    return {k: v for k, v in table.items() if k in own}, {k: v for k, v in table.items() if k in parts}


def _named(table: Mapping[str, Any], keys: Sequence[str], path: str = "") -> Iterator[str]:
    """The keys of a nested table with dots between their parts; a table in place of a plain value counts as one."""
    for name, value in table.items():
        key = f"{path}{name}"
        if "." in name:  # in quotes: TOML takes it for one name, and so it would be of no part
            raise unknown_key(key, keys)
        plain = key in keys and not any(each.startswith(f"{key}.") for each in keys)
        if isinstance(value, Mapping) and value and not plain:
            yield from _named(value, keys, f"{key}.")
        else:
            yield key


def defense_comment(value: Defense) -> str:
    """Where the numbers come from, as TOML comments."""
    lines = [f"# {value.name}, numbers of the profile {value.profile!r}"]
    if value.architecture == OWN:
        lines.append("# of a network of somebody's own, given to fit: it cannot be built from this file")
    if value.chosen_by_us:
        lines.append(f"# left open by its source, so chosen by this library: {', '.join(value.chosen_by_us)}")
    if value.changed:
        lines.append(f"# changed from the profile: {', '.join(value.changed)}")
    return "\n".join(lines) + "\n"


def defense_table(value: Defense) -> dict[str, Any]:
    """A defence as the keys that a configuration has for it."""
    table = to_table(value)
    return {"defense": table.pop("name"), **table}
