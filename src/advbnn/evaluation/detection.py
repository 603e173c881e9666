"""Telling adversarial and foreign inputs from clean ones by the network's uncertainty."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, Unpack, cast

import torch
from torch import Tensor, nn

from advbnn.bayes.prediction import Prediction
from advbnn.data.imageset import Examples
from advbnn.errors import ArgumentError
from advbnn.evaluation.accuracy import Evaluation, Options, Perturbation
from advbnn.evaluation.batchwise import Batch, batchwise
from advbnn.evaluation.identity import DataIdentity
from advbnn.evaluation.metrics import torchmetrics_classification
from advbnn.evaluation.records import Records, Spread

SCORES = ("entropy", "expected_entropy", "mutual_information", "least_confidence")


def auroc(negative: Tensor, positive: Tensor) -> float:
    """The probability that a positive scores above a negative, ties counting half.

    1 is a perfect detector, one half a useless one, below one half a misled one.
    """
    for name, scores in (("negative", negative), ("positive", positive)):
        if scores.ndim != 1 or len(scores) == 0 or not bool(scores.isfinite().all()):
            raise ArgumentError(f"{name} must be finite scores, [n] with n at least 1, got shape {list(scores.shape)}")
    # only the order counts; ranks keep it where torchmetrics would squash large scores by a sigmoid
    ranks = torch.cat([negative, positive]).unique(return_inverse=True)[1]
    is_positive = torch.arange(len(ranks), device=ranks.device) >= len(negative)
    measure = torchmetrics_classification().binary_auroc
    return float(measure(ranks.double() / len(ranks), is_positive.long()))


def scores_of(prediction: Prediction) -> Tensor:
    """The `SCORES` of each input, larger for more suspicious ones, [n, scores]."""
    least_confidence = 1 - prediction.probs.amax(1)
    entropies = (prediction.entropy, prediction.expected_entropy, prediction.mutual_information)
    return torch.stack([*entropies, least_confidence], 1)


def detection(
    model: nn.Module,
    data: Examples,
    against: Mapping[str, Perturbation | Examples],
    **options: Unpack[Options],
) -> Records:
    """How well each score tells the images of `data` from attacked or from foreign ones: AUROC.

    The details of each record hold `auroc`, by score, with its spread over the seeds; for attacks also
    `auroc_of_successes`, which asks only about the attacked images that are misclassified, None if there are none.
    A detector is worth what it does against an attack that knows of it: give an `EvasivePGD` too.

    Args:
        model: see `evaluate`.
        data: the clean images. The accuracy of a record is that on the attacked ones, or on these.
        against: attacks on these images, or other data sets, by name.
        options: see `Evaluation`.
    """
    evaluation = Evaluation(model, data, **options)
    records = Records()
    for name, other in against.items():
        if hasattr(other, "gather"):
            records += _from_foreign(evaluation, name, cast(Examples, other))
        else:
            records += _from_attacked(evaluation, name, other)
    return records


def _from_attacked(evaluation: Evaluation, name: str, attack: Perturbation) -> Records:
    def work(x: Tensor, y: Tensor, batch: Batch) -> dict[str, Tensor]:
        x, y = evaluation.prepared(x, y)
        clean, attacked, correct = [], [], []
        for seed in evaluation.seed_list:
            prediction = evaluation.classify(evaluation.craft(attack, x, y, seed, batch), seed)
            clean.append(scores_of(evaluation.classify(x, seed)))
            attacked.append(scores_of(prediction))
            correct.append(prediction.label == y)
        per_seed = {"clean": clean, "attacked": attacked, "correct": [right[:, None] for right in correct]}
        return {key: torch.stack(tensors, -1) for key, tensors in per_seed.items()}

    def summary(results: dict[str, Tensor]) -> list[dict[str, Any]]:
        clean, attacked, wrong = results["clean"], results["attacked"], ~results["correct"][:, 0]
        everything = torch.ones_like(wrong)
        return [{"auroc": _aurocs(clean, attacked, everything), "auroc_of_successes": _aurocs(clean, attacked, wrong)}]

    return evaluation.measure([evaluation.planned(name, attack, kind="detection")], work, summary)


def _from_foreign(evaluation: Evaluation, name: str, foreign: Examples) -> Records:
    if len(foreign) == 0 or foreign.shape != evaluation.data.shape:
        raise ArgumentError(
            f"{name!r} must hold images of shape {evaluation.data.shape}, as {evaluation.data.name!r} does; got "
            f"{len(foreign)} of shape {foreign.shape}"
        )

    def work(x: Tensor, y: Tensor, batch: Batch) -> dict[str, Tensor]:
        x, y = evaluation.prepared(x, y)
        predictions = [evaluation.classify(x, seed) for seed in evaluation.seed_list]
        return {
            "scores": torch.stack([scores_of(prediction) for prediction in predictions], -1),
            "correct": torch.stack([(prediction.label == y)[:, None] for prediction in predictions], -1),
        }

    def summary(results: dict[str, Tensor]) -> list[dict[str, Any]]:
        others = batchwise(work, foreign, batch_size=evaluation.batch_size).tensors["scores"]
        everything = torch.ones(others.shape[0], others.shape[2], dtype=torch.bool)
        return [{"auroc": _aurocs(results["scores"], others, everything)}]

    plan = replace(evaluation.plan, kind="detection", name=name, against=DataIdentity.of(foreign))
    return evaluation.measure([plan], work, summary)


def _aurocs(negative: Tensor, positive: Tensor, chosen: Tensor) -> dict[str, dict[str, float]] | None:
    """By score, the spread over the seeds that have a chosen positive; scores are [images, scores, seeds]."""
    seeds = [seed for seed in range(chosen.shape[1]) if bool(chosen[:, seed].any())]
    if not seeds:
        return None
    return {
        name: asdict(Spread.of([auroc(negative[:, i, seed], positive[chosen[:, seed], i, seed]) for seed in seeds]))
        for i, name in enumerate(SCORES)
    }
