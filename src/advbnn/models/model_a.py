"""The paper's "Model A" for STL-10 (96 pixels), in two versions.

The paper's footnote refers to pytorch-playground. The authors' code has a wider network, with trainable BatchNorm and
average pooling in place of the last max pooling.
"""

from itertools import pairwise

from torch import nn

from advbnn.errors import ArgumentError
from advbnn.models.blocks import classify, conv_norm_relu


def model_a(*, classes: int, image_size: int, channels: int) -> nn.Sequential:
    """The network in the authors' code."""
    _require_96(image_size)
    layers = [*_trunk((channels, 32, 64, 128, 256), (256, 512), affine=True), nn.AvgPool2d(2)]
    return classify(layers, 512, classes)


def model_a_playground(*, classes: int, image_size: int, channels: int) -> nn.Sequential:
    """The network of the paper's footnote; its BatchNorm layers have no parameters."""
    _require_96(image_size)
    layers = [*_trunk((channels, 32, 64, 128, 128), (256, 256), affine=False), nn.MaxPool2d(2)]
    return classify(layers, 256, classes)


def _trunk(pooled: tuple[int, ...], unpadded: tuple[int, ...], *, affine: bool) -> list[nn.Module]:
    """From 96 pixels to 6 by pooling after each convolution, then to 2 by convolutions without padding."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(pooled):
        layers += [*conv_norm_relu(inputs, outputs, affine=affine), nn.MaxPool2d(2)]
    for inputs, outputs in pairwise((pooled[-1], *unpadded)):
        layers += conv_norm_relu(inputs, outputs, padding=0, affine=affine)
    return layers


def _require_96(image_size: int) -> None:
    if image_size != 96:
        raise ArgumentError(
            f"image_size must be 96 for Model A, which is made for STL-10; got {image_size}. "
            'Pass image_size=96, or build "vgg16" or "resnet18" for other sizes.'
        )
