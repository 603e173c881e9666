"""The paper's five ways to train a network, as plain values: no defence, RSE, adversarial training, BNN, Adv-BNN.

A `Defense` says everything that training needs to know; `fit` does the rest. Its numbers come from a profile, see
`advbnn.defenses.profiles`, and every one of them can be changed.
"""

import math
from dataclasses import dataclass, field

from torch import nn

from advbnn import models
from advbnn.attacks import PGD
from advbnn.bayes.mean_field import bayesianize
from advbnn.bayes.priors import GaussianPrior, unit_norm_scales
from advbnn.bayes.protocol import random_parts
from advbnn.defenses.config_io import DERIVED
from advbnn.defenses.objective import RobustELBO
from advbnn.defenses.optimizers import SGD, Adam, Langevin
from advbnn.defenses.rse import add_noise, noise_levels
from advbnn.defenses.schedules import Constant, Cosine, OneCycle, Stages
from advbnn.errors import ArgumentError, unknown
from advbnn.randomness import seeded

NORM_SCALES = ("ones", "uniform")
ATTACK_MODES = ("eval", "train")

OWN = "own"
"""In place of an architecture: a network that was built elsewhere and given to `fit`."""


@dataclass(frozen=True, kw_only=True)
class Plain:
    """The network as it is."""

    def wrap(self, net: nn.Module) -> nn.Module:
        return net


@dataclass(frozen=True, kw_only=True)
class Noisy:
    """The network with noise before every convolution (RSE); see `add_noise`."""

    first: float = 0.2
    inner: float = 0.1

    def wrap(self, net: nn.Module) -> nn.Module:
        return net if noise_levels(net) else add_noise(net, self.first, self.inner)


@dataclass(frozen=True, kw_only=True)
class Variational:
    """The network with random weights; see `bayesianize`.

    Args:
        prior_std: sigma_0, the standard deviation of the prior.
        init_std: the posterior standard deviation at the start.
        norm_scale_mean: the prior mean of normalisation scales, which act as factors; 0 in the paper, as for all
            other weights, where 1 would leave the network's function in peace.
    """

    prior_std: float = 0.05
    init_std: float = 0.05
    norm_scale_mean: float = 0.0

    def __post_init__(self) -> None:
        for name in ("prior_std", "init_std"):
            if not 0 < getattr(self, name) < math.inf:
                raise ArgumentError(f"{name} must be a positive, finite standard deviation, got {getattr(self, name)}")

    def wrap(self, net: nn.Module) -> nn.Module:
        if random_parts(net):
            return net
        return bayesianize(net, prior=self._prior(net), init_std=self.init_std)

    def _prior(self, net: nn.Module) -> GaussianPrior:
        if self.norm_scale_mean == 0:
            return GaussianPrior(std=self.prior_std)
        return GaussianPrior(std=self.prior_std, mean=dict.fromkeys(unit_norm_scales(net), self.norm_scale_mean))


@dataclass(frozen=True, kw_only=True)
class Averaging:
    """A running average of the weights, which is what `fit` returns; see `WeightAverage`.

    Args:
        decay: of an exponential average (EMA); None for the equal average (SWA), after which normalisation statistics
            are estimated anew.
        start: the epoch to begin after.
    """

    decay: float | None = 0.995
    start: int = 0

    def __post_init__(self) -> None:
        if self.decay is not None and not 0 <= self.decay < 1:
            raise ArgumentError(f"decay must lie in [0, 1), or be None for the equal average, got {self.decay}")
        if self.start < 0:
            raise ArgumentError(f"start must be an epoch, 0 or later, got {self.start}")


