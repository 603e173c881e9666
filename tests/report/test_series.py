"""The attacks that a report begins with, and their names: one for each setting."""

from dataclasses import replace
from typing import Any

import made_up_records as made_up
from advbnn.attacks import PGD, paper_pgd
from advbnn.attacks.identity import settings_of
from advbnn.attacks.threat import Threat
from advbnn.evaluation.records import Record, Records
from advbnn.report.audited import worst_cases
from advbnn.report.compose import compose
from advbnn.report.series import WORST, Titles, main_series, reaches
from made_up_records import attacked, audits, with_share

SCALED = settings_of(replace(paper_pgd(0.15), step_size=0.0336))


def titles_in_suite(records: Records) -> set[str]:
    return {row[2].text for row in compose(records).tables()["attack_suite"].rows}


def as_stored_before(record: Record) -> Record:
    """An audit as earlier versions stored it, with one name for the step size of 0.007 at every radius."""
    details: dict[str, Any] = dict(record.details)
    details["attacks"] = [
        {**entry, "name": "authors' PGD-20"} if entry["role"] == "paper" else entry for entry in details["attacks"]
    ]
    flag = {"name": "single_sample", "raised": True, "evidence": "30 % under authors' PGD-20.", "numbers": {}}
    return replace(record, details={**details, "flags": [flag]})


def test_one_setting_has_one_name_and_one_name_one_setting() -> None:
    audit = as_stored_before(audits().where(label="adv")[1])
    same = attacked("adv", 0.07, name="PGD-20")
    assert "PGD-20" in titles_in_suite(Records([audit, same]))
    other = attacked("adv", 0.07, name="PGD-20", attack=SCALED)
    found = titles_in_suite(Records([audit, other]))
    assert "PGD-20, step 0.007" in found and "PGD-20" not in found
    two = Records([attacked("adv", 0.07, name="pgd"), attacked("bnn", 0.07, name="pgd", attack=SCALED)])
    titles = Titles(two)
    assert len({titles.of(r.name, r.attack) for r in two}) == 2


def test_a_flag_names_attacks_as_the_report_does_and_says_which_cannot_reach() -> None:
    audit = as_stored_before(audits().where(label="adv")[0])
    far = replace(audit, threat=Threat("linf", 0.15))
    for record, reached in ((audit, True), (far, False)):
        (notice,) = next(s for s in compose(Records([record])).sections if s.name == "checks").notices
        assert "under PGD-20, step 0.007" in notice.words and "authors'" not in notice.words
        assert ("do not reach" in notice.words) != reached


def test_steps_that_are_too_short_are_not_in_the_headline() -> None:
    """Twenty steps of 0.007 do not reach a radius of 0.15."""
    audited = replace(worst_cases(audits()).where(label="adv")[0], threat=Threat("linf", 0.15))
    scaled = with_share(attacked("adv", 0.15, attack=SCALED), 0.25)
    assert reaches(scaled) and not reaches(attacked("adv", 0.15))
    records = Records([audited, scaled, attacked("adv", 0.15, name="paper 20, short")])
    found = main_series(records, worst_cases(records), Titles(records))
    assert [one.title for one in found] == ["PGD-20, step 0.0336", WORST]
    assert [r.accuracy for r in found[0].records.values()] == [0.25]


def test_single_averaged_and_worst_case_come_in_this_order() -> None:
    averaged = settings_of(replace(paper_pgd(0.035), eot=10))
    once = settings_of(PGD(Threat("linf", 0.035)))
    extra = [
        attacked("bnn", 0.035, name="averaged", attack=averaged),
        attacked("bnn", 0.035, name="pgd", attack=once),
    ]
    records = made_up.audits() + Records(extra)
    titles = [one.title for one in main_series(records, worst_cases(records), Titles(records))]
    assert titles == ["PGD-20", "averaged", WORST]
    # of the same attack, the one on the images of the audit
    (single, *_) = main_series(records, worst_cases(records), Titles(records))
    assert single.records["bnn", ("linf", 0.035)].details == {}
