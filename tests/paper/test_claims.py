"""Every claim reaches every verdict that it can, and chance is no evidence."""

from collections.abc import Callable
from dataclasses import replace

import pytest

import made_up_reproductions as made_up
from advbnn.evaluation.records import Records
from advbnn.paper import Evidence, check_claims
from advbnn.paper.verdicts import INCONCLUSIVE, NOT, PARTLY, REPRODUCED, UNMEASURED
from made_up_reproductions import (
    CIFAR10,
    DIGITS,
    Accuracy,
    N,
    as_in_the_paper,
    audits,
    evidence,
    radius_records,
    verdict,
)

P = CIFAR10.protocol


def shifted(everywhere: float = 0, **points: float) -> Accuracy:
    """The paper's accuracies with so many points added: to all, or under attack to some defences."""
    return lambda label, eps: (
        as_in_the_paper(label, eps) + (everywhere + (points.get(label.partition("-")[0], 0) if eps else 0)) / 100
    )


def attacked(change: Accuracy, n: int = N) -> Evidence:
    return evidence(radius_records(P, change, n=n))


def averaged(change: Accuracy) -> Evidence:
    return evidence([*radius_records(P, as_in_the_paper), *made_up.averaged_records(P, change)])


def audited(change: Accuracy, inconclusive: int = 0) -> Evidence:
    return evidence(audits(P, change, inconclusive=inconclusive))


def clean(accuracy: float) -> Evidence:
    return attacked(lambda label, eps: accuracy if (label, eps) == ("adv_bnn", 0) else as_in_the_paper(label, eps))


def alpha(by_alpha: dict[float, float]) -> Evidence:
    return evidence([*radius_records(P, as_in_the_paper), *made_up.alphas(P, by_alpha)])


def families(plain: float, robust: float) -> Evidence:
    def rho(a: str, b: str) -> float:
        return plain if {a, b} == {"none", "bnn"} else 0.3 if {a, b} & {"none", "bnn"} else robust

    return evidence(made_up.transfers(P, rho))


def steps(drop: float, most: int = 1000) -> Evidence:
    found = made_up.steps_curves(P, lambda count: drop if count > 100 else 0)
    return evidence(one for one in found if (one.at or 0) <= most)


def lipschitz(*values: float, error: float = 0.01) -> Evidence:
    return evidence(made_up.lipschitz_values(P, values, error))


