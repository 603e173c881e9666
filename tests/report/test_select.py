"""How records are put into words."""

from dataclasses import replace

import made_up_records as made_up
from advbnn.report.select import radius_words, samples_of


def test_radii_are_grey_levels_unless_they_are_round() -> None:
    words = {8 / 255: "8/255", 0.031373: "8/255", 0.2: "0.2", 0.035: "0.035", 0.0: "0"}
    assert {eps: radius_words(eps) for eps in words} == words


def test_exact_means_are_not_called_weight_samples() -> None:
    record = made_up.audits()[0]
    exact = replace(record, samples=3, exact=True)
    assert samples_of([record]).startswith(f"{record.samples} weight samples, ")
    assert samples_of([exact]).startswith("all of 3 members, ")
    assert samples_of([record, exact]).startswith(f"{record.samples} weight samples, all of 3 members, ")
