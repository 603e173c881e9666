"""Made-up results of attacks, and the flags that they raise."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from advbnn.attacks import APGD, PGD, Square, paper_pgd
from advbnn.attacks.threat import Threat
from advbnn.evaluation.audit import attack_flags
from advbnn.evaluation.audit.attack_suite import Noise, SuiteEntry
from advbnn.evaluation.audit.flags import Decision, Findings

THREAT = Threat("linf", 0.1)
ONE = PGD(THREAT, steps=10)
ENTRIES = {  # with the number of images, of 100, that are correct under a sound network
    "noise": (SuiteEntry("noise", "noise", Noise(THREAT)), 96),
    "paper": (SuiteEntry("authors' PGD-20", "paper", paper_pgd(0.1)), 70),
    "averaged_paper": (SuiteEntry("authors' PGD-20 (EOT 8)", "white box", replace(paper_pgd(0.1), eot=8)), 66),
    "one": (SuiteEntry("PGD-10 (EOT 1)", "white box", ONE), 62),
    "averaged": (SuiteEntry("PGD-10 (EOT 8)", "white box", replace(ONE, eot=8)), 60),
    "long": (SuiteEntry("PGD-30 (EOT 1)", "white box", replace(ONE, steps=30)), 61),
    "restarted": (SuiteEntry("PGD-10 (EOT 1, 3 restarts)", "white box", replace(ONE, restarts=3)), 60),
    "square": (SuiteEntry("Square", "black box", Square(THREAT)), 75),
    "survivors": (SuiteEntry("APGD", "white box", APGD(THREAT), on="survivors"), 58),
}
FLAGS = ("eot", "steps", "restarts", "large_eps", "black_box", "noise", "single_sample")


def right(count: int) -> Tensor:
    return (torch.arange(100) < count).double()


def flags(*, worst=57, large_eps=0, random=True, **changes: int) -> dict[str, Decision]:
    names = [name for name in ENTRIES if random or "averaged" not in name]
    found = Findings(
        entries=[ENTRIES[name][0] for name in names],
        right=torch.stack([right(changes.get(name, ENTRIES[name][1])) for name in names], 1),
        worst=right(worst),
        large_eps=None if large_eps is None else right(large_eps),
        probes={},
        random=random,
        probabilities=False,
    )
    return {name: getattr(attack_flags, name)(found) for name in FLAGS}


def raised(**changes: int | None) -> set[str]:
    return {name for name, decision in flags(**changes).items() if decision.raised}


def test_a_sound_network_raises_nothing() -> None:
    small_differences = {"averaged": 66, "long": 66, "restarted": 67, "large_eps": 8, "square": 56, "worst": 52}
    for changes in ({}, {"random": False}, {"large_eps": None}, small_differences):
        assert raised(**changes) == set()


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"averaged": 75}, "eot"),
        ({"averaged_paper": 85}, "eot"),
        ({"long": 75}, "steps"),
        ({"restarted": 75}, "restarts"),
        ({"large_eps": 30}, "large_eps"),
        ({"square": 45, "worst": 44}, "black_box"),
        ({"averaged": 40, "worst": 38}, "single_sample"),
        ({"averaged_paper": 45, "averaged": 55}, "single_sample"),
    ],
)
def test_each_problem_raises_its_flag_alone(changes: dict[str, int], name: str) -> None:
    assert raised(**changes) == {name}


def test_single_samples_overestimate_from_a_quarter_on() -> None:
    # 14 of 70 is significant, and not a quarter
    assert raised(averaged_paper=56, averaged=56, worst=50) == set()
    assert raised(averaged_paper=52, averaged=56, worst=50) == {"single_sample"}


@pytest.mark.parametrize(("broken", "expected"), [(0, set()), (4, set()), (30, {"black_box"})])
def test_a_black_box_on_survivors_counts_by_what_it_breaks(broken: int, expected: set[str]) -> None:
    on_survivors = replace(ENTRIES["square"][0], on="survivors", first=0.1)
    names = [name for name in ENTRIES if name != "square"]
    attacked = torch.full((100,), torch.nan).double()
    attacked[broken:55], attacked[:broken] = 1, 0  # images that every attack with gradients leaves
    columns = [right(ENTRIES[name][1]) for name in names]
    found = Findings(
        entries=[*(ENTRIES[name][0] for name in names), on_survivors],
        right=torch.stack([*columns, attacked], 1),
        worst=right(57 - broken),
        large_eps=None,
        probes={},
        random=True,
        probabilities=False,
    )
    decision = attack_flags.black_box(found)
    assert decision.raised == bool(expected)
    assert decision.numbers == {"white_box": 0.60, "black_box": pytest.approx(0.60 - broken / 100)}
    assert "tried 55" in decision.evidence


def test_noise_counts_where_adversarial_examples_exist() -> None:
    blocked = dict.fromkeys(("paper", "averaged_paper", "one", "averaged", "long", "restarted"), 95)
    assert raised(**blocked, square=94, worst=94) == set()  # a small radius: no attack succeeds
    assert raised(**blocked, square=94, worst=30) == {"noise"}
    assert raised(**blocked, square=40, worst=30) == {"noise", "black_box"}
    # gradients find nearly all that is found, though too few images show that they beat noise
    assert raised(**dict.fromkeys((*blocked, "square"), 88), worst=85) == set()


def test_evidence_names_attacks_and_accuracies() -> None:
    decision = flags(square=45, survivors=5)["black_box"]
    for words in ("60.0 % under PGD-10 (EOT 8)", "45.0 % under Square", "masked"):
        assert words in decision.evidence
    assert decision.numbers == {"white_box": 0.60, "black_box": 0.45}  # gradients on survivors are not compared
    averaged = flags(averaged_paper=30)["single_sample"].evidence
    assert "70.0 % under authors' PGD-20 and 30.0 % under authors' PGD-20 (EOT 8)" in averaged
