"""What the page does: images to choose from, and the answers of the chosen networks."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from advbnn.attacks.threat import Threat
from advbnn.data.augment import to_float
from advbnn.data.image import read_inputs
from advbnn.data.imageset import Examples
from advbnn.errors import ArgumentError
from advbnn.play.card import card
from advbnn.play.drawing import drawn_input, ink_of
from advbnn.play.trial import Network, trial
from advbnn.report.images import data_uri
from advbnn.report.style import Look, looks

THUMBNAILS = 20
UNKNOWN = "(unknown)"
"""The true class of a drawing."""


@dataclass(frozen=True, eq=False)
class Playground:
    """Networks of one data set, its test images, and the norm and usual radius of attacks."""

    networks: Sequence[Network]
    data: Examples
    threat: Threat

    def __post_init__(self) -> None:
        shape = self.data.shape
        if len(shape) != 3 or shape[0] not in (1, 3) or not self.data.classes:
            raise ArgumentError(f"data must be grey or colour images with classes, got {self.data!r}")

    @functools.cached_property
    def looks(self) -> Mapping[str, Look]:
        """Title and colours of the networks by their labels."""
        return looks([network.label for network in self.networks])

    @property
    def titles(self) -> list[str]:
        return [self.looks[network.label].title for network in self.networks]

    @functools.cached_property
    def order(self) -> list[int]:
        """The test images in an order that goes through the classes again and again."""
        return interleaved(self.data.targets.cpu())

    def picked(self, row: int) -> tuple[Tensor, str]:
        return to_float(self.data.tensors()[0][row]).cpu(), self.data.classes[int(self.data.targets[row])]

    def drawn(self, data_uri: str) -> tuple[Tensor, str]:
        """A drawing, in the tones of the test images, of an unknown class."""
        some = to_float(self.data.tensors()[0][self.order[:100]])
        return drawn_input(ink_of(data_uri), self.data.shape, light_on_dark=bool(some.mean() < 0.5)), UNKNOWN

    def uploaded(self, path: str) -> tuple[Tensor, str]:
        """An image file, of an unknown class."""
        return read_inputs([Path(path)], self.data.shape)[0], UNKNOWN

    def thumbnails(self, turn: int) -> str:
        """Test images to choose from, others at every turn, as HTML."""
        begin = turn * THUMBNAILS % len(self.order)
        buttons = (
            f'<button type="button" data-row="{row}" title="test image {row}">'
            f'<img src="{data_uri(self.picked(row)[0])}" alt="test image {row}"></button>'
            for row in self.order[begin : begin + THUMBNAILS]
        )
        return f'<div class="thumbnails">{"".join(buttons)}</div>'

    def cards(
        self, image: Tensor, truth: str, titles: Sequence[str], attack: str, radius: float, eot: int, coverage: float
    ) -> str:
        """The answers of the networks with these titles, as HTML."""
        names = self.data.classes
        threat, label = Threat(self.threat.norm, radius), names.index(truth) if truth in names else None
        shown = "".join(
            card(
                trial(network, image, threat, attack=attack, eot=eot, truth=label, coverage=coverage),
                self.looks[network.label],
                names,
            )
            for network in self.networks
            if self.looks[network.label].title in titles
        )
        return f'<div class="cards">{shown or "Choose a network."}</div>'


def interleaved(labels: Tensor) -> list[int]:
    """The rows sorted by their rank within their class, then by class: the first rows show all classes."""
    rank = torch.empty_like(labels)
    for label in labels.unique():
        rows = (labels == label).nonzero().squeeze(1)
        rank[rows] = torch.arange(len(rows))
    return [row for _, _, row in sorted(zip(rank.tolist(), labels.tolist(), range(len(labels)), strict=True))]