@pytest.mark.parametrize(
    ("name", "found", "expected"),
    [
        ("numbers", attacked(shifted(adv_bnn=-1.9)), REPRODUCED),
        ("numbers", attacked(shifted(adv=5)), REPRODUCED),  # better than the paper is as good
        ("numbers", attacked(shifted(adv_bnn=-6)), PARTLY),
        ("numbers", attacked(shifted(-4)), NOT),
        ("numbers", evidence(radius_records(DIGITS.protocol, as_in_the_paper), DIGITS), UNMEASURED),
        ("better", attacked(shifted(adv_bnn=-9)), PARTLY),
        ("better", attacked(shifted(adv_bnn=-30)), NOT),
        ("better", attacked(shifted(), n=40), INCONCLUSIVE),
        ("gain", attacked(shifted(adv_bnn=-6)), PARTLY),
        ("gain", attacked(shifted(adv_bnn=-11)), NOT),
        ("better_averaged", averaged(shifted(adv_bnn=-9)), PARTLY),
        ("better_averaged", averaged(shifted(adv_bnn=-30)), NOT),
        ("better_worst", audited(shifted(adv_bnn=-30)), NOT),
        ("better_worst", audited(shifted(adv_bnn=-30), N // 2), INCONCLUSIVE),
        ("better_worst", audited(shifted(), N // 2), REPRODUCED),
        ("attack", averaged(shifted(adv_bnn=-4)), PARTLY),
        ("attack", averaged(shifted(adv_bnn=-8)), NOT),
        ("bnn", averaged(shifted(bnn=8)), PARTLY),
        ("bnn", averaged(shifted(bnn=20)), NOT),
        ("clean", clean(0.775), REPRODUCED),
        ("clean", clean(0.756), PARTLY),
        ("clean", clean(0.65), NOT),
        ("alpha", alpha({1.0: 0.79, 0.1: 0.805}), REPRODUCED),
        ("alpha", alpha({1.0: 0.70, 0.1: 0.75, 0.01: 0.76}), PARTLY),
        ("alpha", alpha({1.0: 0.79, 0.1: 0.70}), NOT),
        ("alpha", alpha({1.0: 0.82, 0.1: 0.83}), UNMEASURED),  # there is no gap to close
        ("families", families(0.85, 0.8), PARTLY),
        ("families", families(0.2, 0.9), NOT),
        ("samples", evidence(made_up.ensemble_curves(P, lambda size: 0.15 / size)), PARTLY),
        ("samples", evidence(made_up.ensemble_curves(P, lambda size: 0.5 / size)), NOT),
        ("steps", steps(0.01), REPRODUCED),
        ("steps", steps(0.0, most=300), PARTLY),  # says nothing about a thousand
        ("steps", steps(0.04), PARTLY),
        ("steps", steps(0.1), NOT),
        ("lipschitz", lipschitz(0.5, 0.9, 0.5, 1.2), PARTLY),
        ("lipschitz", lipschitz(0.9, 0.9, 0.5, 1.2), NOT),
        ("lipschitz", lipschitz(0.5, 0.9, 0.5, 0.6, error=0.5), INCONCLUSIVE),
        ("overhead", evidence(speeds=made_up.speeds(1000, 500)), PARTLY),
        ("overhead", evidence(speeds=made_up.speeds(1000, 200)), NOT),
        ("overhead", evidence(speeds=made_up.speeds(800, 1000)), INCONCLUSIVE),  # it cannot be faster: not timed alike
    ],
)
def test_verdicts(name: str, found: Evidence, expected: str) -> None:
    assert verdict(name, found) == expected


def test_without_records_nothing_is_measured() -> None:
    claims = check_claims(evidence())
    assert {one.verdict for one in claims} == {UNMEASURED}
    assert all(one.evidence for one in claims)


def test_where_all_is_as_in_the_paper_all_is_reproduced() -> None:
    assert {one.verdict for one in check_claims(made_up.everything())} == {REPRODUCED}


def test_a_tie_is_no_lead() -> None:
    same: Accuracy = lambda label, eps: 0.5  # noqa: E731
    found = evidence([*radius_records(P, same), *made_up.averaged_records(P, same), *audits(P, same)])
    assert {verdict(name, found) for name in ("better", "better_averaged", "better_worst", "gain")} == {NOT}
    assert {verdict(name, found) for name in ("attack", "bnn", "clean")} == {REPRODUCED}


def test_a_gain_at_some_of_the_radii_alone_is_partial() -> None:
    one = [r for r in audits(P, as_in_the_paper) if r.threat is not None and r.threat.eps == P.table_radii[1]]
    assert verdict("better_worst", evidence(one)) == PARTLY


def test_the_evidence_names_what_the_old_rule_leaves_open() -> None:
    few, more = (audits(P, as_in_the_paper, inconclusive=share * N // 1000) for share in (20, 65))
    mixed = evidence([pair[place % 2] for place, pair in enumerate(zip(few, more, strict=True))])
    assert "2.0 to 6.5 points" in made_up.claim("better_worst", mixed).evidence
    assert "infinite" not in made_up.claim("better_worst", audited(shifted())).evidence


def on(images: int, found: Evidence) -> Evidence:
    """The same accuracies on fewer images."""
    few = []
    for one in found.records:
        correct = tuple(round(k / one.n * images) for k in one.correct)
        few.append(replace(one, data=replace(one.data, n=images), correct=correct))
    return replace(found, records=Records(few))


@pytest.mark.parametrize("outcomes", [False, True])
@pytest.mark.parametrize("n", [1, 10])
def test_a_handful_of_images_is_inconclusive(n: int, outcomes: bool) -> None:
    few = on(n, made_up.everything())
    found = {one.name: one.verdict for one in check_claims(made_up.with_outcomes(few) if outcomes else few)}
    independent = {"lipschitz", "overhead"}  # these do not count images
    if outcomes:
        independent |= {"better", "better_averaged", "better_worst", "gain", "numbers"}
    assert {found[name] for name in found.keys() - independent} <= {INCONCLUSIVE, UNMEASURED}


@pytest.mark.parametrize(
    ("n", "clear"), [(400, ("better", "gain", "families")), (2000, ("attack", "clean", "samples", "steps"))]
)
def test_enough_images_are_conclusive(n: int, clear: tuple[str, ...]) -> None:
    found = {one.name: one.verdict for one in check_claims(on(n, made_up.everything()))}
    assert {found[name] for name in clear} <= {REPRODUCED, PARTLY}


LEVEL: dict[str, Callable[[], Evidence]] = {
    "attack": lambda: averaged(as_in_the_paper),
    "samples": lambda: evidence(made_up.ensemble_curves(P, lambda size: 0.0)),
    "steps": lambda: evidence(made_up.steps_curves(P, lambda count: 0.0)),
}


@pytest.mark.parametrize("name", LEVEL)
def test_equal_counts_on_few_images_may_hide_changes(name: str) -> None:
    found = LEVEL[name]()
    assert (verdict(name, found), verdict(name, on(200, found))) == (REPRODUCED, INCONCLUSIVE)


@pytest.mark.parametrize("name", ["samples", "steps"])
def test_outcomes_per_image_show_whether_there_were_changes(name: str) -> None:
    few = on(200, LEVEL[name]())
    same, moved = (made_up.claim(name, made_up.with_outcomes(few, moved)) for moved in (0, 20))
    assert (same.verdict, moved.verdict) == (REPRODUCED, INCONCLUSIVE)
    assert "margin 1.4" in same.evidence  # 196 sqrt(2) / 202: one more image may still differ
    assert "margin 6.3" in moved.evidence  # 196 sqrt(42) / 202: 20 lost and 20 gained


def test_a_gain_that_trainings_disagree_on_is_inconclusive() -> None:
    adv = radius_records(P, as_in_the_paper, ["adv"])
    one = evidence([*adv, *radius_records(P, shifted(2), ["adv_bnn"])])
    two = evidence([*one.records, *radius_records(P, shifted(-6), ["adv_bnn-seed1"])])
    assert (verdict("better", one), verdict("better", two)) == (REPRODUCED, INCONCLUSIVE)


def test_all_images_are_compared_on_those_of_the_other_attack() -> None:
    everywhere = made_up.with_outcomes(evidence(radius_records(P, as_in_the_paper, ["adv"])))
    first = replace(everywhere.records[0].data, n=2000, rows="0-1999")  # the images that are right in these records
    ours = [replace(r, data=first, correct=(1000,)) for r in made_up.averaged_records(P, as_in_the_paper, ["adv_bnn"])]
    words = made_up.claim("better_averaged", evidence([*everywhere.records, *ours])).evidence
    assert "50.0 against 100.0 % at 0.035" in words
