"""Networks without shortcuts: VGG, the paper's Model A, and two small enough to train on a CPU; and shared blocks."""

from collections import OrderedDict
from itertools import pairwise

from torch import nn

from advbnn.errors import ArgumentError
from advbnn.models.pooling import MaxPool2x2

STAGE_WIDTHS = (64, 128, 256, 512, 512)
CONVOLUTIONS_PER_STAGE = {
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
}


def vgg(depth: int, *, classes: int, image_size: int, channels: int, wider: float = 1.0) -> nn.Sequential:
    """VGG for small images (Simonyan & Zisserman, 2015): BatchNorm, no dropout, one linear layer on top.

    It is the authors' network. The paper uses VGG16 for CIFAR-10 (32 pixels) and ImageNet-143 (64 pixels). `wider` is a
    factor of all widths.
    """
    if image_size % 32:
        raise _wrong_size("a multiple of 32 for VGG", image_size)
    layers: list[nn.Module] = []
    inputs = channels
    for width, repeats in zip(STAGE_WIDTHS, CONVOLUTIONS_PER_STAGE[depth], strict=True):
        for _ in range(repeats):
            layers += conv_norm_relu(inputs, round(wider * width))
            inputs = round(wider * width)
        layers.append(MaxPool2x2())
    layers.append(nn.AvgPool2d(image_size // 32))
    return classify(layers, inputs, classes)


def model_a(*, classes: int, image_size: int, channels: int, playground: bool = False) -> nn.Sequential:
    """The paper's "Model A" for STL-10.

    Args:
        playground: the network in pytorch-playground, to which the paper's footnote refers. The authors' code has a
            wider network, with trainable BatchNorm and average pooling in place of the last max pooling.
    """
    if image_size != 96:
        raise _wrong_size("96 for Model A, which is made for STL-10", image_size)
    pooled = (channels, 32, 64, 128, 128 if playground else 256)
    unpadded = (256, 256) if playground else (256, 512)
    layers: list[nn.Module] = []
    # from 96 pixels to 6 by pooling after each convolution, then to 2 by convolutions without padding
    for inputs, outputs in pairwise(pooled):
        layers += [*conv_norm_relu(inputs, outputs, affine=not playground), MaxPool2x2()]
    for inputs, outputs in pairwise((pooled[-1], *unpadded)):
        layers += conv_norm_relu(inputs, outputs, padding=0, affine=not playground)
    layers.append(MaxPool2x2() if playground else nn.AvgPool2d(2))
    return classify(layers, unpadded[-1], classes)


def small_cnn(*, classes: int, image_size: int, channels: int, wider: float = 1.0) -> nn.Sequential:
    """Three convolutions, and averages over the four quarters of the image; `wider` is a factor of all widths."""
    if image_size % 4:
        raise _wrong_size("a multiple of 4 for small_cnn", image_size)
    narrow, width = round(wider * 16), round(wider * 32)
    first, second, third = conv_norm_relu(channels, narrow), conv_norm_relu(narrow, width), conv_norm_relu(width, width)
    layers = [*first, *second, MaxPool2x2(), *third, nn.AvgPool2d(image_size // 4)]
    return classify(layers, width * 2 * 2, classes)


def mlp(*, classes: int, image_size: int, channels: int) -> nn.Sequential:
    """Two hidden layers of 256 ReLU units."""
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs in (channels * image_size**2, 256):
        layers += [nn.Linear(inputs, 256), nn.ReLU(inplace=True)]
    return classify(layers, 256, classes)


def conv_norm_relu(inputs: int, outputs: int, *, padding: int = 1, affine: bool = True) -> list[nn.Module]:
    """A 3x3 convolution with bias, BatchNorm and ReLU.

    BatchNorm makes the bias redundant, but the authors keep it, and the KL includes it.
    """
    conv = nn.Conv2d(inputs, outputs, kernel_size=3, padding=padding)
    return [conv, nn.BatchNorm2d(outputs, affine=affine), nn.ReLU(inplace=True)]


def classify(features: list[nn.Module], width: int, classes: int) -> nn.Sequential:
    """`features`, flattened to `width` numbers per image, and a linear classifier."""
    body, classifier = nn.Sequential(*features, nn.Flatten()), nn.Linear(width, classes)
    return nn.Sequential(OrderedDict(features=body, classifier=classifier))


def _wrong_size(expected: str, image_size: int) -> ArgumentError:
    remedy = 'resize the images, or build "resnet18", which takes any size'
    return ArgumentError(f"image_size must be {expected}, got {image_size}; {remedy}")
