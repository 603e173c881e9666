"""The state of a run: everything that changes from step to step, saved and restored as one."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from advbnn.bayes.priors import GaussianPrior
from advbnn.data import Splits
from advbnn.defenses.defense import Defense
from advbnn.defenses.optimizers import LangevinSampler, parameter_groups, set_learning_rate
from advbnn.defenses.schedules import kl_factor
from advbnn.errors import ArgumentError, ArgumentTypeError, DivergedError, shown
from advbnn.fast.acceleration import accelerate
from advbnn.machine.processes import World
from advbnn.modules import evaluating
from advbnn.randomness import derive_seed, seeded, seeded_globally
from advbnn.training.arguments import check_last_batch, check_length, check_suitable, training_batches
from advbnn.training.averaging import WeightAverage
from advbnn.training.callbacks import Augment
from advbnn.training.checkpoint import Checkpoint
from advbnn.training.collected_weights import CollectedWeights
from advbnn.training.early_stopping import BestEpoch, validation_score
from advbnn.training.engine import make_step
from advbnn.training.noise_share import PosteriorScale, posterior_scale
from advbnn.training.objective import RobustLoss
from advbnn.training.run_folder import NOISE_STD
from advbnn.training.step import step_seed
from advbnn.training.step_metrics import StepMetrics

CLEAN_EVERY = 10
"""Steps between measurements of the clean score; each costs a forward pass."""


class TrainingState:
    """Everything that changes during a run, with saving and restoring.

    Attributes:
        epoch: the current epoch, from 0, with `step` steps done in it.
        kl_weight: the factor of the KL in the last step.
        scale: the posterior when metrics were last read; None before that, and without random weights.
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
        augment: Augment | None = None,
    ) -> None:
        stopping, optimizer = defense.early_stopping, defense.optimizer
        check_suitable(model, data.train, defense, processes)
        if stopping is not None and data.validation is None:
            data = data.split_validation(fraction=stopping.fraction, seed=seed)
        self.model, self.data, self.defense, self.seed, self.world = model, data, defense, seed, processes
        self.batches = training_batches(data.train, defense, seed, processes)
        self._augment = augment
        check_last_batch(model, self.batches, defense)
        check_length(defense, len(self.batches))
        prior = GaussianPrior(std=optimizer.prior_std) if isinstance(optimizer, LangevinSampler) else None
        self.loss = RobustLoss(model, defense.objective, len(data.train), prior)
        processes.broadcast_((*self.loss.parameters(), *self.loss.buffers()))  # all start from the weights of the first
        self.step_metrics = StepMetrics(defense.objective.likelihood.score_name, robust=defense.attack is not None)
        self._learned = self.loss.learned
        self.best = BestEpoch() if stopping is not None else None
        self._accelerated = accelerate(model, engine)  # for attacks outside of steps
        self.epoch, self.step = defense.schedule.first_epoch, 0
        self.lr = self.kl_weight = 0.0
        self.scale: PosteriorScale | None = None
        self.optimizer = self._fresh_optimizer()
        self._run_step = make_step(engine, self.loss, self.optimizer, defense, processes, precision)
        self.collected = CollectedWeights(self.loss, self._accelerated, defense, self.batches, seed, processes)

    @property
    def product(self) -> nn.Module:
        """The result of the run: the network, the samples of its weights, or their moments."""
        return self.model if self.collected.posterior is None else self.collected.posterior

    @property
    def why_eager(self) -> str | None:
        """Why steps run eagerly although a faster engine was asked for; known after the first step."""
        return self._run_step.why_eager

    @property
    def noise_std(self) -> float | None:
        """The learned noise of a Gaussian likelihood, else None."""
        return None if self.loss.log_noise is None else float(self.loss.log_noise.detach().exp())

    @property
    def total_steps(self) -> int:
        """Steps done since the start of the run."""
        return self.epoch * len(self.batches) + self.step

    @property
    def examples_seen(self) -> int:
        """Examples of these steps, in all processes."""
        size, count = self.batches.batch_size, len(self.data.train)
        return self.epoch * min(len(self.batches) * size, count) + min(self.step * size, count)

    @property
    def steps_in_all(self) -> int:
        return self.defense.schedule.total_epochs * len(self.batches)

    @property
    def epoch_of_last_step(self) -> int:
        return max(self.total_steps - 1, 0) // len(self.batches)

    @property
    def over(self) -> bool:
        """Whether all epochs are done, or early stopping ends the run."""
        stopping = self.defense.early_stopping
        exhausted = self.best is not None and stopping is not None and self.best.epochs_since >= stopping.patience
        return exhausted or self.epoch >= self.defense.schedule.total_epochs

    def rest_of_epoch(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of this epoch that are left, augmented by the caller's function."""
        for number, (x, y) in enumerate(self.batches.epoch(self.epoch, self.step), self.step):
            if self._augment is not None:
                x, y = self._augmented(self._augment, x, y, number)
            yield x, y

    def _augmented(self, augment: Augment, x: Tensor, y: Tensor, step: int) -> tuple[Tensor, Tensor]:
        seed = step_seed(self.seed, self.epoch, step, self.world.rank)
        with seeded_globally(derive_seed(seed, "augment"), x.device):
            changed = augment(x, y)
        if not (isinstance(changed, tuple) and len(changed) == 2 and all(isinstance(t, Tensor) for t in changed)):
            raise ArgumentTypeError(f"augment must return a pair of tensors, inputs and targets, got {shown(changed)}")
        if changed[0].shape != x.shape or len(changed[1]) != len(y):
            shapes = f"{list(x.shape)}, got {list(changed[0].shape)} with {len(changed[1])} targets"
            raise ArgumentError(f"augment must return as many inputs and targets as it gets, of shape {shapes}")
        return changed

    def advance(self, x: Tensor, y: Tensor) -> None:
        """One step; the last step of an epoch also ends the epoch."""
        defense, objective, steps = self.defense, self.defense.objective, len(self.batches)
        # Langevin dynamics must not restart its adaptation between samples
        langevin = isinstance(defense.optimizer, LangevinSampler)
        if self.step == 0 and defense.schedule.restarts(self.epoch) and not langevin:
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
                # 1 for a single process, whose loader may deliver batches of varying size
                share=len(x) * self.world.size / self.batches.size(self.step) if self.world.size > 1 else 1.0,
                measure_clean=defense.attack is not None and self.step % CLEAN_EVERY == 0,
                attack=defense.attack_in(self.epoch),
                perturb_weights=self.epoch >= defense.awp_start,
                teacher=self.collected.teacher,
            )
        except ValueError as error:  # attacks refuse a network that returns NaN
            if self.total_steps and not self._output_is_finite(x):
                raise self._diverged(f"the network returns NaN or inf after step {self.total_steps}") from error
            raise
        self.world.average_(self.model.buffers())
        self.step_metrics.add(record)
        self.step += 1
        self.collected.collect(self.epoch, self.step)
        if self.step == steps:
            self._end_epoch()

    def finish(self) -> None:
        """Load the final weights; see `CollectedWeights.finish`."""
        self.collected.finish(self.epoch)

    def return_to_best(self) -> None:
        """Load the weights of the best epoch, if early stopping has one."""
        if self.best is not None:
            self.best.copy_to(self._learned)

    def read_step_metrics(self) -> dict[str, float]:
        """The metrics since the last reading, and of an epoch that has just ended."""
        means = self.step_metrics.read(self.world)
        self.step_metrics.clear()
        if self.loss.is_bayesian:
            self.scale = posterior_scale(self.model)
            means |= {
                "mean_std": self.scale.mean_std,
                "max_std": self.scale.max_std,
                "max_noise_share": self.scale.noise_share,
            }
        if self.best is not None and self.step == 0 and self.best.validated == self.epoch:
            likelihood = self.defense.objective.likelihood
            means[f"validation_{likelihood.score_name}"] = likelihood.better * self.best.latest
        return means

    def check_loss(self) -> None:
        """Raise `DivergedError` if a loss since the last reading was NaN or infinite."""
        ago = self.step_metrics.first_not_finite()
        if ago is not None:
            raise self._diverged(f"the loss is NaN or inf since step {self.total_steps - ago}")

    def check_finite(self) -> None:
        """Raise `DivergedError` if a loss or a weight is NaN or infinite."""
        self.check_loss()
        if not torch.stack([torch.isfinite(p.detach()).all() for p in self.loss.parameters()]).all():
            raise self._diverged(f"a weight is NaN or inf after step {self.total_steps}")

    def checkpoint_parts(self) -> dict[str, Any]:
        """The arguments of `checkpoint.save`."""
        state = {
            "epoch": self.epoch,
            "step": self.step,
            "optimizer": self.optimizer.state_dict(),
            "log_noise": self.loss.log_noise,
            "tally": self.step_metrics.state_dict(),
            "learned": [part.state_dict() for part in self._kept_weights()],
        }
        notes = {} if self.noise_std is None else {NOISE_STD: repr(self.noise_std)}
        return {"step": self.total_steps, "model": self.product, "training": state, "notes": notes}

    def load(self, saved: Checkpoint | None) -> None:
        """Restore the state from a checkpoint, if there is one."""
        if saved is None:
            return
        if saved.facts.get("finished"):
            self.collected.load_finished()
        saved.load_weights(self.product)
        state = saved.training_state()
        self.epoch, self.step = int(state["epoch"]), int(state["step"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.loss.log_noise is not None:
            self.loss.log_noise.data.copy_(state["log_noise"])
        self.step_metrics.load_state_dict(state["tally"], self.data.train.device)
        for part, value in zip(self._kept_weights(), state["learned"], strict=True):
            part.load_state_dict(value)

    def _kept_weights(self) -> list[WeightAverage | BestEpoch]:
        return [part for part in (self.collected.average, self.best) if part is not None]

    def _fresh_optimizer(self) -> torch.optim.Optimizer:
        return self.defense.optimizer.build(parameter_groups(self.loss), len(self.data.train))

    def _end_epoch(self) -> None:
        self.epoch, self.step = self.epoch + 1, 0
        stopping, defense = self.defense.early_stopping, self.defense
        validation = self.data.validation
        if self.best is None or stopping is None or validation is None:
            return
        if self.epoch % stopping.every and self.epoch < defense.schedule.total_epochs:
            return
        average = self.collected.average
        if average is not None and not average.updates:
            return  # nothing has been averaged yet
        self.check_finite()
        with self.collected.averaged(self.epoch):
            seed = derive_seed(self.seed, "epoch", self.epoch)
            score = validation_score(self._accelerated, validation, defense, stopping.samples, seed, self.world)
            self.best.offer(self._learned, defense.objective.likelihood.better * score, self.epoch)

    def _output_is_finite(self, x: Tensor) -> bool:
        with torch.no_grad(), evaluating(self.model), seeded(0, x.device):
            return bool(torch.isfinite(self.model(x)).all())

    def _diverged(self, what: str) -> DivergedError:
        return DivergedError(
            f"{what} (epoch {self.epoch_of_last_step + 1}, learning rate {self.lr:.3g}); lower optimizer.lr, clip the "
            "gradient with clip=1.0, or warm up the KL with objective.kl_warmup='linear', and start again"
        )
