"""Randomness that stays the same between forward passes until it is drawn anew.

Several published defences work so: RNA, RPF, CTRW, Double-Win Quant and DCS draw once for an attack, and once more for
the update or for the score. The attack then knows nothing of the draw it is scored on.
"""

from abc import ABC, abstractmethod

import torch
from torch import nn

from advbnn.modules import device_of
from advbnn.randomness import seeded


class KeptDraw(nn.Module, ABC):
    """A layer that keeps its draw in buffers, so that a captured graph sees a new one.

    The buffers are not stored with the weights: a loaded network starts with a draw of its own.
    """

    draws_into_buffers = True
    also_for_update = False
    """Whether the update of a training step keeps the draw of its attack, instead of drawing anew."""

    def resample(self, seed: int | None = None) -> None:
        """Draw anew, from `seed`, or from torch's default generator when it is None."""
        with torch.no_grad(), seeded(seed, self._place()):
            self.redraw()

    def resample_for_update(self, seed: int | None = None) -> None:
        """Draw for the update of a training step, after `resample` for its attack."""
        with torch.no_grad(), seeded(seed, self._place()):
            self.redraw_for_update()

    @abstractmethod
    def redraw(self) -> None:
        """Overwrite the draw in place, with random numbers of torch's default generator for the buffers' device."""

    def redraw_for_update(self) -> None:
        """Overwrite the draw of the attack by that of the update: a new one, unless it is `also_for_update`."""
        if not self.also_for_update:
            self.redraw()

    def _place(self) -> torch.device:
        return next((b.device for b in self.buffers()), device_of(self, torch.device("cpu")))
