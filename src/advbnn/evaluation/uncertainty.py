"""Whether the network knows when it is wrong: calibration and selective prediction, without and under attack."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from advbnn.data.imageset import Examples
from advbnn.evaluation.accuracy import Attacks, Evaluation, Options, Perturbation, by_name
from advbnn.evaluation.batchwise import Batch, Work
from advbnn.evaluation.calibration import brier_score, expected_calibration_error, negative_log_likelihood, reliability
from advbnn.evaluation.records import Records, Spread
from advbnn.evaluation.selective import aurc, risk_coverage

COVERAGES = tuple(k / 20 for k in range(1, 21))


def uncertainty(model: nn.Module, data: Examples, attacks: Attacks = None, **options: Unpack[Options]) -> Records:
    """Calibration and selective prediction of the ensemble without and under attack, one record for each attack.

    The details of each record hold, with their spread over the seeds: `nll`, `brier`, `ece`; `aurc`, predictions being
    left out by their entropy; and the means of `entropy`, `expected_entropy` and `mutual_information`. Over all seeds
    together: `reliability`, the bars of the diagram; and `risk_coverage`, the error rate at each share answered.

    Args:
        model: see `evaluate`.
        data: see `evaluate`.
        attacks: one attack, or attacks by name; None or `"clean"` for the images as they are.
        options: see `Evaluation`.
    """
    evaluation = Evaluation(model, data, **options)
    records = Records()
    for name, attack in by_name(attacks).items():
        plan = evaluation.planned(name, attack, kind="uncertainty")
        records += evaluation.measure([plan], _work(evaluation, attack), _summary)
    return records


def _work(evaluation: Evaluation, attack: Perturbation | None) -> Work:
    def work(x: Tensor, y: Tensor, batch: Batch) -> dict[str, Tensor]:
        x, y = evaluation.prepared(x, y)
        seeds = evaluation.seed_list
        predictions = [evaluation.classify(evaluation.craft(attack, x, y, seed, batch), seed) for seed in seeds]
        return {
            "labels": y,
            "correct": torch.stack([(p.label == y)[:, None] for p in predictions], 2),
            "probs": torch.stack([p.probs for p in predictions], 1),
            "entropy": torch.stack([p.entropy for p in predictions], 1),
            "expected_entropy": torch.stack([p.expected_entropy for p in predictions], 1),
            "mutual_information": torch.stack([p.mutual_information for p in predictions], 1),
        }

    return work


def _summary(results: Mapping[str, Tensor]) -> Sequence[Mapping[str, Any]]:
    labels, correct, probs, entropy = (results[name] for name in ("labels", "correct", "probs", "entropy"))
    seeds = range(probs.shape[1])
    details: dict[str, Any] = {
        "nll": _spread(negative_log_likelihood(probs[:, seed], labels) for seed in seeds),
        "brier": _spread(brier_score(probs[:, seed], labels) for seed in seeds),
        "ece": _spread(expected_calibration_error(probs[:, seed], labels) for seed in seeds),
        "aurc": _spread(aurc(entropy[:, seed], correct[:, 0, seed]) for seed in seeds),
    }
    for name in ("entropy", "expected_entropy", "mutual_information"):
        details[name] = _spread(results[name].double().mean(0).tolist())
    details["reliability"] = asdict(reliability(probs.flatten(0, 1), labels.repeat_interleave(len(seeds))))
    coverage, risk = risk_coverage(entropy.flatten(), correct[:, 0].flatten())
    at = torch.searchsorted(coverage, torch.tensor(COVERAGES, dtype=coverage.dtype)).clamp_max(len(coverage) - 1)
    details["risk_coverage"] = {"coverage": list(COVERAGES), "risk": risk[at].tolist()}
    return [details]


def _spread(values: Any) -> dict[str, float]:
    return asdict(Spread.of(list(values)))
