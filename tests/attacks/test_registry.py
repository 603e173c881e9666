"""The registry: every name builds its attack."""

import pytest

from advbnn import attacks
from advbnn.attacks.registry import ATTACKS, make_attack
from advbnn.attacks.threat import Threat
from trained_nets import bnn

THREAT = Threat("linf", 0.1)


@pytest.mark.parametrize("name", ATTACKS)
def test_every_name_builds_an_attack_that_takes_its_options(name):
    entry = ATTACKS[name]
    attack = make_attack(name, THREAT, bnn(), **dict.fromkeys(entry.options, 2))
    assert attack.threat == THREAT
    inner = attack.attack if entry.on_mean else attack
    assert all(getattr(inner, option) == 2 for option in entry.options)
    for norm in ("linf", "l2", "l1"):
        if norm not in entry.norms:
            with pytest.raises(ValueError, match=f"'{name}' .*'{norm}'; use 'pgd'"):
                make_attack(name, Threat(norm, 1.0), bnn())


def test_the_papers_attack_and_the_mean_network():
    assert make_attack("paper", THREAT) == attacks.paper_pgd(0.1)
    assert make_attack("mean", THREAT, bnn()).source is bnn().net
    with pytest.raises(ValueError, match="attack='pdg' .*'pgd'"):
        make_attack("pdg", THREAT)
