"""Networks read back from run folders."""

import hashlib
import math
import random
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from advbnn.bayes.likelihoods import Gaussian
from advbnn.bayes.mean_field import bayesianize
from advbnn.bayes.priors import GaussianPrior
from advbnn.data import ImageSet, Splits, from_tensors
from advbnn.defenses.objective import RobustELBO
from advbnn.defenses.profiles import defense
from advbnn.defenses.schedules import Constant
from advbnn.errors import ArgumentTypeError, CheckpointError, RunError
from advbnn.randomness import seeded
from advbnn.training.loading import load_trained
from advbnn.training.loop import fit
from quick import quick, same, train


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def test_a_network_and_a_defence_of_your_own(digits: Splits[ImageSet], tmp_path: Path) -> None:
    value = replace(defense("adv_bnn", "cifar10", "paper"), name="mine", schedule=Constant(epochs=1))
    result = fit(linear(), digits, value, out=tmp_path / "run")
    loaded = load_trained(tmp_path / "run", net=linear())
    assert same(loaded.model, result.model)
    assert loaded.config.defense == replace(value, architecture="own", chosen_by_us=(), changed=())
    with pytest.raises(ValueError, match=r"architecture='own'.*load_trained\(folder, net=...\)"):
        load_trained(tmp_path / "run")


def test_a_network_is_not_loaded_with_another_prior(digits: Splits[ImageSet], tmp_path: Path) -> None:
    def own() -> nn.Module:
        return bayesianize(linear(), prior=GaussianPrior(std=0.15))

    result = fit(own(), digits, quick("bnn"), out=tmp_path / "run")
    with pytest.raises(RunError, match=r"prior=GaussianPrior\(std=0.15.*bayesianize\(net, prior=...\)"):
        load_trained(tmp_path / "run", net=linear())
    loaded = load_trained(tmp_path / "run", net=own())
    assert same(loaded.model, result.model) and loaded.model.prior == GaussianPrior(std=0.15)


def test_a_learned_noise_is_loaded_with_its_network(tmp_path: Path) -> None:
    with seeded(0):
        examples = from_tensors(torch.rand(40, 3), torch.rand(40, 1))
    value = quick("bnn", objective=RobustELBO(likelihood=Gaussian(noise_std=0.7, learned=True)))
    result = fit(nn.Linear(3, 1), Splits(examples, examples), value, out=tmp_path / "run")
    loaded = load_trained(tmp_path / "run", net=nn.Linear(3, 1))
    assert loaded.noise_std == result.noise_std != 0.7
    assert same(loaded.model, result.model)

    (tmp_path / "run" / "model.safetensors").unlink()
    stopped = load_trained(tmp_path / "run", net=nn.Linear(3, 1))
    assert not stopped.finished and stopped.noise_std == result.noise_std

    modes = fit(nn.Linear(3, 1), Splits(examples, examples), value, modes=2, out=tmp_path / "modes")
    each = [load_trained(tmp_path / "modes" / "modes" / k, net=nn.Linear(3, 1)).noise_std for k in "01"]
    assert modes.noise_std == pytest.approx(math.sqrt((each[0] ** 2 + each[1] ** 2) / 2))
    for file in ("model.safetensors", "modes/1/model.safetensors"):  # until one mode is left
        loaded = load_trained(tmp_path / "modes", net=nn.Linear(3, 1))
        assert loaded.noise_std == pytest.approx(modes.noise_std)
        (tmp_path / "modes" / file).unlink()
    assert load_trained(tmp_path / "modes", net=nn.Linear(3, 1)).noise_std == each[0]

    fixed = replace(value, objective=RobustELBO(likelihood=Gaussian(noise_std=0.7)))
    fit(nn.Linear(3, 1), Splits(examples, examples), fixed, out=tmp_path / "fixed")
    assert load_trained(tmp_path / "fixed", net=nn.Linear(3, 1)).noise_std is None


