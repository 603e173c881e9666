"""From the options `--attack`, `--norm`, `--steps` and `--eot` to attacks of the registry."""

from collections.abc import Sequence
from dataclasses import replace

import torch
import typer
from torch import nn

from advbnn.attacks import registry
from advbnn.attacks.base import Attack
from advbnn.attacks.threat import Threat
from advbnn.attacks.transfer import Transfer
from advbnn.cli.groups import AttackOptions
from advbnn.cli.options import DEFAULT_EOT, refuse_larger_than_images
from advbnn.errors import ArgumentError
from advbnn.evaluation.accuracy import CLEAN, Evaluation
from advbnn.evaluation.records import Records
from advbnn.modules import evaluating
from advbnn.randomness import is_random, with_fresh_state
from advbnn.report.series import reaches


def averaging(effort: AttackOptions) -> AttackOptions:
    """For the attacks of a command that names none: without EOT samples they would overstate random networks."""
    return effort if effort.eot is not None else replace(effort, eot=DEFAULT_EOT)


def make_attack(name: str, model: nn.Module, effort: AttackOptions, radius: float) -> Attack | Transfer:
    """The attack of that name for a model; options that the attack does not take are left out."""
    given = {option: value for option, value in _given(effort).items() if option in registry.ATTACKS[name].options}
    return registry.make_attack(name, Threat(effort.norm, radius), model, **given)


def refuse_impossible(names: Sequence[str], effort: AttackOptions, radii: Sequence[float] = ()) -> None:
    """Refuses attacks and radii that fit no network, and options that no attack takes, before a run is loaded."""
    refuse_larger_than_images(effort.norm, radii)
    only_clean, names = {*names} == {CLEAN}, [name for name in names if name != CLEAN]
    if only_clean and radii:
        raise typer.BadParameter("'clean' has no radius; add an --attack, or leave it out", param_hint="'--eps'")
    for option, value in _given(effort).items():
        if names and not any(option in registry.ATTACKS[name].options for name in names):
            takes = "takes" if len(names) == 1 else "take"
            problem = f"{value} would change nothing: {' and '.join(names)} {takes} no --{option}; use --attack pgd"
            raise typer.BadParameter(problem, param_hint=f"'--{option}'")
    for name in names:
        for_any_network = "pgd" if registry.ATTACKS[name].on_mean else name
        try:
            make_attack(for_any_network, nn.Identity(), effort, 1.0)
        except ArgumentError as error:
            raise typer.BadParameter(str(error), param_hint="'--attack'") from None


def measured(
    evaluations: Sequence[Evaluation], names: Sequence[str], radii: Sequence[float], effort: AttackOptions
) -> list[Records]:
    """Of each model, the accuracies without an attack, if `names` has it, and under the attacks at all radii."""
    # nothing is measured if an attack does not fit one of the networks, or has a stored record with other settings
    plans = [_planned(evaluation, names, radii, effort) for evaluation in evaluations]
    found = []
    for evaluation, planned in zip(evaluations, plans, strict=True):
        found.append(sum((evaluation.accuracy(name, attack) for name, attack in planned), Records()))
    return found


def _planned(
    evaluation: Evaluation, names: Sequence[str], radii: Sequence[float], effort: AttackOptions
) -> list[tuple[str, Attack | Transfer | None]]:
    """What is measured of a model, with its name in records."""
    planned: list[tuple[str, Attack | Transfer | None]] = [(CLEAN, None)] if CLEAN in names else []
    for radius in radii:
        made = {name: make_attack(name, evaluation.model, effort, radius) for name in names if name != CLEAN}
        planned += [(title(name, attack), attack) for name, attack in made.items()]
    for name, attack in planned:
        evaluation.finished([evaluation.planned(name, attack)])
    return planned


def weaknesses(records: Records, evaluation: Evaluation) -> list[str]:
    """Why the attacks of these records may be weaker than the network is robust, in a sentence each."""
    attacks = records.where(kind="attack")
    found = []
    for record in [one for one in attacks if not reaches(one)][-1:]:
        remedy = "give more --steps, or --attack pgd, whose steps follow the radius"
        found.append(f"note: {record.name} ends inside the ball of radius {record.radius:g}; {remedy}")
    averaged = any((one.attack or {}).get("eot", 1) > 1 for one in attacks)
    if attacks and not averaged and not evaluation.exact and _is_random(evaluation):
        remedy = "compare --attack pgd --eot 20, or run advbnn audit"
        found.append(f"note: no attack averages its gradients, which overstates a random network; {remedy}")
    return found


@torch.no_grad()
def _is_random(evaluation: Evaluation) -> bool:
    with evaluating(evaluation.model):
        return is_random(with_fresh_state(evaluation.model), evaluation.first(2)[0])


def _given(effort: AttackOptions) -> dict[str, int]:
    """The options that were given and change something."""
    given = {"steps": effort.steps, "eot": None if effort.eot == 1 else effort.eot}
    return {option: value for option, value in given.items() if value is not None}


def title(name: str, attack: Attack | Transfer) -> str:
    """The name of the attack in records: `"pgd 20 EOT 10"`."""
    inner = attack.attack if isinstance(attack, Transfer) else attack
    steps = [str(inner.steps)] if "steps" in registry.ATTACKS[name].options and hasattr(inner, "steps") else []
    return " ".join([name, *steps, *([f"EOT {inner.eot}"] if inner.eot > 1 else [])])
