"""The best epoch on validation examples: which one it is, and what is validated."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from advbnn.bayes.likelihoods import Gaussian
from advbnn.data import ImageSet, Splits, from_tensors
from advbnn.defenses.defense import Averaging, EarlyStopping
from advbnn.defenses.objective import RobustELBO
from advbnn.defenses.schedules import Constant
from advbnn.errors import RunError
from advbnn.randomness import seeded
from advbnn.training.early_stopping import BestEpoch
from advbnn.training.loading import load_trained
from advbnn.training.loop import fit
from quick import quick, train, weights

SCORE = "advbnn.training.state.validation_score"


def equal(model: nn.Module, expected: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(weights(model), expected, strict=True))


def test_the_best_epoch_is_kept_and_the_test_set_never_used(
    digits: Splits[ImageSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    scores, seen, kept = [0.5, 0.7, 0.6, 0.7], [], []

    def score(model: nn.Module, examples: ImageSet, *_: Any) -> float:
        seen.append(examples)
        kept.append(weights(model))
        return scores[len(seen) - 1]

    monkeypatch.setattr(SCORE, score)
    value = quick("bnn", schedule=Constant(epochs=9), early_stopping=EarlyStopping(fraction=0.25, patience=2))
    result = train(digits, value)
    assert len(seen) == 4  # 0.7 in epoch 2 is not exceeded in two more
    assert equal(result.model, kept[1])
    assert [line["validation_accuracy"] for line in result.history if "validation_accuracy" in line] == scores
    assert len(seen[0]) == 18 and seen[0].name.startswith(digits.train.name)


def test_a_score_of_nan_is_worse_than_any_other() -> None:
    best, net = BestEpoch(), nn.Linear(1, 1)
    best.offer(net, float("nan"), 1)
    best.offer(net, 0.1, 2)
    assert (best.epoch, best.score) == (2, 0.1)


@pytest.mark.parametrize(
    ("averaging", "every", "validated"), [(Averaging(decay=0.5, start=2), 1, [3, 4]), (None, 3, [3, 4])]
)
def test_validation_begins_with_the_average_and_includes_the_last_epoch(
    digits: Splits[ImageSet], averaging: Averaging | None, every: int, validated: list[int]
) -> None:
    stopping = EarlyStopping(fraction=0.25, every=every, samples=2)
    value = quick("bnn", schedule=Constant(epochs=4), averaging=averaging, early_stopping=stopping)
    history = train(digits, value).history
    assert [line["epoch"] for line in history if "validation_accuracy" in line] == validated


def test_validation_uses_the_engine_of_training_and_its_samples(
    digits: Splits[ImageSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    engines: list[str] = []
    passes: list[int] = []

    def spy(model: nn.Module, engine: str) -> nn.Module:
        engines.append(engine)
        counting = nn.Sequential(model)
        counting.register_forward_pre_hook(lambda _, inputs: passes.append(len(inputs[0])))
        return counting

    monkeypatch.setattr("advbnn.training.state.accelerate", spy)
    train(digits, quick("bnn", early_stopping=EarlyStopping(fraction=0.25, samples=3)), engine="eager")
    assert engines == ["eager"]
    assert sum(passes) == 2 * 3 * 18  # epochs, samples, validation images


@pytest.mark.parametrize("averaging", [None, Averaging(decay=0.5)])
def test_the_last_epoch_is_kept_beside_the_best(
    digits: Splits[ImageSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, averaging: Averaging | None
) -> None:
    value = quick("bnn", averaging=averaging, schedule=Constant(epochs=3))
    validated: list[list[Tensor]] = []

    def score(model: nn.Module, *_: Any, **__: Any) -> float:
        validated.append(weights(model))
        return -float(len(validated))

    monkeypatch.setattr(SCORE, score)
    train(digits, replace(value, early_stopping=EarlyStopping(fraction=0.25)), out=tmp_path / "run")
    assert equal(load_trained(tmp_path / "run").model, validated[0])
    assert equal(load_trained(tmp_path / "run", last=True).model, validated[2])
    (tmp_path / "run" / "last.safetensors").unlink()
    with pytest.raises(RunError, match=r"no last\.safetensors"):
        load_trained(tmp_path / "run", last=True)

    train(digits, value, out=tmp_path / "to the end")
    assert not (tmp_path / "to the end" / "last.safetensors").exists()


@pytest.mark.parametrize("averaging", [None, Averaging(decay=0.5)])
def test_the_best_epoch_has_its_own_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, averaging: Averaging | None
) -> None:
    errors = iter(range(9))
    monkeypatch.setattr(SCORE, lambda *_, **__: float(next(errors)))
    with seeded(0):
        examples = from_tensors(torch.rand(40, 3), torch.rand(40, 1))
    objective = RobustELBO(likelihood=Gaussian(learned=True))
    value = quick("none", objective=objective, averaging=averaging, early_stopping=EarlyStopping())

    def noise(epochs: int, out: Path | None) -> float | None:
        with seeded(0):
            net = nn.Linear(3, 1)
        return fit(net, Splits(examples, examples), replace(value, schedule=Constant(epochs=epochs)), out=out).noise_std

    best = noise(3, tmp_path / "run")
    assert best == noise(1, None) != 1.0
    assert noise(3, tmp_path / "run") == best  # from the finished run
    loaded, last = (load_trained(tmp_path / "run", net=nn.Linear(3, 1), last=last) for last in (False, True))
    assert loaded.noise_std == best
    assert last.noise_std not in (None, best, 1.0)
