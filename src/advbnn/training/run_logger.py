"""The records of a run: metrics at intervals, checkpoints in time, and messages."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from advbnn.data.chance import chance_level, chance_note
from advbnn.display.progress import ProgressBar
from advbnn.modules import modes_restored
from advbnn.training import checkpoint
from advbnn.training.callbacks import Callback, Moment
from advbnn.training.noise_share import DOMINANT, PosteriorScale
from advbnn.training.run_folder import LAST, METRICS, RunFolder, read_metrics
from advbnn.training.state import TrainingState

_TWO_KINDS = (
    "clean is below robust: robust is the update's own pass, in training mode with batch statistics; clean is a pass "
    "in evaluation mode with running statistics, which lag behind at first"
)


class RunLogger:
    """Writes the records of one run, if it has a folder; options as for `fit`.

    A process that does not lead has no folder, and only takes part in the exchange of numbers.
    """

    def __init__(
        self,
        run: RunFolder | None,
        bar: ProgressBar,
        *,
        log_every: int,
        save_every: float,
        callbacks: Sequence[Callback] = (),
        title: str = "",
    ) -> None:
        self.run, self.bar, self.log_every, self.save_every = run, bar, log_every, save_every
        self._title = f"{title}, " if title else ""
        self.history: list[dict[str, Any]] = [] if run is None else read_metrics(run.path / METRICS)
        self._callbacks, self._first_step = callbacks, 0
        self._marks: list[tuple[int, int, float]] = []

    def __enter__(self) -> "RunLogger":
        self._saved = time.monotonic()
        return self

    def __exit__(self, *error: object) -> None:
        for callback in self._callbacks:
            callback.close()

    def say(self, text: str) -> None:
        """A line on stderr and in the log."""
        if self.run is not None:
            self.run.write_log(text)
        self.bar.print(text)

    def start(self, training: TrainingState) -> None:
        """Say what will be trained, and begin to measure the speed."""
        for note in self.run.notes if self.run is not None else ():
            self.say(note)
        self.say(_headline(training))
        self._first_step = training.total_steps
        self._marks = [(training.total_steps, training.examples_seen, time.monotonic())]

    def after_step(self, training: TrainingState) -> None:
        """Write metrics and checkpoints when they are due."""
        note = None
        if len(training.step_metrics) >= self.log_every or training.step == 0:
            self._write_metrics(training)
            note = brief(self.history[-1])
        epoch = f"{self._title}epoch {training.epoch_of_last_step + 1}/{training.defense.schedule.total_epochs}"
        self.bar.update(training.total_steps, training.steps_in_all, note, epoch)
        if self.run is not None and time.monotonic() - self._saved >= self.save_every:
            self.save(training)
        if self._callbacks and training.world.leads:
            self._call(training, None if note is None else self.history[-1])

    def _call(self, training: TrainingState, metrics: Mapping[str, Any] | None) -> None:
        now = Moment(
            model=training.model,
            step=training.total_steps,
            steps=training.steps_in_all,
            epoch=training.epoch,
            metrics=metrics,
            out=None if self.run is None else self.run.path,
            first_step=self._first_step,
        )
        for callback in self._callbacks:
            with modes_restored(training.model):
                callback.after_step(now)
                if training.step == 0:
                    callback.after_epoch(now)

    def save(self, training: TrainingState, **facts: Any) -> None:
        """Write a checkpoint, unless the weights have diverged."""
        training.check_finite()
        if self.run is not None:
            self.run.save(**training.checkpoint_parts(), facts=facts)
            self._saved = time.monotonic()

    def keep_last(self, training: TrainingState) -> None:
        """Keep the network of the last epoch, before the best one replaces it."""
        self.save(training)
        if self.run is not None:
            self.run.publish(LAST)

    def finish(self, training: TrainingState) -> None:
        """Write the last checkpoint and the trained network."""
        self.save(training, finished=True)
        clean = next((line["clean_accuracy"] for line in self.history[::-1] if "clean_accuracy" in line), None)
        if clean is not None:
            chance = chance_level(training.data.train.targets)
            if note := chance_note(clean, chance, "the accuracy on clean training images"):
                self.say(note)
        if self.run is not None:
            self.run.publish()
            self.say(f"finished after {training.total_steps} steps: {self.run.path}")

    def save_diverged(self, training: TrainingState) -> str:
        """Save the diverged state for inspection, apart from the checkpoints that a run resumes from."""
        if self.run is None:
            return "nothing was saved, as there is no run folder"
        folder = self.run.path / "diverged"
        checkpoint.save(folder, **training.checkpoint_parts(), facts={})
        last = self.run.checkpoint
        good = f"the last good checkpoint is {last.folder.name}" if last else "there is no good checkpoint yet"
        return f"the state is saved in {folder}; {good}"

    def kept(self, training: TrainingState) -> str:
        """What remains of a run that cannot write any more."""
        last = self.run.checkpoint if self.run is not None else None
        if last is None:
            return "no checkpoint was written yet"
        return f"kept: the checkpoint after step {last.step} of {training.steps_in_all}, from which the run resumes"

    def _write_metrics(self, training: TrainingState) -> None:
        training.check_loss()
        line: dict[str, Any] = {
            "step": training.total_steps,
            "epoch": training.epoch_of_last_step + 1,
            "lr": training.lr,
            "kl_weight": training.kl_weight,
            **training.read_step_metrics(),  # waits for the device
            "examples_per_second": round(self._speed(training), 1),
        }
        before = self.history[-1].get("max_noise_share", 0.0) if self.history else 0.0
        self.history.append(line)
        if self.run is not None:
            self.run.write_metrics(line)
            self.run.write_log(f"epoch {line['epoch']}, step {line['step']}: {describe(line)}")
        if _clean_below_robust(line) and not any(map(_clean_below_robust, self.history[:-1])):
            norms = (part for part in training.model.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm))
            if self.run is not None and any(norm.running_mean is not None for norm in norms):
                self.run.write_log(_TWO_KINDS)
        if training.scale is not None and before < DOMINANT <= training.scale.noise_share:
            self.say(_dominant_noise(training.scale, training.defense.objective.kl_scope))

    def _speed(self, training: TrainingState) -> float:
        """Examples per second of at least `log_every` steps, if there were as many.

        The last steps of an epoch may be few. Alone they would show the time of a validation or a checkpoint instead.
        """
        steps, examples, now = training.total_steps, training.examples_seen, time.monotonic()
        while len(self._marks) > 1 and self._marks[1][0] <= steps - self.log_every:
            del self._marks[0]
        _, examples_before, before = self._marks[0]
        self._marks.append((steps, examples, now))
        return (examples - examples_before) / max(now - before, 1e-9)


def _clean_below_robust(metrics: Mapping[str, Any]) -> bool:
    return bool(metrics.get("clean_accuracy", 1.0) < metrics.get("robust_accuracy", 0.0))


def describe(metrics: Mapping[str, Any]) -> str:
    parts = [brief(metrics), f"nll {metrics['nll']:.4g}"]
    if metrics["kl"]:
        parts.append(f"kl {metrics['kl']:.4g} (x {metrics['kl_weight']:.3g})")
    return ", ".join([*parts, f"{metrics['examples_per_second']:,.0f} examples/s"])


def brief(metrics: Mapping[str, Any]) -> str:
    """Accuracies or errors and the loss, which fit into a terminal."""
    attacked = any(name.startswith("robust_") for name in metrics)
    # with an attack, clean images have a pass of their own; see `_TWO_KINDS`
    kinds = {"clean": "eval clean" if attacked else "train clean", "robust": "train robust", "validation": "validation"}
    parts = [
        f"{title} {100 * metrics[f'{kind}_accuracy']:.1f}%"
        for kind, title in kinds.items()
        if f"{kind}_accuracy" in metrics
    ]
    parts += [f"{title} mse {metrics[f'{kind}_mse']:.4g}" for kind, title in kinds.items() if f"{kind}_mse" in metrics]
    return ", ".join([*parts, f"loss {metrics['loss']:.4g}"])


def _headline(training: TrainingState) -> str:
    defense, train = training.defense, training.data.train
    changed = f", changed: {', '.join(defense.changed)}" if defense.changed else ""
    done = f"; resumed after step {training.total_steps}" if training.total_steps else ""
    return (
        f"{defense.name}, profile {defense.profile!r}{changed}: {len(train):,} examples of {train.name}, "
        f"{training.steps_in_all:,} steps on {train.device}{done}"
    )


def _dominant_noise(scale: PosteriorScale, scope: str) -> str:
    remedy = "a larger objective.alpha" if scope == "all" else "a KL over all weights (objective.kl_scope='all')"
    return (
        f"the noise of one weight, with standard deviation {scale.channel_std:.3g}, is {scale.noise_share:.0%} of "
        f"channel {scale.channel}; with batch statistics the update does not see it, but attacks and evaluation, with "
        f"running statistics, do; {remedy} limits it"
    )
