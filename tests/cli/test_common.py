"""The attacks behind the names of the command line."""

import pytest

from advbnn.attacks.threat import Threat
from advbnn.cli.attacks import make_attack, title
from advbnn.cli.options import ATTACKS
from judged import bnn, net


@pytest.mark.parametrize("name", ATTACKS)
def test_every_name_is_an_attack_within_its_threat(name: str) -> None:
    threat = Threat("linf", 0.1)
    attack = make_attack(name, bnn(), threat, steps=None if name == "fgsm" else 2)
    assert attack.threat == threat
    assert title(name, attack) == {"fgsm": "fgsm", "square": "square", "nes": "nes"}.get(name, f"{name} 2")


def test_refuses_attacks_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="attack='pdg' is unknown.*did you mean 'pgd'"):
        make_attack("pdg", net(), Threat())
    with pytest.raises(ValueError, match="'mean' needs a Bayesian network"):
        make_attack("mean", net(), Threat())
    with pytest.raises(ValueError, match="'paper' is for norm 'linf', got 'l2'"):
        make_attack("paper", net(), Threat("l2", 1.0))
