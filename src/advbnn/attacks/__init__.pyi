"""The public names, read by type checkers, and by `__init__.py` to import each of them on first use."""

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
