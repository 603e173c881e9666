import errno
import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from advbnn import checkpoint, data
from advbnn.attacks import PGD
from advbnn.checkpoint import CheckpointError, CheckpointWarning
from advbnn.data import ImageSet, Splits
from advbnn.defenses import Averaging, Defense
from advbnn.early_stopping import EarlyStopping
from advbnn.interrupts import Interrupted
from advbnn.noise import noise_levels
from advbnn.objective import Gaussian, RobustELBO
from advbnn.optimizers import SGD, Adam, Langevin
from advbnn.posterior import Bayesian
from advbnn.predict import predict
from advbnn.profiles import DEFENSES, defense
from advbnn.runs import RunError
from advbnn.schedules import Constant, Cosine, OneCycle, Stages
from advbnn.sgld import SampleBank
from advbnn.threat import Threat
from advbnn.train import FitResult, fit
from advbnn.trained import load_trained
from advbnn.training import DivergedError, Training


@pytest.fixture(scope="module")
def digits() -> Splits[ImageSet]:
    whole = data.load("digits")
    return Splits(whole.train.subset(range(72)), whole.test.subset(range(40)))


def quick(name: str = "adv_bnn", **overrides: Any) -> Defense:
    """Five steps of 16 images an epoch, the last one smaller, on the fastest net that the defence allows."""
    settings = {
        "architecture": "small_cnn" if name == "rse" else "mlp",
        "batch_size": 16,
        "schedule": Constant(epochs=2),
    }
    return defense(name, **{**settings, **overrides})


def train(splits: Splits[ImageSet], value: Defense, **options: Any) -> FitResult:
    return fit(value.build(classes=10, shape=splits.train.shape, seed=0), splits, value, **options)


def weights(model: nn.Module) -> list[Tensor]:
    return [tensor.clone() for tensor in model.state_dict().values()]


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(weights(one), weights(other), strict=True))


@pytest.mark.parametrize("name", DEFENSES)
def test_every_defence_end_to_end(digits: Splits[ImageSet], tmp_path: Path, name: str) -> None:
    value = quick(name)
    start = value.build(classes=10, shape=(1, 8, 8), seed=0)
    result = train(digits, value, out=tmp_path / "run")
    assert result.steps == 10 and result.defense == value and result.noise_std is None
    assert isinstance(result.model, Bayesian) == ("bnn" in name)
    assert bool(noise_levels(result.model)) == (name == "rse")
    assert not same(result.model, start)

    last = result.history[-1]
    assert (last["step"], last["epoch"]) == (10, 2)
    assert ("robust_accuracy" in last) == ("adv" in name) and 0 <= last["clean_accuracy"] <= 1
    assert (last["kl"] > 0) == ("bnn" in name)
    expected = last["nll"] + last["kl_weight"] * last["kl"]
    assert last["loss"] == pytest.approx(expected, rel=0.02)  # the weights move within an interval

    folder = tmp_path / "run"
    assert {"config.toml", "run.json", "metrics.jsonl", "log.txt", "model.safetensors"} <= set(os.listdir(folder))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert lines == result.history
    facts = json.loads((folder / "run.json").read_text())
    assert facts["seed"] == 0 and facts["data"]["sha256"] == digits.train.fingerprint()
    assert facts["versions"]["torch"] == torch.__version__ and "git" in facts
    loaded = load_trained(folder)
    assert loaded.finished and same(loaded.model, result.model) and loaded.config.defense == value


def test_adversarial_training_and_weight_noise_resist() -> None:
    """On real digits, seen or not: after some seconds the defended net resists where the plain one does not."""
    splits = data.load("digits")
    attack = PGD(Threat("linf", 0.15), steps=20)
    x, y = splits.test.images[:200].float() / 255, splits.test.labels[:200]
    accuracy = {}
    for name in ("none", "adv_bnn"):
        model = train(splits, quick(name, batch_size=64, schedule=OneCycle(epochs=10))).model
        x_adv = attack(model, x, y, seed=1)
        accuracy[name] = (predict(model, x_adv, samples=20, seed=2).label == y).float().mean().item()
    assert accuracy["adv_bnn"] > accuracy["none"] + 0.3


def test_the_seed_decides_the_result_and_nothing_else_is_touched(digits: Splits[ImageSet]) -> None:
    value = quick()
    net = value.build(classes=10, shape=(1, 8, 8), seed=0)
    net.eval()
    before = torch.get_rng_state()
    first = fit(net, digits, value, seed=3)
    assert torch.equal(torch.get_rng_state(), before) and not any(m.training for m in net.modules())
    torch.rand(5)
    again, other = train(digits, value, seed=3), train(digits, value, seed=4)
    assert same(first.model, again.model) and not same(first.model, other.model)
    losses = [[line["loss"] for line in result.history] for result in (first, again, other)]
    assert losses[0] == losses[1] != losses[2]


