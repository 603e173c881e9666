"""Figures, tables and the report, from whatever was measured."""

from dataclasses import replace
from pathlib import Path

import pytest

import made_up_reproductions as made_up
from advbnn.evaluation.audit.headline import NOISE
from advbnn.evaluation.records import Records
from advbnn.paper import Experiment, check_claims, write_all
from advbnn.paper.experiment import RECORDS
from advbnn.paper.figures import FIGURES, draw_all
from advbnn.paper.tables import table1
from advbnn.paper.write import results
from advbnn.report.elements import NOTHING
from made_up_reproductions import CIFAR10, DIGITS, as_in_the_paper, audits, evidence, radius_records

pytest.importorskip("matplotlib")

P = CIFAR10.protocol
PARTS = {
    "radius": (radius_records(P, as_in_the_paper), {"table1", "fig2"}),
    "rse": (radius_records(P, as_in_the_paper, ["rse"]), {"fig2"}),
    "averaged": (made_up.averaged_records(P, as_in_the_paper), set()),
    "audit": (audits(P, as_in_the_paper), {"table1"}),
    "transfer": (made_up.transfers(P, lambda a, b: 0.5), {"fig3"}),
    "ensemble": (made_up.ensemble_curves(P, lambda size: 0.0), {"fig4"}),
    "steps": (made_up.steps_curves(P, lambda count: 0.0), {"fig4"}),
    "lipschitz": (made_up.lipschitz_values(P, [0.5]), {"lipschitz"}),
    "alpha": (made_up.alphas(P, {1.0: 0.7}), {"alpha"}),
}


@pytest.mark.parametrize("part", PARTS)
def test_any_part_alone_can_be_shown(tmp_path, part: str) -> None:
    records, figures = PARTS[part]
    found = evidence(records)
    assert set(draw_all(found, tmp_path)) == figures
    text = results(found, check_claims(found), {})
    assert "not measured" in text


def test_table_1_has_the_papers_rows_and_ours() -> None:
    table = table1(made_up.everything())
    rows = {(row[0].text, row[1].text): [cell.text for cell in row[2:]] for row in table.rows}
    assert rows["Adv-BNN", "the paper"] == ["79.7", "68.7", "45.4", "26.9", "18.6"]
    assert rows["Adv-BNN", "PGD-20"] == ["79.7", "68.7", "45.4", "26.9", "18.6"]
    assert rows["Adv-BNN", P.averaged] == ["-", "67.7", "44.4", "25.9", "17.6"]
    assert rows["Adv-BNN", "worst case"][2] == "36.3"
    assert ["-", "64.2", "37.7", "16.3", "8.1"] in rows.values()  # later work
    assert ("Adv. training", P.averaged) not in rows
    assert "10,000 images of cifar10" in table.caption and "standard audit" in table.caption


def test_the_caption_has_the_smaller_number_of_images() -> None:
    averaged = made_up.averaged_records(P, as_in_the_paper)
    fewer = [replace(one, data=replace(one.data, n=2000), correct=(1000,)) for one in averaged]
    assert "2,000 images" in table1(evidence([*radius_records(P, as_in_the_paper), *fewer])).caption


def test_a_worst_case_by_the_old_rule_is_a_range() -> None:
    new, old = (table1(evidence(audits(P, as_in_the_paper, inconclusive=images))) for images in (0, 650))
    for table, note in ((new, "["), (old, "to 51.9 [")):  # 45.4 and 6.5
        worst = {row[0].text: row for row in table.rows if row[1].text == "worst case"}
        assert (worst["Adv-BNN"][4].text, worst["Adv-BNN"][4].note[: len(note)]) == ("45.4", note)
        assert worst["Adv. training"][4].note.startswith("[")
    assert "older" in old.caption and "older" not in new.caption
    assert NOISE in new.caption and NOISE not in old.caption


def test_several_trainings_are_shown_with_their_spread() -> None:
    lower = radius_records(P, lambda label, eps: as_in_the_paper("adv", eps) - 0.04, ["adv-seed1"])
    table = table1(evidence([*radius_records(P, as_in_the_paper, ["adv"]), *lower]))
    assert table.rows[1][4].note == "\u00b1 2.8"


def test_digits_show_no_number_of_the_paper() -> None:
    found = evidence(radius_records(DIGITS.protocol, as_in_the_paper), DIGITS)
    assert {row[1].text for row in table1(found).rows} == {"PGD-20", DIGITS.protocol.averaged}
    assert {cell for row in table1(evidence(experiment=DIGITS)).rows for cell in row[2:]} == {NOTHING}


def test_a_folder_gives_the_same_files_every_time(tmp_path) -> None:
    pytest.importorskip("jinja2")
    out, figures = tmp_path / "out", tmp_path / "images"
    Experiment.choose("cifar10").write(out, test_images=10_000)
    for name, (records, _) in PARTS.items():
        if name != "rse":
            Records(records).save(out / RECORDS / f"{name}.json")
    report = write_all(out, figures=figures)
    before = _contents(tmp_path)
    assert "The paper&#39;s claims" in report.read_text()
    text = (out / "results.md").read_text()
    assert text.index("(../images/table1.png)") < text.index("| defence |")  # the picture before its table
    assert "(../images/fig2.png)" in text and "advbnn reproduce all --data cifar10" in text
    assert {path.stem for path in figures.iterdir()} == set(FIGURES)
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in figures.iterdir())
    write_all(out, figures=figures)
    assert _contents(tmp_path) == before


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
