"""Wrong values for the settings and arguments of the Python interface: an `AdvbnnError`, or a sensible value."""

import dataclasses
import math
import typing
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import advbnn
from advbnn import attacks, data, defenses, models
from advbnn.attacks.losses import Objective
from advbnn.bayes.likelihoods import Categorical, Gaussian
from advbnn.defenses.defense import Swag
from advbnn.defenses.registry import PUBLISHED
from advbnn.errors import AdvbnnError
from advbnn.training.config import Config
from advbnn.training.mode_plan import ModePlan
from fuzzing import bad_outcomes, some

pytestmark = pytest.mark.filterwarnings("ignore")  # few images, and large radii

LINF = attacks.Threat("linf", 0.1)
SETTINGS: list[tuple[type, tuple[Any, ...]]] = [
    *((getattr(attacks, name), (LINF,)) for name in ["PGD", "FGSM", "BIM", "GradientAscent", "APGD", "EvasivePGD"]),
    *((getattr(attacks, name), (LINF,)) for name in ["CW", "Square", "NES", "SPSA", "ZOO"]),
    *((getattr(attacks, name), (LINF,)) for name in ["ARC", "FAB", "HopSkipJump", "FixedRandomness", "UncertaintyPGD"]),
    *((cls, ()) for cls in (attacks.Threat, Objective, Categorical, Gaussian, Config, defenses.Defense)),
    *((cls, ()) for cls in (defenses.Plain, defenses.Noisy, defenses.Variational, defenses.RobustELBO)),
    *((cls, ()) for cls in (defenses.Averaging, defenses.EarlyStopping, defenses.SGDOptimizer)),
    *((cls, ()) for cls in (defenses.AdamOptimizer, defenses.LangevinSampler, defenses.Constant)),
    *((cls, ()) for cls in (defenses.Stages, defenses.Cosine, defenses.OneCycle, Swag, ModePlan)),
    *((type(entry.network), ()) for entry in PUBLISHED.values() if entry.network is not None),
]
"""The classes of settings, with the arguments that they need."""

NONSENSE = (
    *(None, "", "no", b"x", 0, -1, 1.5, 10**22, 1e308, math.nan, math.inf, -math.inf, 1j, True),
    *([], {}, (), (1,), object(), torch.tensor(math.nan), torch.ones(2)),
)
MAY_BE_INFINITE = {"eps", "save_every"}
OTHER_TYPES = {"progress", "bounds", "threat", "chosen_by_us", "changed", "name", "epochs", "init"}
"""Settings that hold no plain value, or that name something."""


def setting_cases() -> list[tuple[type, tuple[Any, ...], str, Any]]:
    return [
        (cls, needed, field.name, value)
        for cls, needed in SETTINGS
        for field in dataclasses.fields(cls)
        if field.init and field.name != "threat"
        for value in NONSENSE
    ]


def set_one(cls: type, needed: tuple[Any, ...], name: str, value: Any) -> tuple[str, str]:
    """What becomes of one setting; a value that is accepted has the type of the field, and no absurd size."""
    try:
        cls(*needed, **{name: value})
    except AdvbnnError as error:
        return ("refused" if name in str(error) else "unclear"), str(error)
    except Exception as error:
        return "traceback", repr(error)
    absurd = isinstance(value, int | float) and not -1e30 <= value <= 1e30 and name not in MAY_BE_INFINITE | OTHER_TYPES
    hint = typing.get_type_hints(cls)[name]
    expected = [one for one in (typing.get_args(hint) or (hint,)) if isinstance(one, type)]
    wrong = name not in OTHER_TYPES and expected and not _fits(value, expected)
    return ("traceback", "was accepted") if absurd or wrong else ("ran", "")


def _fits(value: Any, expected: list[type]) -> bool:
    if isinstance(value, bool):
        return bool in expected
    return isinstance(value, (*expected, *((int,) if float in expected else ())))


def test_settings() -> None:
    assert bad_outcomes("settings in Python", some(setting_cases(), 300), lambda case: set_one(*case)) == []


def _net() -> nn.Module:
    torch.manual_seed(0)
    return advbnn.bayesianize(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))


def _few() -> Any:
    return data.load("digits").test.subset(range(4))


def _train(**arguments: Any) -> object:
    method = defenses.Defense(schedule=defenses.Constant(epochs=1), batch_size=4)
    return advbnn.fit(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), data.Splits(_few(), _few()), method, **arguments)


X, Y = torch.rand(3, 1, 8, 8), torch.arange(3)
CALLS: dict[str, tuple[Callable[..., object], list[str]]] = {
    "predict": (lambda **a: advbnn.predict(_net(), X, **a), ["samples", "seed", "rule"]),
    "predict, x": (lambda x: advbnn.predict(_net(), x), ["x"]),
    "regress": (lambda **a: advbnn.regress(_net(), X, **a), ["samples", "seed", "noise_std"]),
    "evaluate": (
        lambda **a: advbnn.evaluate(_net(), _few(), **{"samples": 1, "seeds": 1} | a),
        ["samples", "seeds", "rule", "batch_size", "rows", "engine", "precision"],
    ),
    "attack": (lambda **a: attacks.PGD(LINF, steps=1)(_net(), X, Y, **a), ["seed"]),
    "bayesianize": (lambda **a: advbnn.bayesianize(nn.Linear(2, 2), **a), ["init_std"]),
    "prior": (lambda **a: advbnn.GaussianPrior(**a), ["std"]),
    "build": (lambda **a: models.build("mlp", **a), ["classes", "image_size", "channels"]),
    "load": (lambda **a: data.load("digits", **a), ["size"]),
    "load, source": (lambda source: data.load(source), ["source"]),
    "fit": (_train, ["seed", "device", "engine", "precision", "log_every", "save_every"]),
    "noise": (lambda **a: _net().noise(**a), ["k", "seed"]),  # type: ignore[operator]
    "ensemble": (lambda **a: advbnn.Ensemble(_net(), **a)(X), ["samples"]),
}


def call_one(call: str, name: str, value: Any) -> tuple[str, str]:
    try:
        CALLS[call][0](**{name: value})
    except AdvbnnError as error:
        return ("refused" if name in str(error) else "unclear"), str(error)
    except Exception as error:
        return "traceback", repr(error)
    return "ran", ""


def test_arguments() -> None:
    cases = [(call, name, value) for call, (_, names) in CALLS.items() for name in names for value in NONSENSE]
    assert bad_outcomes("arguments in Python", some(cases, 100), lambda case: call_one(*case)) == []
