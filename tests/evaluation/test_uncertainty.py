"""Records of calibration, selective prediction and detection against the predictions that they summarise."""

import json
from pathlib import Path

import pytest
import torch

from advbnn.attacks import PGD
from advbnn.attacks.evasion import EvasivePGD
from advbnn.attacks.threat import Threat
from advbnn.attacks.uncertainty import UncertaintyPGD
from advbnn.bayes.prediction import predict
from advbnn.data import from_tensors, to_float
from advbnn.evaluation.accuracy import evaluate
from advbnn.evaluation.metrics import aurc, auroc, brier_score, negative_log_likelihood
from advbnn.evaluation.records import Records
from advbnn.evaluation.uncertainty import SCORES, ood_detection, uncertainty
from advbnn.randomness import crafting_seed, scoring_seed
from trained_nets import bnn, digits

THREAT = Threat("linf", 0.3)
ATTACKS = {"clean": None, "pgd": PGD(THREAT, steps=10), "evasive": EvasivePGD(THREAT, steps=10, eot=5)}
OPTIONS = {"samples": 5, "seeds": 2, "batch_size": 50}
X, Y = to_float(digits().images), digits().labels


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("uncertainty") / "records.json"


@pytest.fixture(scope="module")
def records(out: Path) -> Records:
    return uncertainty(bnn(), digits(), ATTACKS, **OPTIONS, out=out)


def test_one_record_of_each_kind_per_attack_kept_and_read_back(records: Records, out: Path) -> None:
    kinds = [("clean", "uncertainty"), *((n, k) for n in ("pgd", "evasive") for k in ("uncertainty", "detection"))]
    assert [(record.name, record.kind) for record in records] == kinds
    assert Records.load(out) == records == uncertainty(bnn(), digits(), ATTACKS, **OPTIONS, out=out)
    json.dumps([record.to_dict() for record in records], allow_nan=False)
    for name, attack in ATTACKS.items():
        expected = evaluate(bnn(), digits(), {name: attack}, **OPTIONS)[0].correct
        assert all(record.correct == expected for record in records.where(name=name))


def test_numbers_are_those_of_the_predictions(records: Records) -> None:
    details = records.only(name="clean").details
    predictions = [predict(bnn(), X, 5, scoring_seed(seed)) for seed in (0, 1)]
    for name, score in (
        ("nll", lambda p: negative_log_likelihood(p.probs, Y)),
        ("brier", lambda p: brier_score(p.probs, Y)),
        ("aurc", lambda p: aurc(p.entropy, p.label == Y)),
        ("mutual_information", lambda p: p.mutual_information.mean().item()),
    ):
        values = [score(prediction) for prediction in predictions]
        assert details[name]["mean"] == pytest.approx(sum(values) / 2, rel=1e-4)
        assert details[name]["min"] == pytest.approx(min(values), rel=1e-4)


def test_diagrams_hold_every_prediction_and_attacks_worsen_every_score(records: Records) -> None:
    clean, pgd = (records.only(kind="uncertainty", name=name) for name in ("clean", "pgd"))
    for record in (clean, pgd):
        assert sum(record.details["reliability"]["count"]) == 120 * 2
        curve = record.details["risk_coverage"]
        assert curve["coverage"][-1] == 1
        assert curve["risk"][-1] == pytest.approx(1 - record.accuracy)
        parts = record.details["expected_entropy"]["mean"] + record.details["mutual_information"]["mean"]
        assert record.details["entropy"]["mean"] == pytest.approx(parts, rel=1e-4)
    for name in ("nll", "brier", "aurc"):
        assert pgd.details[name]["mean"] > clean.details[name]["mean"]


def test_an_adaptive_attack_evades_detection(records: Records) -> None:
    pgd, evasive = records.where(kind="detection")
    assert pgd.accuracy < 0.2 and evasive.accuracy < 0.2
    for score in SCORES:
        for result in ("auroc", "auroc_of_successes"):
            assert evasive.details[result][score]["mean"] < min(0.5, pgd.details[result][score]["mean"])


