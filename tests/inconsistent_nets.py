"""Networks that are not one function of image and seed: they remember, count, or look at how they are called."""

import os
import random
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from cheats import Wrapped


class Sticky(Wrapped):
    """Adds a noise image to its inputs, which it keeps for `every` passes; drawn by `draw`, at first from seed 0."""

    def __init__(
        self, net: nn.Module, every: float, draw: Callable[[], Tensor] | None = None, std: float = 0.4
    ) -> None:
        super().__init__(net)
        own = torch.Generator().manual_seed(0)
        self.every, self.passes, self.std = every, 0, std
        self.draw = draw or (lambda: torch.randn(1, 8, 8, generator=own))
        self.noise = self.draw()

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        if self.passes % self.every == 0:
            self.noise = self.draw()
        return self.net(x + self.std * self.noise)


class PerBatch(Sticky):
    """Draws new noise when it sees another batch, from torch's default generator."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net, every=1, draw=lambda: torch.randn(1, 8, 8))
        self.seen = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        if not torch.equal(self.seen, x.detach()):
            self.seen, self.noise = x.detach().clone(), self.draw()
        return self.net(x + self.std * self.noise)


class PerShape(PerBatch):
    """Draws new noise when the shape of the batch changes."""

    def forward(self, x: Tensor) -> Tensor:
        if self.seen.shape != x.shape:
            self.seen, self.noise = x.detach().clone(), self.draw()
        return self.net(x + self.std * self.noise)


class ByMethod(Sticky):
    """Draws new noise only when it is told to, as published defences do."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net, every=float("inf"))

    def random_noise(self) -> None:
        self.noise = torch.randn(1, 8, 8)


class Offering(ByMethod):
    """Offers the protocol."""

    def resample(self, seed: int) -> None:
        self.noise = torch.randn(1, 8, 8, generator=torch.Generator().manual_seed(seed))


class Fresh(Wrapped):
    """The same noise image, drawn at every pass: what a sticky network is worth."""

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x + 0.4 * torch.randn(1, 8, 8))


class Tired(Wrapped):
    """Becomes another classifier after some passes."""

    def __init__(self, net: nn.Module, after: int) -> None:
        super().__init__(net)
        self.after, self.passes = after, 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return self.net(x) if self.passes <= self.after else self.net(x).roll(1, 1)


class Sometimes(Wrapped):
    """Another classifier for inputs of a certain kind."""

    def __init__(self, net: nn.Module, when: Callable[[Tensor], bool]) -> None:
        super().__init__(net)
        self.when = when

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).roll(1, 1) if self.when(x) else self.net(x)


WHEN: dict[str, Callable[[Tensor], bool]] = {
    "alone": lambda x: len(x) == 1,
    "in pairs": lambda x: len(x) == 2,
    "differentiated": lambda x: x.requires_grad,
    "gradients on": lambda x: torch.is_grad_enabled(),
    "inference": lambda x: torch.is_inference_mode_enabled(),
    "channels last": lambda x: x.stride(1) == 1,
}


class Unseeded(Wrapped):
    """Noise from a generator that torch's seed does not control."""

    def __init__(self, net: nn.Module, draw: Callable[[], float]) -> None:
        super().__init__(net)
        self.draw = draw

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x + 0.5 * torch.tensor([self.draw() for _ in range(64)]).view(1, 8, 8))


SOURCES: dict[str, Callable[[], float]] = {
    "numpy": lambda: float(np.random.normal()),
    "python": lambda: random.gauss(0, 1),
    "system": lambda: int.from_bytes(os.urandom(4), "big") / 2**31 - 1,
}


class Remembering(Wrapped):
    """Knows images and their labels: it answers with the label of the nearest one, if that is nearer than `radius`."""

    def __init__(self, net: nn.Module, images: Tensor, labels: Tensor, radius: float) -> None:
        super().__init__(net)
        self.images, self.labels, self.radius = images.flatten(1), labels, radius

    def forward(self, x: Tensor) -> Tensor:
        distance, nearest = (x.detach().flatten(1)[:, None] - self.images).norm(dim=2).min(1)
        known = 5 * nn.functional.one_hot(self.labels[nearest], 10).to(x)
        return torch.where((distance < self.radius)[:, None], known, self.net(x))


class Adding(Remembering):
    """Knows images and their labels: it adds to the logit of the nearest one's, within `radius` in the norm `order`."""

    def __init__(self, net: nn.Module, images: Tensor, labels: Tensor, radius: float, order: float) -> None:
        super().__init__(net, images, labels, radius)
        self.order = order

    def forward(self, x: Tensor) -> Tensor:
        distance, nearest = torch.cdist(x.detach().flatten(1), self.images, p=self.order).min(1)
        known = 10 * nn.functional.one_hot(self.labels[nearest], 10).to(x)
        return self.net(x) + (distance < self.radius)[:, None] * known
