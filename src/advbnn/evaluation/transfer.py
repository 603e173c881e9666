"""Attacks crafted on one model and evaluated on another, for all pairs of models: the affinity of eq. 17."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Unpack

import torch
from torch import Tensor, nn

from advbnn.attacks.transfer import Transfer
from advbnn.data.imageset import Examples
from advbnn.errors import ArgumentError
from advbnn.evaluation.accuracy import CLEAN, Evaluation
from advbnn.evaluation.batchwise import Batch
from advbnn.evaluation.checks import Perturbation
from advbnn.evaluation.options import Options
from advbnn.evaluation.records import Record, Records


def transfer_matrix(
    models: Mapping[str, nn.Module], data: Examples, attack: Perturbation, **options: Unpack[Options]
) -> Records:
    """Acc[B] of every model, and Acc[B | A] for every source A and target B, including A = B.

    Each source is attacked once, and the result is scored on every target. The record of a pair names the target in
    `model` and the source in `source`, with `kind="transfer"`; the records of one target share their weight samples.
    """
    if len(models) < 2:
        raise ArgumentError(f"models must be two or more models by name, got {list(models)}")
    if isinstance(attack, Transfer):
        raise ArgumentError("attack must not be a Transfer; give its inner attack, and add its source to the models")
    if "label" in options:
        raise ArgumentError("transfer_matrix takes the labels from the names of the models; leave out label")
    evaluations = {name: Evaluation(model, data, **options | {"label": name}) for name, model in models.items()}
    records = Records()
    for target in evaluations.values():
        records += target.accuracy(CLEAN, None)
    for name, source in evaluations.items():
        plans = [
            replace(target.planned(f"from {name}", attack), kind="transfer", source=source.plan.model)
            for target in evaluations.values()
        ]
        records += source.measure(plans, partial(_work, source, list(evaluations.values()), attack))
    return records


def affinity(records: Records) -> dict[str, dict[str, float | None]]:
    """rho_{A -> B} = (Acc[B] - Acc[B|A]) / (Acc[B] - Acc[B|B]) (eq. 17), as `result[A][B]`.

    1 means that the source's examples hurt the target as much as its own, 0 that they do nothing. A value above 1 is a
    sign of masked gradients: the transferred attack is stronger than the white-box one. None where the target's own
    attack does not lower its accuracy, and where a record is missing. The records must include those of
    `transfer_matrix` for one attack at one radius.
    """
    crossed = [(r.source.label, r.model.label, r) for r in records.where(kind="transfer", curve="") if r.source]
    names = list(dict.fromkeys(target for _, target, _ in crossed))
    clean = {name: records.only(kind="clean", label=name, curve="") for name in names}
    measured = [record for _, _, record in crossed]
    _check_comparable(measured, ("attack", "threat"))
    _check_comparable([*measured, *clean.values()], ("data", "seeds"))
    for name in names:
        of_target = [record for _, target, record in crossed if target == name]
        _check_comparable([clean[name], *of_target], ("samples", "exact", "rule"))
    # after the checks, as the later of two records of one pair would replace the other
    pairs = {(source, target): record for source, target, record in crossed}
    sources = list(dict.fromkeys(source for source, _ in pairs))

    def rho(source: str, target: str) -> float | None:
        across, own = pairs.get((source, target)), pairs.get((target, target))
        if across is None or own is None:
            return None
        # counts, so that the difference of equal accuracies is exactly 0
        lost, lost_to_itself = (sum(clean[target].correct) - sum(record.correct) for record in (across, own))
        return lost / lost_to_itself if lost_to_itself > 0 else None

    return {source: {target: rho(source, target) for target in names} for source in sources}


def _work(
    source: Evaluation, targets: Sequence[Evaluation], attack: Perturbation, x: Tensor, y: Tensor, batch: Batch
) -> dict[str, Tensor]:
    correct = []
    for seed in source.seed_list:
        x_adv = source.craft(attack, x, y, seed, batch)
        labels = [target.classify(target.prepared(x_adv, y)[0], seed).label.cpu() for target in targets]
        correct.append(torch.stack(labels, 1) == y.cpu()[:, None])
    return {"correct": torch.stack(correct, 2)}


def _check_comparable(records: list[Record], fields: tuple[str, ...]) -> None:
    for name in fields:
        values = {str(getattr(record, name)): record for record in records}
        if len(values) > 1:
            listed = "; ".join(f"{record.model.label}: {value}" for value, record in values.items())
            raise ArgumentError(f"affinity compares records with the same {name}, got {listed}; leave out the others")
