from dataclasses import replace

import torch
from torch import nn

from advbnn.attacks import PGD
from advbnn.attacks.threat import Threat
from advbnn.data import load, usual_augmentation
from advbnn.training.adversarial_copy import adversarial_copy
from trained_nets import net

ATTACK = PGD(Threat("linf", 0.1), steps=3)


def test_examples_of_a_network_are_in_the_ball_and_harder_for_it() -> None:
    train = load("digits").train.subset(range(200))
    state = torch.get_rng_state()
    attacked = adversarial_copy(net(), train, ATTACK, batch_size=64)
    assert torch.equal(torch.get_rng_state(), state)
    distance = (attacked.images.int() - train.images.int()).abs().max().item()
    assert 0 < distance <= round(255 * ATTACK.threat.eps)
    assert torch.equal(attacked.labels, train.labels) and attacked.classes == train.classes

    def loss(examples: object) -> float:
        return nn.functional.cross_entropy(net()(examples.images / 255), examples.labels).item()

    assert loss(attacked) > loss(train)
    again = adversarial_copy(net(), train, ATTACK, batch_size=64)
    assert torch.equal(again.images, attacked.images)


def test_a_copy_is_augmented_like_its_data_set_and_has_another_name() -> None:
    few = replace(load("digits").train.subset(range(4)), name="cifar10")
    named = adversarial_copy(net(), few, ATTACK).name
    assert named != "cifar10" and usual_augmentation(named) == usual_augmentation("cifar10")
