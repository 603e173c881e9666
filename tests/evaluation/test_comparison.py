"""Comparisons of stored records: paired on common images, and honest about what they show."""

from dataclasses import replace

import pytest
import torch

from advbnn.attacks import PGD
from advbnn.attacks.threat import Threat
from advbnn.evaluation.accuracy import evaluate
from advbnn.evaluation.comparison import compare
from advbnn.evaluation.identity import DataIdentity, ranges, row_list
from advbnn.evaluation.intervals import paired_interval
from advbnn.evaluation.records import Records
from advbnn.evaluation.uncertainty import uncertainty
from trained_nets import bnn, digits, net

THREAT = Threat("linf", 0.1)
OPTIONS = {"samples": 3, "seeds": 2}


def measured(label: str, attacks=None, rows=None, model=None) -> Records:
    return evaluate(model or net(), digits(), attacks, rows=rows, label=label, **OPTIONS)


@pytest.mark.parametrize("rows", [[0, 1, 2, 5], [7, 3, 4, 5], [9], list(range(12))])
def test_rows_are_read_as_they_are_written(rows: list[int]) -> None:
    assert row_list(DataIdentity(name="a", sha256="b", n=len(rows), rows=ranges(rows))) == rows
    assert row_list(DataIdentity(name="a", sha256="b", n=3)) == [0, 1, 2]


def test_the_interval_is_paired_on_the_images_that_both_have() -> None:
    attacks = {"clean": None, "pgd": PGD(THREAT, steps=3)}
    one, other = measured("net", attacks, rows=range(110)), measured("bnn", attacks, torch.arange(119, 5, -1), bnn())
    clean, pgd = compare(one, other)
    assert (clean.what, pgd.what, pgd.labels, pgd.n) == ("clean", "pgd at linf 0.1", ("net", "bnn"), 104)
    right = one[1].right[6:], other[1].right.flip(0)[:104]
    assert pgd.interval == paired_interval(*right)
    assert pgd.difference == pytest.approx((right[0].mean() - right[1].mean()).item())
    swapped = compare(other, one)[1]
    assert swapped.difference == -pgd.difference
    assert swapped.interval == pytest.approx(tuple(-end for end in reversed(pgd.interval)))


def test_says_which_is_better_only_if_the_interval_excludes_zero() -> None:
    clean, attacked = (measured("net", {"x": a}, rows=range(100)) for a in (None, PGD(Threat("linf", 0.3), steps=5)))
    (same,) = compare(clean, [replace(clean[0], model=replace(clean[0].model, label="twin"))])
    assert not same.significant and "cannot be told apart" in str(same) and same.difference == 0
    weaker = replace(clean[0], correct=attacked[0].correct, outcomes=attacked[0].outcomes)
    (apart,) = compare(clean, [weaker])
    assert apart.significant and apart.interval[0] > 0 and "points more than" in str(apart)
    assert "points less than" in str(compare([weaker], clean)[0])


def test_only_equal_measurements_are_compared() -> None:
    one = measured("net", {"pgd": PGD(THREAT, steps=2)}, rows=range(100))
    for other in (
        measured("bnn", {"pgd": PGD(THREAT, steps=3)}, rows=range(100)),
        measured("bnn", {"pgd": PGD(Threat("linf", 0.2), steps=2)}, rows=range(100)),
        measured("bnn", {"clean": None}, rows=range(100)),
        [replace(one[0], data=replace(one[0].data, sha256="others"))],
        [replace(one[0], outcomes=())],
    ):
        assert compare(one, other) == []
    with pytest.raises(ValueError, match="one model.*net, twin"):
        compare([*one, replace(one[0], model=replace(one[0].model, label="twin"))], one)


def test_an_accuracy_that_records_of_several_kinds_hold_is_compared_once() -> None:
    attacks, both = {"clean": None, "pgd": PGD(THREAT, steps=2)}, []
    for label, model in (("net", net()), ("bnn", bnn())):
        options = {"rows": range(100), "label": label, **OPTIONS}
        both.append(evaluate(model, digits(), attacks, **options) + uncertainty(model, digits(), attacks, **options))
    assert [len(records) for records in both] == [5, 5]
    assert [one.what for one in compare(*both)] == ["clean", "pgd at linf 0.1"]
