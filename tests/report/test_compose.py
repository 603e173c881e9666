"""The contents of a report."""

from dataclasses import replace

import pytest

import made_up_records as made_up
from advbnn.attacks import PGD
from advbnn.attacks.identity import settings_of
from advbnn.attacks.threat import Threat
from advbnn.errors import ArgumentError
from advbnn.evaluation.audit.attack_suite import ROLES
from advbnn.evaluation.audit.flags import FLAGS
from advbnn.evaluation.audit.headline import NOISE
from advbnn.evaluation.records import Record, Records
from advbnn.evaluation.transfer import affinity
from advbnn.report.audited import worst_cases
from advbnn.report.compose import compose
from advbnn.report.elements import NOTHING, Contents, Section, percent, percent_range


def section(report: Contents, name: str) -> Section:
    return next(found for found in report.sections if found.name == name)


def cell(report: Contents, table: str, *headings: str) -> tuple[str, str]:
    """The entry in the row that begins with all but the last heading, and in the column of the last."""
    found = report.tables()[table]
    *row_headings, column = headings
    (row,) = [row for row in found.rows if [c.text for c in row[: len(row_headings)]] == row_headings]
    entry = row[list(found.columns).index(column)]
    return entry.text, entry.note


def shown(record: Record) -> tuple[str, str]:
    return percent(record.accuracy), percent_range(*record.interval)


SECTIONS = {
    "headline": made_up.clean,
    "checks": made_up.audits,
    "strength": made_up.other_curves,
    "ensemble": made_up.other_curves,
    "transfer": lambda: made_up.clean() + made_up.transfers(),
    "uncertainty": made_up.uncertainties,
    "detection": made_up.detections,
    "lipschitz": made_up.steepness,
}


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_is_there_if_there_are_records_for_it(name: str) -> None:
    few = {"none", "adv_bnn"}
    records = Records(r for r in SECTIONS[name]() if r.model.label in few and (not r.source or r.source.label in few))
    names = [found.name for found in compose(records).sections]
    assert name in names
    others = [other for other, maker in SECTIONS.items() if maker is not SECTIONS[name] and other in names]
    assert set(others) <= {"headline"}


def test_headline_has_both_numbers_with_their_intervals() -> None:
    records = made_up.clean() + made_up.audits()
    report = compose(records)
    for attack, column, found in (
        ("worst case", "linf 0.035", records.only(kind="worst_case", label="adv_bnn", eps=0.035)),
        ("PGD-20", "linf 0.035", made_up.attacked("adv_bnn", 0.035)),
        ("worst case", "no attack", records.only(kind="clean", label="adv_bnn")),
    ):
        assert cell(report, "headline", "Adv-BNN", attack, column) == shown(found)
    assert len(report.tables()["accuracies"].rows) == len(made_up.LABELS)
    assert "400 images of digits; 20 weight samples, 3 seeds" in report.tables()["headline"].caption


def test_without_the_authors_attack_the_headline_shows_what_there_is() -> None:
    attack = PGD(Threat("l2", 0.5))
    made = made_up.attacked("adv", 0.015, name="pgd", attack=settings_of(attack), threat=attack.threat)
    report = compose(Records([*made_up.clean(), made]))
    assert cell(report, "headline", "Adv. training", "pgd", "l2 0.5") == shown(made)
    assert cell(report, "headline", "BNN", "pgd", "l2 0.5") == (NOTHING.text, "")
    assert any("advbnn audit" in words for words in section(report, "headline").after)


def test_points_of_a_curve_replace_missing_single_records() -> None:
    curve = made_up.radius_curves()
    report = compose(curve)
    for column, at in {"no attack": 0.0, "linf 0.01": 0.01}.items():
        assert cell(report, "headline", "BNN", "PGD-20, step 0.007", column) == shown(curve.only(label="bnn", at=at))


def test_an_attack_that_was_measured_at_radius_0_alone_is_not_the_answer() -> None:
    start = made_up.attacked("adv", 0.0, name="APGD", attack={"name": "APGD"}, curve="radius", at=0.0)
    section = compose(Records([made_up.attacked("adv", 0.03), start])).sections[0]
    assert section.name == "headline" and "at linf 0.03" in section.words[0]


def test_transferred_attacks_alone_are_listed_without_a_headline_table() -> None:
    found = section(compose(made_up.transfers().where(kind="transfer")), "headline")
    assert not found.tables and [table.name for table in found.folded] == ["accuracies"]


def test_the_most_thorough_audit_counts() -> None:
    quick = made_up.audits().where(label="adv", eps=0.035)
    standard = [made_up.with_share(replace(record, name="standard"), 0.25) for record in quick]
    for records in (quick + standard, Records(standard) + quick):
        assert [record.name for record in worst_cases(records)] == ["standard"]
        assert cell(compose(records), "headline", "Adv. training", "worst case", "linf 0.035")[0] == "25.0"


