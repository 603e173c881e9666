"""The public names, read by type checkers, and by `__init__.py` to import each of them on first use."""

from advbnn import attacks as attacks
from advbnn import bayes as bayes
from advbnn import data as data
from advbnn import defenses as defenses
from advbnn import evaluation as evaluation
from advbnn import models as models
from advbnn import report as report
from advbnn import training as training
from advbnn.attacks import Threat as Threat
from advbnn.bayes import layers as layers
from advbnn.bayes.kl import kl_divergence as kl_divergence
from advbnn.bayes.mean_field import Bayesian as Bayesian
from advbnn.bayes.mean_field import bayesianize as bayesianize
from advbnn.bayes.modes import Modes as Modes
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
from advbnn.bayes.swag import SWAG as SWAG
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
from advbnn.randomness import Resampled as Resampled
from advbnn.training.loading import load_trained as load_trained
from advbnn.training.loop import fit as fit

__version__: str
