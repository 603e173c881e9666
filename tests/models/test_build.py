"""Contracts of every network that `build` knows."""

import pickle

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
    ("model_a", 10, 96, 3): 2_166_282,
    ("model_a_playground", 10, 96, 3): 1_128_650,
    ("resnet18", 10, 32, 3): 11_173_962,
    ("preact_resnet18", 10, 32, 3): 11_172_170,
    ("small_cnn", 10, 32, 3): 15_786,
    ("small_cnn", 10, 8, 1): 15_498,
    ("mlp", 10, 8, 1): 85_002,
}
SETTINGS = pytest.mark.parametrize(("name", "classes", "image_size", "channels"), COUNTS, ids=lambda value: str(value))


@SETTINGS
def test_parameters_shapes_and_layout(name: str, classes: int, image_size: int, channels: int) -> None:
    net = models.build(name, classes=classes, image_size=image_size, channels=channels)

    assert sum(parameter.numel() for parameter in net.parameters()) == COUNTS[name, classes, image_size, channels]
    assert list(dict(net.named_children())) == ["features", "classifier"]
    assert list(net.modules())[-1] is net.classifier
    assert isinstance(net.classifier, nn.Linear)

    net.eval()
    logits = net(torch.rand(2, channels, image_size, image_size))
    assert logits.shape == (2, classes)
    assert logits.isfinite().all()


@SETTINGS
def test_an_image_alone_as_in_a_batch(name: str, classes: int, image_size: int, channels: int) -> None:
    with seeded(0):
        net = models.build(name, classes=classes, image_size=image_size, channels=channels).double().eval()
        images = torch.rand(3, channels, image_size, image_size, dtype=torch.float64)
    with torch.no_grad():
        together, alone = net(images), net(images[1:2])
    torch.testing.assert_close(together[1:2], alone, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["vgg11", "resnet18", "preact_resnet18", "small_cnn", "mlp"])
def test_every_parameter_and_the_image_get_a_gradient(name: str) -> None:
    with seeded(0):
        net = models.build(name)
        images = torch.rand(4, 3, 32, 32, requires_grad=True)
        net(images).square().sum().backward()
    assert images.grad is not None and images.grad.any()
    for label, parameter in net.named_parameters():
        assert parameter.grad is not None, label
        assert parameter.grad.isfinite().all(), label


@pytest.mark.parametrize("name", ["resnet18", "preact_resnet18"])
@pytest.mark.parametrize("image_size", [8, 28, 40])
def test_residual_nets_take_other_sizes(name: str, image_size: int) -> None:
    net = models.build(name, channels=1, image_size=image_size).eval()
    assert net(torch.rand(2, 1, image_size, image_size)).shape == (2, 10)


def test_sizes_may_be_integers_of_numpy() -> None:
    net = models.build("mlp", classes=np.int64(4), image_size=np.int32(8), channels=np.uint8(1))
    assert net(torch.rand(2, 1, 8, 8)).shape == (2, 4)
    assert type(net.classifier.out_features) is int


def test_same_seed_same_network() -> None:
    with seeded(3):
        first = models.build("small_cnn")
    with seeded(3):
        second = models.build("small_cnn")
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)


def test_networks_pickle() -> None:
    net = models.build("preact_resnet18").eval()
    images = torch.rand(1, 3, 32, 32)
    assert torch.equal(pickle.loads(pickle.dumps(net))(images), net(images))


def test_small_cnn_learns_in_seconds() -> None:
    """Bright quarter of an 8x8 image: which one? The smallest task that needs position and intensity."""
    with seeded(0):
        net = models.build("small_cnn", classes=4, image_size=8, channels=1)
        labels = torch.arange(256) % 4
        images = torch.rand(256, 1, 8, 8) * 0.5
        for image, label in zip(images, labels.tolist(), strict=True):
            row, column = divmod(label, 2)
            image[0, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] += 0.4
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        for _ in range(20):
            loss = nn.functional.cross_entropy(net(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert (net.eval()(images).argmax(1) == labels).float().mean() > 0.95


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "vgg17"}, r"name='vgg17' is unknown.*did you mean 'vgg1\d'"),
        ({"name": "VGG16"}, "name='VGG16' is unknown"),
        ({"name": "vgg16", "image_size": 48}, "image_size must be a multiple of 32.*got 48.*Resize"),
        ({"name": "vgg11", "image_size": 8}, "image_size must be a multiple of 32"),
        ({"name": "model_a"}, "image_size must be 96.*got 32.*Pass image_size=96"),
        ({"name": "model_a_playground", "image_size": 64}, "image_size must be 96.*got 64"),
        ({"name": "small_cnn", "image_size": 10}, "image_size must be a multiple of 4.*got 10"),
        ({"name": "vgg16", "classes": 0}, "classes must be a positive whole number, got 0"),
        ({"name": "mlp", "channels": -1}, "channels must be a positive whole number, got -1"),
        ({"name": "mlp", "classes": True}, "classes must be a positive whole number, got True"),
        ({"name": "mlp", "classes": np.bool_(True)}, "classes must be a positive whole number, got .*True"),
        ({"name": "mlp", "channels": torch.tensor(True)}, "channels must be a positive whole number, got tensor"),
        ({"name": "mlp", "image_size": 8.0}, "image_size must be a positive whole number, got 8.0"),
    ],
)
def test_bad_input(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        models.build(**arguments)  # type: ignore[arg-type]


def test_uniform_norm_scales() -> None:
    net = models.build("vgg16")
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with seeded(0):
        assert models.uniform_norm_scales_(net) is net

    scales = [module.weight for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
    values = torch.cat([scale.detach() for scale in scales])
    assert values.numel() == 4224
    assert values.min() >= 0 and values.max() <= 1
    # four standard errors of the mean of 4,224 uniform draws
    assert abs(values.mean().item() - 0.5) < 4 * 0.2887 / 4224**0.5
    assert abs(values.std().item() - 0.2887) < 0.01

    changed = {name for name, value in net.state_dict().items() if not torch.equal(value, before[name])}
    owners = {name: module for name, module in net.named_modules() if isinstance(module, nn.BatchNorm2d)}
    assert changed == {f"{name}.weight" for name in owners}


def test_uniform_norm_scales_of_a_net_without_any() -> None:
    net = models.build("model_a_playground", image_size=96)
    before = [parameter.clone() for parameter in net.parameters()]
    models.uniform_norm_scales_(net)
    assert all(torch.equal(one, other) for one, other in zip(before, net.parameters(), strict=True))
