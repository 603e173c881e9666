"""Bayesian neural networks trained against adversarial examples, and honest evidence of whether they resist them."""

from advbnn import attacks, data, layers, models
from advbnn.accelerate import accelerate
from advbnn.audit import Audit, audit
from advbnn.defenses import Defense
from advbnn.evaluate import evaluate
from advbnn.noise import add_noise
from advbnn.posterior import Bayesian, bayesianize, kl_divergence
from advbnn.predict import Ensemble, Prediction, predict
from advbnn.priors import GaussianPrior, ScaleMixturePrior, SpikeAndSlabPrior
from advbnn.profiles import defense
from advbnn.randlayer import rand_layer
from advbnn.records import Record, Records
from advbnn.regress import Regression, RegressionScore, regress, score_regression
from advbnn.sgld import PSGLD, SGLD, SampleBank
from advbnn.threat import Threat
from advbnn.train import fit
from advbnn.trained import load_trained

__version__ = "0.1.0"

__all__ = [
    "PSGLD",
    "SGLD",
    "Audit",
    "Bayesian",
    "Defense",
    "Ensemble",
    "GaussianPrior",
    "Prediction",
    "Record",
    "Records",
    "Regression",
    "RegressionScore",
    "SampleBank",
    "ScaleMixturePrior",
    "SpikeAndSlabPrior",
    "Threat",
    "accelerate",
    "add_noise",
    "attacks",
    "audit",
    "bayesianize",
    "data",
    "defense",
    "evaluate",
    "fit",
    "kl_divergence",
    "layers",
    "load_trained",
    "models",
    "predict",
    "rand_layer",
    "regress",
    "score_regression",
]
