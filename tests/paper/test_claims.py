"""Every claim reaches every verdict that it can, and says why."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from advbnn.paper import judged
from advbnn.paper.evidence import Training
from advbnn.paper.verdicts import NOT, PARTLY, REPRODUCED, UNDECIDED, UNMEASURED
from made_up_reproductions import (
    CIFAR10,
    DIGITS,
    N,
    alphas,
    as_in_the_paper,
    audits,
    averaged_records,
    claim,
    ensemble_curves,
    everything,
    evidence,
    radius_records,
    steepness,
    steps_curves,
    transfers,
    verdict,
)

P = CIFAR10.protocol
Change = Callable[[str, float], float]


def shifted(**points: float) -> Change:
    """The paper's accuracies, those of some defences by so many points higher, but without attack."""
    return lambda label, eps: as_in_the_paper(label, eps) + (points.get(label, 0) / 100 if eps else 0)


def test_without_records_nothing_is_measured() -> None:
    claims = judged(evidence())
    assert {one.verdict for one in claims} == {UNMEASURED}
    assert all(one.evidence for one in claims)
    assert len({one.name for one in claims}) == len(claims)


def test_where_all_is_as_in_the_paper_all_is_reproduced() -> None:
    assert {one.name: one.verdict for one in judged(everything())} == dict.fromkeys(
        (one.name for one in judged(evidence())), REPRODUCED
    )


@pytest.mark.parametrize(
    ("change", "expected"),
    [(shifted(adv_bnn=-1.9), REPRODUCED), (shifted(adv_bnn=-6), PARTLY), (shifted(adv=5), REPRODUCED)],
)
def test_numbers_may_be_two_points_lower_or_any_amount_higher(change: Change, expected: str) -> None:
    assert verdict("numbers", evidence(radius_records(P, change))) == expected


def test_numbers_that_are_all_lower_are_not_reproduced() -> None:
    lower: Change = lambda label, eps: as_in_the_paper(label, eps) - 0.04  # noqa: E731
    found = claim("numbers", evidence(radius_records(P, lower)))
    assert found.verdict == NOT
    assert "0 of 10 numbers" in found.evidence


def test_data_without_numbers_in_the_paper_has_none_to_compare() -> None:
    found = claim("numbers", evidence(radius_records(DIGITS.protocol, as_in_the_paper), DIGITS))
    assert found.verdict == UNMEASURED
    assert found.evidence == "The paper has no numbers for this data."


@pytest.mark.parametrize(("points", "expected"), [(0, REPRODUCED), (-9, PARTLY), (-30, NOT)])
def test_adv_bnn_must_be_ahead_by_more_than_chance(points: float, expected: str) -> None:
    records = radius_records(P, shifted(adv_bnn=points))
    assert verdict("better", evidence(records)) == expected


def test_a_tie_is_no_lead() -> None:
    same: Change = lambda label, eps: 0.5  # noqa: E731
    found = evidence([*radius_records(P, same), *averaged_records(P, same), *audits(P, same)])
    assert {verdict(name, found) for name in ("better", "better_averaged", "better_worst", "gain")} == {NOT}
    assert {verdict(name, found) for name in ("attack", "bnn", "clean")} == {REPRODUCED}


@pytest.mark.parametrize(("points", "expected"), [(0, REPRODUCED), (-6, PARTLY), (-11, NOT)])
def test_the_gain_is_about_ten_points(points: float, expected: str) -> None:
    assert verdict("gain", evidence(radius_records(P, shifted(adv_bnn=points)))) == expected


@pytest.mark.parametrize(("points", "expected"), [(0, REPRODUCED), (-9, PARTLY), (-30, NOT)])
def test_the_gain_under_averaged_gradients(points: float, expected: str) -> None:
    records = [*radius_records(P, as_in_the_paper), *averaged_records(P, shifted(adv_bnn=points))]
    assert verdict("better_averaged", evidence(records)) == expected
    assert verdict("better", evidence(records)) == REPRODUCED


