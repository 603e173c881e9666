"""The choice of the form of a training step: `"eager"`, the readable reference; `"compile"`; `"graph"`; or `"auto"`.

All forms take the same arguments and compute the same update; for the same noise, up to rounding.
"""

import copy
import logging
from typing import Any

import torch
from torch import Tensor

from advbnn.attacks.checks import check_inputs
from advbnn.defenses.defense import Defense
from advbnn.errors import ArgumentError, UnsupportedError, first_line, one_of
from advbnn.fast.compiling import ENGINES, PRECISIONS
from advbnn.machine.processes import ALONE, World
from advbnn.training.fast_step import FastStep
from advbnn.training.objective import RobustLoss
from advbnn.training.step import EagerStep, StepRecord, mixed

log = logging.getLogger("advbnn")


class FallbackStep:
    """A fast step that falls back to the eager one if its first batch fails; the log gives the reason.

    Whether a network compiles, captures and runs channels-last is known only after the first batch. If the step may not
    fall back, a failure is an error.
    """

    def __init__(self, fast: FastStep, may_fall_back: bool) -> None:
        self._fast, self._may_fall_back = fast, may_fall_back
        self._step: FastStep | EagerStep | None = None

    def __call__(self, x: Tensor, y: Tensor, seed: int, **options: Any) -> StepRecord:
        if self._step is not None:
            return self._step(x, y, seed, **options)
        fast = self._fast
        if (attack := fast.defense.attack) is not None:
            labels = y.argmax(1) if mixed(y, fast.loss.objective.likelihood) else y
            # only once, since it synchronizes the device
            check_inputs(fast.loss.model, x, labels, attack.threat, attack.objective.classifies)
        tensors = [(t, t.detach().clone()) for t in (*fast.loss.parameters(), *fast.loss.buffers())]
        optimizer_state = copy.deepcopy(fast.optimizer.state_dict())
        try:
            record = fast(x, y, seed, **options)
        except Exception as error:  # compilation and capture raise errors of many types
            for tensor, value in tensors:
                # contiguous, since channels-last may be the cause of the failure
                tensor.data = value.contiguous()
            fast.optimizer.load_state_dict(optimizer_state)
            fast.optimizer.zero_grad()
            reason = first_line(error)
            if not self._may_fall_back:
                remedy = "use engine='eager', or 'auto' without a precision"
                raise ArgumentError(f"the fast engine cannot run this network: {reason}; {remedy}") from error
            log.info("running eagerly: %s", reason)
            self._step = EagerStep(fast.loss, fast.optimizer, fast.defense, fast.processes, reason)
            return self._step(x, y, seed, **options)
        self._step = fast
        return record

    @property
    def why_eager(self) -> str | None:
        """Why the step runs eagerly, if it does."""
        return self._step.why_eager if isinstance(self._step, EagerStep) else None

    def with_optimizer(self, optimizer: torch.optim.Optimizer) -> "Step":
        if self._step is not None:
            return self._step.with_optimizer(optimizer)
        return FallbackStep(self._fast.with_optimizer(optimizer), self._may_fall_back)


Step = EagerStep | FastStep | FallbackStep
"""One training step; see `EagerStep.__call__`."""


def make_step(
    engine: str,
    loss: RobustLoss,
    optimizer: torch.optim.Optimizer,
    defense: Defense,
    processes: World = ALONE,
    precision: str = "auto",
) -> Step:
    """The step in the form named by `engine`.

    `"auto"` is the CUDA graph on a GPU if the step supports it, and the eager form otherwise. Several processes average
    their gradients once per update.

    The `precision` of matrix products is `"full"`: float32, or TF32 if torch's flags allow it; `"bf16"`, not in the
    eager form; or `"auto"`: bfloat16 in the fast forms on a GPU, float32 elsewhere. All else is float32.
    """
    one_of("engine", engine, ENGINES)
    one_of("precision", precision, ("auto", *PRECISIONS))
    on_gpu = next(loss.parameters()).is_cuda
    if engine == "eager" or (engine == "auto" and not on_gpu):
        if precision == "bf16":
            raise ArgumentError("precision='bf16' is for the engines 'graph' and 'compile', and this step is eager")
        return EagerStep(loss, optimizer, defense, processes)
    if engine == "graph" and not on_gpu:
        raise ArgumentError("engine='graph' captures CUDA graphs, and the model is on the CPU; use 'compile' or 'auto'")
    may_fall_back = engine == "auto" and precision != "bf16"  # not in the eager step
    half = precision == "bf16" or (precision == "auto" and on_gpu)
    dtype = torch.bfloat16 if half else torch.float32
    try:
        fast = FastStep(loss, optimizer, defense, processes, precision=dtype, captured=engine != "compile")
        return FallbackStep(fast, may_fall_back)
    except UnsupportedError as reason:
        if not may_fall_back:
            remedy = "leave precision='bf16' out" if engine == "auto" else "use 'eager' or 'auto'"
            raise ArgumentError(f"engine={engine!r} does not fit this step: {reason}; {remedy}") from reason
        log.info("running eagerly: %s", reason)
        return EagerStep(loss, optimizer, defense, processes, str(reason))
