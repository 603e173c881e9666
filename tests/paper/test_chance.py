"""What chance may have done is no evidence, and images that are known to be the same leave it less to do."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from advbnn.evaluation.intervals import clopper_pearson
from advbnn.evaluation.records import Record, Records
from advbnn.paper import Evidence, judged
from advbnn.paper.evidence import Number
from advbnn.paper.verdicts import NOT, PARTLY, REPRODUCED, UNDECIDED, UNMEASURED, of_difference
from made_up_reproductions import (
    CIFAR10,
    as_in_the_paper,
    averaged_records,
    claim,
    ensemble_curves,
    everything,
    evidence,
    knowing_images,
    radius_records,
    steps_curves,
    verdict,
)

P = CIFAR10.protocol
Change = Callable[[str, float], float]


def test_a_lead_within_the_errors_of_few_images_is_no_lead() -> None:
    found = claim("better", evidence(radius_records(P, as_in_the_paper, n=40)))
    assert found.verdict == UNDECIDED
    assert "behind at 0" in found.evidence
    assert "45.0 against 30.0 % at 0.035" in found.evidence


def test_networks_that_many_images_cannot_tell_apart_show_no_gain() -> None:
    alike: Change = lambda label, eps: as_in_the_paper("adv", eps)  # noqa: E731
    for n, expected in ((10_000, NOT), (100, UNDECIDED)):
        found = evidence(radius_records(P, alike, ["adv", "adv_bnn"], n=n))
        assert (verdict("better", found), verdict("gain", found)) == (expected, expected)


def _on(images: int, found: Evidence) -> Evidence:
    """The same shares, as so few images would show them."""
    few = [
        replace(one, data=replace(one.data, n=images), correct=tuple(round(k / one.n * images) for k in one.correct))
        for one in found.records
    ]
    return replace(found, records=Records(few))


@pytest.mark.parametrize("n", [1, 5, 10])
def test_a_handful_of_images_decides_nothing(n: int) -> None:
    few = _on(n, everything())
    unaffected = {"lipschitz", "overhead"}  # by standard errors of their own, and by the clock
    found = {one.name: one.verdict for one in judged(few) if one.name not in unaffected}
    assert set(found.values()) <= {UNDECIDED, UNMEASURED}, found


@pytest.mark.parametrize(
    ("n", "plain"), [(400, ("better", "gain", "families")), (2000, ("attack", "clean", "draws", "steps"))]
)
def test_so_many_images_decide_what_is_plain(n: int, plain: Sequence[str]) -> None:
    found = {one.name: one.verdict for one in judged(_on(n, everything()))}
    assert {found[name] for name in plain} <= {REPRODUCED, PARTLY}


def test_few_images_that_are_right_as_often_as_before_may_be_others() -> None:
    # no more are right by one attack than by the other, which says nothing of how many have moved, and in either way
    level = {
        "attack": [*radius_records(P, as_in_the_paper), *averaged_records(P, as_in_the_paper)],
        "draws": ensemble_curves(P, lambda size: 0.0),
        "steps": steps_curves(P, lambda count: 0.0),
    }
    for name, records in level.items():
        many, few = claim(name, evidence(records)), claim(name, _on(200, evidence(records)))
        assert (many.verdict, few.verdict) == (REPRODUCED, UNDECIDED)
        assert "may be chance" in few.evidence


def test_images_that_are_known_to_be_the_same_are_no_others() -> None:
    level = {"draws": ensemble_curves(P, lambda size: 0.0), "steps": steps_curves(P, lambda count: 0.0)}
    for name, records in level.items():
        few = _on(200, evidence(records))
        same, others = claim(name, knowing_images(few)), claim(name, knowing_images(few, moved=20))
        assert (same.verdict, others.verdict) == (REPRODUCED, UNDECIDED)
        assert "up to 1.4 may be chance" in same.evidence  # 196 sqrt(2) / 202: another image may differ yet
        assert "up to 6.3 may be chance" in others.evidence  # 196 sqrt(42) / 202: 20 fell and 20 rose


@pytest.mark.parametrize(
    ("name", "records", "expected"),
    [
        ("draws", ensemble_curves(P, lambda size: 0.12 / size), REPRODUCED),
        ("steps", steps_curves(P, lambda count: 0.04 if count > 100 else 0), PARTLY),
    ],
)
def test_figure_4_is_decided_by_the_images_that_differ(name: str, records: list[Record], expected: str) -> None:
    found = _on(1000, evidence(records))
    assert verdict(name, found) == UNDECIDED
    assert verdict(name, knowing_images(found)) == expected


@pytest.mark.parametrize("n", [1, 5, 10])
def test_a_handful_of_known_images_decides_as_little_about_small_losses(n: int) -> None:
    few = knowing_images(_on(n, everything()))
    found = {one.name: one.verdict for one in judged(few)}
    assert {found[name] for name in ("attack", "bnn", "clean", "alpha", "draws", "steps")} <= {UNDECIDED, UNMEASURED}


def test_chance_is_paired_where_both_numbers_are_of_the_same_known_images() -> None:
    counted = evidence(radius_records(P, as_in_the_paper, ["adv", "adv_bnn"]))
    known = knowing_images(counted)
    ours, theirs = (Number.of(known.records.where(at=0.035, label=label)) for label in ("adv_bnn", "adv"))
    apart = of_difference(*(Number.of([one]) for one in counted.records.where(at=0.035)))
    assert of_difference(ours, theirs) == of_difference(theirs, ours) < apart / 1.4
    one = known.records.only(at=0.035, label="adv")
    for other in (replace(one.data, rows="1-10000"), replace(one.data, sha256="07" * 32)):
        assert of_difference(ours, Number.of([replace(one, data=other)])) == apart
    assert of_difference(ours, Number.of([replace(one, outcomes=())])) == apart


def test_trainings_that_vary_more_than_the_images_are_the_chance_of_known_images_too() -> None:
    lower: Change = lambda label, eps: as_in_the_paper("adv", eps) - 0.04  # noqa: E731
    records = [*radius_records(P, as_in_the_paper, ["adv", "adv_bnn"]), *radius_records(P, lower, ["adv-seed1"])]
    found = knowing_images(evidence(records))
    ours, theirs = found.authors("adv_bnn", 0.035), found.authors("adv", 0.035)
    assert theirs.right.mean().item() == pytest.approx(theirs.mean / 100)
    assert of_difference(ours, theirs) == theirs.by_training == pytest.approx(12.706 * 2.0, abs=0.1)


def test_several_trainings_count_as_one_with_their_spread() -> None:
    records = radius_records(P, as_in_the_paper, ["adv"])
    other = radius_records(P, lambda label, eps: as_in_the_paper("adv", eps) - 0.04, ["adv-seed1"])
    number = evidence([*records, *other]).authors("adv", 0.035)
    assert number is not None
    assert number.mean == pytest.approx(29.1)
    assert number.spread == pytest.approx(2.83, abs=0.01)
    assert number.trainings == 2
    assert number.below == number.above == pytest.approx(12.706 * 2.0, abs=0.1)  # Student's, with one degree of freedom


def test_a_gain_that_trainings_do_not_agree_on_is_undecided() -> None:
    lucky: Change = lambda label, eps: as_in_the_paper("adv_bnn", eps) + 0.02  # noqa: E731
    poor: Change = lambda label, eps: as_in_the_paper("adv_bnn", eps) - 0.06  # noqa: E731
    adv = radius_records(P, as_in_the_paper, ["adv"])
    one = evidence([*adv, *radius_records(P, lucky, ["adv_bnn"])])
    two = evidence([*one.records, *radius_records(P, poor, ["adv_bnn-seed1"])])
    assert (verdict("better", one), verdict("better", two)) == (REPRODUCED, UNDECIDED)


def test_attacks_on_fewer_images_are_compared_with_more_caution() -> None:
    lower: Change = lambda label, eps: as_in_the_paper(label, eps) - (0.04 if label == "adv_bnn" else 0)  # noqa: E731
    all_images, averaged = radius_records(P, as_in_the_paper), averaged_records(P, lower)
    many = evidence([*all_images, *averaged])
    fewer = evidence([*all_images, *_on(1500, evidence(averaged)).records])
    assert (verdict("attack", many), verdict("attack", fewer)) == (PARTLY, UNDECIDED)


def test_a_number_of_all_images_is_compared_on_those_of_the_other() -> None:
    everywhere = knowing_images(evidence(radius_records(P, as_in_the_paper, ["adv"])))
    number = everywhere.authors("adv", 0.035)
    first = replace(number.data, n=2000, rows="0-1999")
    fewer = number.on(first)
    assert (fewer.images, fewer.mean) == (2000, 100.0)  # in these records the first images are those that are right
    assert fewer.low == pytest.approx(100 * clopper_pearson(2000, 2000)[0]) and fewer.high == 100
    for other in (replace(first, sha256="07" * 32), replace(first, rows="1-2000"), number.data, None):
        assert number.on(other) == number
    assert fewer.on(replace(first, n=100, rows="0-99")) == fewer  # which of all its images are, is not asked
    assert evidence(everywhere.records).authors("adv", 0.035).on(first).images == 2000
    counted = evidence(radius_records(P, as_in_the_paper, ["adv"])).authors("adv", 0.035)
    assert counted.on(first) == counted  # nobody knows which
    ours = [replace(r, data=first, correct=(1000,)) for r in averaged_records(P, as_in_the_paper, ["adv_bnn"])]
    words = claim("better_averaged", evidence([*everywhere.records, *ours])).evidence
    assert "50.0 against 100.0 % at 0.035" in words
