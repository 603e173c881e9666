"""Attacks for networks whose weights are random, one file an attack; all are called alike."""

from advbnn.attacks.base import Attack as Attack
from advbnn.attacks.base import GradientMaskingWarning as GradientMaskingWarning
from advbnn.attacks.base import Outcome as Outcome
from advbnn.attacks.pgd import BIM as BIM
from advbnn.attacks.pgd import FGSM as FGSM
from advbnn.attacks.pgd import PGD as PGD
from advbnn.attacks.pgd import SGD as SGD
from advbnn.attacks.pgd import paper_pgd as paper_pgd
