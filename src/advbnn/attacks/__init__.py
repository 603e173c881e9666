"""Attacks on networks whose weights may be random: `attack(model, x, y, seed)` returns `x_adv` inside a `Threat`.

One file per family. Each attack is a frozen dataclass of its settings, and `registry` knows it by name. The names below
are imported on first use (PEP 562), so that the command line can list attacks without importing torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from advbnn.lazy import submodules

if TYPE_CHECKING:  # the same names, for type checkers and editors
    from advbnn.attacks.apgd import APGD as APGD
    from advbnn.attacks.arc import ARC as ARC
    from advbnn.attacks.base import Attack as Attack
    from advbnn.attacks.base import AttackResult as AttackResult
    from advbnn.attacks.base import GradientMaskingWarning as GradientMaskingWarning
    from advbnn.attacks.bpda import BPDA as BPDA
    from advbnn.attacks.cw import CW as CW
    from advbnn.attacks.evasion import EvasivePGD as EvasivePGD
    from advbnn.attacks.fab import FAB as FAB
    from advbnn.attacks.finite_differences import NES as NES
    from advbnn.attacks.finite_differences import SPSA as SPSA
    from advbnn.attacks.finite_differences import ZOO as ZOO
    from advbnn.attacks.fixed_randomness import FixedRandomness as FixedRandomness
    from advbnn.attacks.hopskipjump import HopSkipJump as HopSkipJump
    from advbnn.attacks.pgd import BIM as BIM
    from advbnn.attacks.pgd import FGSM as FGSM
    from advbnn.attacks.pgd import PGD as PGD
    from advbnn.attacks.pgd import GradientAscent as GradientAscent
    from advbnn.attacks.pgd import paper_pgd as paper_pgd
    from advbnn.attacks.registry import make_attack as make_attack
    from advbnn.attacks.square import Square as Square
    from advbnn.attacks.threat import Threat as Threat
    from advbnn.attacks.transfer import Transfer as Transfer
    from advbnn.attacks.uncertainty import UncertaintyPGD as UncertaintyPGD

_NAMES = {
    "apgd": "APGD",
    "arc": "ARC",
    "base": "Attack AttackResult GradientMaskingWarning",
    "bpda": "BPDA",
    "cw": "CW",
    "evasion": "EvasivePGD",
    "fab": "FAB",
    "finite_differences": "NES SPSA ZOO",
    "fixed_randomness": "FixedRandomness",
    "hopskipjump": "HopSkipJump",
    "pgd": "BIM FGSM PGD GradientAscent paper_pgd",
    "registry": "make_attack",
    "square": "Square",
    "threat": "Threat",
    "transfer": "Transfer",
    "uncertainty": "UncertaintyPGD",
}
_MODULE_OF = {name: f"advbnn.attacks.{module}" for module, names in _NAMES.items() for name in names.split()}

__all__ = [*_MODULE_OF]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        return submodules(__name__)(name)
    value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
    return value
