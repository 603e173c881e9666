"""VGG for small images (Simonyan & Zisserman, 2015): BatchNorm, no dropout, one linear layer on top.

The paper uses VGG16 for CIFAR-10 (32 pixels) and ImageNet-143 (64 pixels).
"""

from torch import nn

from advbnn.errors import ArgumentError
from advbnn.models.blocks import classify, conv_norm_relu

STAGE_WIDTHS = (64, 128, 256, 512, 512)
CONVOLUTIONS_PER_STAGE = {
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
}


def vgg(depth: int, *, classes: int, image_size: int, channels: int) -> nn.Sequential:
    """VGG of the given depth, without the two hidden linear layers, like the authors' network."""
    if image_size % 32:
        raise ArgumentError(
            f"image_size must be a multiple of 32 for VGG, which halves it five times; got {image_size}. "
            'Resize the images, or build "resnet18", which takes any size.'
        )
    layers: list[nn.Module] = []
    inputs = channels
    for width, repeats in zip(STAGE_WIDTHS, CONVOLUTIONS_PER_STAGE[depth], strict=True):
        for _ in range(repeats):
            layers += conv_norm_relu(inputs, width)
            inputs = width
        layers.append(nn.MaxPool2d(2))
    layers.append(nn.AvgPool2d(image_size // 32))
    return classify(layers, inputs, classes)
