"""ResNet-18 (He et al., 2016) for small images: a 3x3 stem, no pooling before the blocks."""

from torch import Tensor, nn

from advbnn.models.plain import classify

STAGES = ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2))  # inputs, width, first stride; two blocks each


def resnet18(*, classes: int, image_size: int, channels: int) -> nn.Sequential:
    """Convolution, BatchNorm, then the sum with the shortcut. Takes any image size."""
    stem = [_conv3x3(channels, 64), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    return classify([*stem, *_blocks(Residual), nn.AdaptiveAvgPool2d(1)], 512, classes)


def preact_resnet18(*, classes: int, image_size: int, channels: int) -> nn.Sequential:
    """BatchNorm and ReLU before each convolution, and again after the last block. Takes any image size."""
    top = [nn.BatchNorm2d(512), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1)]
    return classify([_conv3x3(channels, 64), *_blocks(PreActResidual), *top], 512, classes)


class Residual(nn.Module):
    """relu(x + BN(conv(relu(BN(conv(x)))))), with x projected where its shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv3x3(inputs, outputs, stride)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = _conv3x3(outputs, outputs)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        # modules, so that a defence can put something else in their place
        self.relu1, self.relu2 = nn.ReLU(), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu1(self.norm1(self.conv1(x)))
        result: Tensor = self.relu2(self.norm2(self.conv2(out)) + self.shortcut(x))
        return result


class PreActResidual(nn.Module):
    """x + conv(relu(BN(conv(a)))), a = relu(BN(x)); where the shape changes, a projection of a replaces x."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = _conv3x3(inputs, outputs, stride)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.conv2 = _conv3x3(outputs, outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if stride != 1 or inputs != outputs else None
        self.relu1, self.relu2 = nn.ReLU(), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        active = self.relu1(self.norm1(x))
        shortcut = x if self.shortcut is None else self.shortcut(active)
        out: Tensor = self.conv2(self.relu2(self.norm2(self.conv1(active))))
        return out + shortcut


def _blocks(block: type[Residual] | type[PreActResidual]) -> list[nn.Module]:
    blocks: list[nn.Module] = []
    for inputs, width, stride in STAGES:
        blocks += [block(inputs, width, stride), block(width, width, 1)]
    return blocks


def _conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False)
