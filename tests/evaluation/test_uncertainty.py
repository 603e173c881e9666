import json
from pathlib import Path

import pytest
import torch

from advbnn.attacks import PGD
from advbnn.attacks.threat import Threat
from advbnn.bayes.prediction import predict
from advbnn.data import to_float
from advbnn.evaluation.accuracy import evaluate
from advbnn.evaluation.calibration import brier_score, negative_log_likelihood
from advbnn.evaluation.records import Records
from advbnn.evaluation.selective import aurc
from advbnn.evaluation.uncertainty import uncertainty
from advbnn.randomness import scoring_seed
from judged import bnn, digits

ATTACK = PGD(Threat("linf", 0.1), steps=5)
OPTIONS = {"samples": 5, "seeds": 2, "batch_size": 50}


@pytest.fixture(scope="module")
def records() -> Records:
    return uncertainty(bnn(), digits(), {"clean": None, "pgd": ATTACK}, **OPTIONS)


def test_numbers_are_those_of_the_predictions(records: Records) -> None:
    clean = records.only(name="clean")
    x, y = to_float(digits().images), digits().labels
    predictions = [predict(bnn(), x, 5, scoring_seed(seed)) for seed in (0, 1)]
    for name, score in (
        ("nll", lambda p: negative_log_likelihood(p.probs, y)),
        ("brier", lambda p: brier_score(p.probs, y)),
        ("aurc", lambda p: aurc(p.entropy, p.label == y)),
        ("mutual_information", lambda p: p.mutual_information.mean().item()),
    ):
        values = [score(prediction) for prediction in predictions]
        assert clean.details[name]["mean"] == pytest.approx(sum(values) / 2, rel=1e-5)
        assert clean.details[name]["min"] == pytest.approx(min(values), rel=1e-5)


def test_entropy_is_the_sum_of_its_parts(records: Records) -> None:
    for record in records:
        parts = record.details["expected_entropy"]["mean"] + record.details["mutual_information"]["mean"]
        assert record.details["entropy"]["mean"] == pytest.approx(parts, rel=1e-4)


def test_accuracy_is_that_of_evaluate_and_everything_gets_worse_under_attack(records: Records) -> None:
    for name, attack in (("clean", None), ("pgd", ATTACK)):
        expected = evaluate(bnn(), digits(), {name: attack}, **OPTIONS)[0]
        assert records.only(name=name).correct == expected.correct
    clean, pgd = records
    for name in ("nll", "brier", "aurc"):
        assert pgd.details[name]["mean"] > clean.details[name]["mean"]


def test_diagrams_hold_every_prediction(records: Records) -> None:
    for record in records:
        assert sum(record.details["reliability"]["count"]) == 120 * 2
        curve = record.details["risk_coverage"]
        assert curve["coverage"][-1] == 1
        assert curve["risk"][-1] == pytest.approx(1 - record.accuracy)
        assert curve["risk"][0] <= curve["risk"][-1]
        json.dumps(record.to_dict(), allow_nan=False)


def test_is_kept_and_read_back(tmp_path: Path) -> None:
    out = tmp_path / "records.json"
    first = uncertainty(bnn(), digits(), **OPTIONS, out=out)
    assert Records.load(out) == first == uncertainty(bnn(), digits(), **OPTIONS, out=out)


def test_a_perfect_classifier_has_perfect_scores() -> None:
    class Answers(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            same = (x.flatten(1)[:, None] == (to_float(digits().images)).flatten(1)[None]).all(2)
            labels = digits().labels[same.double().argmax(1)]
            return 100.0 * torch.nn.functional.one_hot(labels, 10)

    details = uncertainty(Answers(), digits(), samples=1, seeds=1)[0].details
    for name in ("nll", "brier", "ece", "aurc", "entropy", "mutual_information"):
        assert details[name]["mean"] == pytest.approx(0, abs=1e-6)
