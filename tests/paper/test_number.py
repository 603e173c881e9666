"""Accuracies with their uncertainty, and how much of a difference may be chance."""

from dataclasses import replace

import pytest

from advbnn.evaluation.intervals import clopper_pearson
from advbnn.paper.number import Number, margin
from made_up_reproductions import CIFAR10, as_in_the_paper, evidence, radius_records, with_outcomes

P = CIFAR10.protocol
COUNTED = evidence(radius_records(P, as_in_the_paper, ["adv", "adv_bnn"]))
KNOWN = with_outcomes(COUNTED)


def number(found, label: str) -> Number:
    return Number.of([found.records.only(label=label, at=0.035)])


def test_the_margin_is_paired_on_the_same_known_images() -> None:
    ours, theirs = number(KNOWN, "adv_bnn"), number(KNOWN, "adv")
    apart = margin(number(COUNTED, "adv_bnn"), number(COUNTED, "adv"))
    assert margin(ours, theirs) == margin(theirs, ours) < apart / 1.4
    one = KNOWN.records.only(at=0.035, label="adv")
    for other in (replace(one.data, rows="1-10000"), replace(one.data, sha256="07" * 32)):
        assert margin(ours, Number.of([replace(one, data=other)])) == apart
    assert margin(ours, Number.of([replace(one, outcomes=())])) == apart


def test_trainings_are_averaged_and_their_spread_widens_the_margin() -> None:
    lower = radius_records(P, lambda label, eps: as_in_the_paper("adv", eps) - 0.04, ["adv-seed1"])
    found = with_outcomes(evidence([*COUNTED.records, *lower]))
    ours, theirs = found.authors("adv_bnn", 0.035), found.authors("adv", 0.035)
    assert (theirs.trainings, theirs.mean) == (2, pytest.approx(29.1))
    assert theirs.spread == pytest.approx(4 / 2**0.5, abs=0.01)
    half = 12.706 * theirs.spread / 2**0.5  # Student's, with one degree of freedom
    assert theirs.right.mean().item() == pytest.approx(theirs.mean / 100)
    assert margin(ours, theirs) == theirs.below == theirs.above == pytest.approx(half)


def test_a_number_on_all_images_is_known_on_the_first_ones() -> None:
    found = number(KNOWN, "adv")
    first = replace(found.data, n=2000, rows="0-1999")
    fewer = found.on(first)
    assert (fewer.images, fewer.mean, fewer.high) == (2000, 100.0, 100)  # the first images are those that are right
    assert fewer.low == pytest.approx(100 * clopper_pearson(2000, 2000)[0])
    for other in (replace(first, sha256="07" * 32), replace(first, rows="1-2000"), found.data, None):
        assert found.on(other) == found
    assert fewer.on(replace(first, n=100, rows="0-99")) == fewer  # only a part of all images was recorded
    assert number(COUNTED, "adv").on(first) == number(COUNTED, "adv")  # no outcomes
