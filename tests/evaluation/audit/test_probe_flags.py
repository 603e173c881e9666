"""Made-up results of probes, and the flags that they raise."""

import json
import math
import re
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from advbnn.evaluation.audit import probe_flags
from advbnn.evaluation.audit.consistency import WAYS
from advbnn.evaluation.audit.flags import Decision, Findings
from advbnn.evaluation.audit.history import History

N = 100
NONE = torch.zeros(N, dtype=torch.bool)
CLEAR = torch.zeros(N, 3, dtype=torch.bool)
MISLEADING = torch.zeros(N, 3, dtype=torch.float64)
SOUND = {
    "zero_gradient": CLEAR,
    "infinite_gradient": CLEAR,
    "explained": torch.full((N, 3), 0.98, dtype=torch.float64),
    "cosine": torch.linspace(0.4, 0.6, N, dtype=torch.float64),
    "repeat": torch.zeros(N),
    "reseeds": NONE,
    "tiny_change": torch.full((N,), 1e-5),
    "batch": torch.full((N,), 1e-6),
    "evaluation_right": torch.arange(N) < 95,
    "training_right": torch.arange(N) < 93,
    "later": torch.full((N,), 1e-7),
    "revived": NONE,
    "abrupt": torch.full((N,), 0.05),
    "abrupt_elsewhere": torch.full((N,), 0.05),
    "jump_elsewhere": torch.full((N,), 1e-5),
    "half_way": torch.full((N,), 0.04),
    **{way: torch.full((N,), 1e-5) for way in WAYS},
}
SOUND_HISTORY = History(random=True, passes=1200)
FLAGS = (
    *("gradients", "cosine", "hidden_randomness", "sticky_randomness", "discontinuity", "mode", "batch", "calling"),
    *("memory", "probabilities"),
)


def flags(
    *, random: bool = True, probabilities: bool = False, history: History = SOUND_HISTORY, **changes: Tensor
) -> dict[str, Decision]:
    unused = {"entries": (), "right": torch.empty(N, 0), "worst": torch.empty(N), "large_eps": None}
    found = Findings(probes=SOUND | changes, random=random, probabilities=probabilities, history=history, **unused)
    return {name: getattr(probe_flags, name)(found) for name in FLAGS}


def raised(**changes) -> set[str]:
    return {name for name, decision in flags(**changes).items() if decision.raised}


def some(count: int, value: float = 1, otherwise: float = 0) -> Tensor:
    return torch.where(torch.arange(N) < count, value, otherwise)


def at(points: list[int], count: int, value: float = 1, otherwise: float = 0) -> Tensor:
    """As `some`, at these of the three points of each image."""
    return torch.stack([some(count if point in points else 0, value, otherwise) for point in range(3)], 1)


def test_a_sound_network_raises_nothing() -> None:
    assert raised() == set()
    assert raised(random=False, cosine=torch.ones(N, dtype=torch.float64)) == set()
    for decision in flags().values():
        json.dumps(decision.numbers, allow_nan=False)