def test_abstention_under_attack_is_what_its_definition_gives(records: Records) -> None:
    attack, seed = ATTACKS["pgd"], 0
    x_adv = torch.cat([attack(bnn(), X[i : i + 50], Y[i : i + 50], crafting_seed(seed, i // 50)) for i in (0, 50, 100)])
    clean, attacked = (predict(bnn(), x, 5, scoring_seed(seed)) for x in (X, x_adv))
    (record,) = uncertainty(bnn(), digits(), {"pgd": attack}, **OPTIONS | {"seeds": (seed,)}).where(kind="detection")
    for row, kept in zip(record.details["abstention"], (96, 108, 114), strict=True):
        below = attacked.entropy <= clean.entropy.sort().values[kept - 1]
        wrong = (attacked.label != Y) & below
        expected = {"classified": below.double().mean(), "undetected": wrong.double().mean()}
        for name, value in expected.items():
            assert row[name]["mean"] == pytest.approx(value.item(), abs=1.5 / 120)  # an entropy may round to a tie
        assert row["clean_accuracy"]["mean"] >= (clean.label == Y).double().mean() - 0.02  # abstention helps


def test_attacks_on_uncertainty_defeat_abstention_in_their_direction() -> None:
    attacks = {d: UncertaintyPGD(Threat("linf", 0.1), steps=5, direction=d) for d in ("lower", "raise")}
    found = uncertainty(bnn(), digits(), attacks, **OPTIONS).where(kind="detection")
    lower, higher = (record.details["abstention"][1] for record in found)
    assert higher["classified"]["mean"] < 0.6 < 0.95 < lower["classified"]["mean"]


def test_foreign_images_are_told_from_those_of_the_data() -> None:
    pixels = torch.randint(0, 256, (60, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    noise = from_tensors(pixels, torch.zeros(60, dtype=torch.int64), classes=10, name="noise")
    (record,) = ood_detection(bnn(), digits(), {"noise": noise}, **OPTIONS)
    assert (record.kind, record.against.name) == ("detection", "noise")
    assert record.correct == evaluate(bnn(), digits(), **OPTIONS)[0].correct
    expected = [
        auroc(*(predict(bnn(), x, 5, scoring_seed(seed)).entropy for x in (X, to_float(pixels)))) for seed in (0, 1)
    ]
    # two rounded entropies may change places: one of 120 x 60 pairs each
    assert record.details["auroc"]["entropy"]["mean"] == pytest.approx(sum(expected) / 2, abs=0.005)
    for row in record.details["abstention"]:  # all that is classified is wrong
        assert row["classified"] == row["undetected"]
    (same,) = ood_detection(bnn(), digits(), {"itself": digits()}, **OPTIONS)
    for row in same.details["abstention"]:
        assert row["classified"]["mean"] == pytest.approx(row["coverage"], abs=1 / len(X))
    certain = UncertaintyPGD(Threat("linf", 0.3), steps=5, direction="lower")
    (attacked,) = ood_detection(bnn(), digits(), {"noise": noise}, certain, **OPTIONS)
    assert attacked.threat == certain.threat and attacked.correct == record.correct
    assert attacked.details["auroc"]["entropy"]["mean"] < record.details["auroc"]["entropy"]["mean"] - 0.05
    more = from_tensors(pixels, torch.full((60,), 11), classes=12, name="noise")  # of classes that the network lacks
    (others,) = ood_detection(bnn(), digits(), {"noise": more}, certain, **OPTIONS)
    assert others.details == attacked.details
    small = from_tensors(torch.zeros(5, 1, 4, 4, dtype=torch.uint8), torch.zeros(5, dtype=torch.int64), name="small")
    with pytest.raises(ValueError, match="foreign .*1, 8, 8.*1, 4, 4"):
        ood_detection(bnn(), digits(), {"other": small}, **OPTIONS)


def test_a_classifier_that_knows_the_images_has_perfect_scores_and_nothing_to_detect() -> None:
    class Known(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            same = (x.flatten(1)[:, None] == X.flatten(1)[None]).all(2)
            return 100.0 * torch.nn.functional.one_hot(Y[same.double().argmax(1)], 10)

    class Nothing(PGD):
        def __call__(self, model: object, x: torch.Tensor, y: torch.Tensor, seed: int | None = None) -> torch.Tensor:
            return x

    scores, detected = uncertainty(Known(), digits(), Nothing(THREAT), samples=1, seeds=1)
    for name in ("nll", "brier", "ece", "aurc", "entropy", "mutual_information"):
        assert scores.details[name]["mean"] == pytest.approx(0, abs=1e-6)
    assert detected.details["auroc"]["entropy"]["mean"] == 0.5
    assert detected.details["auroc_of_successes"] is None
