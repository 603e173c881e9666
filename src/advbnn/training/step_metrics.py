"""Step records, collected on the device and read all at once, so that metrics do not slow down training."""

from typing import Any

import torch
from torch import Tensor

from advbnn.machine.processes import World
from advbnn.training.step import StepRecord


class StepMetrics:
    """The records of the steps since the last reading; without `robust`, the score of an update is the clean score."""

    def __init__(self, score_name: str, robust: bool) -> None:
        self.score_name, self.robust = score_name, robust
        self.clear()

    def __len__(self) -> int:
        return len(self._rows)

    def clear(self) -> None:
        self._rows: list[Tensor] = []
        self._counts: list[tuple[int, int]] = []

    def add(self, record: StepRecord) -> None:
        """Add a record, without synchronizing the device."""
        clean = torch.zeros_like(record.score) if record.clean_score is None else record.clean_score
        values = (record.loss, record.nll, record.kl, record.score, clean)
        self._rows.append(torch.stack([value.float() for value in values]))
        self._counts.append((record.examples, 0 if record.clean_score is None else record.examples))

    def read(self, world: World) -> dict[str, float]:
        """Means over the examples of all processes, by name. All processes must call this together."""
        rows, counts = torch.stack(self._rows).double().cpu(), torch.tensor(self._counts, dtype=torch.float64)
        # losses are means over a batch, weighted by its size; scores are sums
        sums = torch.cat([(rows[:, :3] * counts[:, :1]).sum(0), rows[:, 3:].sum(0), counts.sum(0)])
        loss, nll, kl, score, clean_score, examples, measured = world.sum(sums).tolist()
        means = {"loss": loss / examples, "nll": nll / examples, "kl": kl / examples}
        if measured:
            means[f"clean_{self.score_name}"] = clean_score / measured
        means[f"{'robust' if self.robust else 'clean'}_{self.score_name}"] = score / examples
        return means

    def first_not_finite(self) -> int | None:
        """How many steps ago the loss was first NaN or infinite; None if it never was."""
        if not self._rows:
            return None
        bad = (~torch.isfinite(torch.stack(self._rows)[:, 0])).nonzero()
        return len(self._rows) - 1 - int(bad[0]) if len(bad) else None

    def state_dict(self) -> dict[str, Any]:
        return {"rows": list(self._rows), "counts": list(self._counts)}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        self._rows, self._counts = [row.to(device) for row in state["rows"]], list(state["counts"])
