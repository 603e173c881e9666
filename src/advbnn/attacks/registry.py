"""All attacks by name: a new attack is a file with its class, and a line here.

This table imports no torch, so that the command line can check names and show help at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from advbnn.errors import ArgumentError, one_of
from advbnn.names import NORMS

if TYPE_CHECKING:
    from torch import nn

    from advbnn.attacks.base import Attack
    from advbnn.attacks.threat import Threat
    from advbnn.attacks.transfer import Transfer


@dataclass(frozen=True)
class Entry:
    """An attack of the registry: its module and class, and what the command line needs to know of it.

    Args:
        options: which of the command line's `--steps` and `--eot` it takes.
        settings: its fields that differ from the defaults of the class.
        on_mean: it is made on the posterior-mean network and transferred.
        note: a short explanation for the help text.
    """

    path: str
    options: tuple[str, ...] = ("steps", "eot")
    settings: Mapping[str, Any] = field(default_factory=dict)
    norms: tuple[str, ...] = NORMS
    on_mean: bool = False
    note: str = ""


_UNCERTAINTY, _MI = "uncertainty.UncertaintyPGD", "mutual_information"
_PAPER = {"step_size": 0.007, "random_start": False}

ATTACKS = {
    "paper": Entry("pgd.PGD", ("steps",), _PAPER, ("linf",), note="the authors' PGD, one weight sample per step"),
    "fgsm": Entry("pgd.FGSM", ("eot",)),
    "pgd": Entry("pgd.PGD"),
    "apgd": Entry("apgd.APGD"),
    "apgd-dlr": Entry("apgd.APGD", settings={"loss": "dlr"}),
    "mean": Entry("pgd.PGD", ("steps",), on_mean=True, note="PGD on the posterior-mean network"),
    "evasive": Entry("evasion.EvasivePGD", note="PGD that also evades detection by uncertainty"),
    "overconfident": Entry(_UNCERTAINTY, settings={"direction": "lower"}, note="lowers the entropy"),
    "underconfident": Entry(_UNCERTAINTY, settings={"direction": "raise"}, note="raises the entropy"),
    "mi-low": Entry(_UNCERTAINTY, settings={"score": _MI, "direction": "lower"}, note="lowers the disagreement"),
    "mi-high": Entry(_UNCERTAINTY, settings={"score": _MI, "direction": "raise"}, note="raises the disagreement"),
    "cw": Entry("cw.CW", norms=("l2", "linf")),
    "fab": Entry("fab.FAB", note="the smallest perturbation, by projections onto linearised boundaries"),
    "arc": Entry("arc.ARC", ("steps",), norms=("linf", "l2"), note="fools the members of a mixture one by one"),
    "fixed": Entry("fixed_randomness.FixedRandomness", ("steps",), note="knows the seed of the deployed ensemble"),
    "square": Entry("square.Square", ("eot",)),
    "nes": Entry("finite_differences.NES", ("eot",)),
    "spsa": Entry("finite_differences.SPSA", ("eot",)),
    "zoo": Entry("finite_differences.ZOO", ("eot",)),
    "hopskipjump": Entry("hopskipjump.HopSkipJump", ("eot",), norms=("linf", "l2"), note="sees labels only"),
}


def make_attack(name: str, threat: "Threat", model: "nn.Module | None" = None, **settings: Any) -> "Attack | Transfer":
    """The attack of that name in `ATTACKS`, with these settings of its class; only `"mean"` needs the model."""
    one_of("attack", name, ATTACKS)
    entry = ATTACKS[name]
    if threat.norm not in entry.norms:
        norms = " or ".join(map(repr, entry.norms))
        raise ArgumentError(f"attack {name!r} is for norm {norms}, got {threat.norm!r}; use 'pgd'")
    module, _, kind = entry.path.partition(".")
    attack: Attack = getattr(import_module(f"advbnn.attacks.{module}"), kind)(threat, **{**entry.settings, **settings})
    if not entry.on_mean:
        return attack
    from advbnn.attacks.transfer import Transfer

    return Transfer.from_mean(model, attack)
