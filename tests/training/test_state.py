"""What a run does from step to step: schedules, averages, weight samples, and every option when it resumes."""

import copy
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from advbnn.attacks import PGD
from advbnn.attacks.threat import Threat
from advbnn.bayes.prediction import predict
from advbnn.bayes.sample_bank import SampleBank
from advbnn.data import ImageSet, Splits, from_tensors
from advbnn.defenses.defense import Averaging, Defense, EarlyStopping
from advbnn.defenses.optimizers import AdamOptimizer, LangevinSampler
from advbnn.defenses.schedules import Constant, Cosine, Stages
from advbnn.machine.processes import ALONE
from advbnn.randomness import derive_seed
from advbnn.training import collected_weights
from advbnn.training import state as state_module
from advbnn.training.config import load_config
from advbnn.training.loading import load_trained
from advbnn.training.state import TrainingState
from advbnn.training.step import attacked
from quick import quick, same, train, weights


def watch(monkeypatch: pytest.MonkeyPatch, note: Any) -> None:
    """Calls `note(state)` after every step."""
    advance = TrainingState.advance

    def watching(self: TrainingState, x: Tensor, y: Tensor) -> None:
        advance(self, x, y)
        note(self)

    monkeypatch.setattr(TrainingState, "advance", watching)


@pytest.mark.parametrize(("fresh", "counts"), [(True, [1, 2, 3, 4, 5] * 2), (False, list(range(1, 11)))])
def test_stages_divide_the_learning_rate_and_may_restart_the_optimizer(
    digits: Splits[ImageSet], monkeypatch: pytest.MonkeyPatch, fresh: bool, counts: list[int]
) -> None:
    seen: list[tuple[float, int]] = []
    watch(monkeypatch, lambda run: seen.append((run.lr, int(next(iter(run.optimizer.state.values()))["step"]))))
    schedule = Stages(epochs=(1, 1), fresh_optimizer=fresh)
    train(digits, quick("bnn", optimizer=AdamOptimizer(lr=0.01), schedule=schedule))
    assert [count for _, count in seen] == counts
    assert [lr for lr, _ in seen] == pytest.approx([0.01] * 5 + [0.001] * 5)


