"""Training end to end: what it learns, what decides it, and that a kill loses nothing."""

import copy
import json
import os
import random
import re
import signal
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from advbnn import data
from advbnn.attacks import PGD
from advbnn.attacks.threat import Threat
from advbnn.bayes.mean_field import Bayesian
from advbnn.bayes.prediction import predict
from advbnn.data import ImageSet, Splits
from advbnn.defenses.profiles import DEFENSES
from advbnn.defenses.rse import noise_levels
from advbnn.defenses.schedules import OneCycle
from advbnn.training.config import Config
from advbnn.training.loading import load_trained
from advbnn.training.loop import fit, fit_config
from advbnn.training.state import TrainingState
from quick import quick, same, train
from workers import processes, train_resumable


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
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    particles = quick("none", network={"kind": "ig_bnn"})  # with initial weights of its own
    once, twice = (fit(copy.deepcopy(plain), digits, particles) for _ in range(2))
    assert same(once.model, twice.model)
    again, other = train(digits, value, seed=3), train(digits, value, seed=4)
    assert same(first.model, again.model) and not same(first.model, other.model)
    losses = [[line["loss"] for line in result.history] for result in (first, again, other)]
    assert losses[0] == losses[1] != losses[2]


def test_engine_and_precision_reach_the_step_and_the_run_folder(digits: Splits[ImageSet], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="precision='bf16'"):
        train(digits, quick(), out=tmp_path / "run", engine="eager", precision="bf16")
    config = Config(data="digits", defense=quick(), engine="eager", precision="bf16")
    with pytest.raises(ValueError, match="precision='bf16'"):
        fit_config(config, digits, out=tmp_path / "run", resume=False, device=None)
    assert not (tmp_path / "run").exists()
    train(digits, quick(), out=tmp_path / "run", engine="eager", precision="full")
    kept = Config.from_run((tmp_path / "run" / "config.toml").read_text())
    assert (kept.engine, kept.precision, kept.data) == ("eager", "full", digits.train.name)


def test_the_log_says_once_why_steps_run_eagerly(
    digits: Splits[ImageSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrainingState, "why_eager", "the fast step does not support this")
    train(digits, quick(), out=tmp_path / "run")
    assert (tmp_path / "run" / "log.txt").read_text().count("the fast step does not support this") == 1


def test_frozen_batchnorm_stays_frozen(digits: Splits[ImageSet]) -> None:
    net = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10), nn.BatchNorm1d(10))
    net[1].eval()
    result = fit(net, digits, quick("adv_bnn"))
    assert int(net[1].num_batches_tracked) == 0 and int(net[3].num_batches_tracked) == 10
    assert [part.training for part in net.modules()] == [True, True, False, True, True]
    fit(result.model.eval(), digits, quick("adv_bnn"))  # in evaluation mode as a whole: all of it is trained
    assert int(net[1].num_batches_tracked) == 10


def test_the_repr_of_a_result_is_one_line(digits: Splits[ImageSet], tmp_path: Path) -> None:
    shown = repr(train(digits, quick("adv_bnn"), out=tmp_path / "run"))
    assert re.fullmatch(r"FitResult\(Bayesian by adv_bnn, seed 0, 10 steps, .* robust .*, loss .*, in .*run\)", shown)
    assert len(shown) < 250 + len(str(tmp_path)) and "\n" not in shown


def last_step(out: Path) -> int:
    """The newest checkpoint that is there right now."""
    return max((int(p.name.removeprefix("step-")) for p in (out / "checkpoints").glob("step-*")), default=0)


def test_killed_at_random_steps_and_resumed_bit_for_bit(tmp_path: Path) -> None:
    out, chance = tmp_path / "run", random.Random(0)
    reached = 0
    for _ in range(3):
        worker = processes.Process(target=train_resumable, args=(out,))
        worker.start()
        target = reached + chance.randint(2, 8)
        deadline = time.monotonic() + 60
        while last_step(out) < target and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(chance.random() * 0.05)  # anywhere in a step, in a checkpoint, in a line of metrics
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
        assert worker.exitcode == -signal.SIGKILL
        assert last_step(out) >= target
        reached = last_step(out)
    assert reached < 30, "killed before the end, or this test shows nothing"

    train_resumable(out)
    assert same(load_trained(out).model, train_resumable(None))

    steps = [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert steps == [4, 5, 9, 10, 14, 15, 19, 20, 24, 25, 29, 30]
