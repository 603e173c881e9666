"""The networks that a defence builds, and the combinations that it refuses."""

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from advbnn.bayes.kl import kl_divergence
from advbnn.bayes.likelihoods import Gaussian
from advbnn.bayes.mean_field import Bayesian, bayesianize
from advbnn.defenses.defense import Averaging, EarlyStopping, Swag
from advbnn.defenses.networks import Variational
from advbnn.defenses.optimizers import LangevinSampler
from advbnn.defenses.profiles import DEFENSES, defense
from advbnn.defenses.registry import ONE_NETWORK
from advbnn.defenses.rse import noise_levels

SHAPE = (1, 8, 8)


@pytest.mark.parametrize("name", DEFENSES)
def test_the_seed_decides_the_weights(name: str) -> None:
    value = defense(name, norm_scales="uniform")
    one, same, other = (value.build(classes=10, shape=SHAPE, seed=seed) for seed in (0, 0, 1))
    weights = [list(net.state_dict().values()) for net in (one, same, other)]
    assert all(torch.equal(a, b) for a, b in zip(weights[0], weights[1], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(weights[0], weights[2], strict=True))
    assert isinstance(one, Bayesian) == ("bnn" in name)
    assert bool(noise_levels(one)) == (name == "rse")
    scales = torch.cat([m.weight for m in one.modules() if isinstance(m, nn.BatchNorm2d)])
    assert 0 < scales.min() < 0.2 < scales.max() < 1


@pytest.mark.parametrize("name", ONE_NETWORK)
def test_the_seed_decides_what_a_published_defence_adds(name: str) -> None:
    value = replace(defense("adv", "cifar10"), architecture="small_cnn", network=ONE_NETWORK[name].network)
    networks = []
    for state in (1, 2):
        torch.manual_seed(state)
        before = torch.get_rng_state()
        networks.append(value.build(classes=10, shape=(3, 32, 32), seed=0))
        assert torch.equal(torch.get_rng_state(), before)
    one, same = (list(net.state_dict().values()) for net in networks)
    assert all(torch.equal(a, b) for a, b in zip(one, same, strict=True))


def test_the_radius_grows_to_its_full_size_in_equal_steps() -> None:
    value = defense("adv", attack={"step_size": 0.06}, schedule={"epochs": 8}, radius_warmup=3)
    assert value.attack is not None
    attacks = [value.attack_in(epoch) for epoch in range(5)]
    assert [attack.threat.eps for attack in attacks if attack] == pytest.approx([0.0375, 0.075, 0.1125, 0.15, 0.15])
    # the share of the radius that a step covers stays the same, however it is given
    assert [attack.first_step for attack in attacks if attack] == pytest.approx([0.015, 0.03, 0.045, 0.06, 0.06])
    relative = replace(value, attack=replace(value.attack, step_size=None, relative_step_size=0.4))
    assert [attack.first_step for e in range(5) if (attack := relative.attack_in(e))] == pytest.approx(
        [0.015, 0.03, 0.045, 0.06, 0.06]
    )
    assert attacks[3] is value.attack and defense("none").attack_in(0) is None


def test_a_network_that_is_random_already_is_not_wrapped_again() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten())
    bnn = bayesianize(copy.deepcopy(net), init_std=0.3)
    assert defense("adv_bnn").wrap(bnn) is bnn
    assert defense("none").wrap(net) is net
    noisy = defense("rse").wrap(net)
    assert noisy is not net and defense("rse").wrap(noisy) is noisy


def test_a_defence_recognises_the_networks_that_it_builds() -> None:
    value = defense("bnn", architecture="mlp")
    net = value.build(classes=10, shape=SHAPE)
    assert value.has_built(net, classes=10, shape=SHAPE)
    assert not value.has_built(net, classes=9, shape=SHAPE)
    assert not value.has_built(bayesianize(nn.Linear(1, 1)), classes=10, shape=SHAPE)
    assert not defense("bnn").has_built(net, classes=10, shape=SHAPE)  # another architecture
    other_prior = replace(value, network=Variational(prior_std=0.3))
    assert not other_prior.has_built(net, classes=10, shape=SHAPE)
    net.net.features[2] = nn.Tanh()
    assert not value.has_built(net, classes=10, shape=SHAPE)


def test_the_prior_mean_of_normalisation_scales() -> None:
    """At the initial network, scales of 1 have a KL from a prior around 0 only."""
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    nn.init.zeros_(net[0].weight), nn.init.zeros_(net[0].bias)
    around = {mean: Variational(norm_scale_mean=mean).wrap(copy.deepcopy(net)) for mean in (0.0, 1.0)}
    assert kl_divergence(around[1.0]).item() == pytest.approx(0, abs=1e-4)
    assert kl_divergence(around[0.0]).item() == pytest.approx(2 / (2 * 0.05**2), rel=1e-4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: defense("adv", attack_mode="evaluate"), "attack_mode.*'eval'"),
        (lambda: defense("adv", norm_scales="one"), "norm_scales.*'ones'"),
        (lambda: defense("adv", clip=0.0), "clip .*None"),
        (lambda: defense("adv", radius_warmup=15), "radius_warmup.*14.*15"),
        (lambda: defense("none", radius_warmup=5), "radius_warmup=5.*set it to 0"),
        (lambda: defense("none", objective={"trades": 6.0}), "trades.*no attack"),
        (lambda: defense("none", objective={"clean": 0.5}), "clean.*no attack"),
        (lambda: defense("adv", objective={"clean": 1.0}), "clean"),
        (lambda: defense("adv", objective={"clean": 0.5, "trades": 6.0}), "trades.*leave one"),
        (lambda: defense("adv", objective={"trades": 6.0}, attack={"random_start": False}), "random_start=True"),
        (lambda: defense("adv", attack={"targeted": True}), "targeted=False"),
        (lambda: defense("adv", objective={"likelihood": Gaussian()}), "use loss='nll'"),
        (lambda: defense("bnn", optimizer=LangevinSampler()), r"use network=Plain\(\)"),
        (lambda: defense("adv", optimizer=LangevinSampler(), early_stopping=EarlyStopping()), "early_stopping"),
        (lambda: defense("adv", optimizer=LangevinSampler(), averaging=Averaging()), "averaging"),
        (lambda: defense("adv", averaging=Averaging(start=15)), "averaging.start=15 .*at most 14"),
        (lambda: defense("adv", swag=Swag(start=14)), "swag.start=14.*two"),
        (lambda: defense("adv", swag=Swag(), averaging=Averaging()), "averaging"),
        (lambda: defense("adv_bnn", swag=Swag()), "Plain"),
        (lambda: defense("adv", swag={"kind": "swag", "statistics": "new"}), "statistics.*anew"),
        (lambda: defense("adv", averaging=Averaging(decay=None), early_stopping=EarlyStopping()), "averaging.decay"),
        (lambda: defense("adv").build(classes=10, shape=(3, 8, 9)), "square images"),
        (lambda: defense("adv", architecture="own").build(classes=10, shape=SHAPE), "architecture='own'.*net="),
        (lambda: Variational(init_std=-1), "init_std .*-1"),
        (lambda: Averaging(decay=1.0), "decay .*equal average"),
        (lambda: Averaging(start=-1), "start must be"),
        (lambda: EarlyStopping(fraction=1.0), "fraction .*1.0"),
        (lambda: EarlyStopping(patience=0), "patience .*0"),
    ],
)
def test_bad_settings_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
