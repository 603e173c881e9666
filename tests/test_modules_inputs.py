import numpy as np
import pytest
import torch
from torch import Tensor, nn

from advbnn import audit, bayesianize, evaluate, models, predict
from advbnn.attacks.threat import Threat
from advbnn.data import from_tensors
from advbnn.errors import InputError
from advbnn.evaluation.accuracy import SmallSampleWarning


def colour() -> nn.Module:
    return bayesianize(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)))


def flat() -> nn.Module:
    return models.build("mlp", classes=5, image_size=8, channels=1)


@pytest.mark.parametrize(
    ("make", "x", "words"),
    [
        (
            colour,
            torch.rand(2, 8, 8, 3),
            r"x must be of shape \[n, 3, height, width\], .* got \[2, 8, 8, 3\]; .*\.permute\(0, 3, 1, 2\)",
        ),
        (colour, torch.rand(2, 1, 8, 8), r"got \[2, 1, 8, 8\]; \.expand\(-1, 3, -1, -1\)"),
        (colour, torch.rand(3, 8, 8), r"got \[3, 8, 8\]; \[None\] makes a batch"),
        (colour, torch.rand(2, 5, 8, 8), r"got \[2, 5, 8, 8\]; use inputs like"),
        (
            flat,
            torch.zeros(2, 1, 8, 8, dtype=torch.uint8),
            r"x must be of the network's own type, torch.float32, got torch.uint8; .*\.to\(torch.float32\) / 255",
        ),
        (
            flat,
            torch.rand(2, 1, 8, 8).double(),
            r"torch.float32, got torch.float64; convert it: \.to\(torch.float32\)$",
        ),
        (
            flat,
            torch.rand(2, 3, 8, 8),
            r"x must be of shape \[n, 64\] when flat, .* got \[2, 3, 8, 8\]; use inputs like",
        ),
    ],
)
def test_inputs_that_do_not_fit_are_explained(make: type[nn.Module], x: Tensor, words: str) -> None:
    with pytest.raises(InputError, match=words) as found:
        predict(make(), x, samples=2)
    assert isinstance(found.value.__cause__, RuntimeError)  # what torch said


def test_arrays_are_no_tensors() -> None:
    with pytest.raises(TypeError, match="x must be a tensor, got ndarray; torch.as_tensor"):
        predict(colour(), np.zeros((2, 3, 8, 8)))


@pytest.mark.filterwarnings(f"ignore::{SmallSampleWarning.__module__}.{SmallSampleWarning.__name__}")
def test_evaluations_name_the_data() -> None:
    examples = from_tensors(torch.zeros(4, 8, 8, 3, dtype=torch.uint8), torch.arange(4), classes=5)
    words = r"data must be of shape \[n, 3, height, width\], .* got \[4, 8, 8, 3\]; channels come last"
    with pytest.raises(InputError, match=words):
        evaluate(colour(), examples)
    with pytest.raises(InputError, match=words):
        audit(colour(), examples, Threat("linf", 0.1), "quick")


def test_other_errors_stay_what_they_are() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(3, 1, 1)

        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        predict(Broken(), torch.rand(2, 3, 8, 8))


def test_a_network_that_changes_its_inputs_first_is_left_alone() -> None:
    grey = nn.Sequential(nn.AdaptiveAvgPool3d((1, 8, 8)), nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 5))
    assert predict(grey, torch.rand(2, 3, 8, 8)).probs.shape == (2, 5)
