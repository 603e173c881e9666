"""How a training step runs: `"eager"`, the readable reference; `"compile"`; `"graph"`; or `"auto"`.

All forms take the same arguments and do the same. For the same noise they give the same numbers, up to the precision of
the computation.
"""

import copy
import logging
from typing import Any, Protocol

import torch
from torch import Tensor

from advbnn.defenses.defense import Defense
from advbnn.distributed import ALONE, World
from advbnn.errors import ArgumentError, UnsupportedError, unknown
from advbnn.fast.compiling import ENGINES, PRECISIONS
from advbnn.training.fast_step import FastStep
from advbnn.training.objective import RobustLoss
from advbnn.training.step import EagerStep, StepRecord

log = logging.getLogger("advbnn")


class Step(Protocol):
    """One training step; see `EagerStep.__call__`."""

    def __call__(
        self,
        x: Tensor,
        y: Tensor,
        seed: int,
        *,
        kl_factor: float | Tensor = 1.0,
        share: float = 1.0,
        measure_clean: bool = False,
    ) -> StepRecord:
        """Update the model on one batch."""
        ...

    def with_optimizer(self, optimizer: torch.optim.Optimizer) -> "Step":
        """The same step with another optimizer, for schedules that start with a fresh one at every stage."""
        ...


class FallbackStep:
    """A fast step, unless the first batch shows that it cannot be: then the eager one, and the log says why.

    Whether a network can be compiled, recorded, and run in the layout that GPUs like, shows only when it is.

    Args:
        fast: the fast step.
        may_fall_back: if not, the reason is an error.
    """

    def __init__(self, fast: FastStep, may_fall_back: bool) -> None:
        self._fast, self._may_fall_back = fast, may_fall_back
        self._step: Step | None = None

    def __call__(self, x: Tensor, y: Tensor, seed: int, **options: Any) -> StepRecord:
        """Update the model on one batch; options as for `EagerStep`."""
        if self._step is not None:
            return self._step(x, y, seed, **options)
        fast = self._fast
        if fast.defense.attack is not None:
            fast.defense.attack._checked(fast.loss.model, x, y)  # which waits for the device, so once has to do
        before = _Snapshot(fast.loss, fast.optimizer)
        try:
            record = fast(x, y, seed, **options)
        except Exception as error:  # compilers and capture have errors of many kinds
            before.restore()
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            if not self._may_fall_back:
                remedy = "use engine='eager', or 'auto' without a precision"
                raise ArgumentError(f"the fast engine cannot run this network: {reason}; {remedy}") from error
            log.info("running eagerly: %s", reason)
            self._step = EagerStep(fast.loss, fast.optimizer, fast.defense, fast.processes.share_gradients(fast.loss))
            return self._step(x, y, seed, **options)
        self._step = fast
        return record

    def with_optimizer(self, optimizer: torch.optim.Optimizer) -> Step:
        """The same step with another optimizer."""
        if self._step is not None:
            return self._step.with_optimizer(optimizer)
        return FallbackStep(self._fast.with_optimizer(optimizer), self._may_fall_back)


class _Snapshot:
    """All that a step changes, to be put back; parameters also in their layout in memory."""

    def __init__(self, loss: RobustLoss, optimizer: torch.optim.Optimizer) -> None:
        self._tensors = [(t, t.detach().clone()) for t in (*loss.parameters(), *loss.buffers())]
        self._optimizer, self._state = optimizer, copy.deepcopy(optimizer.state_dict())

    def restore(self) -> None:
        for tensor, value in self._tensors:
            # a layout that the network cannot bear is undone with the rest
            tensor.data = value.contiguous()
        self._optimizer.load_state_dict(self._state)
        self._optimizer.zero_grad()


def make_step(
    engine: str,
    loss: RobustLoss,
    optimizer: torch.optim.Optimizer,
    defense: Defense,
    processes: World = ALONE,
    precision: str = "auto",
) -> Step:
    """The step in the form that `engine` names.

    `"auto"` takes the CUDA graph on a GPU, where it applies, and the eager form elsewhere. Among several processes
    gradients are averaged, once an update.

    Args:
        engine: the form.
        loss: the robust ELBO of the model.
        optimizer: of all that is learned.
        defense: attack, clipping and the rest.
        processes: those that share the work.
        precision: of the matrix products: `"full"`, float32 with TF32 as torch's flags say; `"bf16"`, which the eager
            form cannot; or `"auto"`, bfloat16 in the fast forms on a GPU and float32 elsewhere. All else is float32.

    Raises:
        ValueError: engine or precision is unknown, or the step cannot be done so; the reason is given.
    """
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    if precision not in ("auto", *PRECISIONS):
        raise unknown("precision", precision, ("auto", *PRECISIONS))
    on_gpu = next(loss.parameters()).is_cuda
    if engine == "eager" or (engine == "auto" and not on_gpu):
        if precision == "bf16":
            raise ArgumentError(
                "precision='bf16' is for the fast engines, and this step runs eagerly; use engine='graph' on a GPU, "
                "engine='compile', or leave precision out"
            )
        return EagerStep(loss, optimizer, defense, processes.share_gradients(loss))
    if engine == "graph" and not on_gpu:
        raise ArgumentError("engine='graph' records CUDA graphs, and the model is on the CPU; use 'compile' or 'auto'")
    may_fall_back = engine == "auto" and precision != "bf16"  # which the eager step does not have
    try:
        half = precision == "bf16" or (precision == "auto" and on_gpu)
        dtype = torch.bfloat16 if half else torch.float32
        captured = engine != "compile"
        fast = FastStep(loss, optimizer, defense, processes, precision=dtype, compiled=True, captured=captured)
        return FallbackStep(fast, may_fall_back=may_fall_back)
    except UnsupportedError as reason:
        if not may_fall_back:
            remedy = "leave precision='bf16' out" if engine == "auto" else "use 'eager' or 'auto'"
            raise ArgumentError(f"engine={engine!r} cannot do this step: {reason}; {remedy}") from reason
        log.info("running eagerly: %s", reason)
        return EagerStep(loss, optimizer, defense, processes.share_gradients(loss))
