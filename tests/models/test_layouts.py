"""The networks layer by layer, written out once more in the shorthand of architecture tables."""

import torch
from torch import nn

from advbnn import models

VGG16 = (
    "c64 bn64 relu c64 bn64 relu max2 c128 bn128 relu c128 bn128 relu max2 "
    "c256 bn256 relu c256 bn256 relu c256 bn256 relu max2 "
    "c512 bn512 relu c512 bn512 relu c512 bn512 relu max2 "
    "c512 bn512 relu c512 bn512 relu c512 bn512 relu max2 avg{} flatten"
)
MODEL_A = (
    "c32 bn32 relu max2 c64 bn64 relu max2 c128 bn128 relu max2 c256 bn256 relu max2 "
    "c256p0 bn256 relu c512p0 bn512 relu avg2 flatten"
)
MODEL_A_PLAYGROUND = (
    "c32 bn32fixed relu max2 c64 bn64fixed relu max2 c128 bn128fixed relu max2 c128 bn128fixed relu max2 "
    "c256p0 bn256fixed relu c256p0 bn256fixed relu max2 flatten"
)


def shorthand(module: nn.Module) -> str:
    match module:
        case nn.Conv2d():
            assert module.kernel_size == (3, 3) and module.stride == (1, 1) and module.bias is not None
            return f"c{module.out_channels}" + ("" if module.padding == (1, 1) else f"p{module.padding[0]}")
        case nn.BatchNorm2d():
            assert module.eps == 1e-5 and module.momentum == 0.1 and module.track_running_stats
            return f"bn{module.num_features}" + ("" if module.affine else "fixed")
        case nn.MaxPool2d():
            return f"max{module.kernel_size}"
        case nn.AvgPool2d():
            return f"avg{module.kernel_size}"
        case _:
            return type(module).__name__.lower()


def layout(name: str, image_size: int) -> str:
    return " ".join(map(shorthand, models.build(name, image_size=image_size).features))


def test_vgg16() -> None:
    assert layout("vgg16", 32) == VGG16.format(1)
    assert layout("vgg16", 64) == VGG16.format(2)


def test_vgg_depths_count_convolutions_and_the_classifier() -> None:
    for depth in (11, 13, 16, 19):
        convolutions = layout(f"vgg{depth}", 32).split().count("relu")
        # the original VGG has three linear layers, this one has one
        assert convolutions == depth - 3


def test_model_a() -> None:
    assert layout("model_a", 96) == MODEL_A
    assert layout("model_a_playground", 96) == MODEL_A_PLAYGROUND


def test_residual_nets() -> None:
    for name in ("resnet18", "preact_resnet18"):
        net = models.build(name)
        convolutions = [module for module in net.modules() if isinstance(module, nn.Conv2d)]
        assert len(convolutions) == 1 + 16 + 3  # the stem, two per block, three projections
        assert all(module.bias is None for module in convolutions)
        stem = convolutions[0]
        assert stem.kernel_size == (3, 3) and stem.stride == (1, 1)
        assert not any(isinstance(module, nn.MaxPool2d) for module in net.modules())
        assert net.features[:-2](torch.rand(2, 3, 32, 32)).shape == (2, 512, 4, 4)
