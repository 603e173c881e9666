"""Training end to end: what it learns, what decides it, and what it refuses."""

import copy
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from advbnn import data
from advbnn.attacks import PGD
from advbnn.attacks.threat import Threat
from advbnn.bayes.likelihoods import Gaussian
from advbnn.bayes.mean_field import Bayesian, bayesianize
from advbnn.bayes.prediction import predict
from advbnn.bayes.priors import GaussianPrior
from advbnn.cli.app import app
from advbnn.data import ImageSet, Splits
from advbnn.defenses.objective import RobustELBO
from advbnn.defenses.optimizers import Adam
from advbnn.defenses.profiles import DEFENSES, defense
from advbnn.defenses.rse import noise_levels
from advbnn.defenses.schedules import Constant, OneCycle, Stages
from advbnn.distributed import ALONE
from advbnn.errors import RunError
from advbnn.training.config import Config, load_config
from advbnn.training.loading import load_trained
from advbnn.training.loop import fit, fit_config
from advbnn.training.state import Training
from quick import quick, same, train, weights


def test_engine_and_precision_are_handed_on_and_written_down(digits: Splits[ImageSet], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="precision='bf16' is for the fast engines"):
        train(digits, quick(), out=tmp_path / "run", engine="eager", precision="bf16")
    config = Config(data="digits", defense=quick(), engine="eager", precision="bf16")
    with pytest.raises(ValueError, match="precision='bf16' is for the fast engines"):
        fit_config(config, digits, out=tmp_path / "run", resume=False, device=None)
    assert not (tmp_path / "run").exists()
    train(digits, quick(), out=tmp_path / "run", engine="eager", precision="full")
    kept = Config.from_run((tmp_path / "run" / "config.toml").read_text())
    assert (kept.engine, kept.precision, kept.data) == ("eager", "full", digits.train.name)


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


def test_a_network_and_a_defence_of_your_own(digits: Splits[ImageSet], tmp_path: Path) -> None:
    def own() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    value = replace(defense("adv_bnn", "cifar10", "paper"), name="mine", schedule=Constant(epochs=1))
    result = fit(own(), digits, value, out=tmp_path / "run")
    loaded = load_trained(tmp_path / "run", net=own())
    assert same(loaded.model, result.model) and loaded.config.defense.name == "mine"
    assert loaded.config.defense == replace(value, architecture="own", chosen_by_us=(), changed=())
    with pytest.raises(ValueError, match=r"architecture='own' stands for .* load_trained\(folder, net=...\)"):
        load_trained(tmp_path / "run")


def test_a_network_is_not_loaded_with_another_prior_than_it_was_trained_with(
    digits: Splits[ImageSet], tmp_path: Path
) -> None:
    def own() -> nn.Module:
        return bayesianize(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), prior=GaussianPrior(std=0.15))

    result = fit(own(), digits, quick("bnn"), out=tmp_path / "run")
    with pytest.raises(RunError, match=r"holds a network with prior=GaussianPrior\(std=0.15.*, and net makes one with"):
        load_trained(tmp_path / "run", net=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    loaded = load_trained(tmp_path / "run", net=own())
    assert same(loaded.model, result.model) and loaded.model.prior == GaussianPrior(std=0.15)


def test_settings_of_a_network_of_your_own_do_not_train_another(digits: Splits[ImageSet], tmp_path: Path) -> None:
    value = quick("bnn")
    net = value.build(classes=10, shape=(1, 8, 8))
    for folder, model in (("own", nn.Sequential(nn.Flatten(), nn.Linear(64, 10))), ("built", net)):
        fit(model, digits, value, out=tmp_path / folder)
        text = (tmp_path / folder / "config.toml").read_text()
        # the data of this test is a part of the digits, which no settings name
        (tmp_path / f"{folder}.toml").write_text(text.replace(digits.train.name, "digits"))
    assert "somebody's own" in (tmp_path / "own.toml").read_text()
    assert 'architecture = "mlp"' in (tmp_path / "built.toml").read_text()
    with pytest.raises(ValueError, match="architecture='own' stands for a network of somebody's own"):
        fit_config(load_config(tmp_path / "own.toml"), digits, out=tmp_path / "again", resume=False, device=None)
    refused = CliRunner().invoke(app, ["train", str(tmp_path / "own.toml"), "--out", str(tmp_path / "again")])
    assert refused.exit_code == 1 and "architecture='own'" in refused.output
    assert not (tmp_path / "again").exists()


def test_likelihood_and_targets_must_fit(digits: Splits[ImageSet]) -> None:
    with pytest.raises(ValueError, match=r"class labels for targets.*Gaussian likelihood.*Categorical\(\)"):
        train(digits, quick("bnn", objective=RobustELBO(likelihood=Gaussian())))
    real = data.from_tensors(torch.rand(20, 3), torch.rand(20, 1))
    with pytest.raises(ValueError, match=r"real numbers for targets.*set objective.likelihood to Gaussian\(\)"):
        fit(nn.Linear(3, 1), Splits(real, real), quick("none"))


def test_frozen_normalisation_stays_frozen(digits: Splits[ImageSet]) -> None:
    net = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10), nn.BatchNorm1d(10))
    net[1].eval()
    result = fit(net, digits, quick("adv_bnn"))
    assert int(net[1].num_batches_tracked) == 0 and int(net[3].num_batches_tracked) == 10
    assert [part.training for part in net.modules()] == [True, True, False, True, True]
    fit(result.model.eval(), digits, quick("adv_bnn"))  # none of it in training mode: all of it is trained
    assert int(net[1].num_batches_tracked) == 10