@pytest.mark.parametrize(
    ("changes", "name", "words"),
    [
        ({"zero_gradient": at([0, 1, 2], 30).bool()}, "gradients", r"zero for 30 of 100 images\."),
        ({"zero_gradient": at([1], 30).bool()}, "gradients", "zero for 30 of 100.*random point"),
        ({"infinite_gradient": at([2], 30).bool()}, "gradients", "NaN for 30 of 100.*step"),
        ({"explained": at([1], 30, 0.2, 0.98)}, "gradients", "for 30 of 100.*random point"),
        ({"cosine": some(N, 0.05)}, "cosine", "about 81 EOT samples per step"),
        ({"cosine": some(N, -0.01)}, "cosine", "than are affordable"),
        ({"repeat": some(30, 0.3)}, "hidden_randomness", "30 of 100"),
        ({"reseeds": ~NONE}, "hidden_randomness", "sets torch's seed"),
        ({"history": replace(SOUND_HISTORY, later=0.9, repeated=0.01)}, "sticky_randomness", "90.0 %"),
        ({"later": some(30)}, "sticky_randomness", "30 of 100"),
        ({"history": History(candidates=("Net.random_rpf",))}, "sticky_randomness", "Net.random_rpf"),
        ({"alone": some(30)}, "batch", "30 of 100 images.*alone"),
        ({"in_pairs": some(4, 1, math.nan)}, "batch", "4 of 4 images.*two"),
        ({"differentiated": some(30)}, "calling", "30 of 100.*requires a gradient"),
        ({"revived": some(30).bool()}, "batch", "30 of 100"),
        ({"abrupt": some(80)}, "memory", "80 of 100.*shifted"),
        ({"half_way": some(80)}, "memory", "Half-way.*80 of 100"),
        ({"abrupt": some(30), "abrupt_elsewhere": some(30)}, "discontinuity", "30 of 100.*shifted"),
        ({"tiny_change": some(30, 0.3), "jump_elsewhere": some(30, 0.3)}, "discontinuity", "30 of 100"),
        ({"training_right": some(60).bool()}, "mode", "95.0 % in evaluation mode, 60.0 % in training mode"),
        ({"batch": some(30, 0.3)}, "batch", "30 of 100"),
        ({"probabilities": True}, "probabilities", "return logits"),
    ],
)
def test_each_problem_raises_its_flag_alone(changes: dict, name: str, words: str) -> None:
    assert raised(**changes) == {name}
    assert re.search(words, flags(**changes)[name].evidence)


def test_a_few_images_and_uncertain_means_raise_nothing() -> None:
    few = some(2, 0.3)
    less = {"zero_gradient": at([0], 8).bool(), "explained": at([1], 8, 0.0, 0.9), "training_right": some(88).bool()}
    assert (
        raised(
            tiny_change=few,
            batch=few,
            repeat=few,
            later=few,
            alone=few,
            revived=few.bool(),
            half_way=few,
            abrupt=some(40),
            cosine=some(50, 0.9, -0.75),
            **less,
        )
        == set()
    )


def test_the_eot_samples_needed_align_the_mean_gradient_with_the_expected_one() -> None:
    c, k = 0.05, flags(cosine=torch.full((N,), 0.05, dtype=torch.float64))["cosine"].numbers["eot_needed"]
    assert math.sqrt(k * c / (1 + (k - 1) * c)) >= 0.9 > math.sqrt((k - 1) * c / (1 + (k - 2) * c))


def test_what_cannot_be_measured_raises_nothing() -> None:
    coarse = flags(tiny_change=torch.full((N,), math.nan))["discontinuity"]
    assert not coarse.raised and coarse.evidence.startswith("Not measured") and coarse.numbers == {}
    nothing = torch.full((N,), math.nan, dtype=torch.float64)
    assert raised(cosine=nothing, zero_gradient=~CLEAR) == {"gradients"}
    assert flags(cosine=nothing)["cosine"].numbers == {"mean": None}


def test_hidden_randomness_raises_no_other_flag() -> None:
    noise = torch.full((N,), 0.5)
    hidden = {"repeat": noise, "tiny_change": noise, "batch": noise, "explained": MISLEADING}
    assert raised(**hidden) == {"hidden_randomness"}
    assert flags(**hidden)["gradients"].numbers["explained"] is None


def test_what_depends_on_time_raises_no_flag_about_something_else() -> None:
    noise, kept = torch.full((N,), 0.5), replace(SOUND_HISTORY, later=1.0)
    others = {"tiny_change": noise, "batch": noise, "alone": noise, "differentiated": noise, "revived": ~NONE}
    others |= dict.fromkeys(("abrupt", "abrupt_elsewhere", "half_way"), noise)
    assert raised(history=kept, explained=MISLEADING, **others) == {"sticky_randomness"}


def test_a_random_source_without_memory_is_not_sticky() -> None:
    """Both shares estimate the probability that two passes differ."""
    for repeated, later in ((1.0, 1.0), (0.5, 0.55), (0.01, 0.02)):
        assert not replace(SOUND_HISTORY, repeated=repeated, later=later).keeps_state
    assert replace(SOUND_HISTORY, repeated=0.0025, later=0.25).keeps_state
    assert raised(history=replace(SOUND_HISTORY, repeated=0.5, later=0.5), later=some(30), repeat=some(30)) == {
        "hidden_randomness"
    }
