"""Building blocks that the networks share."""

from collections import OrderedDict

from torch import nn


def conv_norm_relu(inputs: int, outputs: int, *, padding: int = 1, affine: bool = True) -> list[nn.Module]:
    """A 3x3 convolution with bias, BatchNorm and ReLU.

    BatchNorm makes the bias redundant, but the authors keep it, and the KL includes it.
    """
    return [
        nn.Conv2d(inputs, outputs, kernel_size=3, padding=padding),
        nn.BatchNorm2d(outputs, affine=affine),
        nn.ReLU(inplace=True),
    ]


def classify(features: list[nn.Module], width: int, classes: int) -> nn.Sequential:
    """`features`, flattened to `width` numbers per image, and a linear classifier."""
    return nn.Sequential(
        OrderedDict(
            features=nn.Sequential(*features, nn.Flatten()),
            classifier=nn.Linear(width, classes),
        )
    )
