"""How a training step runs: `"eager"`, the readable reference; `"compile"`; `"graph"`; or `"auto"`.

All forms take the same arguments and do the same. For the same noise they give the same numbers, up to the precision of
the computation.
"""

import logging
from typing import Protocol

import torch
from torch import Tensor

from advbnn.defenses import Defense
from advbnn.distributed import ALONE, World
from advbnn.faststep import FastStep
from advbnn.messages import unknown
from advbnn.objective import RobustLoss
from advbnn.step import EagerStep, StepRecord

ENGINES = ("eager", "compile", "graph", "auto")

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


def make_step(
    engine: str,
    loss: RobustLoss,
    optimizer: torch.optim.Optimizer,
    defense: Defense,
    processes: World = ALONE,
) -> Step:
    """The step in the form that `engine` names.

    `"auto"` takes the CUDA graph on a GPU, where it applies, and the eager form elsewhere. The fast forms compute in
    bfloat16 on a GPU and in float32 on a CPU. Among several processes gradients are averaged, once an update.

    Raises:
        ValueError: an engine is unknown, or the one asked for cannot do this step; the reason is given.
    """
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    on_gpu = next(loss.parameters()).is_cuda
    if engine == "eager" or (engine == "auto" and not on_gpu):
        return EagerStep(loss, optimizer, defense, processes.share_gradients(loss))
    if engine == "graph" and not on_gpu:
        raise ValueError("engine='graph' records CUDA graphs, and the model is on the CPU; use 'compile' or 'auto'")
    try:
        precision = torch.bfloat16 if on_gpu else torch.float32
        captured = engine != "compile"
        return FastStep(loss, optimizer, defense, processes, precision=precision, compiled=True, captured=captured)
    except NotImplementedError as reason:
        if engine != "auto":
            raise ValueError(f"engine={engine!r} cannot do this step: {reason}; use 'eager' or 'auto'") from reason
        log.info("running eagerly: %s", reason)
        return EagerStep(loss, optimizer, defense, processes.share_gradients(loss))
