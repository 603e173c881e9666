"""Every point of a curve is what `evaluate` gives for its settings."""

from dataclasses import replace
from pathlib import Path

import pytest

from advbnn.attacks import FGSM, PGD, Square, Transfer, paper_pgd
from advbnn.attacks.threat import Threat
from advbnn.evaluation.accuracy import evaluate
from advbnn.evaluation.curves import (
    changed,
    ensemble_curve,
    eot_curve,
    radius_curve,
    steps_curve,
)
from advbnn.evaluation.records import Records
from trained_nets import bnn, digits, net

OPTIONS = {"samples": 3, "seeds": 2, "batch_size": 60}
ATTACK = PGD(Threat("linf", 0.1), steps=3)


def test_radius_curve_is_an_evaluation_at_each_radius() -> None:
    curve = radius_curve(bnn(), digits(), paper_pgd(0.5, steps=3), (0.0, 0.01, 0.02), **OPTIONS)
    assert [(r.curve, r.at, r.threat.eps) for r in curve] == [("radius", eps, eps) for eps in (0.0, 0.01, 0.02)]
    assert curve[0].correct == evaluate(bnn(), digits(), **OPTIONS)[0].correct
    assert curve[2].correct == evaluate(bnn(), digits(), paper_pgd(0.02, steps=3), **OPTIONS)[0].correct


def test_ensemble_curve_scores_the_ensembles_that_evaluate_does() -> None:
    options = {"seeds": 2, "batch_size": 60}
    for rule in ("probability", "vote", "loss"):
        curve = ensemble_curve(bnn(), digits(), ATTACK, (1, 2, 7), **options, rule=rule)
        for record in curve:
            alone = evaluate(bnn(), digits(), ATTACK, samples=record.samples, **options, rule=rule)[0]
            assert replace(record, curve="", at=None) == alone
    assert [record.at for record in curve] == [1, 2, 7]


def test_ensemble_curve_attacks_once_and_may_leave_the_images_alone() -> None:
    calls = []

    class Counted(PGD):
        def __call__(self, *args: object, **kwargs: object) -> object:
            calls.append(1)
            return super().__call__(*args, **kwargs)

    ensemble_curve(bnn(), digits(), Counted(Threat("linf", 0.1), steps=1), (1, 2, 3, 4), seeds=1)
    assert len(calls) == 1
    clean = ensemble_curve(bnn(), digits(), sizes=(1, 5), seeds=1)
    assert [record.name for record in clean] == ["clean", "clean"]
    assert clean[1].correct == evaluate(bnn(), digits(), samples=5, seeds=1)[0].correct


def test_steps_and_eot_change_the_attack_alone() -> None:
    for curve, name in ((steps_curve, "steps"), (eot_curve, "eot")):
        for attack in (ATTACK, Transfer(net(), ATTACK)):
            for record, value in zip(curve(bnn(), digits(), attack, (1, 2), **OPTIONS), (1, 2), strict=True):
                expected = evaluate(bnn(), digits(), changed(attack, **{name: value}), **OPTIONS)[0]
                assert (record.curve, record.at) == (name, value)
                assert replace(record, curve="", at=None) == expected


def test_curves_of_two_attacks_share_a_file_under_their_names(tmp_path: Path) -> None:
    out = tmp_path / "records.json"
    for name, eot in (("single", 1), ("averaged", 3)):
        radius_curve(bnn(), digits(), replace(ATTACK, eot=eot), (0.0, 0.1), **OPTIONS, name=name, out=out)
    assert [(r.name, r.at) for r in Records.load(out)] == [(n, at) for n in ("single", "averaged") for at in (0, 0.1)]


def test_refuses_what_cannot_vary() -> None:
    with pytest.raises(ValueError, match="Square .*steps"):
        steps_curve(net(), digits(), Square(Threat("linf", 0.1)))
    with pytest.raises(ValueError, match="FGSM .*steps"):
        changed(Transfer(net(), FGSM(Threat("linf", 0.1))), steps=3)
    with pytest.raises(ValueError, match="sizes .*at least 1"):
        ensemble_curve(net(), digits(), sizes=(0, 1))
    with pytest.raises(ValueError, match="sizes=.*samples"):
        ensemble_curve(net(), digits(), samples=3)
    with pytest.raises(ValueError, match="radius .*at least one"):
        radius_curve(net(), digits(), ATTACK, ())
