"""Messages, and the bounds of settings."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from advbnn.attacks import PGD
from advbnn.attacks.threat import Threat
from advbnn.errors import FileError, check_types, positive_whole, shown, unknown, whole, within
from advbnn.training.config import Config


def test_an_unknown_name_gets_the_options_and_the_closest_one() -> None:
    message = str(unknown("norm", "l_inf", ("linf", "l2")))
    assert "norm='l_inf'" in message and "'l2', 'linf'" in message and "did you mean 'linf'?" in message
    assert "did you mean" not in str(unknown("norm", "zzz", ("linf",)))


def test_a_file_error_is_its_message() -> None:
    assert str(FileError("message")) == "message"  # OSError formats several arguments in its own way


def test_counts_have_a_bound_that_research_does_not_reach() -> None:
    for value in (1, 1000, 100_000, 1_000_000, np.int64(7), torch.tensor(7)):
        assert positive_whole("steps", value) == value
    for value in (0, -1, 10**22, 1.5, math.inf, True, "7", None):
        with pytest.raises(ValueError, match="steps .*1,000,000"):
            positive_whole("steps", value)
    assert whole("start", 0, 0) == 0 and positive_whole("batch_size", 2**21, most=2**30) == 2**21


@pytest.mark.parametrize(
    ("interval", "inside", "outside"),
    [
        ("(0, 1]", (1e-300, 0.5, 1, np.float32(0.5)), (0, -1, 1.001, math.nan, math.inf, True, "1", None, 1j)),
        ("[0, 1)", (0, 0.999), (1, -1e-300, -math.inf)),
        ("[0, inf]", (0.0, 1e308, math.inf), (math.nan, -1)),
    ],
)
def test_numbers_lie_in_intervals(interval: str, inside: tuple[float, ...], outside: tuple[object, ...]) -> None:
    for value in inside:
        within("alpha", value, interval)
    for value in outside:
        with pytest.raises(ValueError, match="alpha .*; the remedy"):
            within("alpha", value, interval, "the remedy")


def test_flags_are_bool_and_parts_are_of_their_class() -> None:
    @dataclass
    class Settings:
        flag: bool = True
        name: str | None = None
        part: Threat | None = None
        anything: object = None

    check_types(Settings(False, "x", Threat(), 7))
    for wrong, expected in (({"flag": "no"}, "True or False"), ({"name": 3}, "text or None"), ({"part": 3}, "Threat")):
        with pytest.raises(TypeError, match=f"{next(iter(wrong))} .*{expected}"):
            check_types(Settings(**wrong))  # type: ignore[arg-type]


def test_a_long_value_is_cut() -> None:
    assert shown("x") == "'x'"
    assert len(shown(5000 * "x")) < 130


def test_values_that_would_neutralise_what_they_touch_are_refused() -> None:
    for make, argument in (
        (lambda: PGD(Threat(), targeted="no"), "targeted"),  # type: ignore[arg-type]
        (lambda: PGD(Threat(), momentum=math.inf), "momentum"),
        (lambda: PGD(Threat(), step_size=1e308), "step_size"),
        (lambda: Threat("l2", 1e308), "eps"),
        (lambda: Config(save_every=math.nan), "save_every"),
        (lambda: Config(seed=10**22), "seed"),
    ):
        with pytest.raises((ValueError, TypeError), match=f"{argument} must be"):
            make()