def test_a_result_is_shown_in_a_line(digits: Splits[ImageSet], tmp_path: Path) -> None:
    shown = repr(train(digits, quick("adv_bnn"), out=tmp_path / "run"))
    assert re.fullmatch(r"FitResult\(Bayesian by adv_bnn, seed 0, 10 steps, .*, robust .*, loss .*, in .*run\)", shown)
    assert len(shown) < 250 + len(str(tmp_path)) and "\n" not in shown


def few(inputs: Tensor, labels: Tensor) -> Splits[Any]:
    examples = data.from_tensors(inputs, labels, name="mine")
    return Splits(examples, examples)


FLAT = torch.rand(20, 12)
LABELS = torch.arange(20) % 4


@pytest.mark.parametrize(
    ("net", "splits", "error", "message"),
    [
        (
            nn.Sequential(nn.Flatten(), nn.Linear(48, 4)),
            few(torch.rand(20, 3, 2, 2), LABELS),
            ValueError,
            r"net cannot take the inputs of mine, torch.float32 of shape \[2, 3, 2, 2\]: .*give fit a",
        ),
        (nn.Conv2d(1, 4, 3), few(torch.rand(20, 3, 8, 8), LABELS), ValueError, r"shape \[2, 3, 8, 8\]: .*give fit a"),
        (nn.Linear(12, 4), few(FLAT.double(), LABELS), TypeError, r"torch.float64 of .*its weights are torch.float32"),
        (nn.Linear(12, 3), few(FLAT, LABELS), ValueError, r"the label 3, but the model has 3 classes, numbered from 0"),
        (nn.Flatten(0), few(FLAT, LABELS), ValueError, "net must have parameters to train"),
        (nn.Linear(12, 4), few(FLAT, LABELS).train, TypeError, r"data must be Splits\(train, test\), got TensorSet"),
        (nn.Linear(12, 4), (FLAT, LABELS), TypeError, r"data must be Splits.*got tuple; .*from_tensors"),
        (lambda x: x, few(FLAT, LABELS), TypeError, "net must be a torch.nn.Module .* got function"),
        (nn.Sequential(nn.Linear(12, 4), nn.Softmax(1)), few(FLAT, LABELS), ValueError, "returned probabilities"),
    ],
)
@pytest.mark.parametrize("name", ["none", "bnn"])
def test_a_network_that_does_not_fit_the_data_is_refused(
    net: Any, splits: Any, error: type[Exception], message: str, name: str
) -> None:
    with pytest.raises(error, match=message):
        fit(copy.deepcopy(net), splits, quick(name))


def test_the_name_of_a_defence_is_not_a_defence() -> None:
    with pytest.raises(TypeError, match=r"defense must be a Defense, got 'adv_bnn'; advbnn.defense\('adv_bnn', "):
        fit(nn.Linear(12, 4), few(FLAT, LABELS), "adv_bnn")


def test_a_look_at_the_network_leaves_no_trace(digits: Splits[ImageSet]) -> None:
    net = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10)).eval()
    net[1].train()
    before, state = weights(net), torch.get_rng_state()
    Training(net, digits, quick("none"), seed=0, engine="eager", processes=ALONE)
    assert all(torch.equal(a, b) for a, b in zip(weights(net), before, strict=True))
    assert [part.training for part in net.modules()] == [False, False, True, False]
    assert torch.equal(torch.get_rng_state(), state)
