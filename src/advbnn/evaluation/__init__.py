"""Evaluation: model + examples + attack -> `Record`.

`accuracy` measures accuracy under attack, `curves` along a radius or another setting, `transfer` between models,
`uncertainty` the quality of the predictive uncertainty, `lipschitz` the local slope of the loss, `regression` the error
of regressions. `audit` runs a suite of attacks and reports the worst case. Records say what was measured, on which
weights and images, and with which settings. Nothing here trains or plots.
"""

from typing import TYPE_CHECKING

from advbnn.evaluation.accuracy import Evaluation as Evaluation
from advbnn.evaluation.accuracy import SingleMemberWarning as SingleMemberWarning
from advbnn.evaluation.accuracy import SmallSampleWarning as SmallSampleWarning
from advbnn.evaluation.accuracy import evaluate as evaluate
from advbnn.evaluation.checks import Perturbation as Perturbation
from advbnn.evaluation.options import Options as Options
from advbnn.evaluation.records import Plan as Plan
from advbnn.evaluation.records import Record as Record
from advbnn.evaluation.records import Records as Records
from advbnn.lazy import submodules

if not TYPE_CHECKING:  # type checkers know the submodules
    __getattr__ = submodules(__name__)
