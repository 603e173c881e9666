"""Training: `fit(net, data, defense)` runs Algorithm 1 and returns the trained network.

The call chain is `loop.fit -> state.TrainingState.advance -> step.EagerStep` (or its fast form, chosen by `engine`).
`config` has the settings of a run, `run_folder` and `checkpoint` its files, and `loading` reads the result back.
"""

from typing import TYPE_CHECKING

from advbnn.lazy import submodules
from advbnn.training.callbacks import Callback as Callback
from advbnn.training.callbacks import Moment as Moment
from advbnn.training.callbacks import TensorBoard as TensorBoard
from advbnn.training.checkpoint import load_weights as load_weights
from advbnn.training.config import Config as Config
from advbnn.training.config import load_config as load_config
from advbnn.training.fit_result import FitResult as FitResult
from advbnn.training.interrupts import Interrupted as Interrupted
from advbnn.training.loading import Trained as Trained
from advbnn.training.loading import load_trained as load_trained
from advbnn.training.loop import fit as fit
from advbnn.training.loop import fit_config as fit_config
from advbnn.training.mode_plan import ModePlan as ModePlan

if not TYPE_CHECKING:  # type checkers know the submodules
    __getattr__ = submodules(__name__)
