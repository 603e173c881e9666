import functools
from types import MappingProxyType

import pytest
import torch
from torch import nn

from advbnn import data
from advbnn.attacks import PGD, Transfer
from advbnn.attacks.threat import Threat
from advbnn.data import from_tensors
from advbnn.evaluation.checks import check_allowed, check_attack, check_classification, check_rows

THREAT = Threat("linf", 0.1)
ATTACK = PGD(THREAT)


@pytest.mark.parametrize(
    ("examples", "error", "message"),
    [
        (data.load("digits"), TypeError, "Splits; pass splits.test"),
        (torch.rand(3, 1, 8, 8), TypeError, "data must be examples, got Tensor.*from_tensors"),
        (from_tensors(torch.rand(5, 4), torch.rand(5)), ValueError, "regression set.*score_regression"),
    ],
)
def test_data_must_be_examples_with_classes(examples: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        check_classification(nn.Identity(), examples)


def test_a_model_is_a_module() -> None:
    with pytest.raises(TypeError, match="model .*nn.Module.*function"):
        check_classification(lambda x: x, data.load("digits").test)


def test_rows_are_different() -> None:
    assert check_rows(range(5), 120) == 5
    for rows, message in (([120], "0..119"), (torch.tensor([0, 7, 0]), "once, got 3 rows of 2")):
        with pytest.raises(ValueError, match=message):
            check_rows(rows, 120)


def test_an_attack_is_callable_has_a_threat_and_is_not_targeted() -> None:
    check_attack("mine", Transfer(nn.Identity(), ATTACK))
    with pytest.raises(TypeError, match="'mine' .*threat"):
        check_attack("mine", lambda model, x, y, seed: x)
    for attack in (PGD(THREAT, targeted=True), Transfer(nn.Identity(), PGD(THREAT, targeted=True))):
        with pytest.raises(ValueError, match="'mine' is targeted.*targeted=False"):
            check_attack("mine", attack)


def test_an_attack_of_ones_own_takes_a_seed_and_has_a_stable_identity() -> None:
    class Mine:
        threat = THREAT

        def __init__(self, loss: object = None) -> None:
            self.loss = loss

        def __call__(self, model: nn.Module, x: torch.Tensor, y: torch.Tensor, seed: int | None = None) -> torch.Tensor:
            return x

    class Printed(Mine):
        def __repr__(self) -> str:
            return f"Printed({self.loss})"

    class Described(Printed):
        settings = MappingProxyType({"steps": 3})

    def without_seed(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x

    without_seed.threat = THREAT
    partly = functools.partial(Mine(), seed=0)
    partly.threat = THREAT
    for attack in (Mine(), Mine(loss=len), Printed("ce"), Described(object()), partly):
        check_attack("mine", attack)
    with pytest.raises(ValueError, match="'mine' .*stable identity.*dataclass.*settings"):
        check_attack("mine", Printed(object()))
    with pytest.raises(TypeError, match="'mine' .*seed.*def attack"):
        check_attack("mine", without_seed)
    with pytest.raises(TypeError, match="'mine' .*class.*Mine"):
        check_attack("mine", Mine)


def test_perturbed_inputs_stay_in_the_threat() -> None:
    x = torch.full((2, 3), 0.95)
    check_allowed(ATTACK, THREAT.project(x + 1, x), x)
    for x_adv, message in (
        (x - 0.2, "threat.project"),
        (x + 0.1, "threat.project"),
        (x[:1], "shape .1, 3.*shape .2, 3"),
        (x.double(), "float64.*float32"),
        (x * torch.nan, "NaN"),
        (None, "NoneType.*tensor"),
    ):
        with pytest.raises((ValueError, TypeError), match=f"attack {type(ATTACK).__name__} .*{message}"):
            check_allowed(ATTACK, x_adv, x)
