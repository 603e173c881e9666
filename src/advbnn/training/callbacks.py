"""What a caller of `fit` may do after every step and every epoch, and TensorBoard as one of these."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from advbnn.errors import ArgumentTypeError, explain_missing_package, shown

Augment = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Custom augmentation: inputs in [0, 1] and targets of a batch, on the device that trains, to others."""


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A moment of a training.

    Attributes:
        model: the network, in training mode; its modes are restored after the call.
        step: updates since the start of the run, of `steps` in all.
        epoch: complete epochs.
        metrics: the line of metrics that was just written, as in metrics.jsonl; None between two lines. After an epoch
            there is always one.
        out: the run folder, if there is one.
        first_step: the step at which this process began, above 0 after a resumption.
    """

    model: nn.Module
    step: int
    steps: int
    epoch: int
    metrics: Mapping[str, Any] | None
    out: Path | None
    first_step: int


class Callback:
    """Override what you need. Called in the process that leads; changes of the random state have no effect on a run."""

    def after_step(self, now: Moment) -> None:
        """After every update."""

    def after_epoch(self, now: Moment) -> None:
        """After every epoch, and after its last `after_step`."""

    def close(self) -> None:
        """When training ends, also by an error."""


class TensorBoard(Callback):
    """Writes every line of metrics as TensorBoard events.

    Args:
        folder: where to; by default `tensorboard` in the run folder.
    """

    def __init__(self, folder: Path | str | None = None) -> None:
        message = "TensorBoard needs pip install 'advbnn[tensorboard]'; metrics.jsonl holds the same numbers"
        with explain_missing_package(message):
            from torch.utils.tensorboard import SummaryWriter
        self._make, self._folder = SummaryWriter, folder
        self._writer: Any = None

    def after_step(self, now: Moment) -> None:
        """Write the metrics, if there are new ones."""
        folder = self._folder or (None if now.out is None else now.out / "tensorboard")
        if now.metrics is None or folder is None:
            return
        if self._writer is None:
            # the run writes the events after the last checkpoint again, and TensorBoard hides the older ones
            self._writer = self._make(str(folder), purge_step=now.first_step + 1)
        for name, value in now.metrics.items():
            if name not in ("step", "epoch"):
                self._writer.add_scalar(name, value, now.metrics["step"])

    def close(self) -> None:
        """Write what is left."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def check_augment(augment: object) -> None:
    """Refuse what is no function, such as the name of an augmentation."""
    if augment is not None and not callable(augment):
        remedy = f"a name is a setting of the defence, defense(..., augment={shown(augment)})"
        raise ArgumentTypeError(f"augment must be a function of inputs and targets, got {shown(augment)}; {remedy}")


def check_callbacks(callbacks: Iterable[Callback]) -> tuple[Callback, ...]:
    found = tuple(callbacks)
    for one in found:
        if isinstance(one, type) or not isinstance(one, Callback):
            raise ArgumentTypeError(f"callbacks must be instances of advbnn.training.Callback, got {one!r}")
    return found
