"""Bayesian neural networks trained against adversarial examples, and honest evidence of whether they resist them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "attacks": "Threat",
    "bayes.kl": "kl_divergence",
    "bayes.mean_field": "Bayesian bayesianize",
    "bayes.prediction": "Ensemble Prediction predict",
    "bayes.priors": "GaussianPrior ScaleMixturePrior SpikeAndSlabPrior",
    "bayes.sampling": "rand_layer",
    "bayes.sample_bank": "SampleBank",
    "bayes.sgld": "PSGLD SGLD",
    "defenses.defense": "Defense",
    "defenses.profiles": "defense",
    "defenses.rse": "add_noise",
    "errors": "AdvbnnError",
    "evaluation.accuracy": "evaluate",
    "evaluation.audit.worst_case": "Audit audit",
    "evaluation.records": "Record Records",
    "evaluation.regression": "Regression RegressionScore regress score_regression",
    "fast.acceleration": "accelerate",
    "training.loading": "load_trained",
    "training.loop": "fit",
}
"""Public names by the module that defines them; each is imported when it is first used (PEP 562)."""

_MODULE_OF = {name: f"advbnn.{module}" for module, names in _PUBLIC.items() for name in names.split()}
_ROOMS = {
    name: f"advbnn.{name}" for name in ("attacks", "bayes", "data", "defenses", "evaluation", "models", "training")
}
_ROOMS["layers"] = "advbnn.bayes.layers"

__all__ = [*_MODULE_OF, *_ROOMS]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(_ROOMS[name])
    if name in _MODULE_OF:
        value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
        return value
    raise AttributeError(f"module 'advbnn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


if TYPE_CHECKING:  # the same names, for type checkers and editors
    from advbnn import attacks as attacks
    from advbnn import bayes as bayes
    from advbnn import data as data
    from advbnn import defenses as defenses
    from advbnn import evaluation as evaluation
    from advbnn import models as models
    from advbnn import training as training
    from advbnn.attacks import Threat as Threat
    from advbnn.bayes import layers as layers
    from advbnn.bayes.kl import kl_divergence as kl_divergence
    from advbnn.bayes.mean_field import Bayesian as Bayesian
    from advbnn.bayes.mean_field import bayesianize as bayesianize
    from advbnn.bayes.prediction import Ensemble as Ensemble
    from advbnn.bayes.prediction import Prediction as Prediction
    from advbnn.bayes.prediction import predict as predict
    from advbnn.bayes.priors import GaussianPrior as GaussianPrior
    from advbnn.bayes.priors import ScaleMixturePrior as ScaleMixturePrior
    from advbnn.bayes.priors import SpikeAndSlabPrior as SpikeAndSlabPrior
    from advbnn.bayes.sample_bank import SampleBank as SampleBank
    from advbnn.bayes.sampling import rand_layer as rand_layer
    from advbnn.bayes.sgld import PSGLD as PSGLD
    from advbnn.bayes.sgld import SGLD as SGLD
    from advbnn.defenses.defense import Defense as Defense
    from advbnn.defenses.profiles import defense as defense
    from advbnn.defenses.rse import add_noise as add_noise
    from advbnn.errors import AdvbnnError as AdvbnnError
    from advbnn.evaluation.accuracy import evaluate as evaluate
    from advbnn.evaluation.audit.worst_case import Audit as Audit
    from advbnn.evaluation.audit.worst_case import audit as audit
    from advbnn.evaluation.records import Record as Record
    from advbnn.evaluation.records import Records as Records
    from advbnn.evaluation.regression import Regression as Regression
    from advbnn.evaluation.regression import RegressionScore as RegressionScore
    from advbnn.evaluation.regression import regress as regress
    from advbnn.evaluation.regression import score_regression as score_regression
    from advbnn.fast.acceleration import accelerate as accelerate
    from advbnn.training.loading import load_trained as load_trained
    from advbnn.training.loop import fit as fit
