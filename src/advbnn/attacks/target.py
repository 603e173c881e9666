"""The model under attack, and what its passes on a few inputs show: found once per attack, when first needed."""

import functools

from torch import Tensor, nn

from advbnn.bayes.protocol import Member, finite_support
from advbnn.randomness import draws_for_some, is_random, shares_draws


class Target:
    """A model that is attacked on a batch `x`, of which it takes `size` examples at a time; all when None."""

    def __init__(self, model: nn.Module, x: Tensor, size: int | None = None) -> None:
        self.model, self._x, self._few, self._size = model, x, x[:2], size
        self._support: dict[int, tuple[Member, ...]] = {}

    @functools.cached_property
    def is_random(self) -> bool:
        """Whether two passes may differ."""
        return is_random(self.model, self._few) or draws_for_some(self.model, self._x, self._size)

    @functools.cached_property
    def shares_draws(self) -> bool:
        """Whether the images of a batch share their random numbers, as with random weights."""
        return shares_draws(self.model, self._few)

    def support(self, at_most: int) -> tuple[Member, ...]:
        """The networks of a posterior with finite support, in evaluation mode and without gradients of their weights.

        Empty if there are too many, or if one of them is random itself: then a single pass of each is no exact mean.
        """
        if at_most not in self._support:
            self._support[at_most] = finite_support(self.model, self._few, at_most)
            for member in self._support[at_most]:
                member.net.eval().requires_grad_(False)  # copies, or parts of the model, whose flags are restored
        return self._support[at_most]
