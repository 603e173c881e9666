import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from advbnn.attacks.threat import Threat
from advbnn.evaluation.identity import DataIdentity, ModelIdentity
from advbnn.evaluation.intervals import clopper_pearson
from advbnn.evaluation.outcomes import pack
from advbnn.evaluation.records import Record, Records, Spread

RECORD = Record(
    kind="attack",
    name="PGD",
    model=ModelIdentity(label="adv_bnn", kind="Bayesian(Sequential)", sha256="ab"),
    data=DataIdentity(name="digits", sha256="cd", n=200, rows="0-199"),
    attack="PGD(...)",
    threat=Threat("linf", 8 / 255),
    source=ModelIdentity(label="none", kind="Sequential", sha256="ef"),
    against=DataIdentity(name="noise", sha256="01", n=5),
    samples=20,
    seeds=(0, 1, 2),
    batch_size=50,
    precision="float32",
    curve="radius",
    at=8 / 255,
    correct=(90, 91, 95),
    details={"nll": {"mean": 1.5}, "risk": [0.0, 0.5]},
    seconds=12.5,
    versions={"torch": "2.13"},
    command="advbnn evaluate run",
)


def test_accuracy_interval_and_spread() -> None:
    assert RECORD.accuracy == pytest.approx(276 / 600)
    assert RECORD.interval == clopper_pearson(92, 200)
    assert RECORD.spread == Spread(mean=0.46, sd=pytest.approx(math.sqrt(7) / 200), min=0.45, max=0.475)
    assert replace(RECORD, seeds=(0,), correct=(90,)).spread == Spread(0.45, 0.0, 0.45, 0.45)


def test_survives_json_exactly() -> None:
    stored = json.loads(json.dumps(RECORD.to_dict(), allow_nan=False))
    assert stored["accuracy"] == RECORD.accuracy
    assert stored["interval"] == list(RECORD.interval)
    loaded = Record.from_dict(stored)
    assert loaded == RECORD
    assert (loaded.seconds, loaded.command) == (12.5, "advbnn evaluate run")
    unbounded = replace(RECORD, threat=Threat("l2", math.inf))
    assert Record.from_dict(json.loads(json.dumps(unbounded.to_dict(), allow_nan=False))) == unbounded


def with_outcomes() -> Record:
    """The record, and which images were right: under each seed the first ones."""
    return replace(RECORD, outcomes=tuple(pack(torch.arange(RECORD.n) < k) for k in RECORD.correct))


def test_outcomes_survive_json_and_are_no_setting() -> None:
    record = with_outcomes()
    assert Record.from_dict(json.loads(json.dumps(record.to_dict()))) == record
    assert record.settings() == RECORD.settings()
    assert record != RECORD
    assert record.right.sum().item() == pytest.approx(276 / 3)
    assert record.right[[89, 90, 91, 94, 95]].tolist() == pytest.approx([1, 2 / 3, 1 / 3, 1 / 3, 0])
    assert Records([record]).rows() == Records([RECORD]).rows()  # no table has room for them


def test_a_record_of_before_outcomes_is_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "records.json"
    Records([RECORD]).save(path)
    before = path.read_bytes()
    assert b"outcomes" not in before
    loaded = Records.load(path)
    assert (loaded[0], loaded[0].outcomes) == (RECORD, ())
    loaded.save(path)
    assert path.read_bytes() == before
    with pytest.raises(ValueError, match="PGD .attack. does not say which images were right"):
        loaded[0].right  # noqa: B018


def test_refuses_outcomes_that_cannot_be_those_of_the_counts() -> None:
    record = with_outcomes()
    for outcomes in (record.outcomes[:2], record.outcomes[::-1]):
        with pytest.raises(ValueError, match="PGD: outcomes are of other counts than correct=.90, 91, 95."):
            replace(record, outcomes=outcomes)


