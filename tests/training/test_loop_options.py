"""Early stopping, averages, Langevin dynamics and the other options, also when a run goes on."""

import copy
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_model
from torch import Tensor, nn

from advbnn.bayes.likelihoods import Gaussian
from advbnn.bayes.mean_field import bayesianize
from advbnn.bayes.prediction import predict
from advbnn.bayes.sample_bank import SampleBank
from advbnn.data import ImageSet, Splits, from_tensors
from advbnn.defenses.defense import Averaging, EarlyStopping
from advbnn.defenses.objective import RobustELBO
from advbnn.defenses.optimizers import Langevin
from advbnn.defenses.schedules import Constant, Cosine
from advbnn.errors import RunError
from advbnn.evaluation.regression import score_regression
from advbnn.randomness import derive_seed, seeded
from advbnn.training import state as training_module
from advbnn.training.early_stopping import Best
from advbnn.training.loading import load_trained
from advbnn.training.loop import fit
from advbnn.training.state import Training
from advbnn.training.step import attacked
from quick import quick, same, train, weights


def test_early_stopping_keeps_the_best_and_never_sees_the_test_set(
    digits: Splits[ImageSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[ImageSet] = []
    scores = iter([0.5, 0.7, 0.6, 0.7, 0.1])
    kept: list[list[Tensor]] = []

    def score(model: nn.Module, examples: ImageSet, **_: Any) -> float:
        seen.append(examples)
        kept.append(weights(model))
        return next(scores)

    monkeypatch.setattr("advbnn.training.state.validation_score", score)
    value = quick("bnn", schedule=Constant(epochs=9), early_stopping=EarlyStopping(fraction=0.25, patience=2))
    result = train(digits, value)
    assert len(seen) == 4  # 0.7 in epoch 2 is not beaten in two more
    assert all(torch.equal(a, b) for a, b in zip(weights(result.model), kept[1], strict=True))
    assert [line["validation_accuracy"] for line in result.history if "validation_accuracy" in line] == [
        0.5,
        0.7,
        0.6,
        0.7,
    ]
    assert len(seen[0]) == 18 and seen[0].name == "digits[72 of 1297][18 of 72]"


def test_an_attack_meets_the_averaged_weights_with_statistics_of_theirs(
    digits: Splits[ImageSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    value = quick("adv", architecture="small_cnn", averaging=Averaging(decay=None))
    met: list[list[Tensor]] = []
    refresh = training_module.refresh_batchnorm

    def watched(model: nn.Module, batches: Iterable[Tensor]) -> None:
        def noted() -> Iterator[Tensor]:
            for x in batches:
                met.append([buffer.clone() for buffer in model.buffers()])
                yield x

        refresh(model, noted())

    monkeypatch.setattr(training_module, "refresh_batchnorm", watched)
    train(digits, value)
    clean, perturbed = met[:5], met[5:]
    assert len(perturbed) == 5
    for buffers in perturbed:  # all by the same network, whose statistics are not those of the last weights
        assert all(torch.equal(a, b) for a, b in zip(buffers, perturbed[0], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(perturbed[0], clean[0], strict=True))


@pytest.mark.parametrize("options", [{"attack_mode": "train"}, {"objective": {"trades": 6.0}}], ids=str)
def test_statistics_of_the_averaged_weights_are_those_of_the_attack_of_training(
    digits: Splits[ImageSet], monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    value = quick("adv_bnn", architecture="small_cnn", averaging=Averaging(decay=None), augment=False, **options)
    seen: list[tuple[nn.Module, Tensor]] = []
    refresh = training_module.refresh_batchnorm

    def watched(model: nn.Module, batches: Iterable[Tensor]) -> None:
        def noted() -> Iterator[Tensor]:
            for x in batches:
                seen.append((copy.deepcopy(model), x))
                yield x

        refresh(model, noted())

    monkeypatch.setattr(training_module, "refresh_batchnorm", watched)
    result = train(digits, value)
    (_, clean), (model, perturbed) = seen[0], seen[5]
    order = [int((digits.train.images / 255 - image).abs().flatten(1).amax(1).argmin()) for image in clean]
    arguments = (clean, digits.train.labels[order], derive_seed(0, "statistics", 0))
    assert torch.equal(perturbed, attacked(model, value, *arguments))
    assert value.attack is not None and not torch.equal(perturbed, value.attack(model, *arguments))
    norms = [part for part in result.model.modules() if isinstance(part, nn.BatchNorm2d)]
    assert norms and all(norm.num_batches_tracked == 5 for norm in norms)  # not those that the attack has seen


@pytest.mark.parametrize("averaging", [None, Averaging(decay=0.5)])
def test_the_best_epoch_has_its_own_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, averaging: Averaging | None
) -> None:
    errors = iter(range(9))
    monkeypatch.setattr("advbnn.training.state.validation_score", lambda *_, **__: float(next(errors)))
    with seeded(0):
        examples = from_tensors(torch.rand(40, 3), torch.rand(40, 1))
    value = quick(
        "none",
        objective=RobustELBO(likelihood=Gaussian(learned=True)),
        averaging=averaging,
        early_stopping=EarlyStopping(),
    )

    def noise(epochs: int, out: Path | None) -> float | None:
        how = replace(value, schedule=Constant(epochs=epochs))
        with seeded(0):
            net = nn.Linear(3, 1)
        return fit(net, Splits(examples, examples), how, out=out).noise_std

    best = noise(3, tmp_path / "run")
    assert best == noise(1, None) != 1.0
    assert noise(3, tmp_path / "run") == best  # a finished run says so again
    loaded, last = (load_trained(tmp_path / "run", net=nn.Linear(3, 1), last=last) for last in (False, True))
    assert loaded.noise_std == best
    assert last.noise_std not in (None, best, 1.0)


def test_a_learned_noise_comes_back_with_its_network(tmp_path: Path) -> None:
    with seeded(0):
        examples = from_tensors(torch.rand(40, 3), torch.rand(40, 1))
    value = quick("bnn", objective=RobustELBO(likelihood=Gaussian(noise_std=0.7, learned=True)))
    result = fit(nn.Linear(3, 1), Splits(examples, examples), value, out=tmp_path / "run")
    loaded = load_trained(tmp_path / "run", net=nn.Linear(3, 1))
    assert loaded.noise_std == result.noise_std != 0.7
    options: dict[str, Any] = {"samples": 3, "seed": 1}
    before = score_regression(result.model, examples, noise_std=result.noise_std, **options)
    assert score_regression(loaded.model, examples, noise_std=loaded.noise_std, **options) == before

    (tmp_path / "run" / "model.safetensors").unlink()
    stopped = load_trained(tmp_path / "run", net=nn.Linear(3, 1))
    assert not stopped.finished and stopped.noise_std == result.noise_std

    # as a version that kept no notes has left it
    save_model(loaded.model, str(tmp_path / "run" / "model.safetensors"))
    earlier = load_trained(tmp_path / "run", net=nn.Linear(3, 1))
    assert earlier.noise_std is None and same(earlier.model, result.model)

    fixed = replace(value, objective=RobustELBO(likelihood=Gaussian(noise_std=0.7)))
    fit(nn.Linear(3, 1), Splits(examples, examples), fixed, out=tmp_path / "fixed")
    assert load_trained(tmp_path / "fixed", net=nn.Linear(3, 1)).noise_std is None


@pytest.mark.parametrize("averaging", [None, Averaging(decay=0.5)])
def test_the_last_epoch_is_kept_beside_the_best(
    digits: Splits[ImageSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, averaging: Averaging | None
) -> None:
    value = quick("bnn", averaging=averaging, schedule=Constant(epochs=3))
    stopping = replace(value, early_stopping=EarlyStopping(fraction=0.25))
    judged: list[list[Tensor]] = []

    def score(model: nn.Module, *_: Any, **__: Any) -> float:
        judged.append(weights(model))
        return -float(len(judged))

    monkeypatch.setattr("advbnn.training.state.validation_score", score)
    train(digits, stopping, out=tmp_path / "run")
    best, last = load_trained(tmp_path / "run").model, load_trained(tmp_path / "run", last=True).model
    for model, expected in ((best, judged[0]), (last, judged[2])):
        assert all(torch.equal(a, b) for a, b in zip(weights(model), expected, strict=True))
    (tmp_path / "run" / "last.safetensors").unlink()
    with pytest.raises(RunError, match=r"has no last\.safetensors: .* has kept the best weights alone"):
        load_trained(tmp_path / "run", last=True)

    train(digits, value, out=tmp_path / "to the end")
    assert not (tmp_path / "to the end" / "last.safetensors").exists()
    end = load_trained(tmp_path / "to the end")
    assert same(load_trained(tmp_path / "to the end", last=True).model, end.model)


def test_validation_by_attack_and_average(digits: Splits[ImageSet]) -> None:
    value = quick("adv_bnn", early_stopping=EarlyStopping(fraction=0.25, samples=2), averaging=Averaging(decay=0.5))
    history = train(digits, value).history
    assert all(0 <= line["validation_accuracy"] <= 1 for line in history)


def test_a_score_that_is_no_number_can_be_beaten() -> None:
    best, net = Best(), nn.Linear(1, 1)
    best.offer(net, float("nan"), 1)
    best.offer(net, 0.1, 2)
    assert (best.epoch, best.score) == (2, 0.1)


def test_an_average_is_judged_from_its_start_on(digits: Splits[ImageSet]) -> None:
    averaging, stopping = Averaging(decay=0.5, start=2), EarlyStopping(fraction=0.25, patience=1, samples=2)
    value = quick("bnn", schedule=Constant(epochs=4), averaging=averaging, early_stopping=stopping)
    history = train(digits, value).history
    assert min(line["epoch"] for line in history if "validation_accuracy" in line) == 3


def test_the_last_epoch_is_judged_too(digits: Splits[ImageSet]) -> None:
    stopping = EarlyStopping(fraction=0.25, every=3, samples=2)
    history = train(digits, quick("bnn", schedule=Constant(epochs=4), early_stopping=stopping)).history
    assert {line["epoch"] for line in history if "validation_accuracy" in line} == {3, 4}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": Langevin(burn_in=10_000)}, "burn_in=10000 updates leave nothing of the"),
        ({"optimizer": Langevin(burn_in=1)}, "the model is Bayesian already"),
        ({"optimizer": {"kind": "adam", "weight_decay": 0.01}}, "weight_decay=0.01 would pull the standard deviations"),
    ],
)
def test_what_would_give_something_else_than_asked_for_is_refused(
    digits: Splits[ImageSet], options: dict[str, Any], message: str
) -> None:
    value = quick("adv", **options)
    net = value.build(classes=10, shape=(1, 8, 8), seed=0)
    if "burn_in" not in message:
        net = bayesianize(net)
    with pytest.raises(ValueError, match=message):
        fit(net, digits, value, seed=0)


def test_validation_runs_by_the_engine_of_the_training(
    digits: Splits[ImageSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    passes: list[int] = []

    class Counting(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Tensor) -> Tensor:
            passes.append(len(x))
            return self.model(x)

    def spy(model: nn.Module, engine: str) -> nn.Module:
        asked.append(engine)
        return Counting(model)

    monkeypatch.setattr("advbnn.training.state.accelerate", spy)
    plain = quick("bnn", schedule=Constant(epochs=2))
    stopping = quick("bnn", schedule=Constant(epochs=2), early_stopping=EarlyStopping(fraction=0.25, samples=3))
    train(digits, plain, engine="eager")
    assert not asked
    train(digits, stopping, engine="eager")
    assert asked == ["eager"]
    assert sum(passes) == 2 * 3 * 18  # epochs, draws, validation images


def test_weight_averages(digits: Splits[ImageSet], monkeypatch: pytest.MonkeyPatch) -> None:
    path: list[dict[str, Tensor]] = []
    advance = Training.advance

    def watching(self: Training, x: Tensor, y: Tensor) -> None:
        advance(self, x, y)
        path.append({name: p.detach().clone() for name, p in self.model.named_parameters()})

    monkeypatch.setattr(Training, "advance", watching)
    value = quick("bnn", architecture="small_cnn", averaging=Averaging(decay=None, start=1))
    model = train(digits, value).model
    for name, parameter in model.named_parameters():  # mu and s alike
        expected = torch.stack([step[name] for step in path[5:]]).mean(0)
        torch.testing.assert_close(parameter.detach(), expected)
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert all(norm.num_batches_tracked == 5 for norm in norms)  # estimated anew


def test_langevin_dynamics_gives_a_bank_of_samples(digits: Splits[ImageSet], tmp_path: Path) -> None:
    value = quick("adv", optimizer=Langevin(lr=0.1, prior_std=0.3, burn_in=4, every=2))
    result = train(digits, value, out=tmp_path / "run", save_every=0.0)
    assert isinstance(result.model, SampleBank) and len(result.model) == 3
    assert predict(result.model, torch.rand(4, 1, 8, 8), samples=5, seed=0).probs.shape == (4, 10)
    assert result.history[-1]["kl"] > 0  # -log p(w)
    assert same(load_trained(tmp_path / "run").model, result.model)


@pytest.mark.parametrize(
    "options",
    [
        {"objective": {"trades": 6.0}},
        {"objective": {"likelihood": {"label_smoothing": 0.1}, "draws": 2}},
        {"awp": 0.01},
        {"clip": 1.0},
        {"attack_mode": "train", "architecture": "small_cnn"},
        {"attack": {"eot": 2}},
        {"schedule": Cosine(epochs=1)},
        {"averaging": {"decay": 0.9}},
        {"optimizer": {"kind": "adam", "weight_decay": 0.01}, "network": {"kind": "plain"}},
    ],
    ids=str,
)
def test_options_run_and_resume(digits: Splits[ImageSet], tmp_path: Path, options: dict[str, Any]) -> None:
    value = quick(**{"schedule": Constant(epochs=1), **options})
    whole = train(digits, value)
    folder = tmp_path / "run"
    train(digits, value, out=folder, save_every=0.0)
    newest = sorted((folder / "checkpoints").iterdir())[-1]
    for file in newest.iterdir():  # back to the checkpoint before the last step
        file.unlink()
    newest.rmdir()
    (folder / "model.safetensors").unlink()
    assert same(train(digits, value, out=folder, resume=True).model, whole.model)


def test_replacing_a_defence_keeps_it_checked() -> None:
    with pytest.raises(ValueError, match="attack_mode"):
        replace(quick(), attack_mode="test")
