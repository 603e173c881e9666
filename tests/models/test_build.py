"""The networks of `build`: layers, parameter counts, outputs, gradients, and refusals."""

import numpy as np
import pytest
import torch
from torch import nn

from advbnn import models
from advbnn.randomness import seeded

COUNTS = {
    ("vgg11", 10, 32, 3): 9_231_114,
    ("vgg13", 10, 32, 3): 9_416_010,
    ("vgg16", 10, 32, 3): 14_728_266,
    ("vgg16", 143, 64, 3): 14_796_495,
    ("vgg19", 10, 32, 3): 20_040_522,
    ("wide_vgg16", 10, 32, 3): 74_506_906,
    ("model_a", 10, 96, 3): 2_166_282,
    ("model_a_playground", 10, 96, 3): 1_128_650,
    ("resnet18", 10, 32, 3): 11_173_962,
    ("preact_resnet18", 10, 32, 3): 11_172_170,
    ("small_cnn", 10, 32, 3): 15_786,
    ("small_cnn", 10, 8, 1): 15_498,
    ("wide_small_cnn", 10, 8, 1): 145_768,
    ("mlp", 10, 8, 1): 85_002,
}

VGG16 = (
    "c64 bn64 relu c64 bn64 relu max2 c128 bn128 relu c128 bn128 relu max2 "
    "c256 bn256 relu c256 bn256 relu c256 bn256 relu max2 "
    "c512 bn512 relu c512 bn512 relu c512 bn512 relu max2 "
    "c512 bn512 relu c512 bn512 relu c512 bn512 relu max2 avg{} flatten"
)
LAYOUTS = {
    ("vgg16", 32): VGG16.format(1),
    ("vgg16", 64): VGG16.format(2),
    ("model_a", 96): "c32 bn32 relu max2 c64 bn64 relu max2 c128 bn128 relu max2 c256 bn256 relu max2 "
    "c256p0 bn256 relu c512p0 bn512 relu avg2 flatten",
    ("model_a_playground", 96): "c32 bn32fixed relu max2 c64 bn64fixed relu max2 c128 bn128fixed relu max2 "
    "c128 bn128fixed relu max2 c256p0 bn256fixed relu c256p0 bn256fixed relu max2 flatten",
}


@pytest.mark.parametrize(("name", "classes", "image_size", "channels"), COUNTS, ids=lambda value: str(value))
def test_parameters_outputs_and_independence_of_the_batch(
    name: str, classes: int, image_size: int, channels: int
) -> None:
    with seeded(0):
        net = models.build(name, classes=classes, image_size=image_size, channels=channels).double().eval()
        images = torch.rand(3, channels, image_size, image_size, dtype=torch.float64)
    assert sum(parameter.numel() for parameter in net.parameters()) == COUNTS[name, classes, image_size, channels]
    assert list(dict(net.named_children())) == ["features", "classifier"]
    assert isinstance(net.classifier, nn.Linear) and list(net.modules())[-1] is net.classifier
    with torch.no_grad():
        together, alone = net(images), net(images[1:2])
    assert together.shape == (3, classes) and together.isfinite().all()
    torch.testing.assert_close(together[1:2], alone, rtol=1e-10, atol=1e-10)


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


@pytest.mark.parametrize(("name", "image_size"), LAYOUTS)
def test_layers_in_the_shorthand_of_architecture_tables(name: str, image_size: int) -> None:
    net = models.build(name, image_size=image_size)
    assert " ".join(map(shorthand, net.features)) == LAYOUTS[name, image_size]


@pytest.mark.parametrize("name", ["resnet18", "preact_resnet18"])
def test_residual_networks_have_a_small_stem_and_take_any_size(name: str) -> None:
    net = models.build(name, channels=1).eval()
    convolutions = [module for module in net.modules() if isinstance(module, nn.Conv2d)]
    assert len(convolutions) == 1 + 16 + 3  # the stem, two per block, three projections
    assert all(module.bias is None for module in convolutions)
    assert convolutions[0].kernel_size == (3, 3) and convolutions[0].stride == (1, 1)
    assert not any(isinstance(module, nn.MaxPool2d) for module in net.modules())
    assert net.features[:-2](torch.rand(2, 1, 32, 32)).shape == (2, 512, 4, 4)
    for size in (8, 28, 40):
        assert net(torch.rand(2, 1, size, size)).shape == (2, 10)


def test_takes_integers_of_numpy() -> None:
    net = models.build("mlp", classes=np.int64(4), image_size=np.int32(8), channels=np.uint8(1))
    assert type(net.classifier.out_features) is int


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "vgg17"}, r"name='vgg17'.*'vgg1\d'"),
        ({"name": "vgg16", "image_size": 48}, "image_size.*32.*got 48.*resize"),
        ({"name": "model_a"}, "image_size.*96.*got 32"),
        ({"name": "small_cnn", "image_size": 10}, "image_size.*multiple of 4.*got 10"),
        ({"name": "vgg16", "classes": 0}, "classes.*positive.*got 0"),
        ({"name": "mlp", "image_size": 8.0}, "image_size.*whole number.*got 8.0"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        models.build(**arguments)  # type: ignore[arg-type]


def test_uniform_norm_scales_changes_batchnorm_scales_only() -> None:
    n = 4000
    net = nn.Sequential(nn.Linear(1, n), nn.BatchNorm1d(n), nn.BatchNorm1d(n, affine=False), nn.LayerNorm(n))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    assert models.uniform_norm_scales_(net) is net
    assert [name for name, value in net.state_dict().items() if not torch.equal(value, before[name])] == ["1.weight"]
    scales = net[1].weight.detach()
    assert scales.min() >= 0 and scales.max() <= 1
    assert abs(scales.mean() - 0.5) < 5 * 12**-0.5 / n**0.5  # the mean of U(0, 1), within five standard errors


def test_fresh_weights_are_those_of_a_new_network() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.LSTM(3, 2))

    with seeded(1):
        expected = make()
    net = make()
    net[1].running_mean.fill_(3)
    with seeded(1):
        assert models.reset_parameters_(net) is net
    assert all(torch.equal(value, expected.state_dict()[name]) for name, value in net.state_dict().items())
    attention = nn.MultiheadAttention(4, 2)
    before = attention.in_proj_weight.clone()
    assert not torch.equal(models.reset_parameters_(attention).in_proj_weight, before)


def test_frozen_layers_keep_their_weights_and_statistics() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3), nn.Linear(3, 2))
    net[:2].requires_grad_(False)
    net[1].running_mean.fill_(3)
    net[3].bias.requires_grad_(False)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    models.reset_parameters_(net)
    fresh = [name for name, value in net.state_dict().items() if not torch.equal(value, before[name])]
    assert fresh == ["3.weight", "4.weight", "4.bias"]
