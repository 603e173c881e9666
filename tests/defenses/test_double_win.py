import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from advbnn import models
from advbnn.defenses.double_win import (
    QuantisedConv2d,
    RandomPrecision,
    RandomPrecisionNet,
    SwitchableNorm2d,
    quantised,
)


def small() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()),
        *(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()),
    )


def test_rounding_to_levels_has_the_gradient_of_the_identity() -> None:
    x = torch.tensor([0.0, 0.1, 0.2, 0.5, 0.9, 1.0], requires_grad=True)
    out = quantised(x, torch.tensor(0.0), torch.tensor(1.0), torch.tensor(2))
    torch.testing.assert_close(out, torch.tensor([0, 0, 1, 2, 3, 3]) / 3)
    out.sum().backward()
    assert torch.equal(x.grad, torch.ones(6))


def nearest(values: Tensor, low: float, high: float, bits: int) -> Tensor:
    """The nearest of all levels, which are written down one by one."""
    levels = torch.linspace(low, high, 2**bits, dtype=torch.float64)
    return levels[(values.double().flatten()[:, None] - levels).abs().argmin(1)].view(values.shape).float()


def test_a_convolution_of_levels_with_the_range_of_training_in_evaluation() -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(2, 3, 3)
    layer, x, later = QuantisedConv2d(conv), torch.randn(4, 2, 5, 5), 3 * torch.randn(4, 2, 5, 5)
    layer.bits.fill_(4)
    weight = torch.stack([nearest(w, w.min().item(), w.max().item(), 4) for w in conv.weight.detach()])

    def expected(inputs: Tensor, low: float, high: float) -> Tensor:
        return functional.conv2d(nearest(inputs, low, high, 4), weight, conv.bias)

    low, high = x.min().item(), x.max().item()
    torch.testing.assert_close(layer.train()(x), expected(x, low, high))
    # larger inputs than in training are clipped to its range
    assert later.min() < low and later.max() > high
    torch.testing.assert_close(layer.eval()(later), expected(later, low, high))
    # the range follows the batches of training
    layer.train()(later)
    moved = (0.1 * low + 0.9 * later.min().item(), 0.1 * (high - low) + 0.9 * (later.max() - later.min()).item())
    assert (layer.low.item(), layer.span.item()) == pytest.approx(moved, rel=1e-5)


def test_the_gradient_passes_where_values_are_clipped() -> None:
    x = torch.tensor([-1.0, 0.5, 3.0], requires_grad=True)
    out = quantised(x, torch.tensor(0.0), torch.tensor(1.0), torch.tensor(2))
    torch.testing.assert_close(out, torch.tensor([0.0, 2 / 3, 1.0]))
    out.sum().backward()
    assert torch.equal(x.grad, torch.ones(3))


def test_first_convolution_shortcuts_and_classifier_are_not_quantised() -> None:
    model = RandomPrecision().wrap(models.build("resnet18"))
    quantised_ones = [part for part in model.modules() if isinstance(part, QuantisedConv2d)]
    # two in each of the eight blocks
    assert len(quantised_ones) == 16 and all(part.conv.kernel_size == (3, 3) for part in quantised_ones)
    assert sum(type(part) is nn.Conv2d for part in model.modules()) == 16 + 1 + 3


def test_more_bits_come_closer_to_the_plain_network() -> None:
    net, x = small().train(), torch.rand(8, 1, 8, 8)
    model = RandomPrecisionNet(net).train()
    expected, errors = net(x), []
    for bits in (4, 8, 16):
        model.at(bits)
        errors.append((model(x) - expected).abs().max().item())
    assert errors[0] > 4 * errors[1] > 16 * errors[2]


def test_each_number_of_bits_has_its_own_statistics() -> None:
    model, x = RandomPrecisionNet(small()).train(), torch.rand(8, 1, 8, 8)
    model.at(5)
    model(x)
    norm = next(module for module in model.modules() if isinstance(module, SwitchableNorm2d))
    moved = (norm.running_mean != 0).any(1).nonzero().flatten().tolist()
    assert moved == [5 - 4]


def test_bits_are_uniform_and_the_same_in_all_layers() -> None:
    model, counts = RandomPrecisionNet(small()), torch.zeros(17)
    for seed in range(650):
        model.resample(seed)
        counts[model.bits] += 1
        assert all(module.bits == model.bits for module in model.net.modules() if hasattr(module, "bits"))
    assert counts[:4].sum() == 0
    assert ((counts[4:] - 50) ** 2 / 50).sum() < 12 + 5 * 24**0.5  # chi squared with 12 degrees of freedom


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="most"):
        RandomPrecision(fewest=8, most=4)