@dataclass(frozen=True, kw_only=True)
class EarlyStopping:
    """Keep the epoch that does best on a validation set, and stop when none has been best for a while.

    Args:
        fraction: the share of the training set that is taken for validation, where the data has no such set yet.
        patience: epochs without a new best after which the run ends.
        every: epochs from one validation to the next.
        samples: draws of the network that a prediction is averaged over.
    """

    fraction: float = 0.1
    patience: int = 20
    every: int = 1
    samples: int = 10

    def __post_init__(self) -> None:
        if not 0 < self.fraction < 1:
            raise ArgumentError(f"fraction must lie in (0, 1), got {self.fraction}")
        for name in ("patience", "every", "samples"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name} must be at least 1, got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class Defense:
    """How a network is made, attacked and updated in training.

    Args:
        name: what the defence is called.
        profile: whose numbers these are: `"paper"`, `"authors_code"` or `"ours"`.
        like: the dataset that they are for.
        architecture: the network of the experiment, for `models.build`; `"own"` in the settings that `fit` has kept of
            a network that is another.
        norm_scales: BatchNorm scales start at `"ones"`, or `"uniform"` in (0, 1) as in PyTorch 0.4.
        network: what becomes of the network: `Plain`, `Noisy` or `Variational`.
        attack: perturbs every batch before the update; None trains on clean data.
        attack_mode: normalisation during the attack: `"eval"` by running statistics, `"train"` by those of the batch.
        objective: what the update minimises.
        optimizer: `SGD`, `Adam`, or `Langevin` to sample the weights instead of optimizing them.
        schedule: learning rate and length: `Constant`, `Stages`, `Cosine` or `OneCycle`.
        batch_size: examples in an update, over all processes.
        drop_last: leave out an epoch's last, smaller batch.
        augment: change images at random as the authors' code does for the dataset; see `data.usual_augmentation`.
        clip: the largest norm of an update's gradient; unlimited when None.
        averaging: average the weights along the way; None for no average.
        awp: rho, the relative size of an adversarial perturbation of the weights; None for none.
        early_stopping: stop on a validation set; None trains to the end.
        chosen_by_us: settings that the profile's source leaves open, so that the value is this library's choice.
        changed: settings that differ from the profile.
    """

    name: str = "none"
    profile: str = "ours"
    like: str = "digits"
    architecture: str = "small_cnn"
    norm_scales: str = "ones"
    network: Plain | Noisy | Variational = Plain()
    attack: PGD | None = None
    attack_mode: str = "eval"
    objective: RobustELBO = field(default_factory=RobustELBO)
    optimizer: SGD | Adam | Langevin = field(default_factory=SGD)
    schedule: Constant | Stages | Cosine | OneCycle = field(default_factory=Constant)
    batch_size: int = 128
    drop_last: bool = False
    augment: bool = True
    clip: float | None = None
    averaging: Averaging | None = None
    awp: float | None = None
    early_stopping: EarlyStopping | None = None
    chosen_by_us: tuple[str, ...] = field(default=(), metadata=DERIVED)
    changed: tuple[str, ...] = field(default=(), metadata=DERIVED)

    def __post_init__(self) -> None:
        if self.norm_scales not in NORM_SCALES:
            raise unknown("norm_scales", self.norm_scales, NORM_SCALES)
        if self.attack_mode not in ATTACK_MODES:
            raise unknown("attack_mode", self.attack_mode, ATTACK_MODES)
        for name in ("clip", "awp"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ArgumentError(f"{name} must be positive, or None to leave it out, got {value}")
        if isinstance(self.optimizer, Langevin) and not isinstance(self.network, Plain):
            raise ArgumentError(
                f"Langevin dynamics samples the weights of a plain network, got network={self.network!r}; "
                "use network=Plain()"
            )
        self._check_averaging()
        self._check_attack()

    def wrap(self, net: nn.Module) -> nn.Module:
        """What this defence trains: `net` itself, or noisy, or Bayesian; a net that is so already is left alone."""
        return self.network.wrap(net)

    def build(self, *, classes: int, shape: tuple[int, ...], seed: int = 0) -> nn.Module:
        """A freshly initialised network of this defence's architecture, ready for `fit`.

        Args:
            classes: the number of classes.
            shape: (channels, height, width) of the images.
            seed: decides the initial weights.
        """
        if self.architecture == OWN:
            raise ArgumentError(
                "architecture='own' stands for a network of somebody's own that was given to fit, and settings alone "
                "cannot build it; build it in Python, and give it to fit, or to load_trained(folder, net=...)"
            )
        if len(shape) != 3 or shape[1] != shape[2]:
            raise ArgumentError(
                f"shape must be (channels, height, width) of square images, got {shape}; for other inputs build a "
                "network yourself and give it to fit"
            )
        with seeded(seed):
            net = models.build(self.architecture, classes=classes, image_size=shape[1], channels=shape[0])
            if self.norm_scales == "uniform":
                models.uniform_norm_scales_(net)
        return self.wrap(net)

    def _check_averaging(self) -> None:
        averaging, stopping = self.averaging, self.early_stopping
        if isinstance(self.optimizer, Langevin) and (averaging is not None or stopping is not None):
            which = "averaging" if averaging is not None else "early_stopping"
            raise ArgumentError(f"Langevin dynamics keeps samples of the weights, and {which} knows none; leave it out")
        if averaging is None:
            return
        epochs = self.schedule.total_epochs
        if averaging.start >= epochs:
            raise ArgumentError(
                f"averaging.start={averaging.start} is past the last epoch, so that nothing would be averaged; the "
                f"schedule has {epochs} epochs, give at most {epochs - 1}"
            )
        if stopping is not None and averaging.decay is None:
            raise ArgumentError(
                "the equal average needs its normalisation statistics estimated anew before it can be judged, which "
                "early_stopping does not do; give averaging.decay, such as 0.995, or leave one of them out"
            )

    def _check_attack(self) -> None:
        likelihood, trades = self.objective.likelihood, self.objective.trades
        if self.attack is None:
            if trades is not None:
                raise ArgumentError("trades compares clean and perturbed inputs, and there is no attack; give one")
            return
        if self.attack.targeted:
            raise ArgumentError(
                "training perturbs examples away from their own labels: use an attack with targeted=False"
            )
        if (self.attack.loss == "nll") != (likelihood.attack_loss == "nll"):
            raise ArgumentError(
                f"attack.loss={self.attack.loss!r} does not fit a {type(likelihood).__name__} likelihood; "
                f"use loss={likelihood.attack_loss!r}"
            )
        if trades is not None and isinstance(self.network, Plain) and not self.attack.random_start:
            raise ArgumentError(
                "trades needs attack.random_start=True: at the input itself the divergence is zero, "
                "and so is its gradient"
            )
