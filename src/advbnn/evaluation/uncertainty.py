"""Calibration, selective prediction and detection of adversarial examples, on clean and attacked images."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from advbnn.bayes.prediction import Prediction
from advbnn.data.imageset import Examples
from advbnn.errors import ArgumentError
from advbnn.evaluation import metrics
from advbnn.evaluation.abstention import threshold
from advbnn.evaluation.accuracy import Attacks, Evaluation, by_name
from advbnn.evaluation.batchwise import Batch, batchwise
from advbnn.evaluation.checks import Perturbation
from advbnn.evaluation.identity import DataIdentity
from advbnn.evaluation.options import Options
from advbnn.evaluation.records import Records, Spread

COVERAGES = tuple(k / 20 for k in range(1, 21))
ABSTENTION = (0.8, 0.9, 0.95)
"""Shares of the clean images that are classified; the others have a larger entropy."""

SCORES = ("entropy", "expected_entropy", "mutual_information", "least_confidence")


def uncertainty(model: nn.Module, data: Examples, attacks: Attacks = None, **options: Unpack[Options]) -> Records:
    """Calibration and selective prediction of the ensemble, and detection of attacked images.

    For the clean images and each attack there is a record of kind `"uncertainty"`. Its details hold, with their spread
    over the seeds, `nll`, `brier`, `ece`, `aurc` (rejecting by entropy) and the mean `entropy`, `expected_entropy` and
    `mutual_information`; and for all seeds together `reliability`, the bars of the diagram, and `risk_coverage`, the
    error rate at each coverage.

    For each attack there is also a record of kind `"detection"`: `auroc`, how well each of the `SCORES` separates the
    attacked from the clean images, with its spread over the seeds; `auroc_of_successes`, for the misclassified
    attacked images only, None if there are none; and `abstention`, what a classifier does that abstains above an
    entropy: see `_abstention`. A detector should be measured against an adaptive attack: include an `EvasivePGD`, and
    an `UncertaintyPGD` in both directions. Arguments as for `evaluate`.
    """
    evaluation, records = Evaluation(model, data, **options), Records()
    for name, attack in by_name(attacks).items():
        kinds = ("uncertainty",) if attack is None else ("uncertainty", "detection")
        plans = [evaluation.planned(name, attack, kind=kind) for kind in kinds]
        records += evaluation.measure(plans, partial(_work, evaluation, attack, len(plans)), _summary)
    return records


def ood_detection(
    model: nn.Module,
    data: Examples,
    foreign: Mapping[str, Examples],
    attack: Perturbation | None = None,
    **options: Unpack[Options],
) -> Records:
    """How well each of the `SCORES` separates images of other data sets from those of `data`: `auroc`, by score.

    `abstention` says how many of them a classifier that abstains would classify, and so get wrong. An `attack` perturbs
    the other images, such as an `UncertaintyPGD` that makes the network certain of them. The accuracy in the records is
    measured on `data`, without an attack.
    """
    evaluation, records = Evaluation(model, data, **options), Records()
    check_foreign(data, foreign.values())
    for name, others in foreign.items():
        plan = evaluation.planned(name, attack, kind="detection", against=DataIdentity.of(others))

        def work(x: Tensor, y: Tensor, batch: Batch) -> dict[str, Tensor]:
            x, y = evaluation.prepared(x, y)
            if attack is not None:  # it gets the network's own labels: those of another data set are of other classes
                y = evaluation.classify(x, evaluation.seed_list[0]).label
            return _work(evaluation, attack, 1, x, y, batch)

        def summary(results: Mapping[str, Tensor], others: Examples = others) -> Sequence[Mapping[str, Any]]:
            found = batchwise(work, others, batch_size=evaluation.batch_size).tensors["scores"]
            nowhere = torch.zeros_like(found[:, 0], dtype=torch.bool)  # is an answer right
            clean = results["scores"][:, 0], results["correct"][:, 0]
            abstention = [_abstention(share, *clean, found[:, 0], nowhere) for share in ABSTENTION]
            return [{"auroc": _aurocs(results["scores"], found), "abstention": abstention}]

        records += evaluation.measure([plan], partial(_work, evaluation, None, 1), summary)
    return records


def check_foreign(data: Examples, foreign: Iterable[Examples]) -> None:
    """Refuse other data sets whose images do not have the shape of those of `data`."""
    for others in foreign:
        if others.shape != data.shape:
            expected = f"foreign must hold images of shape {data.shape}, like {data.name}"
            raise ArgumentError(f"{expected}; {others.name} has {others.shape}")


def scores_of(prediction: Prediction) -> Tensor:
    """The `SCORES` of each input, larger for more suspicious ones, [n, scores]."""
    entropies = (prediction.entropy, prediction.expected_entropy, prediction.mutual_information)
    return torch.stack([*entropies, 1 - prediction.probs.amax(1)], 1)


def _work(
    evaluation: Evaluation, attack: Perturbation | None, plans: int, x: Tensor, y: Tensor, batch: Batch
) -> dict[str, Tensor]:
    """Per batch: `labels` [n], `correct` [n, plans, seeds], `probs`, `scores`, `clean` ... [n, ., seeds]."""
    of_seeds = []
    for seed in evaluation.seed_list:
        prediction = evaluation.classify(evaluation.craft(attack, x, y, seed, batch), seed)
        correct = (prediction.label == y)[:, None].expand(-1, plans)
        values = {"correct": correct, "probs": prediction.probs, "scores": scores_of(prediction)}
        if attack is not None:
            unperturbed = evaluation.classify(x, seed)
            values |= {"clean": scores_of(unperturbed), "clean_correct": unperturbed.label == y}
        of_seeds.append(values)
    return {"labels": y, **{name: torch.stack([v[name] for v in of_seeds], -1) for name in of_seeds[0]}}


def _summary(results: Mapping[str, Tensor]) -> Sequence[Mapping[str, Any]]:
    labels, correct, probs, scores = (results[name] for name in ("labels", "correct", "probs", "scores"))
    correct, entropy, seeds = correct[:, 0], scores[:, 0], range(probs.shape[2])
    details: dict[str, Any] = {
        "nll": _spread(metrics.negative_log_likelihood(probs[..., seed], labels) for seed in seeds),
        "brier": _spread(metrics.brier_score(probs[..., seed], labels) for seed in seeds),
        "ece": _spread(metrics.expected_calibration_error(probs[..., seed], labels) for seed in seeds),
        "aurc": _spread(metrics.aurc(entropy[:, seed], correct[:, seed]) for seed in seeds),
    }
    for i, name in enumerate(SCORES[:3]):
        details[name] = _spread(scores[:, i].double().mean(0).tolist())
    of_all_seeds = probs.transpose(1, 2).flatten(0, 1)
    details["reliability"] = asdict(metrics.reliability(of_all_seeds, labels.repeat_interleave(len(seeds))))
    coverage, risk = metrics.risk_coverage(entropy.flatten(), correct.flatten())
    at = torch.searchsorted(coverage, torch.tensor(COVERAGES, dtype=coverage.dtype)).clamp_max(len(coverage) - 1)
    details["risk_coverage"] = {"coverage": list(COVERAGES), "risk": risk[at].tolist()}
    if "clean" not in results:
        return [details]
    clean = results["clean"]
    detection = {"auroc": _aurocs(clean, scores), "auroc_of_successes": _aurocs(clean, scores, ~correct)}
    abstention = [_abstention(share, clean[:, 0], results["clean_correct"], entropy, correct) for share in ABSTENTION]
    return [details, {**detection, "abstention": abstention}]


def _abstention(
    coverage: float, clean: Tensor, clean_correct: Tensor, attacked: Tensor, correct: Tensor
) -> dict[str, Any]:
    """What abstention above the entropy that `coverage` of the clean images do not exceed does; all are [n, seeds].

    `classified` is the share of attacked images below the threshold, `accuracy` the accuracy on these (None if there
    are none), `undetected` the share of all images that are misclassified and below it; `clean_accuracy` is that of the
    clean images below it. Numbers have their spread over the seeds; each seed has its own threshold.
    """
    of_seeds: dict[str, list[float]] = {"classified": [], "undetected": [], "accuracy": [], "clean_accuracy": []}
    for seed in range(clean.shape[1]):
        limit = threshold(clean[:, seed], coverage)
        below, below_clean, right = attacked[:, seed] <= limit, clean[:, seed] <= limit, correct[:, seed]
        of_seeds["classified"].append(below.double().mean().item())
        of_seeds["undetected"].append((below & ~right).double().mean().item())
        of_seeds["clean_accuracy"].append(clean_correct[below_clean, seed].double().mean().item())
        if bool(below.any()):
            of_seeds["accuracy"].append(right[below].double().mean().item())
    return {"coverage": coverage, **{name: _spread(values) if values else None for name, values in of_seeds.items()}}


def _aurocs(negative: Tensor, positive: Tensor, chosen: Tensor | None = None) -> dict[str, dict[str, float]] | None:
    """By score, the spread over the seeds that have a chosen positive; scores are [images, scores, seeds]."""
    if chosen is None:
        chosen = torch.ones(len(positive), positive.shape[2], dtype=torch.bool)
    seeds = [seed for seed in range(chosen.shape[1]) if bool(chosen[:, seed].any())]
    if not seeds:
        return None
    return {
        name: _spread(metrics.auroc(negative[:, i, seed], positive[chosen[:, seed], i, seed]) for seed in seeds)
        for i, name in enumerate(SCORES)
    }


def _spread(values: Any) -> dict[str, float]:
    return asdict(Spread.of(list(values)))
