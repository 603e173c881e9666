"""What a training keeps of its weights besides the last ones: their average, their moments, or samples of them.

None of these has passed a batch, so that their running statistics are estimated anew, on training images.
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from advbnn.bayes.sample_bank import SampleBank
from advbnn.bayes.sgld import keep
from advbnn.bayes.swag import SWAG
from advbnn.data import Batches
from advbnn.data.streams import StreamBatches
from advbnn.defenses.defense import Defense
from advbnn.defenses.optimizers import LangevinSampler
from advbnn.machine.processes import World
from advbnn.randomness import derive_seed, seeded
from advbnn.training.averaging import WeightAverage, refresh_batchnorm
from advbnn.training.objective import RobustLoss
from advbnn.training.step import attacked

BATCHES_PER_SAMPLE = 100
"""Batches on which the running statistics of a weight sample are estimated."""

MOVING_AVERAGE_IMAGES = 2560
"""Training images for the running statistics of a moving average, which is validated often; else those of an epoch."""


class CollectedWeights:
    """The weights that `defense.averaging`, `defense.swag` or Langevin dynamics collect, each None without it.

    `fast` is the accelerated model, for attacks on the images of running statistics. All processes get the same.

    Made after the training step: a fast one changes the order of the weights in memory, and the average has the same.
    """

    def __init__(
        self,
        loss: RobustLoss,
        fast: nn.Module,
        defense: Defense,
        batches: Batches | StreamBatches,
        seed: int,
        world: World,
    ) -> None:
        self._model, self._learned, self._fast, self._defense = loss.model, loss.learned, fast, defense
        self._batches, self._seed, self._world = batches, seed, world
        self.average = WeightAverage(loss.learned, defense.averaging.decay) if defense.averaging else None
        self.swag = SWAG(loss.model, defense.swag.rank, defense.swag.scale) if defense.swag else None
        self.bank = SampleBank(loss.model) if isinstance(defense.optimizer, LangevinSampler) else None

    @property
    def posterior(self) -> nn.Module | None:
        """The samples of the weights, or their moments; None for a training that returns one network."""
        return self.swag if self.bank is None else self.bank

    @property
    def teacher(self) -> WeightAverage | None:
        """The average for the consistency term, once there is one."""
        averaging, average = self._defense.averaging, self.average
        return average if averaging and averaging.consistency and average and average.updates else None

    def collect(self, epoch: int, step: int) -> None:
        """Add the current weights, after `step` steps of an epoch, if it is time to."""
        averaging, swag, optimizer = self._defense.averaging, self._defense.swag, self._defense.optimizer
        steps = len(self._batches)
        if self.average is not None and averaging is not None and epoch >= averaging.start:
            self.average.update(self._learned)
        if self.swag is not None and swag is not None and epoch >= swag.start:
            due, before = (count * swag.per_epoch // steps for count in (step, step - 1))
            if due > before:
                self.swag.collect()
        if self.bank is not None and isinstance(optimizer, LangevinSampler):
            is_sample = keep(epoch * steps + step, burn_in=optimizer.burn_in, every=optimizer.every)
            if is_sample:
                self.bank.add()

    def finish(self, epoch: int) -> None:
        """Load the final weights: the average if there is one, else the last; sample from moments."""
        settings = self._defense.swag
        if self.average is not None:
            self.average.copy_to(self._learned)
            self._estimate_statistics(epoch)
        if self.swag is not None:
            self.swag.load_mean()
            self._estimate_statistics(epoch)
            if settings is not None and settings.statistics == "anew":
                self.bank = self._sampled(self.swag, settings.samples, epoch)

    def load_finished(self) -> None:
        """Make room for what `finish` has made, before it is loaded."""
        if self._defense.swag is not None and self._defense.swag.statistics == "anew":
            self.bank = SampleBank(self._model)

    @contextmanager
    def averaged(self, epoch: int) -> Iterator[None]:
        """Within the block, the network has the averaged weights and their statistics, if there is an average."""
        if self.average is None:
            yield
            return
        with self.average.applied(self._learned):
            self._estimate_statistics(epoch)
            yield

    def _estimate_statistics(self, epoch: int) -> None:
        # first on clean inputs, so that the attack sees statistics that fit the weights
        for attack in (False,) if self._defense.attack is None else (False, True):
            with seeded(derive_seed(self._seed, "statistics"), self._batches.examples.device):
                refresh_batchnorm(self._model, self._inputs(epoch, attack))
            self._world.average_(self._model.buffers())

    def _sampled(self, swag: SWAG, samples: int, epoch: int) -> SampleBank:
        """Weight samples, each with running statistics for its own weights."""
        # crafted once, on the mean weights: an attack on every sample would cost as much as training
        inputs = self._inputs(epoch, attack=self._defense.attack is not None)
        seen = list(itertools.islice(inputs, BATCHES_PER_SAMPLE))

        def refresh(net: nn.Module) -> None:
            refresh_batchnorm(net, seen)
            self._world.average_(net.buffers())

        return swag.bank(samples, refresh, derive_seed(self._seed, "swag"))

    def _inputs(self, epoch: int, attack: bool) -> Iterator[Tensor]:
        moving = self.average is not None and self.average.decay is not None
        count = -(-MOVING_AVERAGE_IMAGES // self._batches.batch_size) if moving else None
        for number, (x, y) in enumerate(itertools.islice(self._batches.epoch(epoch), count)):
            seed = derive_seed(self._seed, "statistics", number)
            yield attacked(self._fast, self._defense, x, y, seed) if attack else x
