"""Accuracy as a function of the radius, the ensemble size, the attack's steps or its EOT samples (section 4)."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from advbnn.attacks.base import Attack
from advbnn.attacks.transfer import Transfer
from advbnn.bayes.prediction import prediction_of
from advbnn.data.imageset import Examples
from advbnn.errors import ArgumentError
from advbnn.evaluation.accuracy import CLEAN, Evaluation
from advbnn.evaluation.batchwise import Batch
from advbnn.evaluation.checks import Perturbation
from advbnn.evaluation.options import Options
from advbnn.evaluation.records import Records

RADII = tuple(k / 200 for k in range(15))
"""0, 0.005, ..., 0.07: the paper's radii for CIFAR-10 and STL-10."""

IMAGENET_RADII = tuple(k / 500 for k in range(11))
"""0, 0.002, ..., 0.02: the paper's radii for ImageNet-143."""

ENSEMBLE_SIZES = tuple(range(1, 51))

STEPS = (3, 4, 6, 9, 13, 18, 26, 38, 55, 78, 112, 162, 234, 336, 483, 695, 1000)
"""The steps of the authors' study, evenly spaced on a log scale."""

EOT_SAMPLES = (1, 2, 5, 10, 20, 50)


Varied = Attack | Transfer


def radii_for(eps: float) -> tuple[float, ...]:
    """The paper's radii, whose networks are trained at 8/256, in proportion for a network trained at `eps`."""
    return tuple(float(f"{radius * eps * 32:.2g}") for radius in RADII)


class CurveOptions(Options, total=False):
    """The options of an evaluation, and the name in records; the attack's class by default."""

    name: str | None


def radius_curve(
    model: nn.Module, data: Examples, attack: Varied, radii: Sequence[float] = RADII, **options: Unpack[CurveOptions]
) -> Records:
    """Accuracy under the attack at each radius; at 0 the clean accuracy.

    The attack's radius is replaced; an absolute `step_size` stays the same. `name` is the attack's name in records, its
    class by default. Other options as for `evaluate`: `samples`, `seeds`, `rows`, `label`, `out` and more, see
    `Options`.
    """
    points = {eps: changed(attack, threat=replace(attack.threat, eps=eps)) for eps in radii}
    return _curve("radius", points, model, data, **options)


def steps_curve(
    model: nn.Module, data: Examples, attack: Varied, steps: Sequence[int] = STEPS, **options: Unpack[CurveOptions]
) -> Records:
    """Accuracy under the attack with each number of steps; arguments as for `radius_curve`."""
    return _curve("steps", {count: changed(attack, steps=count) for count in steps}, model, data, **options)


def eot_curve(
    model: nn.Module, data: Examples, attack: Varied, eot: Sequence[int] = EOT_SAMPLES, **options: Unpack[CurveOptions]
) -> Records:
    """Accuracy under the attack with each number of EOT samples; arguments as for `radius_curve`."""
    return _curve("eot", {count: changed(attack, eot=count) for count in eot}, model, data, **options)


def ensemble_curve(
    model: nn.Module,
    data: Examples,
    attack: Perturbation | None = None,
    sizes: Sequence[int] = ENSEMBLE_SIZES,
    *,
    name: str | None = None,
    **options: Unpack[Options],
) -> Records:
    """Accuracy of ensembles of each size on the same perturbed inputs.

    The largest ensemble is sampled once. Its first m samples are the ensemble of size m, the one that
    `evaluate(samples=m)` uses. Other arguments as for `radius_curve`, with None for clean inputs.
    """
    if "samples" in options:
        raise ArgumentError("ensemble_curve takes sizes=(...) instead of samples")
    if not sizes or min(sizes) < 1:
        raise ArgumentError(f"sizes must be numbers of weight samples, each at least 1; got {sizes!r}")
    evaluation = Evaluation(model, data, **options | {"samples": max(sizes)})
    title = name or (CLEAN if attack is None else type(attack).__name__)
    sampled = evaluation.planned(title, attack, exact=False, curve="ensemble")
    plans = [replace(sampled, samples=size, at=float(size)) for size in sizes]

    def work(x: Tensor, y: Tensor, batch: Batch) -> dict[str, Tensor]:
        correct = []
        for seed in evaluation.seed_list:
            x_adv = evaluation.craft(attack, x, y, seed, batch)
            log_probs = evaluation.log_probs(x_adv, seed)
            labels = [prediction_of(log_probs[:size], evaluation.rule).label for size in sizes]
            correct.append(torch.stack(labels, 1) == y[:, None])
        return {"correct": torch.stack(correct, 2)}

    return evaluation.measure(plans, work)


def changed(attack: Varied, **changes: Any) -> Varied:
    """The attack with other settings; for a transfer, those of the attack on its source."""
    inner = attack.attack if isinstance(attack, Transfer) else attack
    for name in changes:
        if name not in {f.name for f in fields(inner) if f.init}:
            raise ArgumentError(f"{type(inner).__name__} has no {name} that can be varied; choose another attack")
    inner = replace(inner, **changes)
    return replace(attack, attack=inner) if isinstance(attack, Transfer) else inner


def _curve(
    curve: str, at: dict[float, Varied], model: nn.Module, data: Examples, name: str | None = None, **options: Any
) -> Records:
    if not at:
        raise ArgumentError(f"the curve over {curve} needs at least one point")
    evaluation, records = Evaluation(model, data, **options), Records()
    for value, attack in at.items():
        records += evaluation.accuracy(name or type(attack).__name__, attack, curve=curve, at=float(value))
    return records
