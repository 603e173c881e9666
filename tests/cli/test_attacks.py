"""Attacks of the command line: options that do not apply are left out, and titles name the settings."""

import pytest

from advbnn.attacks.registry import ATTACKS
from advbnn.attacks.threat import Threat
from advbnn.cli.attacks import averaging, make_attack, title
from advbnn.cli.groups import AttackOptions
from advbnn.cli.options import DEFAULT_EOT
from trained_nets import bnn


@pytest.mark.parametrize("name", ATTACKS)
def test_every_name_is_an_attack_within_its_threat(name: str) -> None:
    attack = make_attack(name, bnn(), AttackOptions(steps=2, eot=3), 0.1)
    assert attack.threat == Threat("linf", 0.1)
    parts = [name, *(["2"] if "steps" in ATTACKS[name].options else [])]
    assert title(name, attack) == " ".join([*parts, *(["EOT 3"] if "eot" in ATTACKS[name].options else [])])


@pytest.mark.parametrize(("given", "used"), [(None, DEFAULT_EOT), (1, 1), (3, 3)])
def test_attacks_that_nobody_named_average_unless_told_otherwise(given: int | None, used: int) -> None:
    assert averaging(AttackOptions(eot=given)).eot == used
