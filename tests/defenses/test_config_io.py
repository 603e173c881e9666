"""Dataclasses as TOML tables: what is read back, and which key and remedy an error names."""

import tomllib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advbnn.attacks import PGD
from advbnn.attacks.threat import Threat
from advbnn.defenses.config_io import (
    flat,
    keys_of,
    merged,
    nested,
    parse_literal,
    to_table,
    to_toml,
    unknown_key,
    updated,
)
from advbnn.defenses.defense import Averaging, Defense, EarlyStopping
from advbnn.defenses.profiles import defense
from advbnn.errors import ConfigError


def change(settings: dict[str, Any], name: str = "adv_bnn") -> Defense:
    return updated(defense(name), nested(settings))


def test_tables_change_parts_and_a_kind_starts_from_defaults() -> None:
    value = change({"attack.threat.eps": "8/255", "optimizer": {"kind": "sgd", "lr": 1}, "early_stopping.patience": 3})
    assert value.attack is not None and value.attack.threat.eps == 8 / 255 and value.attack.steps == 4
    defaults = {"momentum": 0.0, "weight_decay": 0.0, "nesterov": False}
    assert to_table(value)["optimizer"] == {"kind": "sgd", "lr": 1.0, **defaults}
    assert value.early_stopping == EarlyStopping(patience=3)
    assert change({"averaging": Averaging(decay=0.9)}).averaging == Averaging(decay=0.9)
    assert change({"attack": "none"}).attack is None
    assert change({"attack": "None"}).attack is change({"awp": "None"}).awp is None  # --set awp=None
    assert change({"attack": {"kind": "pgd", "steps": 3}}, "none").attack == PGD(Threat(), steps=3)


def test_a_kind_is_a_key_where_there_is_a_choice() -> None:
    kinds = {key.removesuffix(".kind") for key in keys_of(Defense) if key.endswith(".kind")}
    several = {"network", "objective.likelihood", "optimizer", "schedule", "schedule.whole"}
    assert kinds == several | {"attack", "averaging", "swag", "early_stopping"}  # or none


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("batchsize", ["batch_size"]),
        ("objective.alpa", ["objective.alpha"]),
        ("shedule.kind", ["schedule.kind"]),  # the nearest of several with the same last name
        ("epochs", ["schedule.epochs"]),  # the same last name in another table
        ("attack.epochs", ["schedule.epochs"]),
        ("averaging.momentum", ["attack.momentum", "optimizer.momentum"]),
        ("objective.xyzzy", []),
        ("xyzzy.xyzzy", []),
        ("objective.draws", ["objective.samples"]),  # its former name
        ("optimizer.learning_rate", ["optimizer.lr"]),
    ],
)
def test_an_unknown_key_is_refused_with_the_one_that_is_meant(key: str, meant: list[str]) -> None:
    error = unknown_key(key, keys_of(Defense))
    assert f"key='{key}'" in str(error)
    _, _, hint = str(error).partition("did you mean ")
    assert hint == (f"{' or '.join(map(repr, meant))}?" if meant else "")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 1.5}, "^batch_size: .*whole number, got 1.5"),
        ({"batch_size": True}, "^batch_size: .*whole number, got True"),
        ({"attack.threat.eps": "8/0"}, "^attack.threat.eps: .*a number, got '8/0'"),
        ({"clip": "x"}, '^clip: .*a number or "none"'),
        ({"augment": 1}, "^augment: .*true or false"),
        ({"attack_mode": 1}, "^attack_mode: .*text"),
        ({"attack": 3}, "^attack: .*a table"),
        ({"attack.threat.bounds": [0.0]}, "^attack.threat.bounds: .*2 values"),
        ({"schedule.epochs": [1]}, "^schedule.epochs: .*whole number"),
        ({"schedule": {"kind": "stages", "epochs": [1, "x"]}}, r"^schedule.epochs\[1\]: .*whole number"),
        ({"batch_size": {"a": 1}}, "^batch_size: .*whole number"),
        ({"optimizer": "adma"}, "optimizer.kind='adma'.*'adam'"),
        ({"schedule.fresh_optimizer": True}, 'schedule.fresh_optimizer .*schedule.kind = "stages"'),
        ({"objective.alpha": 2}, "^objective: alpha"),
        ({"changed": ["x"]}, "key='changed'"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        change(settings)


def test_a_part_that_is_none_is_changed_as_a_whole_only() -> None:
    with pytest.raises(ConfigError, match=r'^attack.steps: .*no attack.*attack = {kind = "pgd"'):
        change({"attack.steps": 3}, "none")


def test_nested_flat_and_merged() -> None:
    assert nested({"a.b": 1, "a.c": 2, "d": 3}) == {"a": {"b": 1, "c": 2}, "d": 3}
    assert flat({"a": {"b": 1, "c": 2}, "d": 3}) == {"a.b": 1, "a.c": 2, "d": 3}
    assert merged({"a": {"b": 1, "c": 2}}, {"a": {"b": 5}, "d": 3}) == {"a": {"b": 5, "c": 2}, "d": 3}
    for settings, message in (({"seed": 1, "seed.x": 2}, "'seed'"), ({"attack.steps": 3, "attack": "none"}, "attack")):
        with pytest.raises(ConfigError, match=message):
            nested(settings)


def test_literals_are_toml_or_text() -> None:
    values = {"3": 3, "0.5": 0.5, "true": True, "[1, 2]": [1, 2], "abc": "abc", '"3"': "3", "8/255": "8/255", "": ""}
    assert {text: parse_literal(text) for text in values} == values


def test_numbers_of_numpy_are_written_as_numbers() -> None:
    text = to_toml({"lr": np.float64(0.05), "steps": np.int64(7), "eps": np.float32(0.5)})
    assert tomllib.loads(text) == {"lr": 0.05, "steps": 7, "eps": 0.5}


scalars = st.one_of(st.booleans(), st.integers(-(2**53), 2**53), st.floats(allow_nan=False), st.text("ab\"'\\\n\tü €"))
tables = st.recursive(
    st.dictionaries(
        st.text("abc_", min_size=1, max_size=4), st.one_of(scalars, st.lists(scalars, max_size=3)), max_size=4
    ),
    lambda inner: st.dictionaries(st.text("def_", min_size=1, max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(tables)
def test_toml_text_is_toml(table: dict[str, Any]) -> None:
    assert tomllib.loads(to_toml(table)) == table
