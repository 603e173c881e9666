"""Made-up results of probes, and the flags that they raise."""

import json
import math

import pytest
import torch
from torch import Tensor

from advbnn.evaluation.audit import probe_flags
from advbnn.evaluation.audit.flags import Decision, Findings

N = 100
NONE = torch.zeros(N, dtype=torch.bool)
SOUND = {
    "zero_gradient": NONE,
    "infinite_gradient": NONE,
    "explained": torch.full((N,), 0.98, dtype=torch.float64),
    "cosine": torch.linspace(0.4, 0.6, N, dtype=torch.float64),
    "repeat": torch.zeros(N),
    "reseeds": NONE,
    "tiny_change": torch.full((N,), 1e-5),
    "batch": torch.full((N,), 1e-6),
    "evaluation_right": torch.arange(N) < 95,
    "training_right": torch.arange(N) < 93,
}
FLAGS = ("gradients", "cosine", "hidden_randomness", "discontinuity", "mode", "batch", "probabilities")


def flags(*, random: bool = True, probabilities: bool = False, **changes: Tensor) -> dict[str, Decision]:
    unused = {"entries": (), "right": torch.empty(N, 0), "worst": torch.empty(N), "large_eps": None}
    found = Findings(probes=SOUND | changes, random=random, probabilities=probabilities, **unused)
    return {name: getattr(probe_flags, name)(found) for name in FLAGS}


def raised(**changes) -> set[str]:
    return {name for name, decision in flags(**changes).items() if decision.raised}


def some(count: int, value: float = 1, otherwise: float = 0) -> Tensor:
    return torch.where(torch.arange(N) < count, value, otherwise)


def test_a_sound_network_raises_nothing() -> None:
    assert raised() == set()
    assert raised(random=False, cosine=torch.ones(N, dtype=torch.float64)) == set()
    for decision in flags().values():
        json.dumps(decision.numbers, allow_nan=False)


@pytest.mark.parametrize(
    ("changes", "name", "words"),
    [
        ({"zero_gradient": some(30).bool()}, "gradients", "zero for 30 of 100"),
        ({"infinite_gradient": some(30).bool()}, "gradients", "NaN for 30 of 100"),
        ({"explained": some(30, 0.2, 0.98)}, "gradients", "for 30 of 100"),
        ({"cosine": some(N, 0.05)}, "cosine", "about 81 EOT samples per step"),
        ({"cosine": some(N, -0.01)}, "cosine", "than are affordable"),
        ({"repeat": some(30, 0.3)}, "hidden_randomness", "30 of 100"),
        ({"reseeds": ~NONE}, "hidden_randomness", "sets torch's seed"),
        ({"tiny_change": some(30, 0.3)}, "discontinuity", "30 of 100"),
        ({"training_right": some(60).bool()}, "mode", "95.0 % in evaluation mode, 60.0 % in training mode"),
        ({"batch": some(30, 0.3)}, "batch", "30 of 100"),
        ({"probabilities": True}, "probabilities", "return logits"),
    ],
)
def test_each_problem_raises_its_flag_alone(changes: dict, name: str, words: str) -> None:
    assert raised(**changes) == {name}
    assert words in flags(**changes)[name].evidence


def test_a_few_images_and_uncertain_means_raise_nothing() -> None:
    few = some(2, 0.3)
    less = {"zero_gradient": some(8).bool(), "explained": some(8, 0.0, 0.9), "training_right": some(88).bool()}
    assert raised(tiny_change=few, batch=few, repeat=few, cosine=some(50, 0.9, -0.75), **less) == set()


def test_the_eot_samples_needed_align_the_mean_gradient_with_the_expected_one() -> None:
    c, k = 0.05, flags(cosine=torch.full((N,), 0.05, dtype=torch.float64))["cosine"].numbers["eot_needed"]
    assert math.sqrt(k * c / (1 + (k - 1) * c)) >= 0.9 > math.sqrt((k - 1) * c / (1 + (k - 2) * c))


def test_what_cannot_be_measured_raises_nothing() -> None:
    coarse = flags(tiny_change=torch.full((N,), math.nan))["discontinuity"]
    assert not coarse.raised and coarse.evidence.startswith("Not measured") and coarse.numbers == {}
    nothing = torch.full((N,), math.nan, dtype=torch.float64)
    assert raised(cosine=nothing, zero_gradient=~NONE) == {"gradients"}
    assert flags(cosine=nothing)["cosine"].numbers == {"mean": None}


def test_hidden_randomness_raises_no_other_flag() -> None:
    noise = torch.full((N,), 0.5)
    hidden = {"repeat": noise, "tiny_change": noise, "batch": noise, "explained": torch.zeros(N, dtype=torch.float64)}
    assert raised(**hidden) == {"hidden_randomness"}
    assert flags(**hidden)["gradients"].numbers["explained"] is None
