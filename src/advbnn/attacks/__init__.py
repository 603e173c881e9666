"""Attacks for networks whose weights are random, one file an attack; all are called alike."""

from advbnn.attacks.apgd import APGD as APGD
from advbnn.attacks.base import Attack as Attack
from advbnn.attacks.base import GradientMaskingWarning as GradientMaskingWarning
from advbnn.attacks.base import Outcome as Outcome
from advbnn.attacks.cw import CW as CW
from advbnn.attacks.nes import NES as NES
from advbnn.attacks.pgd import BIM as BIM
from advbnn.attacks.pgd import FGSM as FGSM
from advbnn.attacks.pgd import PGD as PGD
from advbnn.attacks.pgd import SGD as SGD
from advbnn.attacks.pgd import paper_pgd as paper_pgd
from advbnn.attacks.spsa import SPSA as SPSA
from advbnn.attacks.square import Square as Square
from advbnn.attacks.threat import Threat as Threat
from advbnn.attacks.transfer import Transfer as Transfer
from advbnn.attacks.zoo import ZOO as ZOO
