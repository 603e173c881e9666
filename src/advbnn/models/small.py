"""Two networks small enough to train on a CPU."""

from torch import nn

from advbnn.errors import ArgumentError
from advbnn.models.blocks import classify, conv_norm_relu


def small_cnn(*, classes: int, image_size: int, channels: int) -> nn.Sequential:
    """Three convolutions, and averages over the four quarters of the image."""
    if image_size % 4:
        raise ArgumentError(
            f"image_size must be a multiple of 4 for small_cnn, got {image_size}. "
            'Pad the images, or build "mlp" or "resnet18", which take any size.'
        )
    layers = [
        *conv_norm_relu(channels, 16),
        *conv_norm_relu(16, 32),
        nn.MaxPool2d(2),
        *conv_norm_relu(32, 32),
        nn.AvgPool2d(image_size // 4),
    ]
    return classify(layers, 32 * 2 * 2, classes)


def mlp(*, classes: int, image_size: int, channels: int) -> nn.Sequential:
    """Two hidden layers of 256 ReLU units."""
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs in (channels * image_size**2, 256):
        layers += [nn.Linear(inputs, 256), nn.ReLU(inplace=True)]
    return classify(layers, 256, classes)
