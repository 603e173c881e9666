"""The measurements of a reproduction, and of the one it is compared with."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import made_up_reproductions as made_up
from advbnn.errors import ArgumentError
from advbnn.evaluation.records import Record, Records
from advbnn.paper import Evidence, Experiment
from advbnn.paper.evidence import Speed
from advbnn.paper.experiment import RECORDS, RUNS
from advbnn.training.run_folder import FACTS, METRICS
from made_up_reproductions import CIFAR10, as_in_the_paper, audits, evidence, radius_records

P = CIFAR10.protocol
OTHERS = ["none", "rse", "adv", "bnn"]


def folder(at: Path, records: list[Record], experiment: Experiment = CIFAR10, **facts: str) -> Path:
    experiment.write(at, test_images=10_000, **facts)
    Records(records).save(at / RECORDS / "all.json")
    return at


def worse(label: str, eps: float) -> float:
    return as_in_the_paper(label, eps) - 0.05


def test_missing_defences_come_from_the_other_reproduction(tmp_path) -> None:
    theirs = [*radius_records(P, worse), *radius_records(P, worse, ["adv-seed1", "adv_bnn-seed1"])]
    folder(tmp_path / "before", [*theirs, *audits(P, worse), *made_up.transfers(P, lambda a, b: 0.5)])
    own = radius_records(P, as_in_the_paper, ["adv_bnn"])
    found = Evidence.read(folder(tmp_path / "mine", own, beside="../before"))
    assert found.measured == [*OTHERS, "adv_bnn"]
    assert found.borrowed == dict.fromkeys(OTHERS, "before")
    assert (found.clean("adv_bnn").mean, found.clean("adv_bnn").trainings) == (pytest.approx(79.7), 1)
    assert (found.clean("adv").mean, found.clean("adv").trainings) == (pytest.approx(75.3), 2)
    assert [found.worst(name, 0.035) is None for name in ("adv", "adv_bnn")] == [False, True]
    assert found.affinity == {}  # attacks on the other Adv-BNN would be part of it


def test_transfer_between_two_folders_keeps_the_numbers_of_both(tmp_path) -> None:
    folder(tmp_path / "before", radius_records(P, worse))
    own = [*radius_records(P, as_in_the_paper, ["adv_bnn"]), *made_up.transfers(P, lambda a, b: 0.5)]
    found = Evidence.read(folder(tmp_path / "mine", own, beside="../before"))
    assert (found.clean("adv").mean, found.borrowed["adv"]) == (pytest.approx(75.3), "before")
    assert set(found.affinity) == {*OTHERS, "adv_bnn"}


def test_a_study_of_one_training_is_of_the_first_that_says_which_images_were_correct() -> None:
    first = made_up.steps_curves(P, lambda count: 0.0)
    again = [replace(r, model=replace(r.model, label="adv_bnn-seed1")) for r in made_up.steps_curves(P, lambda n: 0.1)]
    told = made_up.with_outcomes(evidence(again)).records
    means = [evidence(records).curve("steps", 0.035)[1000.0].mean for records in (first, [*first, *again])]
    assert means[0] == means[1]
    found = evidence([*first, *told]).curve("steps", 0.035)
    assert {number.right is None for number in found.values()} == {False}
    assert found[1000.0].mean == pytest.approx(means[0] - 10, abs=0.1)


def test_only_one_folder_is_followed(tmp_path) -> None:
    folder(tmp_path / "first", radius_records(P, worse, ["none"]), beside="../mine")
    folder(tmp_path / "second", radius_records(P, worse, ["adv"]), beside="../first")
    mine = folder(tmp_path / "mine", radius_records(P, worse, ["adv_bnn"]), beside="../second")
    assert Evidence.read(mine).measured == ["adv", "adv_bnn"]


def test_a_reproduction_that_was_measured_differently_is_refused(tmp_path) -> None:
    limited = Experiment(data="cifar10", like="cifar10", profile="authors_code", limit=100)
    folder(tmp_path / "before", radius_records(P, worse), limited)
    mine = folder(tmp_path / "mine", radius_records(P, as_in_the_paper, ["adv_bnn"]), beside="../before")
    with pytest.raises(ArgumentError, match="limit .*100.*None.*--beside"):
        Evidence.read(mine)
    with pytest.raises(ArgumentError, match="nowhere .*advbnn reproduce"):
        Evidence.read(folder(tmp_path / "gone", [], beside="../nowhere"))


def test_runs_with_another_alpha_are_not_averaged_with_the_others() -> None:
    found = evidence([*radius_records(P, as_in_the_paper, ["adv_bnn"]), *made_up.alphas(P, {0.1: 0.5})])
    assert (found.clean("adv_bnn").mean, found.clean("adv_bnn").trainings) == (pytest.approx(79.7), 1)


def test_a_study_is_of_the_first_training(tmp_path) -> None:
    Experiment.choose("digits").write(tmp_path, test_images=500)
    record = radius_records(P, as_in_the_paper, ["adv_bnn"])[0]
    for seed, n in (("", 50), ("-seed1", 70)):
        for alpha in ("", "-alpha0.1"):
            label = f"adv_bnn{alpha}"
            one = replace(
                record, model=replace(record.model, label=label), correct=(n,) * len(record.correct), outcomes=()
            )
            Records([one]).save(tmp_path / RECORDS / f"alpha-adv_bnn{seed}{alpha}.json")
    assert {record.correct[0] for record in Evidence.read(tmp_path).records} == {50}


def test_another_test_set_is_not_compared_with_the_paper(tmp_path) -> None:
    for images, expected in ((1_000, None), (8_000, 63.2)):
        Experiment.choose("stl10").write(tmp_path, test_images=images)
        assert Evidence.read(tmp_path).paper_says("adv", 0.0) == expected


def test_the_speed_of_an_interrupted_run_is_read(tmp_path) -> None:
    run = tmp_path / RUNS / "adv"
    run.mkdir(parents=True)
    CIFAR10.write(tmp_path, test_images=10_000)
    facts = {"data": {"classes": 10, "shape": [3, 32, 32]}, "model": {"parameters": 100}, "processes": 1}
    (run / FACTS).write_text(json.dumps(facts))
    line = dict.fromkeys(("step", "epoch", "lr", "kl_weight", "loss", "nll", "kl"), 1)
    (run / METRICS).write_text(json.dumps({**line, "examples_per_second": 500.0}) + '\n{"examples_per_sec')
    assert Evidence.read(tmp_path).speeds == {"adv": Speed(parameters=100, examples_per_second=500.0)}
