import csv
import errno
import json
import math
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from advbnn.attacks import PGD
from advbnn.attacks.identity import settings_of
from advbnn.attacks.threat import Threat
from advbnn.errors import AdvbnnError, ArgumentError, FileError
from advbnn.evaluation.identity import DataIdentity, ModelIdentity
from advbnn.evaluation.intervals import clopper_pearson
from advbnn.evaluation.outcomes import pack
from advbnn.evaluation.records import SCHEMA, Plan, Record, Records, Spread
from evaluation_workers import save_one_by_one
from workers import processes

ATTACK = PGD(Threat("linf", 8 / 255), steps=7)
PLAN = Plan(
    kind="attack",
    name="PGD",
    model=ModelIdentity(label="adv_bnn", kind="Bayesian(Sequential)", sha256="ab"),
    data=DataIdentity(name="digits", sha256="cd", n=200, rows="0-199"),
    attack=settings_of(ATTACK),
    threat=ATTACK.threat,
    source=ModelIdentity(label="none", kind="Sequential", sha256="ef"),
    against=DataIdentity(name="noise", sha256="01", n=5),
    samples=20,
    seeds=(0, 1, 2),
    batch_size=50,
    precision="float32",
    curve="radius",
    at=8 / 255,
)
DETAILS = {"nll": {"mean": 1.5}, "risk": [0.0, 0.5]}
RECORD = Record.of(PLAN, correct=(90, 91, 95), details=DETAILS, seconds=12.5, versions={"torch": "2"}, command="advbnn")
WITH_OUTCOMES = replace(RECORD, outcomes=tuple(pack(torch.arange(RECORD.n) < k) for k in RECORD.correct))
NO_ACCURACY = replace(RECORD, kind="lipschitz", correct=())


def test_accuracy_interval_and_spread() -> None:
    assert RECORD.accuracy == pytest.approx(276 / 600)
    assert RECORD.interval == clopper_pearson(92, 200)
    assert RECORD.spread == Spread(mean=0.46, sd=pytest.approx(math.sqrt(7) / 200), min=0.45, max=0.475)
    assert replace(RECORD, seeds=(0,), correct=(90,)).spread == Spread(0.45, 0.0, 0.45, 0.45)
    with pytest.raises(ValueError, match="has no accuracy.*nll, risk"):
        NO_ACCURACY.accuracy  # noqa: B018


def test_outcomes_say_which_images_are_right() -> None:
    assert WITH_OUTCOMES.right.sum().item() == pytest.approx(276 / 3)
    assert WITH_OUTCOMES.right[[89, 90, 91, 94, 95]].tolist() == pytest.approx([1, 2 / 3, 1 / 3, 1 / 3, 0])
    with pytest.raises(ValueError, match="measure it again"):
        RECORD.right  # noqa: B018


def test_several_ensembles_of_each_seed() -> None:
    """Two seeds of three ensembles: image i is right under the first i % 4 of them."""
    counts = torch.arange(200) % 4
    plan = replace(PLAN, seeds=(0, 1))
    record = Record.of(plan, correct=(150, 100, 50) * 2, outcomes=(pack(counts, 3),) * 2)
    assert (record.ensembles, record.accuracy) == (3, 0.5)
    assert torch.allclose(record.right, counts.double() / 3)
    # the draws have variance (0.25^2 / 3) / 2, as two seeds are averaged; an effective sample size of 21.4
    assert record.interval == (clopper_pearson(10, 21)[0], clopper_pearson(11, 21)[1])
    assert Record.from_dict(json.loads(json.dumps(record.to_dict()))) == record
    with pytest.raises(ValueError, match="correct must hold"):
        replace(record, correct=(150, 100, 50), outcomes=())


def test_survives_json_exactly() -> None:
    unbounded = replace(RECORD, threat=Threat("l2", math.inf))
    for record in (RECORD, WITH_OUTCOMES, NO_ACCURACY, unbounded, replace(RECORD, attack=None)):
        loaded = Record.from_dict(json.loads(json.dumps(record.to_dict(), allow_nan=False)))
        assert loaded == record
        assert (loaded.seconds, loaded.command) == (12.5, "advbnn")
        assert ("accuracy" in record.to_dict()) == bool(record.correct)


def test_refuses_impossible_results() -> None:
    impossible = [{"correct": counts} for counts in ((1, 2), (1, 2, 201), (-1, 2, 3))]
    for changes in (*impossible, {"outcomes": WITH_OUTCOMES.outcomes[::-1]}):
        with pytest.raises(ValueError, match="PGD: .*correct"):
            replace(RECORD, **changes)


def test_the_settings_of_a_record_are_its_plan() -> None:
    assert WITH_OUTCOMES.settings() == RECORD.settings() == PLAN.settings()
    changes = [
        {"threat": Threat("linf", 8 / 255, (-1.0, 1.0))},
        {"attack": settings_of(replace(ATTACK, steps=8))},
        {"model": replace(RECORD.model, sha256="ff")},
    ]
    assert all(replace(RECORD, **change).settings() != RECORD.settings() for change in changes)


