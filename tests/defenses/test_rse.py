import copy
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from advbnn import models
from advbnn.defenses.rse import CONVOLUTIONS, add_noise, noise_levels
from advbnn.randomness import seeded


def recorded_inputs(net: nn.Module, x: Tensor) -> list[Tensor]:
    """What each convolution gets to see, noise included, in one forward pass."""
    seen: list[Tensor] = []
    convolutions = [module for module in net.modules() if isinstance(module, CONVOLUTIONS)]
    handles = [module.register_forward_hook(lambda _, args, __: seen.append(args[0])) for module in convolutions]
    net(x)
    for handle in handles:
        handle.remove()
    return seen


def two_convolutions() -> nn.Sequential:
    """The second convolution sees zeros, so that its input is its noise and nothing else."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 5, 3))
    nn.init.zeros_(net[0].weight)
    nn.init.zeros_(net[0].bias)
    return net


def test_levels_of_vgg16() -> None:
    net = models.build("vgg16")
    levels = noise_levels(add_noise(net))
    convolutions = [name for name, module in net.named_modules() if isinstance(module, nn.Conv2d)]
    assert list(levels) == convolutions
    assert list(levels.values()) == [0.2] + 12 * [0.1]
    mlp = models.build("mlp", image_size=8, channels=1)
    levels = noise_levels(add_noise(mlp, before=(nn.Linear,)))
    assert levels == {"features.1": 0.2, "features.3": 0.1, "classifier": 0.1}


def test_levels_of_resnet18() -> None:
    levels = noise_levels(add_noise(models.build("resnet18")))
    assert list(levels.values()) == [0.2] + 19 * [0.1]
    assert sum("shortcut" in name for name in levels) == 3


@pytest.mark.parametrize("training", [True, False])
def test_statistics(training: bool) -> None:
    x = torch.rand(64, 3, 32, 32)
    net = add_noise(two_convolutions(), first=0.2, inner=0.1).train(training)
    with seeded(0):
        first, inner = recorded_inputs(net, x)
    for noise, std in ((first - x, 0.2), (inner, 0.1)):
        n = noise.numel()
        # five standard errors; kurtosis 3 tells a Gaussian from a uniform (1.8) or a Laplace (6)
        assert abs(noise.mean().item()) < 5 * std / n**0.5
        assert abs(noise.std().item() / std - 1) < 5 / (2 * n) ** 0.5
        assert abs((noise / std).pow(4).mean().item() - 3) < 5 * (96 / n) ** 0.5


def test_noise_is_fresh_for_every_image_and_call() -> None:
    net = add_noise(two_convolutions())
    x = torch.zeros(2, 3, 64, 64)
    with seeded(0):
        one, _ = recorded_inputs(net, x)
        other, _ = recorded_inputs(net, x)
    draws = torch.stack([one[0], one[1], other[0], other[1]]).flatten(1)
    correlations = torch.corrcoef(draws) - torch.eye(4)
    assert correlations.abs().max() < 5 / draws.shape[1] ** 0.5


def test_without_noise_it_is_the_plain_net_bit_for_bit() -> None:
    net = models.build("small_cnn").eval()
    x = torch.rand(4, 3, 32, 32)
    state = torch.get_rng_state()
    assert torch.equal(add_noise(net, first=0.0, inner=0)(x), net(x))
    assert torch.equal(torch.get_rng_state(), state)


def test_the_network_is_copied_and_parameters_keep_their_names() -> None:
    plain = models.build("small_cnn")
    noisy = add_noise(plain)
    assert list(plain.state_dict()) == list(noisy.state_dict())
    assert noise_levels(plain) == {}
    assert not {id(p) for p in plain.parameters()} & {id(p) for p in noisy.parameters()}


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_copies_keep_the_noise(duplicate) -> None:
    noisy = add_noise(models.build("small_cnn")).eval()
    twin = duplicate(noisy)
    assert noise_levels(twin) == noise_levels(noisy)
    x = torch.rand(2, 3, 32, 32)
    with seeded(0):
        expected = noisy(x)
    with seeded(0):
        assert torch.equal(twin(x), expected)


def test_hooks_added_after_unpickling_keep_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    saved = add_noise(two_convolutions())
    (taken,) = saved[0]._forward_pre_hooks
    pickled = pickle.dumps(saved)
    monkeypatch.setattr(RemovableHandle, "next_id", taken)  # as in a fresh process that counts its hooks anew

    loaded = pickle.loads(pickled)
    loaded[0].register_forward_pre_hook(lambda module, args: None)
    assert noise_levels(loaded) == {"0": 0.2, "1": 0.1}


def test_compiles_as_one_graph() -> None:
    net = add_noise(models.build("small_cnn")).eval()
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        with seeded(0):
            expected = net(x)
        with seeded(0):
            torch.testing.assert_close(compiled(x), expected)
        assert not torch.equal(compiled(x), compiled(x))


def test_input_passed_by_keyword() -> None:
    noisy = add_noise(nn.Conv2d(3, 4, 3))
    x = torch.rand(1, 3, 8, 8)
    with seeded(0):
        expected = noisy(x)
    with seeded(0):
        assert torch.equal(noisy(input=x), expected)


def test_a_shared_layer_gets_noise_once_per_use() -> None:
    layer = nn.Conv2d(3, 3, 1, bias=False)
    nn.init.dirac_(layer.weight)
    noisy = add_noise(nn.Sequential(layer, layer), first=0.3)
    assert noise_levels(noisy) == {"0": 0.3}
    with seeded(0):
        std = noisy(torch.zeros(8, 3, 64, 64)).std().item()
    assert std == pytest.approx(0.3 * 2**0.5, rel=0.02)


def test_bad_input_is_refused() -> None:
    for std in (-0.1, float("nan"), float("inf"), "0.2"):
        with pytest.raises(ValueError, match="first "):
            add_noise(two_convolutions(), first=std)
    with pytest.raises(ValueError, match="inner "):
        add_noise(two_convolutions(), inner=-0.1)
    with pytest.raises(ValueError, match=r"net .*before=\(nn.Linear,\)"):
        add_noise(models.build("mlp"))
    with pytest.raises(ValueError, match="net .*noise"):
        add_noise(add_noise(two_convolutions()))