@pytest.mark.parametrize(("points", "expected"), [(0, REPRODUCED), (-9, PARTLY), (-30, NOT)])
def test_the_gain_in_the_worst_case(points: float, expected: str) -> None:
    assert verdict("better_worst", evidence(audits(P, shifted(adv_bnn=points)))) == expected


def test_images_that_were_not_decided_are_no_proof_against_a_gain() -> None:
    behind = evidence(audits(P, shifted(adv_bnn=-30), undecided=N // 2))
    assert verdict("better_worst", behind) == UNDECIDED
    assert "Of Adv-BNN's images 50.0 % could not be decided" in claim("better_worst", behind).evidence
    few, more = (audits(P, as_in_the_paper, undecided=share * N // 1000) for share in (20, 65))
    mixed = evidence([pair[place % 2] for place, pair in enumerate(zip(few, more, strict=True))])
    assert "Of Adv-BNN's images 2.0 to 6.5 % could not be decided" in claim("better_worst", mixed).evidence
    ahead = evidence(audits(P, as_in_the_paper, undecided=N // 2))
    assert verdict("better_worst", ahead) == REPRODUCED
    assert "decided" not in claim("better_worst", evidence(audits(P, as_in_the_paper))).evidence


@pytest.mark.parametrize(("points", "expected"), [(-1, REPRODUCED), (-4, PARTLY), (-8, NOT)])
def test_an_attack_that_overlooks_much_was_too_weak(points: float, expected: str) -> None:
    records = [*radius_records(P, as_in_the_paper), *averaged_records(P, shifted(adv_bnn=points))]
    assert verdict("attack", evidence(records)) == expected


@pytest.mark.parametrize(("points", "expected"), [(0, REPRODUCED), (8, PARTLY), (20, NOT)])
def test_a_bnn_by_itself(points: float, expected: str) -> None:
    records = [*radius_records(P, as_in_the_paper), *averaged_records(P, shifted(bnn=points))]
    assert verdict("bnn", evidence(records)) == expected


@pytest.mark.parametrize(("clean", "expected"), [(0.775, REPRODUCED), (0.85, REPRODUCED), (0.756, PARTLY), (0.65, NOT)])
def test_the_price_in_clean_accuracy(clean: float, expected: str) -> None:
    change: Change = lambda label, eps: clean if label == "adv_bnn" and eps == 0 else as_in_the_paper(label, eps)  # noqa: E731
    assert verdict("clean", evidence(radius_records(P, change))) == expected


@pytest.mark.parametrize(
    ("clean", "expected"),
    [
        ({1.0: 0.79, 0.1: 0.805}, REPRODUCED),
        ({1.0: 0.70, 0.1: 0.75, 0.01: 0.76}, PARTLY),
        ({1.0: 0.79, 0.1: 0.70}, NOT),
        ({1.0: 0.82, 0.1: 0.83}, UNMEASURED),  # there is no gap to close
        ({1.0: 0.79}, UNMEASURED),
    ],
)
def test_a_smaller_alpha(clean: dict[float, float], expected: str) -> None:
    records = [*radius_records(P, as_in_the_paper), *alphas(P, clean)]
    assert verdict("alpha", evidence(records)) == expected


@pytest.mark.parametrize(
    ("plain", "robust", "expected"), [(0.85, 0.55, REPRODUCED), (0.85, 0.8, PARTLY), (0.2, 0.9, NOT)]
)
def test_two_families(plain: float, robust: float, expected: str) -> None:
    def rho(a: str, b: str) -> float:
        return plain if {a, b} == {"none", "bnn"} else 0.3 if {a, b} & {"none", "bnn"} else robust

    assert verdict("families", evidence(transfers(P, rho))) == expected


@pytest.mark.parametrize(
    ("lost", "expected"),
    [
        (lambda size: 0.05 / size, REPRODUCED),
        (lambda size: 0.15 / size, PARTLY),
        (lambda size: 0.5 / size, NOT),
    ],
)
def test_how_many_draws_suffice(lost: Callable[[int], float], expected: str) -> None:
    assert verdict("draws", evidence(ensemble_curves(P, lost))) == expected


@pytest.mark.parametrize(("drop", "expected"), [(0.01, REPRODUCED), (0.04, PARTLY), (0.1, NOT)])
def test_more_steps(drop: float, expected: str) -> None:
    records = steps_curves(P, lambda count: drop if count > 100 else 0)
    assert verdict("steps", evidence(records)) == expected


def test_steps_that_stop_early_cannot_confirm_a_claim_about_a_thousand() -> None:
    records = [one for one in steps_curves(P, lambda count: 0) if one.at is not None and one.at < 300]
    found = claim("steps", evidence(records))
    assert found.verdict == PARTLY
    assert "longer attacks were not made" in found.evidence


@pytest.mark.parametrize(
    ("adv", "adv_bnn", "error", "expected"),
    [
        ((0.5, 0.9), (0.5, 0.6), 0.01, REPRODUCED),
        ((0.5, 0.9), (0.5, 1.2), 0.01, PARTLY),
        ((0.9, 0.9), (0.5, 1.2), 0.01, NOT),
        ((0.5, 0.9), (0.5, 0.6), 0.5, UNDECIDED),  # within the errors
    ],
)
def test_the_lipschitz_value(adv: tuple[Any, Any], adv_bnn: tuple[Any, Any], error: float, expected: str) -> None:
    values = {(name, part): v for name, pair in (("adv", adv), ("adv_bnn", adv_bnn)) for part, v in _parts(pair)}
    assert verdict("lipschitz", evidence(steepness(P, values, error))) == expected


def test_the_lipschitz_value_says_what_its_errors_are_of() -> None:
    old = steepness(P, {(name, part): 0.5 for name in ("adv", "adv_bnn") for part in ("train", "test")})
    new = [replace(one, details={"first_order": {**one.details["first_order"], "se_draws": 0.01}}) for one in old]
    assert "standard error over images alone" in claim("lipschitz", evidence(old)).evidence
    assert "standard error over images and draws" in claim("lipschitz", evidence(new)).evidence


def _parts(pair: tuple[float, float]) -> list[tuple[str, float]]:
    return list(zip(("train", "test"), pair, strict=True))


@pytest.mark.parametrize(("speed", "expected"), [(1000, REPRODUCED), (800, REPRODUCED), (500, PARTLY), (200, NOT)])
def test_the_overhead(speed: float, expected: str) -> None:
    trainings = {
        "adv": Training(parameters=100, examples_per_second=1000),
        "adv_bnn": Training(parameters=200, examples_per_second=speed),
    }
    assert verdict("overhead", evidence(trainings=trainings)) == expected
    assert "whether the two had the same device to themselves is not known" in (
        claim("overhead", evidence(trainings=trainings)).evidence
    )


def test_a_training_that_cannot_be_so_fast_decides_nothing() -> None:
    trainings = {
        "adv": Training(parameters=100, examples_per_second=800),
        "adv_bnn": Training(parameters=200, examples_per_second=1000),
    }
    found = claim("overhead", evidence(trainings=trainings))
    assert found.verdict == UNDECIDED
    assert "takes 0.80 times as long" in found.evidence
    assert "did not have the same device to themselves" in found.evidence


def test_runs_with_another_alpha_are_not_counted_among_the_trainings() -> None:
    found = evidence([*radius_records(P, as_in_the_paper, ["adv_bnn"]), *alphas(P, {0.1: 0.5})])
    number = found.clean("adv_bnn")
    assert number is not None
    assert (number.mean, number.trainings) == (pytest.approx(79.7), 1)


def test_a_gain_at_some_of_the_radii_alone_is_not_all_of_it() -> None:
    audited = audits(P, as_in_the_paper)
    one = [r for r in audited if r.threat is not None and r.threat.eps == P.table_radii[1]]
    assert verdict("better_worst", evidence(audited)) == REPRODUCED
    assert verdict("better_worst", evidence(one)) == PARTLY


def test_undecided_images_leave_it_open_whether_a_network_is_behind() -> None:
    behind = shifted(adv_bnn=-12)
    said = claim("better_worst", evidence(audits(P, behind))).evidence
    spared = claim("better_worst", evidence(audits(P, behind, undecided=N // 2))).evidence
    assert "behind at 0" not in said
    assert "behind at 0" in spared
