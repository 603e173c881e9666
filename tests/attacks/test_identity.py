import functools
import json
import math
from dataclasses import dataclass, field, make_dataclass, replace
from types import MappingProxyType

import numpy as np
import pytest
import torch
from torch import nn

from advbnn.attacks import APGD, CW, FGSM, NES, PGD, Square, Threat, Transfer
from advbnn.attacks.identity import memory_address, settings_of

THREAT = Threat("linf", 0.1)
BALL = {"norm": "linf", "eps": 0.1}
N5 = np.int64(5)


def test_names_the_class_and_what_differs_from_its_defaults() -> None:
    assert settings_of(PGD(THREAT)) == {"name": "PGD", "threat": BALL}
    assert settings_of(PGD(THREAT, steps=7, eot=3)) == {"name": "PGD", "threat": BALL, "eot": 3, "steps": 7}
    assert settings_of(FGSM(THREAT)) == {"name": "FGSM", "threat": BALL}


@pytest.mark.parametrize("kind", [APGD, CW, NES, PGD, Square])
def test_equal_attacks_have_equal_settings_and_others_do_not(kind: type) -> None:
    one = kind(THREAT)
    assert settings_of(one) == settings_of(kind(THREAT, batch_size=3, progress=True))  # which do not decide the result
    others = [replace(one, eot=2), replace(one, threat=Threat("l2", 0.1)), replace(one, targeted=True)]
    assert all(settings_of(one) != settings_of(other) for other in others)


def test_settings_are_json_values() -> None:
    attack = PGD(Threat("l2", math.inf, (-1.0, 1.0)), step_size=0.1)
    assert settings_of(attack)["threat"] == {"norm": "l2", "eps": "inf", "bounds": [-1.0, 1.0]}
    assert settings_of(PGD(Threat()))["threat"] == {"norm": "linf", "eps": 8 / 255}  # stated, although the default
    assert json.loads(json.dumps(settings_of(attack), allow_nan=False)) == settings_of(attack)


def test_numbers_of_numpy_are_the_same_settings() -> None:
    eps = np.float32(0.1)
    ours, numpys = (PGD(Threat("linf", e, b), eot=n) for e, b, n in ((float(eps), (0.0, 1.0), 5), (eps, [0, 1], N5)))
    assert settings_of(ours) == settings_of(numpys) and hash(ours.threat) == hash(numpys.threat)
    assert json.loads(json.dumps(settings_of(numpys))) == settings_of(ours)


def test_a_new_field_with_a_default_leaves_old_settings_valid() -> None:
    newer = make_dataclass("PGD", [("sharpness", float, 0.5)], bases=(PGD,), frozen=True, kw_only=True)
    assert settings_of(newer(THREAT, steps=3)) == settings_of(PGD(THREAT, steps=3))


def test_a_transfer_names_its_attack_and_its_source() -> None:
    found = settings_of(Transfer(nn.Linear(1, 2), PGD(THREAT)), identify=lambda network: type(network).__name__)
    assert found == {"name": "Transfer", "source": "Linear", "attack": {"name": "PGD", "threat": BALL}}


def test_attacks_of_ones_own() -> None:
    @dataclass
    class Mine:
        strength: float
        calls: list[int] = field(default_factory=list, compare=False)

    class Printed:
        def __repr__(self) -> str:
            return "Printed(3)"

    class Silent:
        def __init__(self, steps: int) -> None:
            self.steps, self.threat = steps, THREAT

    def function() -> None:
        pass

    function.threat = THREAT
    assert settings_of(Mine(0.5, [1])) == {"name": "Mine", "strength": 0.5}
    assert settings_of(Printed()) == {"name": "Printed(3)"}
    assert settings_of(Silent(1)) == settings_of(Silent(1)) != settings_of(Silent(2))

    class Fixed(Silent):
        eta = 0.1

    slower = Fixed(1)
    before = settings_of(slower)
    Fixed.eta = 0.2
    assert settings_of(slower) != before
    assert settings_of(function)["name"].endswith("own.<locals>.function")
    assert settings_of(function)["threat"] == BALL

    class Described(Printed):
        settings = MappingProxyType({"steps": 3})
        threat = THREAT

    assert settings_of(Described()) == {"name": settings_of(Described())["name"], "threat": BALL, "steps": 3}

    def made(steps: int) -> object:
        def attack() -> int:
            return steps

        return attack

    assert settings_of(made(1)) == settings_of(made(1)) != settings_of(made(30))

    def early() -> object:
        return later

    assert set(settings_of(early)) == {"name"}  # what it closes over is not assigned yet
    later = 1
    assert settings_of(early)["later"] == 1
    halves = functools.partial(function, 0.5), functools.partial(function, 0.25)
    assert settings_of(halves[0]) == settings_of(functools.partial(function, 0.5)) != settings_of(halves[1])
    assert memory_address(settings_of(halves[0])) is None
    printed = repr(function)
    assert memory_address({"loss": [{"name": printed}]}) == printed
    shift = torch.zeros(5000)
    same, other = shift.clone(), shift.index_fill(0, torch.tensor([2500]), 1.0)
    assert settings_of(Mine(shift)) == settings_of(Mine(same)) != settings_of(Mine(other))