def test_a_record_without_accuracy_says_what_it_has() -> None:
    record = replace(RECORD, kind="lipschitz", correct=())
    with pytest.raises(ValueError, match="PGD .lipschitz. has no accuracy; its results are nll, risk"):
        record.accuracy  # noqa: B018
    assert "accuracy" not in record.to_dict()
    assert Record.from_dict(record.to_dict()) == record


@pytest.mark.parametrize("correct", [(1, 2), (1, 2, 201), (-1, 2, 3)])
def test_refuses_impossible_counts(correct: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="PGD: .*correct"):
        replace(RECORD, correct=correct)


def test_settings_are_what_determines_the_result() -> None:
    same = replace(RECORD, correct=(1, 2, 3), details={}, seconds=1.0, versions={}, command="")
    assert same.settings() == RECORD.settings()
    other = replace(RECORD, threat=Threat("linf", 8 / 255, (-1.0, 1.0)))
    assert other.settings() != RECORD.settings()


def test_collection_finds_filters_and_slices() -> None:
    clean = replace(RECORD, kind="clean", name="clean", threat=None, curve="", at=None)
    records = Records([clean, RECORD, replace(RECORD, at=0.1, threat=Threat("linf", 0.1))])
    assert len(records) == 3
    assert records[0] == clean
    assert list(records[1:].where(eps=0.1)) == [records[2]]
    assert records.only(kind="clean", label="adv_bnn") == clean
    assert records.find(replace(clean, correct=())) == clean
    assert records.find(replace(clean, name="other")) is None
    with pytest.raises(ValueError, match="expected one record with .*'name': 'PGD'.*, found 2; there are: 'clean' of"):
        records.only(name="PGD")
    with pytest.raises(ValueError, match="field='sample' is unknown.*did you mean 'samples'"):
        records.where(sample=20)


def test_adding_keeps_the_newer_of_the_same_settings_and_refuses_others() -> None:
    newer = replace(RECORD, correct=(1, 2, 3))
    assert list(Records([RECORD]) + Records([newer])) == [newer]
    with pytest.raises(ValueError, match=r"two records 'PGD'.* of adv_bnn .*: samples was 20 and is now 50"):
        Records([RECORD]) + Records([replace(RECORD, samples=50)])


def test_file_is_added_to_and_never_overwritten_with_other_settings(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "records.json"
    Records([RECORD]).save(path)
    other = replace(RECORD, name="FGSM")
    Records([other]).save(path)
    assert Records.load(path) == Records([RECORD, other])
    before = path.read_bytes()
    conflict = replace(RECORD, model=replace(RECORD.model, sha256="ff"))
    with pytest.raises(ValueError, match="records.json holds .*model.sha256 was 'ab' and is now 'ff'.*another file"):
        Records([conflict, replace(RECORD, name="new")]).save(path)
    assert path.read_bytes() == before


def test_refuses_files_that_are_not_records(tmp_path: Path) -> None:
    path = tmp_path / "records.json"
    for content in ("", "[]", "{}", '{"schema": 1}'):
        path.write_text(content)
        with pytest.raises(ValueError, match="is not a file of records") as told:
            Records.load(path)
        assert "'schema'" not in str(told.value)
    path.write_text('{"schema": 99, "records": []}')
    with pytest.raises(ValueError, match="schema 99, expected 1"):
        Records.load(path)
    path.write_text('{"schema": 1, "records": [{"name": "PGD"}]}')
    with pytest.raises(ValueError, match="damaged record"):
        Records.load(path)


def test_rows_and_csv_have_all_columns() -> None:
    clean = replace(RECORD, kind="clean", threat=None, source=None, details={})
    rows = Records([clean, RECORD]).rows()
    assert rows[0].keys() == rows[1].keys()
    assert rows[0]["threat.eps"] is None
    assert rows[1]["threat.eps"] == 8 / 255
    assert rows[1]["details.nll.mean"] == 1.5
    read = list(csv.DictReader(Records([clean, RECORD]).to_csv().splitlines()))
    assert [row["accuracy"] for row in read] == [str(RECORD.accuracy)] * 2
    assert Records().to_csv() == "\n"
