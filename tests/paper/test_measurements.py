"""Each measurement makes the records that it announces, on the images of the protocol, and has an estimate."""

from dataclasses import replace
from pathlib import Path

import pytest

from advbnn.defenses.profiles import DEFENSES
from advbnn.evaluation.records import Records
from advbnn.paper import EXPERIMENTS, Experiment, make_plan
from advbnn.paper.measurement import Budget, Cost
from advbnn.paper.measurements import MEASUREMENTS
from advbnn.paper.protocol import PROTOCOLS
from advbnn.paper.reproduction import measure, train

SETTINGS = ("architecture=mlp", 'schedule={kind="constant",epochs=1}', "attack.steps=1")
SMALL = replace(PROTOCOLS["digits"], images=130, averaged_images=110, study_images=100, batch_size=60, samples=2, eot=2)
SMALL = replace(SMALL, sizes=(1, 2), steps=(1, 3), radii=(0.0, 0.15), table_radii=(0.075, 0.15), alpha_factors=(0.1,))
IMAGES = {"radius": {130}, "averaged": {110}, "transfer": {130}, "alpha": {110, 130}}
IMAGES |= {what: {100} for what in ("ensemble", "steps", "lipschitz")}


def test_every_measurement_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROTOCOLS, "digits", SMALL)
    experiment = Experiment.choose("digits", settings=SETTINGS)
    plan = make_plan(experiment, tmp_path, EXPERIMENTS, defenses=["adv", "adv_bnn"], audit="none")
    for run in plan.runs:
        train("cpu", run, plan.folder(run))
    assert plan.pending_runs() == []
    for one in plan.measurements:
        measure("cpu", one, experiment, tmp_path, "a command")
        assert one.done(experiment, tmp_path), one.name
        records = Records.load(one.file(tmp_path))
        assert len(records) == len(one.runs) * len(one.points(SMALL))
        assert {(r.batch_size, r.command) for r in records} == {(60, "a command")}
        assert {r.n for r in records} == IMAGES[one.what]
    assert plan.pending() == []


def test_estimates_follow_the_number_of_gradients_and_images(tmp_path: Path) -> None:
    digits = PROTOCOLS["digits"]
    plan = make_plan(Experiment.choose("digits"), tmp_path, EXPERIMENTS, defenses=DEFENSES)
    costs = {name: Cost(gradient=0.01, forward=0.001) for name in DEFENSES}
    budget = Budget(protocol=digits, costs=costs, test_images=500)
    fewer = replace(budget, protocol=replace(digits, averaged_images=15))
    estimates = {one.name: one.cost(budget) for one in plan.measurements}
    assert {one.what for one in plan.measurements} == {kind.what for kind in MEASUREMENTS}
    assert all(seconds > 0 for seconds in estimates.values())
    assert estimates["radius-none"] == pytest.approx(150 * (20 * 8 * 0.01 + 9 * 0.001))
    for one in plan.measurements:
        ratio = one.cost(fewer) / estimates[one.name]
        assert ratio == pytest.approx(0.1) if one.what == "averaged" else (ratio < 1) == (one.what == "alpha"), one.name
