"""What a reproduction has found, and what stands beside it."""

from pathlib import Path

import pytest

from advbnn.evaluation.records import Record, Records
from advbnn.paper import Evidence, Experiment, judged
from advbnn.paper.plan import RECORDS
from advbnn.paper.tables import table1
from made_up_reproductions import CIFAR10, as_in_the_paper, audits, evidence, knowing_images, radius_records, transfers

P = CIFAR10.protocol


def folder(at: Path, records: list[Record], experiment: Experiment = CIFAR10, **facts: str) -> Path:
    experiment.write(at, test_images=10_000, **facts)
    Records(records).save(at / RECORDS / "all.json")
    return at


def worse(label: str, eps: float) -> float:
    return as_in_the_paper(label.partition("-")[0], eps) - 0.05


def test_defences_of_another_reproduction_stand_beside_its_own(tmp_path) -> None:
    others = [*radius_records(P, worse), *radius_records(P, worse, ["adv-seed1", "adv_bnn-seed1"])]
    folder(tmp_path / "before", [*others, *audits(P, worse), *transfers(P, lambda a, b: 0.5)])
    mine = folder(tmp_path / "mine", radius_records(P, as_in_the_paper, ["adv_bnn"]), beside="../before")
    found = Evidence.read(mine)
    assert found.measured == ["none", "rse", "adv", "bnn", "adv_bnn"]
    assert found.clean("adv_bnn").mean == pytest.approx(79.7)  # its own, and of one training alone
    assert found.clean("adv_bnn").trainings == 1
    assert found.clean("adv").mean == pytest.approx(75.3)
    assert found.clean("adv").trainings == 2
    assert found.worst("adv", 0.035) is not None
    assert found.worst("adv_bnn", 0.035) is None
    assert found.affinity == {}  # which attacks on its own Adv-BNN would be part of
    assert "No defence, RSE, Adv. training, BNN: the trainings of before." in table1(found).caption
    verdicts = {claim.name: claim.verdict for claim in judged(found)}
    assert verdicts["better"] == "reproduced"
    assert {claim.name: claim.verdict for claim in judged(Evidence.read(tmp_path / "before"))}[
        "numbers"
    ] != "reproduced"


def test_attacks_from_one_folder_on_another_leave_the_other_what_it_measured(tmp_path) -> None:
    folder(tmp_path / "before", list(radius_records(P, worse)))
    own = radius_records(P, as_in_the_paper, ["adv_bnn"])
    mine = folder(tmp_path / "mine", [*own, *transfers(P, lambda a, b: 0.5)], beside="../before")
    found = Evidence.read(mine)
    assert found.clean("adv").mean == pytest.approx(75.3)
    assert found.borrowed == dict.fromkeys(["none", "rse", "adv", "bnn"], "before")
    assert set(found.affinity) == {"none", "rse", "adv", "bnn", "adv_bnn"}


def test_networks_of_two_folders_are_compared_on_the_images_that_they_share(tmp_path) -> None:
    chances = []
    for name, told in (("counted", lambda found: found), ("known", knowing_images)):
        ours, theirs = (evidence(radius_records(P, as_in_the_paper, [label])) for label in ("adv_bnn", "adv"))
        folder(tmp_path / name / "before", list(told(theirs).records))
        mine = folder(tmp_path / name / "mine", list(told(ours).records), beside="../before")
        (words,) = (claim.evidence for claim in judged(Evidence.read(mine)) if claim.name == "gain")
        chances.append(float(words.partition("up to ")[2].partition(" may be chance")[0]))
    assert chances[1] < chances[0]


def test_what_stands_beside_the_other_is_not_taken_over(tmp_path) -> None:
    folder(tmp_path / "first", radius_records(P, worse, ["none"]), beside="../mine")
    folder(tmp_path / "second", radius_records(P, worse, ["adv"]), beside="../first")
    mine = folder(tmp_path / "mine", radius_records(P, worse, ["adv_bnn"]), beside="../second")
    assert Evidence.read(mine).measured == ["adv", "adv_bnn"]


def test_only_the_same_data_measured_in_the_same_way_can_stand_beside(tmp_path) -> None:
    limited = Experiment(data="cifar10", like="cifar10", profile="authors_code", limit=100)
    folder(tmp_path / "before", radius_records(P, worse), limited)
    mine = folder(tmp_path / "mine", radius_records(P, as_in_the_paper, ["adv_bnn"]), beside="../before")
    with pytest.raises(ValueError, match=r"before cannot stand beside this reproduction: limit is 100 there and None"):
        Evidence.read(mine)
    gone = folder(tmp_path / "gone", [], beside="../nowhere")
    with pytest.raises(ValueError, match="nowhere holds no reproduction"):
        Evidence.read(gone)
