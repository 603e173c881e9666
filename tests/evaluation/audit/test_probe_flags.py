"""Made-up answers to probes, and the flags that they raise."""

import math
import re

import pytest
import torch
from torch import Tensor

from advbnn.evaluation.audit.flags import Findings, Flag
from advbnn.evaluation.audit.probe_flags import probe_flags

N = 100
NOBODY = torch.zeros(N, dtype=torch.bool)
EVERYBODY = ~NOBODY
SOUND = {
    "no_gradient": NOBODY,
    "bad_gradient": NOBODY,
    "explained": torch.full((N,), 0.98, dtype=torch.float64),
    "cosine": torch.linspace(0.4, 0.6, N, dtype=torch.float64),
    "repeat": torch.zeros(N),
    "reseeds": NOBODY,
    "hair": torch.full((N,), 1e-5),
    "batch": torch.full((N,), 1e-6),
    "evaluation_right": torch.arange(N) < 95,
    "training_right": torch.arange(N) < 93,
}


def flags(*, random: bool = True, probabilities: bool = False, **changes: Tensor) -> dict[str, Flag]:
    found = Findings(
        entries=(),
        right=torch.empty(N, 0),
        standing=torch.empty(N),
        large_eps=None,
        probes=SOUND | changes,
        random=random,
        probabilities=probabilities,
    )
    return {flag.name: flag for flag in probe_flags(found)}


def raised(**changes) -> set[str]:
    return {name for name, flag in flags(**changes).items() if flag.raised}


def some(count: int) -> Tensor:
    return torch.arange(N) < count


def test_a_sound_network_raises_nothing() -> None:
    assert raised() == set()
    assert raised(random=False, cosine=torch.ones(N, dtype=torch.float64)) == set()


@pytest.mark.parametrize(
    ("changes", "name", "words"),
    [
        ({"no_gradient": some(30)}, "gradients", "exactly zero for 30 of 100 images"),
        ({"bad_gradient": some(30)}, "gradients", "infinite or not a number for 30 of 100"),
        ({"explained": torch.where(some(30), 0.2, 0.98)}, "gradients", "says little of what small steps do"),
        ({"cosine": torch.full((N,), 0.05)}, "cosine", "cosine of 0.05 on average.* about 81 draws"),
        ({"cosine": torch.full((N,), -0.01)}, "cosine", "more draws than can be paid for"),
        ({"repeat": torch.where(some(30), 0.3, 0.0)}, "hidden_randomness", "differently for 30 of 100"),
        ({"reseeds": EVERYBODY}, "hidden_randomness", "sets torch's seed itself"),
        ({"hair": torch.where(some(30), 0.3, 0.0)}, "discontinuity", "changes the answers to 30 of 100 images"),
        ({"training_right": some(60)}, "mode", "95.0 % are right in evaluation mode, 60.0 % in training mode"),
        ({"evaluation_right": some(60)}, "mode", "60.0 % are right in evaluation mode, 93.0 %"),
        ({"batch": torch.where(some(30), 0.3, 0.0)}, "batch", "the answers to 30 of 100 images change"),
        ({"probabilities": True}, "probabilities", "let the network return logits"),
    ],
)
def test_each_sign_raises_its_flag_alone(changes: dict, name: str, words: str) -> None:
    assert raised(**changes) == {name}
    assert re.search(words, flags(**changes)[name].evidence)


def test_a_few_odd_images_raise_nothing() -> None:
    few = torch.where(some(2), 0.3, 0.0)
    assert (
        raised(no_gradient=some(8), hair=few, batch=few, repeat=few, explained=torch.where(some(8), 0.0, 0.9)) == set()
    )
    assert raised(training_right=some(88)) == set()


def test_what_rounding_hides_is_not_measured() -> None:
    flag = flags(hair=torch.full((N,), math.nan))["discontinuity"]
    assert not flag.raised
    assert flag.evidence.startswith("Not measured")
    assert flag.numbers == {}


def test_an_uncertain_cosine_raises_nothing() -> None:
    assert raised(cosine=torch.where(some(50), 0.9, -0.75)) == set()


def test_a_network_that_does_not_repeat_itself_is_not_blamed_for_what_follows_from_that() -> None:
    noise = torch.full((N,), 0.5)
    forgetful = {"repeat": noise, "hair": noise, "batch": noise, "explained": torch.zeros(N, dtype=torch.float64)}
    assert raised(**forgetful) == {"hidden_randomness"}
    assert flags(**forgetful)["gradients"].numbers["explained"] is None


def test_gradients_that_are_not_there_have_no_cosine() -> None:
    nothing = torch.full((N,), math.nan, dtype=torch.float64)
    assert raised(cosine=nothing, no_gradient=EVERYBODY) == {"gradients"}
    assert flags(cosine=nothing)["cosine"].numbers == {"mean": None}


def test_numbers_are_json() -> None:
    for flag in flags().values():
        assert all(value is None or isinstance(value, int | float) for value in flag.numbers.values())