def test_an_audit_by_the_old_rule_is_a_range() -> None:
    (new,) = made_up.audits().where(label="adv_bnn", eps=0.035)
    old = replace(new, details={name: value for name, value in new.details.items() if name != "certain"})
    most = replace(old, correct=tuple(a + b for a, b in zip(old.correct, (1, 0, 2), strict=True)))
    text, note = cell(compose(Records([old])), "headline", "Adv-BNN", "worst case", "linf 0.035")
    assert text == shown(new)[0]
    assert note == f"to {100 * most.accuracy:.1f} [{100 * old.interval[0]:.1f}, {100 * most.interval[1]:.1f}]"
    after = " ".join(section(compose(Records([old])), "headline").after)
    assert "older audit" in after and "quick" in after and "standard" in after
    assert "older audit" not in " ".join(section(compose(Records([new])), "headline").after)


def test_says_that_one_ensemble_can_put_a_single_attack_below_the_worst_case_of_a_random_network() -> None:
    (found,) = made_up.audits().where(label="adv_bnn", eps=0.035)
    for random in (True, False):
        record = replace(found, details={**found.details, "random": random})
        assert (NOISE in " ".join(section(compose(Records([record])), "headline").after)) == random


def test_flags_of_two_norms_are_told_apart() -> None:
    found = made_up.audits().where(label="rse", eps=0.015)
    both = found + [replace(r, threat=Threat("l2", 0.015)) for r in found]
    report = compose(both)
    assert [row[2].text for row in report.tables()["evidence"].rows[:2]] == ["l2 0.015", "linf 0.015"]
    assert {row[1].text for row in report.tables()["attack_suite"].rows} == {"l2 0.015", "linf 0.015"}
    assert section(report, "checks").notices[0].title.endswith("(l2 0.015, linf 0.015)")


def test_curves_have_a_panel_for_each_condition_and_their_numbers() -> None:
    report = compose(made_up.other_curves())
    names = [figure.name for figure in section(report, "ensemble").figures]
    assert names == ["ensemble-clean", "ensemble-paper-20-at-linf-0.035"]
    made = made_up.other_curves().only(label="adv_bnn", curve="steps", at=26.0)
    assert cell(report, "steps-paper-at-linf-0.035", "26", "Adv-BNN") == shown(made)


def test_affinity_is_that_of_equation_17() -> None:
    records = made_up.clean() + made_up.transfers()
    left = percent(records.only(name="from bnn", label="none").accuracy)
    expected = (f"{affinity(records)['bnn']['none']:.2f}", f"{left} %")
    assert cell(compose(records), "affinity", "from BNN", "on No defence") == expected


def test_affinity_leaves_out_what_was_not_measured_and_marks_what_is_above_1() -> None:
    kept = [r for r in made_up.transfers() if (r.name, r.model.label) != ("from adv", "none")]
    weak = [made_up.with_share(r, 0.1) if (r.name, r.model.label) == ("from rse", "adv") else r for r in kept]
    mean = replace(weak[0], name="mean 20", source=replace(weak[0].model, label="Sequential"))
    rows = compose(made_up.clean() + weak + [mean]).tables()["affinity"].rows
    assert (rows[1][0].text, rows[2][1]) == ("from RSE", NOTHING)
    assert (rows[1][3].strong, rows[1][3].heat) == (True, 1.0)


def test_raised_flags_come_with_evidence_and_advice() -> None:
    found = section(compose(made_up.audits()), "checks")
    rse, _ = found.notices
    title = FLAGS["black_box"].title
    assert rse.title == f"RSE: {title[0].lower()}{title[1:]} (linf 0.015, linf 0.035, linf 0.055, linf 0.07)"
    assert rse.words.startswith("Square leaves 7.0 % right, PGD 14.0 %.")  # at the largest radius
    assert rse.advice == FLAGS["black_box"].advice
    report = compose(made_up.audits())
    assert cell(report, "flags", FLAGS["black_box"].title, "RSE") == ("raised", "")
    assert cell(report, "flags", FLAGS["single_sample"].title, "Adv-BNN") == ("raised", "at linf 0.055, linf 0.07")
    assert cell(report, "flags", FLAGS["probabilities"].title, "RSE") == ("no", "")


