"""A defence as a plain value: how a network is built, attacked and updated in training.

`fit` takes everything from a `Defense`. The numbers of the paper's five defences (none, RSE, adversarial training, BNN,
Adv-BNN) come from a profile, see `advbnn.defenses.profiles`, and each of them can be changed.
"""

import re
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

from torch import nn

from advbnn import models
from advbnn.attacks import PGD
from advbnn.bayes.likelihoods import Categorical
from advbnn.data.augment import NAMED
from advbnn.defenses.config_io import DERIVED
from advbnn.defenses.ig_bnn import ParticleEnsemble
from advbnn.defenses.networks import Noisy, Plain, Variational
from advbnn.defenses.objective import RobustELBO
from advbnn.defenses.optimizers import AdamOptimizer, LangevinSampler, SGDOptimizer
from advbnn.defenses.registry import Randomized
from advbnn.defenses.rse import noise_levels
from advbnn.defenses.schedules import Constant, Cosine, OneCycle, Section, Stages
from advbnn.errors import MOST_EXAMPLES, ArgumentError, check_types, one_of, positive_whole, whole, within
from advbnn.models.initial_weights import InitialWeights, load_initial
from advbnn.randomness import seeded

OWN = "own"
"""In place of an architecture: a network that was not built by `Defense.build`, but passed to `fit`."""

_BUILT: WeakKeyDictionary[nn.Module, tuple[object, ...]] = WeakKeyDictionary()
"""The networks that `Defense.build` returned, with the settings and the structure they were built with."""


@dataclass(frozen=True, kw_only=True)
class Averaging:
    """`fit` returns a running average of the weights from epoch `start` on; see `WeightAverage`.

    The `decay` is of an exponential moving average (EMA); None for the equal average (SWA). The running statistics of
    BatchNorm are estimated anew for the average, on images attacked as in training, like those of the batches that the
    weights were trained with. With a `consistency` weight c, the loss has the further term
    c KL(p(. | x^adv, average) || p(. | x^adv, w)), with the statistics of the batch, which
    keeps the network near its average (ReBAT; Wang et al., 2023).
    """

    decay: float | None = 0.995
    start: int = 0
    consistency: float = 0.0

    def __post_init__(self) -> None:
        if self.decay is not None:
            within("decay", self.decay, "[0, 1)", 'or None ("none" in a file) for the equal average')
        whole("start", self.start, 0)
        within("consistency", self.consistency, "[0, 1e6]")


@dataclass(frozen=True, kw_only=True)
class Swag:
    """`fit` returns a `SWAG` of the weights from epoch `start` on, or samples of it.

    Args:
        start: the epoch after which the weights are collected.
        per_epoch: how often in an epoch, evenly spaced; the last time at its end.
        rank: the number of deviations kept, each as large as the network.
        scale: the factor of the covariance.
        statistics: the running statistics of a weight sample: `"kept"`, those of the mean weights, for any number of
            samples; or `"anew"`, estimated for each of `samples` stored ones: the result is a `SampleBank` of these.
        samples: with `"anew"`, the number of weight samples.
    """

    start: int = 0
    per_epoch: int = 1
    rank: int = 20
    scale: float = 1.0
    statistics: str = "anew"
    samples: int = 20

    def __post_init__(self) -> None:
        for name in ("per_epoch", "samples"):
            positive_whole(name, getattr(self, name))
        whole("rank", self.rank, 2)
        whole("start", self.start, 0)
        within("scale", self.scale, "[0, 1e6]", "1 is SWAG's own covariance")
        one_of("statistics", self.statistics, ("kept", "anew"))


