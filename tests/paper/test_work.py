"""A measurement is made on the images, and in the batches, that the protocol says."""

from dataclasses import replace
from pathlib import Path

import pytest

from advbnn.evaluation.records import Records
from advbnn.paper.experiment import Experiment
from advbnn.paper.plan import RECORDS, RUNS, Measurement
from advbnn.paper.protocol import PROTOCOLS
from advbnn.paper.work import measure, train

SETTINGS = ("architecture=mlp", 'schedule={kind="constant",epochs=1}')


@pytest.mark.parametrize(("what", "images"), [("radius", 130), ("averaged", 110)])
def test_the_averaged_attack_has_images_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, images: int
) -> None:
    digits = replace(PROTOCOLS["digits"], images=130, averaged_images=110, batch_size=60, samples=2, eot=2)
    monkeypatch.setitem(PROTOCOLS, "digits", digits)
    experiment = Experiment.choose("digits", settings=SETTINGS)
    run = experiment.run("bnn")
    train("cpu", run, tmp_path / RUNS / run.label)
    measurement = Measurement(what=what, runs=(run,), radii=(0.15,))
    measure("cpu", measurement, experiment, tmp_path, "a command")
    (record,) = Records.load(tmp_path / RECORDS / f"{what}-bnn.json")
    assert (record.n, record.batch_size, record.command) == (images, 60, "a command")
    assert measurement.done(experiment, tmp_path)


def test_both_attacks_on_smaller_alphas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digits = replace(PROTOCOLS["digits"], images=130, averaged_images=110, samples=2, eot=2)
    monkeypatch.setitem(PROTOCOLS, "digits", digits)
    experiment = Experiment.choose("digits", settings=(*SETTINGS, "attack.steps=1"))
    run = experiment.run("adv_bnn", factor=0.1)
    train("cpu", run, tmp_path / RUNS / run.label)
    measure("cpu", Measurement(what="alpha", runs=(run,), radii=(0.15,)), experiment, tmp_path, "")
    (file,) = (tmp_path / RECORDS).glob("alpha-*.json")
    assert [record.n for record in Records.load(file)] == [130, 130, 110]