def test_the_suite_shows_which_attacks_saw_all_images() -> None:
    rows = compose(made_up.audits().where(label="adv", eps=0.035)).tables()["attack_suite"].rows
    assert [row[3].text for row in rows] == ["clean", ROLES["paper"], "black box", "worst case (quick)"]
    assert (rows[2][4].note, rows[1][4].note[-1]) == ("", "%")
    assert "certain" in rows[3][2].note and "0.2 % inconclusive" in rows[3][2].note  # 3 of 3 x 400
    calm = section(compose(made_up.audits().where(label="adv")), "checks")
    assert [notice.alarming for notice in calm.notices] == [False]


def test_uncertainty_and_lipschitz_values_show_their_numbers() -> None:
    records = made_up.uncertainties() + made_up.detections() + made_up.steepness()
    report = compose(records)
    made = records.only(kind="uncertainty", label="bnn", name="paper 20").details
    assert cell(report, "uncertainty", "BNN", "paper 20 at linf 0.035", "ECE")[0] == f"{made['ece']['mean']:.3f}"
    assert cell(report, "detection", "BNN", "images of noise", "entropy")[0] == "0.900"
    lipschitz = records.only(kind="lipschitz", label="bnn", name="train").details["first_order"]["mean"]
    assert cell(report, "lipschitz-linf-0.035", "BNN", "train", "first-order estimate")[0] == f"{lipschitz:.3f}"
    successful = [row[0].text for row in report.tables()["detection"].rows if "successful" in row[1].text]
    assert successful == ["No defence", "RSE", "BNN", "Adv-BNN"]  # the attack never succeeded on the other
    risk = made["risk_coverage"]["risk"][-1]
    assert cell(report, "risk-coverage-2", "100", "BNN")[0] == f"{100 * risk:.1f}"


def test_empty_bins_are_not_drawn() -> None:
    figure = section(compose(made_up.uncertainties()), "uncertainty").figures[0]
    clean, attacked = figure.draw.args[2]
    assert (len(clean.x), sum(clean.share), attacked.hollow) == (13, pytest.approx(1), True)


def test_provenance_identifies_weights_images_software_and_commands() -> None:
    found = compose(made_up.clean() + made_up.detections())
    tables = {table.name: [[c.text for c in row] for row in table.rows] for table in found.provenance}
    assert ["adv", "Bayesian(Sequential)", "a" * 64] in tables["models"]
    assert [row[0] for row in tables["data"]] == ["digits", "noise"]
    assert ["torch", "2.13.0"] in tables["settings"] and ["evaluation seeds", "0 1 2"] in tables["settings"]
    assert found.commands[0] == "advbnn evaluate runs/none"


def test_refuses_records_of_different_data() -> None:
    other = replace(made_up.clean()[0], data=replace(made_up.TEST, name="cifar10", sha256="c1fa"))
    label = replace(other, model=replace(other.model, label="mine"))
    with pytest.raises(ArgumentError, match=r"adv_bnn: digits \(7e577e57\); mine: cifar10 \(c1fa\)"):
        compose(Records([*made_up.clean(), label]))
    train = made_up.steepness().only(label="adv", name="train")
    other = replace(train, model=replace(train.model, label="mine"), data=replace(train.data, sha256="00"))
    with pytest.raises(ArgumentError, match="different data"):
        compose(Records([*made_up.steepness(), other]))
    with pytest.raises(ArgumentError, match="records "):
        compose(Records())


def test_parts_of_one_data_set_may_be_combined() -> None:
    made = made_up.record("mine", 0.5, data=replace(made_up.TEST, n=100, rows="0-99"))
    assert "100 to 400 images of digits" in compose(Records([*made_up.clean(), made])).tables()["headline"].caption


def test_names_of_figures_differ_even_if_those_of_attacks_look_alike() -> None:
    alike = [made_up.attacked("adv", 0.1, name=name, curve="eot", at=2) for name in ("a b", "a-b", "a_b", "a c")]
    names = [figure.name for figure in section(compose(Records(alike)), "strength").figures]
    assert names == ["eot-a-b-at-linf-0.1", *(f"eot-a-b-at-linf-0.1-{n}" for n in (2, 3)), "eot-a-c-at-linf-0.1"]


def test_each_norm_has_its_picture_and_other_attacks_their_curves() -> None:
    def in_l2(found: Records) -> list[Record]:
        return [
            replace(r, name=f"{r.name} l2", attack={"name": "X"}, threat=Threat("l2", 10 * r.threat.eps))
            for r in found
            if r.threat is not None
        ]

    records = made_up.clean() + made_up.audits() + in_l2(made_up.audits())
    report = compose(records)
    assert {figure.name for figure in section(report, "headline").figures} == {"accuracy-linf", "accuracy-l2"}
    other = [made_up.attacked("adv", e, name="x", attack={"name": "X"}, curve="radius", at=e) for e in (0.1, 0.2, 0.3)]
    (figure,) = section(compose(records + other), "radius").figures
    assert figure.name == "radius-x-linf"