@dataclass(frozen=True, kw_only=True)
class EarlyStopping:
    """Return the best epoch on a validation set, and stop when there has been no new best for a while.

    Args:
        fraction: the fraction of the training set held out for validation, if the data has no validation set.
        patience: the run ends after this many epochs without a new best.
        every: epochs between validations.
        samples: weight samples per prediction.
    """

    fraction: float = 0.1
    patience: int = 20
    every: int = 1
    samples: int = 10

    def __post_init__(self) -> None:
        within("fraction", self.fraction, "(0, 1)")
        for name in ("patience", "every", "samples"):
            positive_whole(name, getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class Defense:
    """How a network is built, attacked and updated in training.

    Args:
        name: the name of the defence.
        profile: the source of the numbers: `"paper"`, `"authors_code"` or `"ours"`.
        like: the dataset that the numbers are for.
        architecture: the network, for `models.build`; `"own"` in the run folder of a network that `build` did not make.
        norm_scales: BatchNorm scales start at `"ones"`, or `"uniform"` in (0, 1) as in PyTorch 0.4.
        network: how the network becomes random: `Plain` (not at all), `Noisy`, `Variational`, or a published defence's;
            see `advbnn.defenses.registry`.
        attack: perturbs every batch before the update; None trains on clean data.
        attack_mode: BatchNorm in the attack: `"eval"` uses running statistics, `"train"` batch statistics.
        radius_warmup: epochs in which the radius of the attack grows to its full size; see `attack_in`.
        objective: what the update minimises.
        optimizer: `SGDOptimizer`, `AdamOptimizer`, or `LangevinSampler` to sample the weights.
        schedule: learning rate and length: `Constant`, `Stages`, `Cosine`, `OneCycle`, or a `Section` of one of these.
        batch_size: examples per update, over all processes.
        drop_last: skip the last, smaller batch of an epoch.
        augment: true for the augmentation of the authors' code for the dataset, false for none, or a name:
            `"crop_flip"`, `"cutmix"`, `"idbh_weak"` or `"idbh_strong"`; see `data.named_augmentation`.
        clip: the largest gradient norm of an update; None for no clipping.
        averaging: average the weights during training; None for no average.
        swag: make a posterior of the weights during training; None for none.
        awp: rho, the relative size of an adversarial weight perturbation; None for none.
        awp_start: the epoch from which on weights are perturbed.
        early_stopping: stop on a validation set; None trains to the end.
        chosen_by_us: settings that the profile's source leaves open, with values chosen by this library.
        changed: settings that differ from the profile.
    """

    name: str = "none"
    profile: str = "ours"
    like: str = "digits"
    architecture: str = "small_cnn"
    norm_scales: str = "ones"
    network: Plain | Noisy | Variational | Randomized = field(default_factory=Plain)
    attack: PGD | None = None
    attack_mode: str = "eval"
    radius_warmup: int = 0
    objective: RobustELBO = field(default_factory=RobustELBO)
    optimizer: SGDOptimizer | AdamOptimizer | LangevinSampler = field(default_factory=SGDOptimizer)
    schedule: Constant | Stages | Cosine | OneCycle | Section = field(default_factory=Constant)
    batch_size: int = 128
    drop_last: bool = False
    augment: bool | str = True
    clip: float | None = None
    averaging: Averaging | None = None
    swag: Swag | None = None
    awp: float | None = None
    awp_start: int = 0
    early_stopping: EarlyStopping | None = None
    chosen_by_us: tuple[str, ...] = field(default=(), metadata=DERIVED)
    changed: tuple[str, ...] = field(default=(), metadata=DERIVED)

    def __post_init__(self) -> None:
        check_types(self)
        choices = {"norm_scales": ("ones", "uniform"), "attack_mode": ("eval", "train")}
        for name, options in (choices | {"architecture": (*models.NAMES, OWN)}).items():
            one_of(name, getattr(self, name), options)
        positive_whole("batch_size", self.batch_size, most=MOST_EXAMPLES)
        if isinstance(self.augment, str):
            one_of("augment", self.augment, NAMED)
        for name in ("clip", "awp"):
            if getattr(self, name) is not None:
                within(name, getattr(self, name), "(0, 1e6]", 'or None ("none" in a file) to leave it out')
        whole("awp_start", self.awp_start, 0, self.schedule.total_epochs - 1)
        length = self.schedule.whole if isinstance(self.schedule, Section) else self.schedule
        whole("radius_warmup", self.radius_warmup, 0, length.total_epochs - 1)
        if isinstance(self.optimizer, LangevinSampler):
            self._check_langevin()
        self._check_averaging()
        self._check_swag()
        self._check_attack()

    def attack_in(self, epoch: int) -> PGD | None:
        """The attack of an epoch, the first being 0; in the warm-up a share of it, (epoch + 1) / (radius_warmup + 1).

        That is the share of the radius and of the step size. A network that has learned nothing, attacked at the full
        radius, learns to predict a constant, and some, such as vision transformers, stay there.
        """
        if self.attack is None or epoch >= self.radius_warmup:
            return self.attack
        share, step = (epoch + 1) / (self.radius_warmup + 1), self.attack.step_size
        threat = replace(self.attack.threat, eps=share * self.attack.threat.eps)
        return replace(self.attack, threat=threat, step_size=None if step is None else share * step)

    def wrap(self, net: nn.Module) -> nn.Module:
        """The network to train: `net` itself, or made noisy or Bayesian unless it is so already."""
        return self.network.wrap(net)

    def build(
        self,
        *,
        classes: int,
        shape: tuple[int, ...],
        seed: int = 0,
        init: InitialWeights | None = None,
        init_classifier: str = "kept",
    ) -> nn.Module:
        """A network of this defence's architecture for images of shape (channels, height, width), ready for `fit`.

        Its weights are fresh, or those of a checkpoint; see `models.initial_weights.load_initial`.
        """
        if self.architecture == OWN:
            raise ArgumentError(
                "architecture='own' is a network that was passed to fit; build it in Python, and pass it to fit or to "
                "load_trained(folder, net=...); on the command line give --model FILE.py:FUNCTION, which returns "
                "load_trained(folder, net=...).model"
            )
        if len(shape) != 3 or shape[1] != shape[2]:
            remedy = "for other inputs build a network yourself and pass it to fit"
            raise ArgumentError(f"shape must be (channels, height, width) of square images, got {shape}; {remedy}")
        with seeded(seed):
            net = models.build(self.architecture, classes=classes, image_size=shape[1], channels=shape[0])
            if self.norm_scales == "uniform":
                models.uniform_norm_scales_(net)
            if init is not None:
                load_initial(net, init, init_classifier)
            model = self.wrap(net)  # some defences have random initial weights of their own
        _BUILT[model] = self._built_as(model, classes, shape)
        return model

    def has_built(self, model: nn.Module, *, classes: int, shape: tuple[int, ...]) -> bool:
        """Whether `build` of such a defence returned `model`, and its structure is still the same."""
        return _BUILT.get(model) == self._built_as(model, classes, shape)

    def _built_as(self, model: nn.Module, classes: int, shape: tuple[int, ...]) -> tuple[object, ...]:
        return self.architecture, self.network, classes, tuple(shape), structure_of(model)

    def _check_langevin(self) -> None:
        if not isinstance(self.network, Plain):
            raise ArgumentError(f"Langevin dynamics samples a plain network: use network=Plain(), not {self.network!r}")
        for name in ("averaging", "early_stopping", "swag"):
            if getattr(self, name) is not None:
                raise ArgumentError(f"Langevin dynamics keeps weight samples, which {name} cannot use; leave it out")

    def _check_averaging(self) -> None:
        averaging, epochs = self.averaging, self.schedule.total_epochs
        if averaging is None:
            return
        if averaging.start >= epochs:
            raise ArgumentError(f"averaging.start={averaging.start} is past the last epoch; give at most {epochs - 1}")
        if self.early_stopping is not None and averaging.decay is None:
            raise ArgumentError(
                "early_stopping cannot validate the equal average, whose running statistics come at the end; give "
                "averaging.decay, such as 0.995"
            )

    def _check_swag(self) -> None:
        swag, epochs = self.swag, self.schedule.total_epochs
        if swag is None:
            return
        if isinstance(self.network, Variational):
            raise ArgumentError("swag makes the weights of a plain network random: use network=Plain(), or no swag")
        for name in ("averaging", "early_stopping"):
            if getattr(self, name) is not None:
                raise ArgumentError(f"swag has a mean of its own, which {name} cannot use; leave one of them out")
        if (epochs - swag.start) * swag.per_epoch < 2:
            raise ArgumentError(f"swag.start={swag.start} leaves less than two states to collect in {epochs} epochs")

    def _check_attack(self) -> None:
        likelihood, trades = self.objective.likelihood, self.objective.trades
        if self.attack is None:
            if self.objective.takes_clean:
                name = next(name for name in ("trades", "clean", "information_gain") if getattr(self.objective, name))
                raise ArgumentError(f"{name} takes clean and perturbed inputs, and there is no attack; give one")
            if self.radius_warmup:
                given = f"radius_warmup={self.radius_warmup}"
                raise ArgumentError(f"{given} is of an attack, and there is none; set it to 0, or give an attack")
            return
        self._check_particles()
        if self.attack.targeted:
            raise ArgumentError("attack must increase the loss of the true labels in training: use targeted=False")
        if (self.attack.loss == "nll") != (likelihood.attack_loss == "nll"):
            raise ArgumentError(
                f"attack.loss={self.attack.loss!r} does not fit a {type(likelihood).__name__} likelihood; "
                f"use loss={likelihood.attack_loss!r}"
            )
        if self.augment == "cutmix" and self.attack.loss != "ce":
            raise ArgumentError(f"augment='cutmix' mixes labels, which attack.loss={self.attack.loss!r} does not take")
        if trades is not None and isinstance(self.network, Plain) and not self.attack.random_start:
            raise ArgumentError("trades needs attack.random_start=True: the KL and its gradient are zero at the input")

    def _check_particles(self) -> None:
        particles = isinstance(self.network, ParticleEnsemble)
        if self.objective.information_gain and not particles:
            raise ArgumentError("information_gain is for the particles of IG-BNN: use network=ParticleEnsemble(), or 0")
        consistent = self.averaging is not None and self.averaging.consistency > 0
        reasons = {
            "trades": self.objective.trades is not None,
            "clean": self.objective.clean > 0,
            "attack_mode='train'": self.attack_mode == "train",
            "averaging.consistency": consistent,
            "a Gaussian likelihood": not isinstance(self.objective.likelihood, Categorical),
        }
        for reason in (reason for reason, applies in reasons.items() if particles and applies):
            raise ArgumentError(f"the particles of IG-BNN have a loss of their own, without {reason}; leave it out")


def structure_of(model: nn.Module) -> list[str]:
    """The layers, prior and noise of a network, line by line, without memory addresses."""
    return re.sub(" at 0x[0-9a-f]+", "", f"{model!r}\nnoise={noise_levels(model)}").splitlines()
