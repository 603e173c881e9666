import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from advbnn import models
from advbnn.data import Splits, load, usual_augmentation
from advbnn.defenses.bat import boosted_pair
from advbnn.defenses.profiles import defense
from advbnn.defenses.registry import PUBLISHED
from advbnn.leaderboard.measure import measure
from advbnn.training.bat import adversarial_copy, fit_bat
from advbnn.training.loading import load_trained


def test_two_networks_the_second_trained_on_examples_of_the_first(tmp_path: Path) -> None:
    digits = load("digits")
    data = Splits(digits.train.subset(range(200)), digits.test)
    # the second has no attack whose radius could grow
    how = defense("adv", architecture="mlp", schedule={"kind": "constant", "epochs": 2}, radius_warmup=1)
    net = models.build("mlp", classes=10, image_size=8, channels=1)
    start = copy.deepcopy(net)
    pair = fit_bat(net, data, how, out=tmp_path)
    first, second = pair.net
    assert pair.weights == (0.9, 0.1) and pair.support == 2 and not pair.training
    attacked = adversarial_copy(first, data.train, how.attack)
    distance = (attacked.images.int() - data.train.images.int()).abs().max().item()
    assert 0 < distance <= round(255 * how.attack.threat.eps)
    named = adversarial_copy(first, replace(data.train, name="cifar10"), how.attack).name
    assert named != "cifar10" and usual_augmentation(named) == usual_augmentation("cifar10")

    def loss(model: torch.nn.Module, examples: object) -> float:
        return torch.nn.functional.cross_entropy(model(examples.images / 255), examples.labels).item()

    # adversarial examples of the first are what the second has learned
    assert loss(first, attacked) > loss(first, data.train)
    assert (tmp_path / "first" / "model.safetensors").exists() and (tmp_path / "second" / "model.safetensors").exists()
    again = fit_bat(models.build("mlp", classes=10, image_size=8, channels=1), data, how, out=tmp_path, resume=True)
    assert torch.equal(again.net[1].classifier.weight, second.classifier.weight)
    state = torch.get_rng_state()
    repeated = fit_bat(start, data, how)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(repeated.net[1].classifier.weight, second.classifier.weight)


def test_the_pair_of_a_defence_loads_and_is_measured_for_the_leaderboard(tmp_path: Path) -> None:
    data = load("digits")
    how = defense("adv", architecture="mlp", schedule={"kind": "constant", "epochs": 1})
    trained = fit_bat(how.build(classes=10, shape=(1, 8, 8)), data, how, out=tmp_path, resume=True)
    pair = boosted_pair(*(load_trained(tmp_path / part).model for part in ("first", "second")))
    torch.testing.assert_close(pair.state_dict(), trained.state_dict())
    assert not torch.equal(pair.net[0].classifier.weight, pair.net[1].classifier.weight)
    parts = ("clean", "protocol")
    found = measure(PUBLISHED["bat"], pair, data.test.subset(range(100)), how.attack.threat, only=parts)
    assert [(record.n, record.samples) for record in found] == [(100, 1)] * 2


def test_the_first_needs_an_attack() -> None:
    with pytest.raises(ValueError, match="attack"):
        fit_bat(models.build("mlp", image_size=8, channels=1), load("digits"), defense("none"))
