import pytest
import torch

from advbnn import models
from advbnn.defenses.learn2perturb import FeatureNoise, PerturbedFeatures
from advbnn.randomness import seeded


def test_noise_has_the_scale_of_each_element_and_a_floor() -> None:
    noise = FeatureNoise((2, 3, 3), lowest=0.1)
    with torch.no_grad():
        noise.sigma.fill_(2.0)
        noise.sigma[0] = -1.0
    with torch.no_grad(), seeded(0):
        draws = torch.stack([noise(torch.zeros(1, 2, 3, 3))[0] for _ in range(2000)])
    n = draws[:, 0].numel()
    assert abs(draws[:, 0].std().item() / 0.1 - 1) < 5 / (2 * n) ** 0.5
    assert abs(draws[:, 1].std().item() / 2.0 - 1) < 5 / (2 * n) ** 0.5


def test_activations_keep_their_type() -> None:
    for dtype in (torch.bfloat16, torch.float64):
        assert FeatureNoise((2, 3, 3))(torch.zeros(1, 2, 3, 3, dtype=dtype)).dtype == dtype


def test_the_penalty_makes_the_scale_grow() -> None:
    noise = FeatureNoise((1, 2, 2), init=0.25, gamma=1e-4)
    noise.penalty().backward()
    torch.testing.assert_close(noise.sigma.grad, torch.full((1, 2, 2), -1e-4 * 0.5 / 0.25**0.5))


def test_a_scale_that_fell_below_the_floor_comes_back() -> None:
    noise = FeatureNoise((1, 2, 2), init=0.25, lowest=0.01, gamma=1e-4)
    with torch.no_grad():
        noise.sigma.fill_(-0.1)
    noise.penalty().backward()
    torch.testing.assert_close(noise.penalty(), torch.tensor(-1e-4 * 4 * 0.1))  # that of the floor
    assert (noise.sigma.grad < 0).all()


def test_images_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match="image_size=32 must"):
        PerturbedFeatures().wrap(models.build("small_cnn", image_size=8, channels=1))


def test_places_and_shapes_in_a_residual_network() -> None:
    model = PerturbedFeatures().wrap(models.build("resnet18"))
    shapes = [tuple(module.sigma.shape) for module in model.modules() if isinstance(module, FeatureNoise)]
    stages = [(64, 32, 32), (128, 16, 16), (256, 8, 8), (512, 4, 4)]
    assert shapes == [stages[0], *(shape for shape in stages for _ in range(2))]


def test_noise_is_added_to_the_sum_with_the_shortcut_before_its_relu() -> None:
    plain = models.build("resnet18").eval()
    block, x = plain.features[5], torch.rand(2, 64, 32, 32)  # the first block that projects its shortcut
    noisy = PerturbedFeatures(init=0.5).wrap(plain).features[5]
    with torch.no_grad(), seeded(0):
        outputs = noisy(x)
    with torch.no_grad(), seeded(0):
        inner = block.norm1(block.conv1(x)).relu()
        total = block.norm2(block.conv2(inner)) + block.shortcut(x)
        torch.testing.assert_close(outputs, (total + 0.5 * torch.randn(128, 16, 16)).relu())
