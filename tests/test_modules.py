"""Modes and gradient flags are restored; inputs that do not fit a network are explained."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from advbnn import audit, bayesianize, evaluate, models, predict
from advbnn.attacks.threat import Threat
from advbnn.data import from_tensors
from advbnn.errors import ArgumentError, InputError
from advbnn.evaluation.accuracy import SmallSampleWarning
from advbnn.modules import evaluating, training, usable_device, without_parameter_gradients


def modes(net: nn.Module) -> list[bool]:
    return [module.training for module in net.modules()]


def test_every_module_gets_its_own_mode_back() -> None:
    net = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2)).train()
    net[1].eval()
    with pytest.raises(KeyError), evaluating(net):
        assert modes(net) == [False, False, False]
        raise KeyError
    assert modes(net) == [True, True, False]
    with training(net):  # in training mode already: what is frozen stays so
        assert modes(net) == [True, True, False]
    net.eval()[0].train()
    with pytest.raises(KeyError), training(net):
        assert modes(net) == [True, True, True]
        raise KeyError
    assert modes(net) == [False, True, False]


def test_every_parameter_gets_its_own_flag_back() -> None:
    net = nn.Linear(2, 2)
    net.bias.requires_grad_(False)
    with pytest.raises(KeyError), without_parameter_gradients(net):
        assert not any(p.requires_grad for p in net.parameters())
        raise KeyError
    assert net.weight.requires_grad and not net.bias.requires_grad


def colour() -> nn.Module:
    return bayesianize(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)))


def flat() -> nn.Module:
    return models.build("mlp", classes=5, image_size=8, channels=1)


@pytest.mark.parametrize(
    ("make", "x", "message"),
    [
        (colour, torch.rand(2, 8, 8, 3), r"^x .*\[n, 3, .*got \[2, 8, 8, 3\].*\.permute\(0, 3, 1, 2\)"),
        (colour, torch.rand(2, 1, 8, 8), r"\[n, 3, .*got \[2, 1, 8, 8\].*\.expand\(-1, 3, -1, -1\)"),
        (colour, torch.rand(3, 8, 8), r"got \[3, 8, 8\].*\[None\]"),
        (colour, torch.rand(2, 5, 8, 8), r"got \[2, 5, 8, 8\].*trained"),
        (colour, torch.rand(2, 3, 8, 8, device="meta"), r"cpu, got meta.*\.to\('cpu'\)"),
        (flat, torch.zeros(2, 1, 8, 8, dtype=torch.uint8), r"float32, got torch.uint8.*\.to\(torch.float32\) / 255"),
        (flat, torch.rand(2, 1, 8, 8).double(), r"float32, got torch.float64.*\.to\(torch.float32\)$"),
        (flat, torch.rand(2, 3, 8, 8), r"^x .*\[n, 64\] when flat.*got \[2, 3, 8, 8\].*trained"),
    ],
)
def test_inputs_that_do_not_fit_are_explained(make: type[nn.Module], x: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message) as found:
        predict(make(), x, samples=2)
    assert isinstance(found.value.__cause__, RuntimeError)  # torch's own error


def test_arrays_are_no_tensors() -> None:
    with pytest.raises(TypeError, match=r"x .*torch\.as_tensor"):
        predict(colour(), np.zeros((2, 3, 8, 8)))


@pytest.mark.filterwarnings(f"ignore::{SmallSampleWarning.__module__}.{SmallSampleWarning.__name__}")
def test_evaluations_name_the_data() -> None:
    examples = from_tensors(torch.zeros(4, 8, 8, 3, dtype=torch.uint8), torch.arange(4), classes=5)
    message = r"^data .*\[n, 3, height, width\].*got \[4, 8, 8, 3\].*permute"
    with pytest.raises(InputError, match=message):
        evaluate(colour(), examples)
    with pytest.raises(InputError, match=message):
        audit(colour(), examples, Threat("linf", 0.1), "quick")


def test_other_errors_stay_as_they_are() -> None:
    class Broken(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        predict(Broken(3, 1, 1), torch.rand(2, 3, 8, 8))


def test_a_network_may_change_its_inputs_first() -> None:
    grey = nn.Sequential(nn.AdaptiveAvgPool3d((1, 8, 8)), nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 5))
    assert predict(grey, torch.rand(2, 3, 8, 8)).probs.shape == (2, 5)


@pytest.mark.parametrize("device", ["meta", "xla", "cuda:99", "tpu", "", 3.5])
def test_a_device_that_is_not_there_is_refused_with_those_that_are(device: str) -> None:
    with pytest.raises(ArgumentError, match="device=.*torch finds cpu.*here"):
        usable_device(device)
    assert usable_device("cpu") == torch.device("cpu")
