"""The picture at the beginning of a report, and the words above it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import made_up_records as made_up
from advbnn.evaluation.audit.worst_case import WORST_CASE
from advbnn.evaluation.outcomes import pack
from advbnn.evaluation.records import Record, Records
from advbnn.report.audited import worst_cases
from advbnn.report.compose import compose
from advbnn.report.picture import Picture, pictures
from advbnn.report.sections.headline import clean_records
from advbnn.report.select import labels_of
from advbnn.report.series import Titles, main_series
from advbnn.report.style import looks


def picture(records: Records) -> Picture:
    worst, shown = worst_cases(records), looks(labels_of(records))
    (found,) = pictures(main_series(records, worst, Titles(records)), clean_records(records, worst, shown), shown)
    return found


def test_several_models_have_a_panel_for_each_attack_on_one_scale() -> None:
    records = made_up.clean() + made_up.radius_curves() + made_up.audits()
    found = picture(records)
    assert [panel.title for panel in found.panels] == ["PGD-20, step 0.007", "Worst case"]
    line = next(line for line in found.panels[1].lines if line.look.label == "adv")
    assert list(line.x) == [0.0, *made_up.BATTERY_RADII] and line.style == "solid"
    worst = records.only(kind=WORST_CASE, label="adv", eps=0.035)
    assert line.y[2] == pytest.approx(100 * worst.accuracy)
    assert line.low is not None and line.low[2] == pytest.approx(100 * worst.interval[0])
    assert "Adv. training, worst case" in found.alt
    assert len(found.numbers.rows) == sum(len({x for line in panel.lines for x in line.x}) for panel in found.panels)


def test_one_model_has_one_panel() -> None:
    records = Records(r for r in made_up.clean() + made_up.audits() if r.model.label == "adv_bnn")
    (panel,) = picture(records).panels
    assert [line.look.title for line in panel.lines] == ["PGD-20", "worst case"]
    assert len({line.style for line in panel.lines}) == 2


def test_two_points_are_not_joined() -> None:
    records = made_up.clean() + made_up.audits().where(eps=0.035)
    assert {line.style for panel in picture(records).panels for line in panel.lines} == {"points"}
    alpha = [made_up.attacked("adv_bnn", 0.035, curve="alpha", at=at) for at in (0.1, 1.0)]
    (section,) = [s for s in compose(Records(alpha)).sections if s.name == "alpha"]
    (figure,) = section.figures
    assert [line.style for line in figure.draw.args[1].lines] == ["points"]


@pytest.mark.parametrize(("ending", "start"), [("svg", b"<?xml"), ("pdf", b"%PDF"), ("png", b"\x89PNG")])
def test_is_written_in_every_format_twice_the_same(tmp_path: Path, ending: str, start: bytes) -> None:
    found = picture(made_up.clean() + made_up.audits())
    for name in ("one", "two"):
        found.save(tmp_path / f"{name}.{ending}")
    one, two = ((tmp_path / f"{name}.{ending}").read_bytes() for name in ("one", "two"))
    assert one.startswith(start) and one == two


def with_outcomes(record: Record, right: torch.Tensor) -> Record:
    """The record with these images correct under every seed."""
    seeds = len(record.seeds)
    outcomes = (pack(right.long(), 1),) * seeds
    return replace(record, correct=(int(right.sum()),) * seeds, outcomes=outcomes)


def test_the_answer_compares_the_two_best_on_the_same_images() -> None:
    order = torch.arange(made_up.N)
    audits = made_up.audits().where(eps=0.035)
    shares = {"none": 0.0, "rse": 0.1, "adv": 0.5, "bnn": 0.0, "adv_bnn": 0.52}

    def words(shift: int) -> str:
        records = [
            with_outcomes(
                r, ((order + (shift if r.model.label == "adv" else 0)) % made_up.N) < shares[r.model.label] * r.n
            )
            for r in audits
        ]
        (found,) = compose(Records(records)).sections[0].words
        return found

    nested, disjoint = words(0), words(200)
    assert "Adv-BNN has the highest worst-case accuracy of 5 models at linf 0.035: 52.0 %" in nested
    assert "Adv. training follows with 50.0 %" in nested
    # 8 images of 400 more and none less can be told apart; 208 more and 200 less cannot
    assert "same 400 images the difference is 2.0 points" in nested
    assert "cannot be told apart" in disjoint


def test_the_answer_says_what_a_single_attack_missed_on_the_same_images() -> None:
    (words,) = compose(made_up.audits()).sections[0].words
    gap = made_up.attacked("rse", 0.035).accuracy - made_up.audits().only(label="rse", eps=0.035).accuracy
    assert f"{100 * gap:.1f} points less" in words and "same 400 images" in words
    elsewhere = replace(made_up.TEST, n=50, rows="0-49")
    single = [
        replace(made_up.attacked(label, 0.035, name="x"), data=elsewhere, correct=(50,) * 3) for label in made_up.LABELS
    ]
    silent = [
        replace(r, details={**r.details, "attacks": r.details["attacks"][:1]})
        for r in made_up.audits().where(eps=0.035)
    ]
    (words,) = compose(Records([*silent, *single])).sections[0].words
    assert "overstate" not in words


def test_reports_of_own_defences_do_not_speak_of_a_paper() -> None:
    mine = [replace(r, model=replace(r.model, label="mine"), command="") for r in made_up.audits().where(label="rse")]
    report = compose(Records(mine))
    sections = [s for s in report.sections if s.name in ("headline", "checks")]
    texts = [t for s in sections for t in (*s.words, *s.after, *(n.words + n.advice for n in s.notices))]
    texts += [c.text for s in sections for t in (*s.tables, *s.folded) for row in t.rows for c in row]
    texts += [t.caption for s in sections for t in (*s.tables, *s.folded)]
    assert texts and not [text for text in texts if "paper" in text.lower() or "authors" in text.lower()]
