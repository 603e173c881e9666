"""What a run writes down: metrics at intervals, checkpoints in time, and the reason when it stops early."""

import time
from collections.abc import Mapping
from typing import Any

from advbnn.errors import MissingPackageError
from advbnn.progress import ProgressBar
from advbnn.training import checkpoint
from advbnn.training.noise_share import TAKEN_OVER, Spread
from advbnn.training.run_folder import LAST, RunFolder
from advbnn.training.state import Training


class Journal:
    """Keeps the record of one run; in processes that do not lead it only takes part in the exchange of numbers.

    Args:
        run: the folder to write into; None keeps nothing on disk.
        bar: shows progress.
        log_every: steps from one line of metrics to the next, which also comes at the end of each epoch.
        save_every: seconds from one checkpoint to the next.
        tensorboard: also write TensorBoard events into the folder.
    """

    def __init__(
        self, run: RunFolder | None, bar: ProgressBar, *, log_every: int, save_every: float, tensorboard: bool
    ) -> None:
        self.run, self.bar, self.log_every, self.save_every = run, bar, log_every, save_every
        self.history: list[dict[str, Any]] = run.metrics() if run is not None else []
        self._tensorboard = _summary_writer(run) if tensorboard and run is not None else None

    def __enter__(self) -> "Journal":
        self._saved = self._read = time.monotonic()
        return self

    def __exit__(self, *error: object) -> None:
        if self._tensorboard is not None:
            self._tensorboard.close()

    def say(self, text: str) -> None:
        """A line for people, on stderr and in the log."""
        if self.run is not None:
            self.run.write_log(text)
        self.bar.print(text)

    def after_step(self, training: Training) -> None:
        """Whatever is due once a step is done."""
        note = None
        if len(training.tally) >= self.log_every or training.step == 0:
            self._write_metrics(training)
            note = brief(self.history[-1])
        epoch = f"epoch {training.epoch_of_last_step + 1}/{training.defense.schedule.total_epochs}"
        self.bar.update(training.total_steps, training.steps_in_all, note, epoch)
        if self.run is not None and time.monotonic() - self._saved >= self.save_every:
            self.save(training)

    def save(self, training: Training, **facts: Any) -> None:
        """A checkpoint, unless the weights are beyond use."""
        training.check_finite()
        if self.run is not None:
            self.run.save(**training.checkpoint_parts(), facts=facts)
            self._saved = time.monotonic()

    def keep_last(self, training: Training) -> None:
        """The network that the run has come to, before the best one takes its place."""
        self.save(training)
        if self.run is not None:
            self.run.publish(LAST)

    def finish(self, training: Training) -> None:
        """The last checkpoint, and the network by itself."""
        self.save(training, finished=True)
        if self.run is not None:
            self.run.publish()
            self.say(f"finished after {training.total_steps} steps: {self.run.path}")

    def save_diverged(self, training: Training) -> str:
        """Keeps the diverged state for inspection, apart from the checkpoints that a run goes on from."""
        if self.run is None:
            return "nothing was saved, there being no run folder"
        folder = self.run.path / "diverged"
        checkpoint.save(folder, **training.checkpoint_parts(), facts={}, keep=1)
        last = self.run.checkpoint
        good = f"the last good checkpoint is {last.folder.name}" if last else "there is no good checkpoint yet"
        return f"the state is kept in {folder}; {good}"

    def _write_metrics(self, training: Training) -> None:
        training.check_loss()
        now = time.monotonic()
        examples = training.tally.examples * training.world.size
        line = {
            "step": training.total_steps,
            "epoch": training.epoch_of_last_step + 1,
            "lr": training.lr,
            "kl_weight": training.kl_weight,
            **training.read_tally(),
            "examples_per_second": round(examples / max(now - self._read, 1e-9), 1),
        }
        self._read = now
        before = self.history[-1].get("max_noise_share", 0.0) if self.history else 0.0
        self._keep(line)
        if training.spread is not None and before < TAKEN_OVER <= training.spread.share:
            self.say(_taken_over(training.spread, training.defense.objective.kl_scope))

    def _keep(self, line: Mapping[str, Any]) -> None:
        """Metrics of one moment, to every place where they are kept."""
        self.history.append(dict(line))
        if self.run is not None:
            self.run.write_metrics(line)
            self.run.write_log(f"epoch {line['epoch']}, step {line['step']}: {describe(line)}")
        if self._tensorboard is not None:
            for name, value in line.items():
                if name not in ("step", "epoch"):
                    self._tensorboard.add_scalar(name, value, line["step"])


def describe(metrics: Mapping[str, Any]) -> str:
    """All metrics in one line."""
    parts = [brief(metrics), f"nll {metrics['nll']:.4g}"]
    if metrics["kl"]:
        parts.append(f"kl {metrics['kl']:.4g} (x {metrics['kl_weight']:.3g})")
    return ", ".join([*parts, f"{metrics['examples_per_second']:,.0f} examples/s"])


def brief(metrics: Mapping[str, Any]) -> str:
    """Accuracies or errors and the loss, which fit into a terminal."""
    parts = []
    for part in ("clean", "robust", "validation"):
        if f"{part}_accuracy" in metrics:
            parts.append(f"{part} {100 * metrics[f'{part}_accuracy']:.1f} %")
        if f"{part}_mse" in metrics:
            parts.append(f"{part} mse {metrics[f'{part}_mse']:.4g}")
    return ", ".join([*parts, f"loss {metrics['loss']:.4g}"])


def _taken_over(spread: Spread, scope: str) -> str:
    remedy = (
        "a larger objective.alpha" if scope == "all" else "a divergence over all weights (objective.kl_scope='all')"
    )
    return (
        f"the noise of one weight, of standard deviation {spread.std:.3g}, is {spread.share:.0%} of channel "
        f"{spread.where}; if that is normalised by its batch, the update does not feel it, but attacks and tests do; "
        f"{remedy} may hold it back"
    )


def _summary_writer(run: RunFolder) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingPackageError(
            "tensorboard=True needs the package tensorboard: pip install 'advbnn[tensorboard]', or leave it out; "
            "metrics.jsonl holds the same numbers"
        ) from error
    # events after the last checkpoint would be written a second time
    return SummaryWriter(str(run.path / "tensorboard"), purge_step=run.checkpoint.step if run.checkpoint else 0)