def test_the_radius_of_the_attack_grows_with_the_epochs(
    digits: Splits[ImageSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    radii: list[float] = []

    def watching(model: nn.Module, defense: Defense, x: Tensor, y: Tensor, seed: int, attack: PGD) -> Tensor:
        x_adv = attacked(model, defense, x, y, seed, attack)
        radii.append(round((x_adv - x).abs().max().item(), 4))
        return x_adv

    monkeypatch.setattr("advbnn.training.step.attacked", watching)
    train(digits, quick("adv", radius_warmup=2, schedule=Constant(epochs=3)))
    assert radii == pytest.approx([0.05] * 5 + [0.1] * 5 + [0.15] * 5)


def test_kl_warmup_reaches_the_loss(digits: Splits[ImageSet]) -> None:
    objective = {"kl_warmup": "linear", "kl_warmup_epochs": 2, "alpha": 0.5}
    history = train(digits, quick("bnn", objective=objective), log_every=1).history
    assert [line["kl_weight"] for line in history] == pytest.approx([0.5 / 72 * (i + 1) / 10 for i in range(10)])


def test_weight_averages(digits: Splits[ImageSet], monkeypatch: pytest.MonkeyPatch) -> None:
    path: list[dict[str, Tensor]] = []
    watch(monkeypatch, lambda run: path.append({n: p.detach().clone() for n, p in run.model.named_parameters()}))
    model = train(digits, quick("bnn", architecture="small_cnn", averaging=Averaging(decay=None, start=1))).model
    for name, parameter in model.named_parameters():  # mu and s alike
        torch.testing.assert_close(parameter.detach(), torch.stack([step[name] for step in path[5:]]).mean(0))
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert all(norm.num_batches_tracked == 5 for norm in norms)  # estimated anew


@pytest.mark.parametrize(
    ("options", "decay"),
    [({}, None), ({"attack_mode": "train"}, None), ({"objective": {"trades": 6.0}}, None), ({}, 0.9)],
    ids=str,
)
def test_running_statistics_of_averaged_weights_are_for_the_attack_of_training(
    digits: Splits[ImageSet], monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], decay: float | None
) -> None:
    value = quick("adv_bnn", architecture="small_cnn", averaging=Averaging(decay=decay), augment=False, **options)
    seen: list[tuple[nn.Module, Tensor]] = []
    refresh = collected_weights.refresh_batchnorm

    def watched(model: nn.Module, batches: Iterable[Tensor]) -> None:
        def noted() -> Iterator[Tensor]:
            for x in batches:
                seen.append((copy.deepcopy(model), x))
                yield x

        refresh(model, noted())

    monkeypatch.setattr(collected_weights, "refresh_batchnorm", watched)
    result = train(digits, value)
    assert len(seen) == 10  # an epoch of clean batches, and one of attacked batches
    (before, clean), (model, perturbed) = seen[0], seen[5]
    assert not same(model, before)  # the attack has statistics of the averaged weights
    assert all(same(model, other) for other, _ in seen[5:])
    order = [int((digits.train.images / 255 - image).abs().flatten(1).amax(1).argmin()) for image in clean]
    arguments = (clean, digits.train.labels[order], derive_seed(0, "statistics", 0))
    assert torch.equal(perturbed, attacked(model, value, *arguments))
    if options:
        assert value.attack is not None and not torch.equal(perturbed, value.attack(model, *arguments))
    norms = [part for part in result.model.modules() if isinstance(part, nn.BatchNorm2d)]
    assert norms and all(norm.num_batches_tracked == 5 for norm in norms)  # not those in the attack


def test_a_moving_average_is_validated_and_returned_with_statistics_of_its_own(
    digits: Splits[ImageSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collected_weights, "MOVING_AVERAGE_IMAGES", 20)  # two batches
    checked = []
    score = state_module.validation_score

    def watched(model: nn.Module, *arguments: Any) -> float:
        checked.append(int(model.get_submodule("features.1").num_batches_tracked))
        return score(model, *arguments)

    monkeypatch.setattr(state_module, "validation_score", watched)
    averaging, stopping = Averaging(decay=0.9), EarlyStopping(fraction=0.25, samples=1)
    options = {"architecture": "small_cnn", "averaging": averaging, "early_stopping": stopping}
    model = train(digits, quick("adv", **options)).model
    assert checked == [2, 2] and model.get_submodule("features.1").num_batches_tracked == 2


def test_langevin_dynamics_gives_a_bank_of_samples(digits: Splits[ImageSet], tmp_path: Path) -> None:
    value = quick("adv", optimizer=LangevinSampler(lr=0.1, prior_std=0.3, burn_in=4, every=2))
    result = train(digits, value, out=tmp_path / "run", save_every=0.0)
    assert isinstance(result.model, SampleBank) and len(result.model) == 3
    assert predict(result.model, torch.rand(4, 1, 8, 8), samples=5, seed=0).probs.shape == (4, 10)
    assert result.history[-1]["kl"] > 0  # -log p(w)
    assert same(load_trained(tmp_path / "run").model, result.model)
    for burn_in, every in ((10_000, 1), (6, 5)):
        with pytest.raises(ValueError, match=f"burn_in={burn_in} .*no sample.*10 updates"):
            train(digits, quick("adv", optimizer=LangevinSampler(burn_in=burn_in, every=every)))
    with pytest.raises(ValueError, match="swag.start=1"):
        train(digits, quick("adv", batch_size=72, swag={"start": 1, "per_epoch": 9}))


@pytest.mark.parametrize(
    "options",
    [
        {"objective": {"trades": 6.0}},
        {"objective": {"likelihood": {"label_smoothing": 0.1}, "samples": 2}},
        {"awp": 0.01},
        {"clip": 1.0, "augment": "cutmix"},
        {"attack_mode": "train", "architecture": "small_cnn"},
        {"attack": {"eot": 2}},
        {"radius_warmup": 1, "schedule": Constant(epochs=2)},
        {"schedule": Cosine(epochs=1)},
        {"averaging": {"decay": 0.9, "consistency": 1.0}},
        {"early_stopping": {"fraction": 0.25, "samples": 2}, "averaging": {"decay": 0.9}},
        {"optimizer": {"kind": "adam", "weight_decay": 0.01}, "network": {"kind": "plain"}},
    ],
    ids=str,
)
def test_every_option_runs_and_resumes(digits: Splits[ImageSet], tmp_path: Path, options: dict[str, Any]) -> None:
    check_resumes(digits, quick(**{"schedule": Constant(epochs=1), **options}), tmp_path)


def test_the_recipe_of_augmentation_awp_and_ema_runs_and_resumes(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (72, 3, 12, 12), dtype=torch.uint8, generator=generator)
    sets = [from_tensors(x, torch.arange(len(x)) % 10, classes=10) for x in (images[:60], images[60:])]
    recipe = load_config(Path(__file__).parents[2] / "configs" / "cifar10-resnet18-idbh-awp-ema.toml").defense
    small = {"attack": PGD(Threat(), steps=1), "batch_size": 16, "schedule": Cosine(epochs=4), "awp_start": 2}
    value = replace(recipe, architecture="mlp", early_stopping=EarlyStopping(fraction=0.2, every=2, samples=1), **small)
    check_resumes(Splits(*sets), value, tmp_path)


def check_resumes(digits: Splits[ImageSet], value: Defense, tmp_path: Path) -> None:
    whole = train(digits, value)
    folder = tmp_path / "run"
    train(digits, value, out=folder, save_every=0.0)
    newest = sorted((folder / "checkpoints").iterdir())[-1]
    for file in newest.iterdir():  # back to the checkpoint before
        file.unlink()
    newest.rmdir()
    (folder / "model.safetensors").unlink()
    assert same(train(digits, value, out=folder, resume=True).model, whole.model)


def test_the_checks_before_training_change_nothing(digits: Splits[ImageSet]) -> None:
    net = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10)).eval()
    net[1].train()
    before, state = weights(net), torch.get_rng_state()
    TrainingState(net, digits, quick("none"), seed=0, engine="eager", processes=ALONE)
    assert all(torch.equal(a, b) for a, b in zip(weights(net), before, strict=True))
    assert [part.training for part in net.modules()] == [False, False, True, False]
    assert torch.equal(torch.get_rng_state(), state)
