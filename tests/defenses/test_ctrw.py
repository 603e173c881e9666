import pytest
import torch
from torch import nn

from advbnn.defenses.ctrw import RandomWeight, RandomWeightInput


def test_it_multiplies_by_the_kept_draw() -> None:
    layer, x = RandomWeight((3, 4, 4)), torch.rand(2, 3, 4, 4)
    with torch.no_grad():
        layer.mu.fill_(0.5)
        layer.sigma.fill_(2.0)
    torch.testing.assert_close(layer(x), x * (0.5 + 2 * layer.eps))


def test_the_input_is_normalised_first() -> None:
    model = RandomWeightInput(channels=1, image_size=2, mean=0.4, std=0.2, lowest=3.0).wrap(nn.Flatten()).eval()
    layer, x = model.net.random_weight, torch.rand(3, 1, 2, 2)
    torch.testing.assert_close(model(x), ((x - 0.4) / 0.2 * (1 + 3 * layer.eps)).flatten(1))
    # weights that were trained without it are refused
    old = {name: tensor for name, tensor in model.state_dict().items() if not name.endswith(("mean", "std"))}
    with pytest.raises(RuntimeError, match="mean"):
        model.load_state_dict(old)


def test_small_sigmas_are_lifted_at_each_draw_and_others_are_not() -> None:
    layer = RandomWeight((3, 32, 32))
    assert abs(layer.lowest - 2048 / 3072) < 1e-12
    with torch.no_grad():
        layer.sigma.fill_(1.0)
        layer.sigma[0, 0, 0, :2] = torch.tensor([0.1, 0.5])
    layer.resample(0)
    lift = layer.lowest - 0.1
    torch.testing.assert_close(layer.sigma[0, 0, 0, :3], torch.tensor([layer.lowest, 0.5 + lift, 1.0]))
    before = layer.sigma.clone()
    layer.resample(1)
    torch.testing.assert_close(layer.sigma, before)


def test_an_evaluation_uses_lifted_sigmas_and_changes_no_weight() -> None:
    layer, x = RandomWeight((3, 32, 32)).eval(), torch.rand(1, 3, 32, 32)
    with torch.no_grad():
        layer.sigma.fill_(0.1)
    layer.resample(0)
    assert (layer.sigma == 0.1).all()
    torch.testing.assert_close(layer(x), x * (1 + layer.lowest * layer.eps))


def test_the_draw_is_standard_normal() -> None:
    layer = RandomWeight((3, 32, 32))
    layer.resample(0)
    n = layer.eps.numel()
    assert abs(layer.eps.mean().item()) < 5 / n**0.5
    assert abs(layer.eps.std().item() - 1) < 5 / (2 * n) ** 0.5
