"""Networks with random weights: posteriors, priors, KL, and prediction.

Contract: every family is a `RandomNetwork`: an `nn.Module` around a plain network `net` with
`sample() -> weights`, `run(weights, *inputs)` and `frozen(seed)`. A call uses a fresh weight sample; inside a `frozen`
block, one sample. Other packages use this protocol alone, so a new family is one file here. The families are
`Bayesian` (mean field, made by `bayesianize`), `SampleBank` (stored samples, such as those of `SGLD`), `SWAG` (moments
of the weights during training) and `Modes` (a mixture of any networks).
"""

from typing import TYPE_CHECKING

from advbnn.bayes import layers as layers
from advbnn.bayes.kl import kl_divergence as kl_divergence
from advbnn.bayes.likelihoods import Categorical as Categorical
from advbnn.bayes.likelihoods import Gaussian as Gaussian
from advbnn.bayes.mean_field import Bayesian as Bayesian
from advbnn.bayes.mean_field import bayesianize as bayesianize
from advbnn.bayes.modes import Modes as Modes
from advbnn.bayes.prediction import Ensemble as Ensemble
from advbnn.bayes.prediction import Prediction as Prediction
from advbnn.bayes.prediction import predict as predict
from advbnn.bayes.priors import GaussianPrior as GaussianPrior
from advbnn.bayes.priors import Prior as Prior
from advbnn.bayes.priors import ScaleMixturePrior as ScaleMixturePrior
from advbnn.bayes.priors import SpikeAndSlabPrior as SpikeAndSlabPrior
from advbnn.bayes.priors import unit_norm_scales as unit_norm_scales
from advbnn.bayes.protocol import RandomNetwork as RandomNetwork
from advbnn.bayes.sample_bank import SampleBank as SampleBank
from advbnn.bayes.sampling import rand_layer as rand_layer
from advbnn.bayes.sgld import PSGLD as PSGLD
from advbnn.bayes.sgld import SGLD as SGLD
from advbnn.bayes.swag import SWAG as SWAG
from advbnn.lazy import submodules

if not TYPE_CHECKING:  # type checkers know the submodules
    __getattr__ = submodules(__name__)
