"""Bayesian neural networks trained against adversarial examples, and honest evidence of whether they resist them."""

from advbnn import data, layers, models
from advbnn.noise import add_noise
from advbnn.posterior import Bayesian, bayesianize, kl_divergence
from advbnn.predict import Ensemble, Prediction, predict
from advbnn.priors import GaussianPrior, ScaleMixturePrior, SpikeAndSlabPrior
from advbnn.randlayer import rand_layer

__version__ = "0.1.0"

__all__ = [
    "Bayesian",
    "Ensemble",
    "GaussianPrior",
    "Prediction",
    "ScaleMixturePrior",
    "SpikeAndSlabPrior",
    "add_noise",
    "bayesianize",
    "data",
    "kl_divergence",
    "layers",
    "models",
    "predict",
    "rand_layer",
]
