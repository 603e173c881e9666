"""Attacks of the command line: options that do not apply are left out, and titles name the settings."""

import pytest

from advbnn.attacks.registry import ATTACKS
from advbnn.attacks.threat import Threat
from advbnn.cli.attacks import make_attack, title
from advbnn.cli.groups import AttackOptions
from trained_nets import bnn


@pytest.mark.parametrize("name", ATTACKS)
def test_every_name_is_an_attack_within_its_threat(name: str) -> None:
    attack = make_attack(name, bnn(), AttackOptions(steps=2, eot=3), 0.1)
    assert attack.threat == Threat("linf", 0.1)
    parts = [name, *(["2"] if "steps" in ATTACKS[name].options else [])]
    assert title(name, attack) == " ".join([*parts, *(["EOT 3"] if "eot" in ATTACKS[name].options else [])])
