"""From the options `--attack`, `--norm`, `--steps` and `--eot` to attacks of the registry."""

from collections.abc import Sequence

import typer
from torch import nn

from advbnn.attacks import registry
from advbnn.attacks.base import Attack
from advbnn.attacks.threat import Threat
from advbnn.attacks.transfer import Transfer
from advbnn.cli.groups import AttackOptions
from advbnn.cli.options import refuse_larger_than_images
from advbnn.errors import ArgumentError
from advbnn.evaluation.accuracy import CLEAN, Evaluation
from advbnn.evaluation.records import Records


def make_attack(name: str, model: nn.Module, effort: AttackOptions, radius: float) -> Attack | Transfer:
    """The attack of that name for a model; options that the attack does not take are left out."""
    given = {option: value for option, value in _given(effort).items() if option in registry.ATTACKS[name].options}
    return registry.make_attack(name, Threat(effort.norm, radius), model, **given)


def refuse_impossible(names: Sequence[str], effort: AttackOptions, radii: Sequence[float] = ()) -> None:
    """Refuses attacks and radii that fit no network, and options that no attack takes, before a run is loaded."""
    refuse_larger_than_images(effort.norm, radii)
    names = [name for name in names if name != CLEAN]
    for option, value in _given(effort).items():
        if names and not any(option in registry.ATTACKS[name].options for name in names):
            problem = f"{value} would change nothing: {' and '.join(names)} take no --{option}; use --attack pgd"
            raise typer.BadParameter(problem, param_hint=f"'--{option}'")
    for name in names:
        for_any_network = "pgd" if registry.ATTACKS[name].on_mean else name
        try:
            make_attack(for_any_network, nn.Identity(), effort, 1.0)
        except ArgumentError as error:
            raise typer.BadParameter(str(error), param_hint="'--attack'") from None


def measured(evaluation: Evaluation, names: Sequence[str], radii: Sequence[float], effort: AttackOptions) -> Records:
    """The accuracies of a model without an attack, if `names` has it, and under the attacks at all radii."""
    # all are made before anything is measured, as some do not fit the network
    model, attacks = evaluation.model, [name for name in names if name != CLEAN]
    chosen = [(name, make_attack(name, model, effort, radius)) for radius in radii for name in attacks]
    records = evaluation.accuracy(CLEAN, None) if CLEAN in names else Records()
    for name, made in chosen:
        records += evaluation.accuracy(title(name, made), made)
    return records


def _given(effort: AttackOptions) -> dict[str, int]:
    """The options that differ from their defaults."""
    given = {"steps": (effort.steps, None), "eot": (effort.eot, 1)}
    return {option: value for option, (value, usual) in given.items() if value is not None and value != usual}


def title(name: str, attack: Attack | Transfer) -> str:
    """The name of the attack in records: `"pgd 20 EOT 10"`."""
    inner = attack.attack if isinstance(attack, Transfer) else attack
    steps = [str(inner.steps)] if "steps" in registry.ATTACKS[name].options and hasattr(inner, "steps") else []
    return " ".join([name, *steps, *([f"EOT {inner.eot}"] if inner.eot > 1 else [])])
