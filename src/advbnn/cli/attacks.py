"""The attacks behind the names that the command line has for them."""

from collections.abc import Sequence
from typing import Any

import typer
from torch import nn

from advbnn.attacks import APGD, CW, FGSM, NES, PGD, Attack, Square, Transfer, paper_pgd
from advbnn.attacks.threat import Threat
from advbnn.bayes.protocol import posterior_mean
from advbnn.cli.options import ATTACKS
from advbnn.errors import ArgumentError, unknown


def make_attack(
    name: str, model: nn.Module, threat: Threat, steps: int | None = None, eot: int = 1
) -> Attack | Transfer:
    """The attack of that name.

    Args:
        name: one of `ATTACKS`; `"paper"` is the authors' PGD, `"mean"` PGD on the posterior-mean network.
        model: the network to be attacked.
        threat: the allowed perturbations.
        steps: its number of steps; its own default when None.
        eot: draws averaged at every step or query; `"paper"` and `"mean"` have no use for them.
    """
    length: dict[str, Any] = {} if steps is None else {"steps": steps}
    match name:
        case "paper":
            if threat.norm != "linf":
                raise ArgumentError(f"attack 'paper' is for norm 'linf', got {threat.norm!r}; use 'pgd'")
            return paper_pgd(threat.eps, **length)
        case "fgsm":
            return FGSM(threat, eot=eot)
        case "pgd":
            return PGD(threat, eot=eot, **length)
        case "apgd":
            return APGD(threat, eot=eot, **length)
        case "apgd-dlr":
            return APGD(threat, eot=eot, loss="dlr", **length)
        case "mean":
            if posterior_mean(model) is None:
                raise ArgumentError("attack 'mean' needs a Bayesian network, and this run has none; leave it out")
            return Transfer.from_mean(model, PGD(threat, **length))
        case "cw":
            return CW(threat, eot=eot, **length)
        case "square":
            return Square(threat, eot=eot)
        case "nes":
            return NES(threat, eot=eot)
        case _:
            raise unknown("attack", name, ATTACKS)


ONE_DRAW = ("paper", "mean")
"""The attacks that average nothing: by definition, and since their network is not random."""


WITHOUT_STEPS = ("fgsm", "square", "nes")
"""The attacks that have one step, or count queries."""


def refuse_impossible(names: Sequence[str], norm: str, steps: int | None, eot: int) -> None:
    """Attacks that cannot be made for any network or radius are refused before one is loaded."""
    if eot != 1 and all(name in ONE_DRAW for name in names):
        raise typer.BadParameter(
            f"--eot {eot} would change nothing: {' and '.join(ONE_DRAW)} take one draw a step; use --attack pgd"
        )
    if steps is not None and names and all(name in WITHOUT_STEPS for name in names):
        raise typer.BadParameter(
            f"--steps {steps} would change nothing: {' and '.join(names)} cannot take more or fewer"
        )
    for name in names:
        with_any_network = "pgd" if name == "mean" else name
        try:
            make_attack(with_any_network, nn.Identity(), Threat(norm, 1.0), steps, eot)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None


def title(name: str, attack: Attack | Transfer) -> str:
    """What the records of a named attack are called: `"pgd 20 EOT 10"`."""
    inner = attack.attack if isinstance(attack, Transfer) else attack
    steps = [] if name == "fgsm" or not hasattr(inner, "steps") else [str(inner.steps)]
    return " ".join([name, *steps, *([f"EOT {inner.eot}"] if inner.eot > 1 else [])])