def test_stages_divide_the_learning_rate_and_forget_moments(
    digits: Splits[ImageSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[float, int]] = []
    advance = Training.advance

    def watching(self: Training, x: Tensor, y: Tensor) -> None:
        advance(self, x, y)
        seen.append((self.lr, int(next(iter(self.optimizer.state.values()))["step"])))

    monkeypatch.setattr(Training, "advance", watching)
    for fresh, counts in ((True, [1, 2, 3, 4, 5, 1, 2, 3, 4, 5]), (False, list(range(1, 11)))):
        seen.clear()
        train(digits, quick("bnn", optimizer=Adam(lr=0.01), schedule=Stages(epochs=(1, 1), fresh_optimizer=fresh)))
        assert [count for _, count in seen] == counts
        assert [lr for lr, _ in seen] == pytest.approx([0.01] * 5 + [0.001] * 5)


def test_kl_warmup_reaches_the_loss(digits: Splits[ImageSet]) -> None:
    objective = {"kl_warmup": "linear", "kl_warmup_epochs": 2, "alpha": 0.5}
    history = train(digits, quick("bnn", objective=objective), log_every=1).history
    assert [line["kl_weight"] for line in history] == pytest.approx([0.5 / 72 * (i + 1) / 10 for i in range(10)])


def test_ctrl_c_saves_and_resuming_gives_the_same(
    digits: Splits[ImageSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value, whole = quick(), train(digits, quick())
    advance = Training.advance
    for which, step in ((signal.SIGINT, 3), (signal.SIGTERM, 7)):

        def interrupted(self: Training, x: Tensor, y: Tensor, which: Any = which, step: int = step) -> None:
            if self.total_steps == step:
                signal.raise_signal(which)
            advance(self, x, y)

        with monkeypatch.context() as patch:
            patch.setattr(Training, "advance", interrupted)
            with pytest.raises(Interrupted, match=f"after step {step + 1} of 10, saved in .*resume") as stop:
                train(digits, value, out=tmp_path / "run", resume=True, log_every=4)
        assert stop.value.signal == which and signal.getsignal(which) is not None
        assert not load_trained(tmp_path / "run").finished
    result = train(digits, value, out=tmp_path / "run", resume=True, log_every=4)
    assert same(result.model, whole.model)
    assert [line["step"] for line in result.history] == [4, 5, 9, 10]  # each once, and none missing
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_second_ctrl_c_stops_at_once(digits: Splits[ImageSet], monkeypatch: pytest.MonkeyPatch) -> None:
    def impatient(self: Training, x: Tensor, y: Tensor) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Training, "advance", impatient)
    with pytest.raises(KeyboardInterrupt) as stop:
        train(digits, quick())
    assert not isinstance(stop.value, Interrupted)


@pytest.mark.parametrize("name", ["bnn", "adv_bnn"])
def test_divergence_is_told_with_step_rate_and_remedy(digits: Splits[ImageSet], tmp_path: Path, name: str) -> None:
    """Also where it is the attack that first meets the NaN. The state is kept, but not to go on from."""
    value = quick(name, optimizer=SGD(lr=1e30), schedule=Constant(epochs=5))
    with pytest.raises(
        DivergedError, match=r"step [123] .*learning rate 1e\+30.*lower optimizer.lr.*diverged"
    ) as error:
        train(digits, value, out=tmp_path / "run", save_every=0.0)
    assert "no good checkpoint" in str(error.value) or "step-00000001" in str(error.value)
    assert list((tmp_path / "run" / "diverged").glob("step-*/weights.safetensors"))
    for kept in (tmp_path / "run" / "checkpoints").glob("step-*"):
        found = checkpoint.latest(kept.parent)
        assert found is not None
        model = value.build(classes=10, shape=(1, 8, 8))
        found.load_weights(model)
        assert all(torch.isfinite(tensor).all() for tensor in weights(model))


def test_a_finished_run_says_so(digits: Splits[ImageSet], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = train(digits, quick("bnn"), out=tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").unlink()  # as if killed just before the end
    for resume in (True, False):
        again = train(digits, quick("bnn"), out=tmp_path / "run", resume=resume, progress=True)
        assert "is finished: 10 steps" in capsys.readouterr().err
        assert same(again.model, first.model) and again.history == first.history
    assert load_trained(tmp_path / "run").finished


def test_a_folder_of_something_else_is_refused(digits: Splits[ImageSet], tmp_path: Path) -> None:
    train(digits, quick("bnn"), out=tmp_path / "run")
    with pytest.raises(RunError, match=r"other settings: objective.alpha = 0.02 there, 0.5 now"):
        train(digits, quick("bnn", objective={"alpha": 0.5}), out=tmp_path / "run", resume=True)
    with pytest.raises(RunError, match="other settings: seed = 0 there, 1 now"):
        train(digits, quick("bnn"), out=tmp_path / "run", resume=True, seed=1)
    changed = Splits(replace(digits.train, images=255 - digits.train.images), digits.test)
    with pytest.raises(RunError, match="other data"):
        train(changed, quick("bnn"), out=tmp_path / "run", resume=True)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    with pytest.raises(RunError, match="holds files but no run"):
        train(digits, quick("bnn"), out=tmp_path / "full")
    with pytest.raises(RunError, match="not a run folder"):
        load_trained(tmp_path / "full")


def test_a_network_and_a_defence_of_your_own(digits: Splits[ImageSet], tmp_path: Path) -> None:
    def own() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    value = replace(defense("adv_bnn", "cifar10", "paper"), name="mine", schedule=Constant(epochs=1))
    result = fit(own(), digits, value, out=tmp_path / "run")
    loaded = load_trained(tmp_path / "run", net=own())
    assert same(loaded.model, result.model) and loaded.config.defense.name == "mine"
    assert loaded.config.defense == replace(value, chosen_by_us=(), changed=())
    with pytest.raises(ValueError, match="VGG"):  # its architecture, not the network that was given
        load_trained(tmp_path / "run")


def test_an_unfinished_run_is_not_overwritten(
    digits: Splits[ImageSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(CheckpointError, match=r"No space left.*from its beginning"):
        patch.setattr(torch, "save", full)
        train(digits, quick("bnn"), out=tmp_path / "run")
    with pytest.raises(RunError, match=r"stopped after step 0; resume it \(--resume"):
        train(digits, quick("bnn"), out=tmp_path / "run")
    with pytest.raises(RunError, match="no weights yet"):
        load_trained(tmp_path / "run")
    assert train(digits, quick("bnn"), out=tmp_path / "run", resume=True).steps == 10


def test_a_damaged_checkpoint_costs_time_and_nothing_else(digits: Splits[ImageSet], tmp_path: Path) -> None:
    value = quick("bnn")
    whole = train(digits, value, out=tmp_path / "run", save_every=0.0)
    newest = sorted((tmp_path / "run" / "checkpoints").iterdir())[-1]
    (newest / "weights.safetensors").write_bytes(b"")
    (tmp_path / "run" / "model.safetensors").unlink()
    with pytest.warns(CheckpointWarning, match="damaged"):
        again = train(digits, value, out=tmp_path / "run", resume=True)
    assert same(again.model, whole.model)


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

    monkeypatch.setattr("advbnn.training.validation_score", score)
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


def test_validation_by_attack_and_average(digits: Splits[ImageSet]) -> None:
    value = quick("adv_bnn", early_stopping=EarlyStopping(fraction=0.25, samples=2), averaging=Averaging(decay=0.5))
    history = train(digits, value).history
    assert all(0 <= line["validation_accuracy"] <= 1 for line in history)


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
        {"optimizer": {"kind": "adam", "weight_decay": 0.01}},
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


def test_likelihood_and_targets_must_fit(digits: Splits[ImageSet]) -> None:
    with pytest.raises(ValueError, match=r"class labels for targets.*Gaussian likelihood.*Categorical\(\)"):
        train(digits, quick("bnn", objective=RobustELBO(likelihood=Gaussian())))
    real = data.from_tensors(torch.rand(20, 3), torch.rand(20, 1))
    with pytest.raises(ValueError, match=r"real numbers for targets.*set objective.likelihood to Gaussian\(\)"):
        fit(nn.Linear(3, 1), Splits(real, real), quick("none"))


def test_tensorboard_is_asked_for_by_name(
    digits: Splits[ImageSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"pip install 'advbnn\[tensorboard\]'"):
        train(digits, quick("bnn"), out=tmp_path / "run", tensorboard=True)


def test_tensorboard_events(digits: Splits[ImageSet], tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    train(digits, quick("bnn"), out=tmp_path / "run", tensorboard=True)
    assert list((tmp_path / "run" / "tensorboard").glob("events*"))


def test_progress_in_plain_lines(
    digits: Splits[ImageSet], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("advbnn.display.SECONDS_BETWEEN_LINES", 0.0)
    train(digits, quick(), progress=True)
    head, first, last = capsys.readouterr().err.splitlines()
    assert head.startswith("adv_bnn with the numbers of 'ours', changed in architecture, ")
    assert "72 examples of digits[72 of 1297], 10 steps on cpu" in head
    assert first.startswith("epoch 1/2, loss ") and last.startswith("epoch 2/2, loss ")
    for word in ("nll", "kl", "clean", "robust", "examples/s", "0:00:00 left"):
        assert word in last


def test_progress_on_a_terminal(digits: Splits[ImageSet], monkeypatch: pytest.MonkeyPatch) -> None:
    import io
    import sys

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", screen)
    train(digits, quick(), progress=True)
    assert "epoch 2/2" in screen.getvalue() and "robust" in screen.getvalue()


def test_replacing_a_defence_keeps_it_checked() -> None:
    with pytest.raises(ValueError, match="attack_mode"):
        replace(quick(), attack_mode="test")
