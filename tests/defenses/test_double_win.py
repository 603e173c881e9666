import pytest
import torch
from torch import nn

from advbnn.defenses.double_win import RandomPrecision, RandomPrecisionNet, SwitchableNorm2d, quantised


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
