import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from advbnn.attacks import PGD
from advbnn.attacks.evasion import EvasivePGD
from advbnn.attacks.threat import Threat
from advbnn.bayes.prediction import predict
from advbnn.data import from_tensors, to_float
from advbnn.evaluation.accuracy import evaluate
from advbnn.evaluation.detection import SCORES, auroc, detection, scores_of
from advbnn.evaluation.records import Records
from judged import bnn, digits, net

OPTIONS = {"samples": 5, "seeds": 2}
NOISE = from_tensors(
    torch.randint(0, 256, (60, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)),
    torch.zeros(60, dtype=torch.int64),
    classes=10,
    name="noise",
)


def test_auroc_by_hand() -> None:
    assert auroc(torch.tensor([0.0, 1.0]), torch.tensor([2.0, 3.0])) == 1
    assert auroc(torch.tensor([2.0, 3.0]), torch.tensor([0.0, 1.0])) == 0
    assert auroc(torch.tensor([1.0, 1.0]), torch.tensor([1.0])) == 0.5
    # of six pairs four are in order and one is tied
    assert auroc(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 4.0])) == pytest.approx(4.5 / 6)


@given(
    st.lists(st.integers(-3, 3), min_size=1, max_size=30),
    st.lists(st.integers(-3, 3), min_size=1, max_size=30),
    st.sampled_from([1e-9, 1.0, 1e9]),
)
def test_auroc_is_mann_whitneys_statistic_at_every_scale(low: list[int], high: list[int], scale: float) -> None:
    negative, positive = (torch.tensor(values, dtype=torch.float64) * scale for values in (low, high))
    statistic = stats.mannwhitneyu(high, low).statistic if len(set(low + high)) > 1 else len(low) * len(high) / 2
    assert auroc(negative, positive) == pytest.approx(statistic / (len(low) * len(high)), abs=1e-6)


def test_scores_are_larger_for_the_more_suspicious() -> None:
    x = to_float(digits().images)
    prediction = predict(bnn(), x, 5, seed=0)
    scores = scores_of(prediction)
    assert scores.shape == (120, len(SCORES))
    assert torch.equal(scores[:, 0], prediction.entropy)
    assert torch.equal(scores[:, 2], prediction.mutual_information)
    assert torch.equal(scores[:, 3], 1 - prediction.probs.amax(1))


def test_attacks_foreign_images_and_an_attack_that_knows(tmp_path: Path) -> None:
    threat = Threat("linf", 0.3)
    against = {"pgd": PGD(threat, steps=10), "aware": EvasivePGD(threat, steps=10, eot=5), "noise": NOISE}
    out = tmp_path / "records.json"
    pgd, aware, noise = detection(bnn(), digits(), against, **OPTIONS, out=out)
    assert Records.load(out) == Records([pgd, aware, noise])
    json.dumps([record.to_dict() for record in (pgd, aware, noise)], allow_nan=False)
    assert set(noise.details["auroc"]) == set(SCORES)
    assert noise.details["auroc"]["entropy"]["mean"] > 0.6
    assert noise.correct == evaluate(bnn(), digits(), **OPTIONS)[0].correct
    assert noise.against.name == "noise"
    # both attacks win; the one that knows of the detector looks even more certain than clean images do
    assert pgd.accuracy < 0.1
    assert aware.accuracy < 0.1
    for score in SCORES:
        for result in ("auroc", "auroc_of_successes"):
            assert aware.details[result][score]["mean"] < min(0.5, pgd.details[result][score]["mean"])


def test_an_attack_that_never_succeeds_has_no_successes_to_detect() -> None:
    class Nothing(PGD):
        def __call__(self, model: object, x: torch.Tensor, y: torch.Tensor, seed: int | None = None) -> torch.Tensor:
            return x

    right = (net()(to_float(digits().images)).argmax(1) == digits().labels).nonzero().flatten()
    against = {"nothing": Nothing(Threat("linf", 0.1))}
    record = detection(net(), digits(), against, samples=1, seeds=1, rows=right)[0]
    assert record.details["auroc"]["entropy"]["mean"] == 0.5
    assert record.details["auroc_of_successes"] is None


def test_refuses_bad_input() -> None:
    with pytest.raises(ValueError, match="negative must be finite scores"):
        auroc(torch.tensor([]), torch.ones(2))
    with pytest.raises(ValueError, match="positive must be finite scores"):
        auroc(torch.ones(2), torch.tensor([float("nan")]))
    small = from_tensors(torch.zeros(5, 1, 4, 4, dtype=torch.uint8), torch.zeros(5, dtype=torch.int64), name="small")
    with pytest.raises(ValueError, match="'other' must hold images of shape .1, 8, 8., .* got 5 of shape .1, 4, 4."):
        detection(bnn(), digits(), {"other": small}, **OPTIONS)
