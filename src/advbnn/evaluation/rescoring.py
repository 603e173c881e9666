"""The accuracy at given adversarial images: of several points of an image the worst counts, scored on fresh samples."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack

import torch
from torch import Tensor, nn

from advbnn.attacks.threat import Threat
from advbnn.data.imageset import Examples, row_numbers
from advbnn.errors import ArgumentError
from advbnn.evaluation.accuracy import Evaluation
from advbnn.evaluation.audit.worst_points import chance_correct
from advbnn.evaluation.batchwise import Batch
from advbnn.evaluation.options import Options
from advbnn.evaluation.points import Points, check_cover
from advbnn.evaluation.records import Record
from advbnn.randomness import derive_seed

POINTS = "points"
"""The kind and the name of the record."""


def rescore(
    model: nn.Module,
    data: Examples,
    threat: Threat,
    points: Sequence[Path | str | Points],
    *,
    ensembles: int = 20,
    comparison_samples: int = 400,
    **options: Unpack[Options],
) -> Record:
    """The expected accuracy of the deployed classifier at the worst of the given points and the clean image.

    Points are compared on `comparison_samples` weight samples, and the worst of each image is scored by `ensembles`
    independent ensembles that nothing was chosen by, as in an audit. An image without points counts as it is, with a
    warning. The result is an upper bound on robust accuracy, whatever made the points. They are checked against ball
    and box.
    """
    if not points:
        raise ArgumentError("points must hold at least one file of adversarial images, got none")
    options.setdefault("seeds", 1)
    evaluation = Evaluation(model, data, **options)
    loaded = [one if isinstance(one, Points) else Points.load(one) for one in points]
    attacks = [stored for one in loaded for stored in one.on(data, threat).values()]
    check_cover(loaded, row_numbers(evaluation.rows, len(data)))
    count = 1 if evaluation.exact else ensembles

    def work(x: Tensor, y: Tensor, batch: Batch) -> dict[str, Tensor]:
        candidates = [x, *(attack(model, x, y) for attack in attacks)]
        by_seed = []
        for seed in evaluation.seed_list:
            chances = torch.stack([_chance(evaluation, one, y, seed, comparison_samples) for one in candidates])
            worst = torch.stack(candidates)[chances.argmin(0), torch.arange(len(x), device=x.device)]
            seeds = [derive_seed(seed, "headline", number) for number in range(count)]
            by_seed.append(torch.stack([evaluation.classify(worst, one).label == y for one in seeds], 1))
        return {"correct": torch.stack(by_seed, 1)[:, None]}

    settings = {"name": POINTS, "files": [one.sha256 for one in loaded], "comparison_samples": comparison_samples}
    plan = replace(evaluation.plan, kind=POINTS, name=POINTS, threat=threat, attack=settings)
    return evaluation.measure([plan], work, ensembles=count)[0]


def _chance(evaluation: Evaluation, points: Tensor, y: Tensor, seed: int, samples: int) -> Tensor:
    """The chance that the classifier is correct at each point, by weight samples that score nothing."""
    compare = derive_seed(seed, "compare")
    if evaluation.exact:
        return (evaluation.classify(points, compare).label == y).double()
    return chance_correct(evaluation.log_probs(points, compare, samples), y, evaluation.samples, evaluation.rule)
