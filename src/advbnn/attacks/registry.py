"""All attacks by name: a new attack is a file with its class, and a line here.

This table imports no torch, so that the command line can check names and show help at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from advbnn.errors import ArgumentError, unknown

if TYPE_CHECKING:
    from torch import nn

    from advbnn.attacks.base import Attack
    from advbnn.attacks.threat import Threat
    from advbnn.attacks.transfer import Transfer


@dataclass(frozen=True)
class Entry:
    """An attack of the registry.

    Args:
        path: module and class within `advbnn.attacks`.
        options: which of the command line's `--steps` and `--eot` it takes.
        settings: its fields that differ from the defaults of the class.
        norms: the norms it supports.
        on_mean: it is made on the posterior-mean network and transferred.
        note: a short explanation for the help text.
    """

    path: str
    options: tuple[str, ...] = ("steps", "eot")
    settings: Mapping[str, Any] = field(default_factory=dict)
    norms: tuple[str, ...] = ("linf", "l2", "l1")
    on_mean: bool = False
    note: str = ""


ATTACKS = {
    "paper": Entry(
        "pgd.PGD",
        ("steps",),
        {"step_size": 0.007, "random_start": False},
        norms=("linf",),
        note="the authors' PGD, one weight sample per step",
    ),
    "fgsm": Entry("pgd.FGSM", ("eot",)),
    "pgd": Entry("pgd.PGD"),
    "apgd": Entry("apgd.APGD"),
    "apgd-dlr": Entry("apgd.APGD", settings={"loss": "dlr"}),
    "mean": Entry("pgd.PGD", ("steps",), on_mean=True, note="PGD on the posterior-mean network"),
    "evasive": Entry("evasion.EvasivePGD", note="PGD that also evades detection by uncertainty"),
    "cw": Entry("cw.CW", norms=("l2", "linf")),
    "square": Entry("square.Square", ("eot",)),
    "nes": Entry("nes.NES", ("eot",)),
    "spsa": Entry("spsa.SPSA", ("eot",)),
    "zoo": Entry("zoo.ZOO", ("eot",)),
}


def make_attack(name: str, threat: "Threat", model: "nn.Module | None" = None, **settings: Any) -> "Attack | Transfer":
    """The attack of that name.

    Args:
        name: a key of `ATTACKS`.
        threat: the allowed perturbations.
        model: the network to be attacked; only `"mean"` needs it.
        settings: fields of the attack's class.
    """
    if name not in ATTACKS:
        raise unknown("attack", name, ATTACKS)
    entry = ATTACKS[name]
    if threat.norm not in entry.norms:
        norms = " or ".join(map(repr, entry.norms))
        raise ArgumentError(f"attack {name!r} is for norm {norms}, got {threat.norm!r}; use 'pgd'")
    module, _, kind = entry.path.partition(".")
    attack: Attack = getattr(import_module(f"advbnn.attacks.{module}"), kind)(threat, **{**entry.settings, **settings})
    if not entry.on_mean:
        return attack
    from advbnn.attacks.transfer import Transfer
    from advbnn.bayes.protocol import posterior_mean

    if model is None or posterior_mean(model) is None:
        raise ArgumentError(f"attack {name!r} needs a Bayesian network, got {type(model).__name__}; leave it out")
    return Transfer.from_mean(model, attack)
