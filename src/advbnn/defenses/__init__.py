"""The paper's defences as values: how a network is built, attacked and updated.

`defense(name, data)` returns a `Defense` with the numbers of a profile; `add_noise` is the module of RSE. Nothing here
trains: `advbnn.training.fit` takes a `Defense`.
"""

from typing import TYPE_CHECKING

from advbnn.defenses.defense import Averaging as Averaging
from advbnn.defenses.defense import Defense as Defense
from advbnn.defenses.defense import EarlyStopping as EarlyStopping
from advbnn.defenses.networks import Noisy as Noisy
from advbnn.defenses.networks import Plain as Plain
from advbnn.defenses.networks import Variational as Variational
from advbnn.defenses.objective import RobustELBO as RobustELBO
from advbnn.defenses.optimizers import AdamOptimizer as AdamOptimizer
from advbnn.defenses.optimizers import LangevinSampler as LangevinSampler
from advbnn.defenses.optimizers import SGDOptimizer as SGDOptimizer
from advbnn.defenses.profiles import DATASETS as DATASETS
from advbnn.defenses.profiles import DEFENSES as DEFENSES
from advbnn.defenses.rse import add_noise as add_noise
from advbnn.defenses.schedules import Constant as Constant
from advbnn.defenses.schedules import Cosine as Cosine
from advbnn.defenses.schedules import OneCycle as OneCycle
from advbnn.defenses.schedules import Stages as Stages
from advbnn.lazy import submodules

if not TYPE_CHECKING:  # type checkers know the submodules
    __getattr__ = submodules(__name__)
