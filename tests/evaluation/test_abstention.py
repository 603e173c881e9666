import pytest
import torch

from advbnn.bayes.prediction import predict
from advbnn.data import to_float
from advbnn.evaluation.abstention import cutoff
from judged import bnn, digits


@pytest.mark.parametrize("coverage", [0.5, 0.9, 1.0])
def test_the_line_answers_the_share_that_was_asked_for(coverage: float) -> None:
    line = cutoff(bnn(), digits(), coverage, samples=5, seed=3, batch_size=50)
    prediction = predict(bnn(), to_float(digits().images), 5, seed=3)
    answered = prediction.entropy <= line.entropy + 1e-6
    assert line.coverage == pytest.approx(coverage)
    assert answered.double().mean().item() == pytest.approx(coverage)
    right = (prediction.label == digits().labels)[answered]
    assert line.accuracy == pytest.approx(right.double().mean().item())


def test_answering_less_is_answering_better() -> None:
    lines = [cutoff(bnn(), digits(), coverage, samples=5) for coverage in (0.5, 1.0)]
    assert lines[0].entropy < lines[1].entropy
    assert lines[0].accuracy >= lines[1].accuracy


def test_random_state_is_left_alone_and_bad_coverage_refused() -> None:
    state = torch.get_rng_state()
    cutoff(bnn(), digits(), samples=2)
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(ValueError, match="coverage must be a share"):
        cutoff(bnn(), digits(), 90, samples=1)