def test_what_is_not_a_run_folder_is_refused(digits: Splits[ImageSet], tmp_path: Path) -> None:
    for wrong in (5, None):
        with pytest.raises(ArgumentTypeError, match="folder must be the path"):
            load_trained(wrong)  # type: ignore[arg-type]
    with pytest.raises(RunError, match=r"config.toml"):
        load_trained(tmp_path)
    train(digits, quick("bnn"), out=tmp_path / "run")
    with pytest.raises(RunError, match=r"run$"):
        load_trained(tmp_path / "run" / "config.toml")
    text = (tmp_path / "run" / "config.toml").read_text()
    for damaged, key in (("defense = ", "Invalid value"), (text.replace("samples =", "draws ="), "objective.draws")):
        (tmp_path / "run" / "config.toml").write_text(damaged)
        with pytest.raises(RunError, match=rf"config.toml .*{key}.*restore"):
            load_trained(tmp_path / "run")


def test_every_flipped_bit_of_a_trained_network_is_noticed(digits: Splits[ImageSet], tmp_path: Path) -> None:
    result, chance = train(digits, quick("bnn"), out=tmp_path / "run"), random.Random(0)
    file = tmp_path / "run" / "model.safetensors"
    content = file.read_bytes()
    for _ in range(200):
        damaged = bytearray(content)
        damaged[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        file.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged.*advbnn train .*--resume"):
            load_trained(tmp_path / "run")
    train(digits, quick("bnn"), out=tmp_path / "run", resume=True)  # the remedy
    assert file.read_bytes() == content and same(load_trained(tmp_path / "run").model, result.model)
    sums = tmp_path / "run" / "SHA256SUMS"
    for text in (sums.read_text().replace("a", "b", 1), "", "no checksums"):
        sums.write_text(text)
        with pytest.raises(CheckpointError, match="SHA256SUMS.*restore"):
            load_trained(tmp_path / "run")
    train(digits, quick("bnn"), out=tmp_path / "run", resume=True)
    assert sums.read_text() == f"{hashlib.sha256(content).hexdigest()}  model.safetensors\n"
    sums.unlink()  # weights that were copied without it
    assert load_trained(tmp_path / "run").finished


def test_a_network_is_not_evaluated_on_renamed_classes(digits: Splits[ImageSet], tmp_path: Path) -> None:
    train(digits, quick("bnn"), out=tmp_path / "run")
    loaded = load_trained(tmp_path / "run")
    loaded.check_classes(digits.test)
    names = digits.test.classes
    for other in ((*names[:7], "nine", *names[8:]), names[:9], (*names, "ten")):
        with pytest.raises(RunError, match="other classes: class .*former names"):
            loaded.check_classes(SimpleNamespace(name="digits", classes=other))  # type: ignore[arg-type]


def test_a_damaged_description_is_named_or_read_from_the_checkpoint(digits: Splits[ImageSet], tmp_path: Path) -> None:
    result = train(digits, quick("bnn"), out=tmp_path / "run")
    facts, config = tmp_path / "run" / "run.json", tmp_path / "run" / "config.toml"
    text, settings = facts.read_text(), config.read_text()
    config.write_text(settings.replace("prior_std = 0.05", "prior_std = 0.07"))
    with pytest.raises(RunError, match=r"std=0.05.*config\.toml says .*std=0.07.*restore"):
        load_trained(tmp_path / "run")
    config.write_text(settings)
    facts.write_text(text.replace('"classes": 10', '"classes": 90'))
    with pytest.raises((RunError, CheckpointError), match=r"run\.json"):
        load_trained(tmp_path / "run")
    facts.unlink()
    assert same(load_trained(tmp_path / "run").model, result.model)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(RunError, match=r"run\.json"):
        load_trained(tmp_path / "run")


def test_a_lost_description_of_several_modes_is_written_again(digits: Splits[ImageSet], tmp_path: Path) -> None:
    result = train(digits, quick("none"), modes=2, out=tmp_path)
    (tmp_path / "run.json").unlink()
    with pytest.raises(RunError, match=r"run\.json .*resume the run.*advbnn train .*--resume"):
        load_trained(tmp_path)
    train(digits, quick("none"), modes=2, out=tmp_path, resume=True)
    assert same(load_trained(tmp_path).model, result.model)
