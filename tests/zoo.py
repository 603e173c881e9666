"""Networks of every kind that must convert, each with an input that fits it."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Case(NamedTuple):
    """A network and an input for it."""

    net: Callable[[], nn.Module]
    x: Callable[[], Tensor]


class Tied(nn.Module):
    """An embedding whose weights are also those of the output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embed(tokens).mean(1))


class SharedBlock(nn.Module):
    """One layer used twice under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = self.first
        self.inner = nn.ModuleDict({"head": nn.Sequential(nn.Tanh(), nn.Linear(4, 3))})

    def forward(self, x: Tensor) -> Tensor:
        return self.inner["head"](self.second(torch.relu(self.first(x))))


class Recurrent(nn.Module):
    """A recurrent layer and a linear head."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.rnn = kind(3, 5, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


class SelfAttention(nn.Module):
    """Multi-head attention of a sequence to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


def _images() -> Tensor:
    return torch.randn(4, 4, 8, 8)


ZOO = {
    "mlp": Case(lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), lambda: torch.randn(4, 6)),
    "leaf": Case(lambda: nn.Linear(6, 3), lambda: torch.randn(4, 6)),
    "conv1d": Case(lambda: nn.Conv1d(4, 6, 3, padding=1), lambda: torch.randn(2, 4, 9)),
    "conv2d": Case(lambda: nn.Conv2d(4, 6, (3, 1), padding="same", bias=False), _images),
    "conv3d": Case(lambda: nn.Conv3d(2, 3, 2), lambda: torch.randn(2, 2, 4, 4, 4)),
    "grouped-dilated": Case(lambda: nn.Conv2d(4, 8, 3, groups=2, dilation=2), _images),
    "circular": Case(lambda: nn.Conv2d(4, 2, 3, padding=1, padding_mode="circular"), _images),
    "transposed": Case(lambda: nn.ConvTranspose2d(4, 3, 3, stride=2), _images),
    "batchnorm": Case(lambda: nn.Sequential(nn.Conv2d(4, 3, 3), nn.BatchNorm2d(3)), _images),
    "batchnorm-not-affine": Case(lambda: nn.Sequential(nn.Conv2d(4, 3, 3), nn.BatchNorm2d(3, affine=False)), _images),
    "batchnorm-cumulative": Case(lambda: nn.Sequential(nn.Conv2d(4, 3, 3), nn.BatchNorm2d(3, momentum=None)), _images),
    "batchnorm-no-statistics": Case(
        lambda: nn.Sequential(nn.Conv2d(4, 3, 3), nn.BatchNorm2d(3, track_running_stats=False)), _images
    ),
    "layernorm": Case(lambda: nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4)), lambda: torch.randn(4, 6)),
    "groupnorm": Case(lambda: nn.GroupNorm(2, 4), _images),
    "embedding": Case(lambda: nn.Embedding(5, 3), lambda: torch.randint(0, 5, (4, 2))),
    "lstm": Case(lambda: Recurrent(nn.LSTM), lambda: torch.randn(2, 5, 3)),
    "gru": Case(lambda: Recurrent(nn.GRU), lambda: torch.randn(2, 5, 3)),
    "attention": Case(SelfAttention, lambda: torch.randn(2, 5, 8)),
    "transformer": Case(
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), lambda: torch.randn(2, 5, 8)
    ),
    "tied": Case(Tied, lambda: torch.randint(0, 7, (3, 4))),
    "shared": Case(SharedBlock, lambda: torch.randn(3, 4)),
}
