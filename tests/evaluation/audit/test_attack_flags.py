"""Made-up outcomes of attacks, and the flags that they raise."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from advbnn.attacks import APGD, PGD, Square, paper_pgd
from advbnn.attacks.threat import Threat
from advbnn.evaluation.audit.attack_flags import attack_flags
from advbnn.evaluation.audit.attack_suite import Noise, SuiteEntry
from advbnn.evaluation.audit.flags import Findings, Flag

THREAT = Threat("linf", 0.1)
ONE = PGD(THREAT, steps=10)
TRIALS = {
    "noise": SuiteEntry("noise", "noise", Noise(THREAT)),
    "paper": SuiteEntry("authors' PGD-20", "paper", paper_pgd(0.1)),
    "averaged paper": SuiteEntry("authors' PGD-20, 8 draws", "white box", replace(paper_pgd(0.1), eot=8)),
    "one": SuiteEntry("PGD-10, 1 draw", "white box", ONE),
    "averaged": SuiteEntry("PGD-10, 8 draws", "white box", replace(ONE, eot=8)),
    "long": SuiteEntry("PGD-30, 1 draw", "white box", replace(ONE, steps=30)),
    "starts": SuiteEntry("PGD-10, 1 draw, 3 starts", "white box", replace(ONE, restarts=3)),
    "square": SuiteEntry("Square", "black box", Square(THREAT)),
    "survivors": SuiteEntry("APGD", "white box", APGD(THREAT), on="survivors"),
}
SOUND = {
    "noise": 96,
    "paper": 70,
    "averaged paper": 66,
    "one": 62,
    "averaged": 60,
    "long": 61,
    "starts": 60,
    "square": 75,
    "survivors": 58,
}


def right(count: int) -> Tensor:
    return (torch.arange(100) < count).double()


def flags(*, standing: int = 57, large_eps: int | None = 0, random: bool = True, **changes: int) -> dict[str, Flag]:
    outcomes = SOUND | {name.replace("_", " "): count for name, count in changes.items()}
    names = [name for name in TRIALS if random or "averaged" not in name]
    found = Findings(
        entries=[TRIALS[name] for name in names],
        right=torch.stack([right(outcomes[name]) for name in names], 1),
        standing=right(standing),
        large_eps=None if large_eps is None else right(large_eps),
        probes={},
        random=random,
        probabilities=False,
    )
    return {flag.name: flag for flag in attack_flags(found)}


def raised(**changes: int | None) -> set[str]:
    return {name for name, flag in flags(**changes).items() if flag.raised}


def test_a_sound_network_raises_nothing() -> None:
    assert raised() == set()
    assert raised(random=False) == set()
    assert raised(large_eps=None) == set()


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"averaged": 75}, "eot"),
        ({"averaged_paper": 85}, "eot"),
        ({"long": 75}, "steps"),
        ({"starts": 75}, "restarts"),
        ({"large_eps": 30}, "large_eps"),
        ({"square": 45, "standing": 44}, "black_box"),
        ({"averaged": 40, "standing": 38}, "single_draw"),
        ({"averaged_paper": 45, "averaged": 55}, "single_draw"),
    ],
)
def test_each_sign_raises_its_flag_alone(changes: dict[str, int], name: str) -> None:
    assert raised(**changes) == {name}


def test_small_differences_raise_nothing() -> None:
    assert raised(averaged=66, long=66, starts=67, large_eps=8, square=56, standing=52) == set()


def test_a_gap_that_averaging_leaves_is_overstated_from_a_quarter_on() -> None:
    # 14 of 70 is sure, and not a quarter
    assert raised(averaged_paper=56, averaged=56, standing=50) == set()
    assert raised(averaged_paper=52, averaged=56, standing=50) == {"single_draw"}


def test_noise_counts_where_something_can_fall() -> None:
    blocked = dict.fromkeys(("paper", "averaged_paper", "one", "averaged", "long", "starts"), 95)
    assert raised(**blocked, square=94, standing=94) == set()  # a small radius: nothing falls to anybody
    assert raised(**blocked, square=94, standing=30) == {"noise"}
    assert raised(**blocked, square=40, standing=30) == {"noise", "black_box"}


def test_attacks_on_survivors_are_not_compared() -> None:
    assert flags(survivors=5)["black_box"].numbers["white_box"] == 0.60


def test_says_what_was_seen() -> None:
    flag = flags(square=45)["black_box"]
    assert "(PGD-10, 8 draws) leaves 60.0 % right" in flag.evidence
    assert "(Square) 45.0 %" in flag.evidence
    assert "knows less does better" in flag.evidence
    assert flag.numbers == {"white_box": 0.60, "black_box": 0.45}
    assert "authors' PGD-20 leaves 70.0 % right, authors' PGD-20, 8 draws 30.0 %" in (
        flags(averaged_paper=30)["single_draw"].evidence
    )
    assert "not random" in flags(random=False)["single_draw"].evidence
    assert "not bounded" in flags(large_eps=None)["large_eps"].evidence
