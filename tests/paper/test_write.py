"""Figures, tables and report of whatever there are records of, and no invented numbers."""

from dataclasses import replace
from pathlib import Path

import pytest

from advbnn.evaluation.records import Records
from advbnn.paper import Evidence, Experiment, judged, write_all
from advbnn.paper.evidence import Training
from advbnn.paper.figures import FIGURES, draw_all
from advbnn.paper.plan import RECORDS, RUNS
from advbnn.paper.tables import claims_table, table1
from advbnn.paper.write import results
from advbnn.report.tables import NOTHING
from advbnn.training.run_folder import FACTS, METRICS
from made_up_reproductions import (
    CIFAR10,
    DIGITS,
    alphas,
    as_in_the_paper,
    audits,
    averaged_records,
    ensemble_curves,
    everything,
    evidence,
    radius_records,
    steepness,
    steps_curves,
    transfers,
)

pytest.importorskip("matplotlib")

P = CIFAR10.protocol
PARTS = {
    "radius": radius_records(P, as_in_the_paper),
    "averaged": averaged_records(P, as_in_the_paper),
    "audit": audits(P, as_in_the_paper),
    "transfer": transfers(P, lambda a, b: 0.5),
    "ensemble": ensemble_curves(P, lambda size: 0.0),
    "steps": steps_curves(P, lambda count: 0.0),
    "lipschitz": steepness(P, {("adv", "test"): 0.5}),
    "alpha": alphas(P, {1.0: 0.7}),
}


@pytest.mark.parametrize(
    ("part", "figures"),
    [
        ("radius", {"table1", "fig2"}),
        ("averaged", set()),
        ("audit", {"table1"}),
        ("transfer", {"fig3"}),
        ("ensemble", {"fig4"}),
        ("steps", {"fig4"}),
        ("lipschitz", {"lipschitz"}),
        ("alpha", {"alpha"}),
    ],
)
def test_any_part_alone_can_be_shown(tmp_path, part: str, figures: set[str]) -> None:
    found = evidence(PARTS[part])
    assert set(draw_all(found, tmp_path)) == figures
    text = results(found, judged(found), {})
    assert "not measured" in text
    assert "## Claims" in text


def test_one_defence_alone_can_be_shown(tmp_path) -> None:
    found = evidence(radius_records(P, as_in_the_paper, ["rse"]))
    assert set(draw_all(found, tmp_path)) == {"fig2"}
    assert {row[0].text for row in table1(found).rows} == {"RSE"}


def test_the_caption_says_how_many_images_were_not_decided() -> None:
    assert "nconclusive" not in table1(evidence(audits(P, as_in_the_paper))).caption
    for images, most in ((400, "4.0"), (650, "6.5"), (1, "0.1")):
        found = table1(evidence(audits(P, as_in_the_paper, undecided=images)))
        assert f"up to {most} %" in found.caption


def test_the_table_has_the_papers_rows_and_ours() -> None:
    table = table1(everything())
    rows = {(row[0].text, row[1].text): [cell.text for cell in row[2:]] for row in table.rows}
    assert rows["Adv-BNN", "the paper"] == ["79.7", "68.7", "45.4", "26.9", "18.6"]
    assert rows["Adv-BNN", "later work, gradients averaged"] == ["-", "64.2", "37.7", "16.3", "8.1"]
    assert rows["Adv-BNN", "PGD-20"] == ["79.7", "68.7", "45.4", "26.9", "18.6"]
    assert rows["Adv-BNN", "PGD-20, 10 draws averaged"] == ["-", "67.7", "44.4", "25.9", "17.6"]
    assert rows["Adv-BNN", "worst case"][2] == "36.3"
    assert ("Adv. training", "PGD-20, 10 draws averaged") not in rows
    assert "10,000 images of cifar10" in table.caption
    assert "standard audit" in table.caption
    assert "Averaged" not in table.caption  # where it is on as many images, that need not be said


def test_the_table_says_where_averaged_gradients_are_of_fewer_images() -> None:
    averaged = averaged_records(P, as_in_the_paper)
    fewer = [replace(one, data=replace(one.data, n=2000), correct=(1000,)) for one in averaged]
    caption = table1(evidence([*radius_records(P, as_in_the_paper), *fewer])).caption
    assert "10,000 images of cifar10" in caption
    assert "Averaged gradients on the first 2,000 images of cifar10" in caption


def test_several_trainings_are_shown_with_their_spread() -> None:
    twice = [
        *radius_records(P, as_in_the_paper, ["adv"]),
        *radius_records(P, lambda label, eps: as_in_the_paper("adv", eps) - 0.04, ["adv-seed1"]),
    ]
    table = table1(evidence(twice))
    assert table.rows[1][4].note == "\u00b1 2.8"
    assert "over the trainings" in table.caption


def test_digits_show_no_number_of_the_paper(tmp_path) -> None:
    protocol = DIGITS.protocol
    found = evidence(radius_records(protocol, as_in_the_paper), DIGITS)
    assert not {"the paper", "later work, gradients averaged"} & {row[1].text for row in table1(found).rows}
    assert "Later work" not in table1(found).caption
    assert "The paper has no numbers for this data" in results(found, judged(found), {})
    assert found.paper_says("adv", 0.0) is None


def test_without_records_the_table_is_empty_and_says_so() -> None:
    table = table1(evidence(experiment=DIGITS))
    assert {cell for row in table.rows for cell in row[2:]} == {NOTHING}


def test_a_folder_becomes_a_report_and_the_same_one_again(tmp_path) -> None:
    pytest.importorskip("jinja2")
    Experiment.choose("cifar10").write(tmp_path, test_images=10_000)
    for name, records in PARTS.items():
        Records(records).save(tmp_path / RECORDS / f"{name}.json")
    report = write_all(tmp_path)
    before = _contents(tmp_path)
    assert report == tmp_path / "report" / "report.html"
    page = report.read_text()
    assert "The paper&#39;s claims" in page
    assert "How strongly training holds the weights to their prior" in page
    text = (tmp_path / "results.md").read_text()
    assert "![Figure 2" in text
    assert "advbnn reproduce all --data cifar10" in text
    assert {path.stem for path in (tmp_path / "figures").iterdir()} == set(FIGURES)
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in (tmp_path / "figures").iterdir())
    write_all(tmp_path)
    assert _contents(tmp_path) == before


def test_a_smaller_test_set_is_not_compared_with_the_paper(tmp_path) -> None:
    Experiment.choose("stl10").write(tmp_path, test_images=1_000)
    assert Evidence.read(tmp_path).paper == {}
    Experiment.choose("stl10").write(tmp_path, test_images=8_000)
    assert Evidence.read(tmp_path).paper["adv"][0] == 63.2


def test_claims_are_listed_with_source_verdict_and_evidence() -> None:
    table = claims_table(judged(everything()))
    assert table.rows[0][1].note == "(Table 1)"
    assert table.rows[3][1].note == "(not asked by the paper)"
    assert all(row[2].text == "reproduced" and row[3].text for row in table.rows)


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_that_was_killed_as_it_wrote_a_line_is_read(tmp_path) -> None:
    run = tmp_path / RUNS / "adv"
    run.mkdir(parents=True)
    CIFAR10.write(tmp_path, test_images=10_000)
    (run / FACTS).write_text('{"model": {"parameters": 100}}')
    (run / METRICS).write_text('{"examples_per_second": 500.0}\n{"examples_per_sec')
    assert Evidence.read(tmp_path).trainings == {"adv": Training(parameters=100, examples_per_second=500.0)}