def test_collection_finds_filters_and_slices() -> None:
    clean = replace(RECORD, kind="clean", name="clean", threat=None, curve="", at=None)
    records = Records([clean, RECORD, replace(RECORD, at=0.1, threat=Threat("linf", 0.1))])
    assert (len(records), records[0]) == (3, clean)
    assert list(records[1:].where(eps=0.1)) == [records[2]]
    assert records.only(kind="clean", label="adv_bnn") == clean
    assert records.find(PLAN) == RECORD
    assert records.find(replace(PLAN, name="other")) is None
    with pytest.raises(ValueError, match="expected one record.*'PGD'.*found 2.*'clean' of adv_bnn"):
        records.only(name="PGD")
    with pytest.raises(ValueError, match="field='sample'.*'samples'"):
        records.where(sample=20)


def test_adding_keeps_the_newer_record_and_refuses_other_settings() -> None:
    newer = replace(RECORD, correct=(1, 2, 3))
    assert list(Records([RECORD]) + Records([newer])) == [newer]
    with pytest.raises(ValueError, match="'PGD'.* of adv_bnn .*attack.eot .*5"):
        Records([RECORD]) + Records([replace(RECORD, attack=settings_of(replace(ATTACK, eot=5)))])


def test_file_is_added_to_and_never_overwritten_with_other_settings(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "records.json"
    other = replace(RECORD, name="FGSM")
    Records([RECORD]).save(path)
    Records([other]).save(path)
    assert Records.load(path) == Records([RECORD, other])
    before = path.read_bytes()
    Records.load(path).save(path)
    assert path.read_bytes() == before
    conflict = replace(RECORD, model=replace(RECORD.model, sha256="ff"))
    with pytest.raises(ValueError, match="records.json.*model.sha256.*'ab'.*'ff'.*another file"):
        Records([conflict, replace(RECORD, name="new")]).save(path)
    assert path.read_bytes() == before


def test_two_processes_that_save_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    path, start = tmp_path / "records.json", processes.Barrier(2)
    Records([RECORD]).save(path)
    names = [[f"{number} of {one}" for number in range(10)] for one in range(2)]
    savers = [processes.Process(target=save_one_by_one, args=(path, start, some)) for some in names]
    for saver in savers:
        saver.start()
    for saver in savers:
        saver.join()
        assert saver.exitcode == 0
    assert {record.name for record in Records.load(path)} == {RECORD.name, *names[0], *names[1]}
    assert os.listdir(tmp_path) == ["records.json"]


def test_a_damaged_file_is_named_with_a_remedy_or_still_means_the_same(tmp_path: Path) -> None:
    path, chance = tmp_path / "records.json", random.Random(0)
    Records([WITH_OUTCOMES, replace(RECORD, name="FGSM")]).save(path)
    content = path.read_bytes()
    for _ in range(300):
        damaged = bytearray(content)
        damaged[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        try:
            Records.load(path)
        except AdvbnnError as error:
            assert str(path) in str(error)
    path.write_bytes(b"[")
    with pytest.raises(ArgumentError, match=r"records\.json .*damaged.*restore"):
        Records.load(path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
def test_a_device_is_no_file_of_records() -> None:
    with pytest.raises(ArgumentError, match="/dev/full is .*device"):
        Records([RECORD]).save("/dev/full")


def test_a_full_disk_keeps_the_records_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "records.json"
    Records([RECORD]).save(path)
    with monkeypatch.context() as patch, pytest.raises(FileError, match=r"records\.json .*No space left.*room"):
        patch.setattr(os, "fsync", full)
        Records([replace(RECORD, name="FGSM")]).save(path)
    assert list(Records.load(path)) == [RECORD] and os.listdir(tmp_path) == ["records.json"]


def test_a_long_digest_is_shortened_in_messages() -> None:
    other = replace(RECORD, model=replace(RECORD.model, sha256="f" * 64))
    with pytest.raises(ArgumentError, match="weights have changed") as refused:
        Records([RECORD, other])
    assert "f" * 8 in str(refused.value) and "f" * 9 not in str(refused.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "is not a file of records"),
        ('{"schema": 1, "records": []}', f"schema 1, .* reads schema {SCHEMA}; measure them again"),
        ('{"schema": 2, "records": [{"name": "PGD"}]}', "is damaged.*'kind'|is damaged.*'model'"),
    ],
)
def test_refuses_files_that_are_not_records(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "records.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        Records.load(tmp_path / "records.json")


def test_rows_and_csv_have_all_columns() -> None:
    clean = replace(RECORD, kind="clean", threat=None, source=None, details={})
    rows = Records([clean, WITH_OUTCOMES]).rows()
    assert rows[0].keys() == rows[1].keys()
    assert (rows[0]["threat.eps"], rows[1]["threat.eps"]) == (None, 8 / 255)
    assert (rows[1]["attack.steps"], rows[1]["details.nll.mean"], "outcomes" in rows[1]) == (7, 1.5, False)
    read = list(csv.DictReader(Records([clean, RECORD]).to_csv().splitlines()))
    assert [row["accuracy"] for row in read] == [str(RECORD.accuracy)] * 2
    assert Records().to_csv() == "\n"
