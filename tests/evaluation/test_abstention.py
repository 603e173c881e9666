"""The cutoff covers the chosen fraction of images, and accuracy grows as it covers less."""

import pytest
import torch

from advbnn.bayes.prediction import predict
from advbnn.data import to_float
from advbnn.evaluation.abstention import cutoff, threshold
from trained_nets import bnn, digits


@pytest.mark.parametrize("coverage", [0.5, 1.0])
def test_the_cutoff_covers_the_chosen_fraction(coverage: float) -> None:
    state = torch.get_rng_state()
    found = cutoff(bnn(), digits(), coverage, samples=5, seed=3, batch_size=50)
    assert torch.equal(torch.get_rng_state(), state)
    prediction = predict(bnn(), to_float(digits().images), 5, seed=3)
    kept = prediction.entropy <= found.entropy + 1e-6
    assert found.coverage == pytest.approx(coverage)
    assert kept.double().mean().item() == pytest.approx(coverage)
    right = prediction.label == digits().labels
    assert found.accuracy == pytest.approx(right[kept].double().mean().item())
    assert found.accuracy >= right.double().mean().item()


@pytest.mark.parametrize(("coverage", "expected"), [(1e-12, 1), (0.1, 1), (0.2, 2), (0.7, 7), (0.71, 8), (1.0, 10)])
def test_the_threshold_is_the_smallest_that_covers_enough(coverage: float, expected: float) -> None:
    assert threshold(torch.arange(10, 0, -1).double(), coverage) == expected


def test_refuses_bad_input() -> None:
    for coverage in (0, 1.5, float("nan")):
        with pytest.raises(ValueError, match="coverage .*0, 1"):
            threshold(torch.ones(3), coverage)
    for values in (torch.ones(0), torch.tensor([0.1, float("nan")])):
        with pytest.raises(ValueError, match="uncertainty "):
            threshold(values, 0.5)
