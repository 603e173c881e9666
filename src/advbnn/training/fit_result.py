"""What `fit` returns: the trained network and its metrics, also for notebooks."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from advbnn.defenses.defense import Defense
from advbnn.display import notebook
from advbnn.training.run_logger import describe


@dataclass(frozen=True, kw_only=True, repr=False)
class FitResult:
    """The result of `fit`.

    Attributes:
        model: the trained network, in the mode in which it was passed.
        steps: the number of updates, including those before a resumption; `history` has their metrics.
        noise_std: the learned noise of a Gaussian likelihood, else None.
        out: the run folder, if there is one.
    """

    model: nn.Module
    defense: Defense
    seed: int
    steps: int
    history: list[dict[str, Any]]
    noise_std: float | None
    out: Path | None

    def __repr__(self) -> str:
        parts = [f"{type(self.model).__name__} by {self.defense.name}", f"seed {self.seed}", f"{self.steps} steps"]
        parts += [
            f"mode {line['mode']}: {describe(line)}" if "mode" in line else describe(line) for line in self.history[-1:]
        ]
        parts += [] if self.out is None else [f"in {self.out}"]
        return f"FitResult({', '.join(parts)})"

    def _repr_html_(self) -> str:
        """The last metrics, for notebooks."""
        last = self.history[-notebook.MOST_ROWS :]
        kinds = dict.fromkeys(name for line in last for name in line if name.endswith(("_accuracy", "_mse")))
        modes = ("mode",) if any("mode" in line for line in last) else ()
        rows = [
            (
                *(line[name] for name in modes),
                line["epoch"],
                line["step"],
                *("" if name not in line else _shown(name, line[name]) for name in kinds),
                f"{line['loss']:.4g}",
            )
            for line in last
        ]
        caption = f"{type(self.model).__name__} by {self.defense.name}, seed {self.seed}, {self.steps:,} steps"
        columns = (*modes, "epoch", "step", *(name.replace("_", " ") for name in kinds), "loss")
        return notebook.table(caption if self.out is None else f"{caption}, in {self.out}", columns, rows)


def _shown(name: str, value: float) -> str:
    return f"{value:.1%}" if name.endswith("_accuracy") else f"{value:.4g}"
