"""A run under way: everything that changes from step to step, saved and restored as one."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from advbnn.bayes.priors import GaussianPrior
from advbnn.bayes.sample_bank import SampleBank
from advbnn.bayes.sgld import keep
from advbnn.data import Batches, Splits, usual_augmentation
from advbnn.defenses.defense import Defense
from advbnn.defenses.optimizers import Langevin, set_learning_rate
from advbnn.defenses.schedules import kl_factor
from advbnn.distributed import World
from advbnn.errors import ArgumentError, DivergedError
from advbnn.fast.acceleration import accelerate
from advbnn.modules import evaluating
from advbnn.randomness import derive_seed, seeded
from advbnn.training.averaging import WeightAverage, refresh_batchnorm
from advbnn.training.checkpoint import Checkpoint
from advbnn.training.early_stopping import Best, validation_score
from advbnn.training.engine import make_step
from advbnn.training.noise_share import Spread, spread_of
from advbnn.training.objective import RobustLoss
from advbnn.training.run_folder import NOISE_STD
from advbnn.training.step import attacked, step_seed
from advbnn.training.suitability import check_suitable
from advbnn.training.tally import Tally

CLEAN_EVERY = 10
"""Steps from one measurement of the clean score to the next; each costs a forward pass."""


class Training:
    """All that changes while a run goes on, and what it takes to save and restore it.

    Attributes:
        epoch: the epoch that is under way, from 0.
        step: steps done in it.
        lr: the learning rate of the last step.
        kl_weight: what the divergence was multiplied with in it.
        spread: that of the random weights when metrics were last read; None before, and without random weights.
    """

    def __init__(
        self,
        model: nn.Module,
        data: Splits[Any],
        defense: Defense,
        seed: int,
        engine: str,
        processes: World,
        precision: str = "auto",
    ) -> None:
        stopping, optimizer = defense.early_stopping, defense.optimizer
        check_suitable(model, data.train, defense, processes)
        if stopping is not None and data.validation is None:
            data = data.split_validation(fraction=stopping.fraction, seed=seed)
        self.model, self.data, self.defense, self.seed, self.world = model, data, defense, seed, processes
        self.batches = Batches(
            data.train,
            defense.batch_size,
            seed=seed,
            augmentations=usual_augmentation(data.train.name) if defense.augment else (),
            drop_last=defense.drop_last,
            rank=processes.rank,
            world=processes.size,
        )
        prior = GaussianPrior(std=optimizer.prior_std) if isinstance(optimizer, Langevin) else None
        self.loss = RobustLoss(model, defense.objective, len(data.train), prior)
        self.tally = Tally(defense.objective.likelihood.score_name, robust=defense.attack is not None)
        # all that is learned: with the noise of a Gaussian likelihood it is the loss that owns both
        self._learned = model if self.loss.log_noise is None else self.loss
        self.average = WeightAverage(self._learned, defense.averaging.decay) if defense.averaging else None
        self.bank = SampleBank(model) if isinstance(optimizer, Langevin) else None
        self.best = Best() if stopping is not None else None
        self._judged = model if stopping is None else accelerate(model, engine)
        self.epoch = self.step = 0
        self.lr = self.kl_weight = 0.0
        self.spread: Spread | None = None
        self.optimizer = self._fresh_optimizer()
        self._run_step = make_step(engine, self.loss, self.optimizer, defense, processes, precision)
        if isinstance(optimizer, Langevin) and optimizer.burn_in >= self.steps_in_all:
            raise ArgumentError(
                f"optimizer.burn_in={optimizer.burn_in} updates leave nothing of the {self.steps_in_all} that the "
                "schedule has, so that no sample would be kept; burn in for fewer, or train for longer"
            )

    @property
    def product(self) -> nn.Module:
        """What the run is for: the network, or the samples of its weights."""
        return self.model if self.bank is None else self.bank

    @property
    def noise_std(self) -> float | None:
        """The noise of a Gaussian likelihood that learns it, as it is now; else None."""
        return None if self.loss.log_noise is None else float(self.loss.log_noise.detach().exp())

    @property
    def total_steps(self) -> int:
        """Steps done since the start of the run."""
        return self.epoch * len(self.batches) + self.step

    @property
    def steps_in_all(self) -> int:
        """Steps of the whole run."""
        return self.defense.schedule.total_epochs * len(self.batches)

    @property
    def epoch_of_last_step(self) -> int:
        """The epoch, from 0, that the last step belongs to."""
        return max(self.total_steps - 1, 0) // len(self.batches)

    @property
    def over(self) -> bool:
        """Whether all epochs are done, or early stopping has run out of patience."""
        stopping = self.defense.early_stopping
        exhausted = self.best is not None and stopping is not None and self.best.waited() >= stopping.patience
        return exhausted or self.epoch >= self.defense.schedule.total_epochs

    def rest_of_epoch(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of the epoch that is under way, from the next step on."""
        return self.batches.epoch(self.epoch, self.step)

    def advance(self, x: Tensor, y: Tensor) -> None:
        """One step, and with the last of an epoch its end."""
        defense, objective, steps = self.defense, self.defense.objective, len(self.batches)
        # the adaptation of Langevin dynamics must not begin anew among its samples
        if self.step == 0 and defense.schedule.restarts(self.epoch) and self.bank is None:
            self.optimizer = self._fresh_optimizer()
            self._run_step = self._run_step.with_optimizer(self.optimizer)
        self.lr = defense.optimizer.lr * defense.schedule.scale(self.epoch + self.step / steps)
        set_learning_rate(self.optimizer, self.lr)
        factor = kl_factor(
            objective.kl_warmup, epoch=self.epoch, step=self.step, steps=steps, epochs=objective.kl_warmup_epochs
        )
        self.kl_weight = objective.alpha / len(self.data.train) * factor
        try:
            record = self._run_step(
                x,
                y,
                step_seed(self.seed, self.epoch, self.step, self.world.rank),
                kl_factor=factor,
                share=len(x) * self.world.size / self.batches.size(self.step),
                measure_clean=defense.attack is not None and self.step % CLEAN_EVERY == 0,
            )
        except ValueError as error:  # an attack refuses a network that returns NaN
            if self.total_steps and not self._answers(x):
                what = f"the network returns NaN or infinite values after step {self.total_steps}"
                raise self._diverged(what) from error
            raise
        self.world.average_(self.model.buffers())
        self.tally.add(record)
        self.step += 1
        self._gather_weights()
        if self.step == steps:
            self._end_epoch()

    def finish(self) -> None:
        """Puts the weights in place that the run has come to: their average, or the last."""
        averaging = self.defense.averaging
        if self.average is not None and averaging is not None:
            self.average.copy_to(self._learned)
            if averaging.decay is None:
                self._estimate_statistics()

    def return_to_best(self) -> None:
        """Puts the weights in place that early stopping has found best."""
        if self.best is not None:
            self.best.copy_to(self._learned)

    def read_tally(self) -> dict[str, float]:
        """The metrics since the last reading, and those of an epoch that has just ended."""
        means = self.tally.read(self.world)
        self.tally.clear()
        if self.loss.is_bayesian:
            self.spread = spread_of(self.model)
            means |= {
                "mean_std": self.spread.mean,
                "max_std": self.spread.largest,
                "max_noise_share": self.spread.share,
            }
        if self.best is not None and self.step == 0 and self.best.seen == self.epoch:
            likelihood = self.defense.objective.likelihood
            means[f"validation_{likelihood.score_name}"] = likelihood.better * self.best.latest
        return means

    def check_loss(self) -> None:
        """Raises `DivergedError` if the loss of a step since the last reading was NaN or infinite."""
        ago = self.tally.first_not_finite()
        if ago is not None:
            raise self._diverged(f"the loss is NaN or infinite since step {self.total_steps - ago}")

    def check_finite(self) -> None:
        """Raises `DivergedError` if a weight is NaN or infinite."""
        self.check_loss()
        finite = torch.stack([torch.isfinite(p.detach()).all() for p in self.loss.parameters()]).all()
        if not bool(finite):
            raise self._diverged(f"a weight is NaN or infinite after step {self.total_steps}")

    def checkpoint_parts(self) -> dict[str, Any]:
        """What `checkpoint.save` needs."""
        learned = [part for part in (self.average, self.best) if part is not None]
        state = {
            "epoch": self.epoch,
            "step": self.step,
            "optimizer": self.optimizer.state_dict(),
            "log_noise": self.loss.log_noise,
            "tally": self.tally.state_dict(),
            "learned": [part.state_dict() for part in learned],
        }
        notes = {} if self.noise_std is None else {NOISE_STD: repr(self.noise_std)}
        return {"step": self.total_steps, "model": self.product, "training": state, "notes": notes}

    def load(self, saved: Checkpoint | None) -> None:
        """Goes back to where a checkpoint was written; nothing happens without one."""
        if saved is None:
            return
        device = self.data.train.device
        saved.load_weights(self.product)
        state = saved.training_state()
        self.epoch, self.step = int(state["epoch"]), int(state["step"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.loss.log_noise is not None:
            self.loss.log_noise.data.copy_(state["log_noise"])
        self.tally.load_state_dict(state["tally"], device)
        learned = [part for part in (self.average, self.best) if part is not None]
        for part, value in zip(learned, state["learned"], strict=True):
            part.load_state_dict(value)

    def _fresh_optimizer(self) -> torch.optim.Optimizer:
        parameters = [p for p in self.loss.parameters() if p.requires_grad]
        return self.defense.optimizer.build(parameters, len(self.data.train))

    def _gather_weights(self) -> None:
        """Takes the present weights into the average, or among the samples."""
        averaging, optimizer = self.defense.averaging, self.defense.optimizer
        if self.average is not None and averaging is not None and self.epoch >= averaging.start:
            self.average.update(self._learned)
        if (
            self.bank is not None
            and isinstance(optimizer, Langevin)
            and keep(self.total_steps, burn_in=optimizer.burn_in, every=optimizer.every)
        ):
            self.bank.add()

    def _end_epoch(self) -> None:
        self.epoch, self.step = self.epoch + 1, 0
        stopping, defense = self.defense.early_stopping, self.defense
        validation = self.data.validation
        if self.best is None or stopping is None or validation is None:
            return
        if self.epoch % stopping.every and self.epoch < defense.schedule.total_epochs:
            return
        if self.average is not None and not self.average.updates:
            return  # there is no average to judge yet
        self.check_finite()
        with nullcontext() if self.average is None else self.average.applied(self._learned):
            score = validation_score(
                self._judged,
                validation,
                attack=defense.attack,
                likelihood=defense.objective.likelihood,
                samples=stopping.samples,
                batch_size=defense.batch_size,
                seed=derive_seed(self.seed, "epoch", self.epoch),
                world=self.world,
            )
            self.best.offer(self._learned, defense.objective.likelihood.better * score, self.epoch)

    def _estimate_statistics(self) -> None:
        """Those of normalisation for the averaged weights, over one epoch, the same in all processes."""
        # an attack wants statistics that fit the weights, and meets those of clean inputs
        for attack in (False,) if self.defense.attack is None else (False, True):
            with seeded(derive_seed(self.seed, "statistics"), self.data.train.device):
                refresh_batchnorm(self.model, self._inputs(attack))
            self.world.average_(self.model.buffers())

    def _inputs(self, attack: bool) -> Iterator[Tensor]:
        """One epoch of inputs, as they are or attacked as in training."""
        for number, (x, y) in enumerate(self.batches.epoch(self.epoch)):
            seed = derive_seed(self.seed, "statistics", number)
            yield attacked(self.model, self.defense, x, y, seed) if attack else x

    @torch.no_grad()
    def _answers(self, x: Tensor) -> bool:
        with evaluating(self.model), seeded(0, x.device):
            return bool(torch.isfinite(self.model(x)).all())

    def _diverged(self, what: str) -> DivergedError:
        return DivergedError(
            f"{what} (epoch {self.epoch_of_last_step + 1}, learning rate {self.lr:.3g}); lower optimizer.lr, limit the "
            "gradient with clip=1.0, or let the divergence grow with objective.kl_warmup='linear', and train anew"
        )
