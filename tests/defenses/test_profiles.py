import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from advbnn.attacks import PGD
from advbnn.attacks.threat import Threat
from advbnn.bayes.kl import kl_divergence
from advbnn.bayes.likelihoods import Gaussian
from advbnn.bayes.mean_field import Bayesian, bayesianize
from advbnn.defenses.defense import Averaging, Defense, EarlyStopping, Noisy, Plain, Variational
from advbnn.defenses.objective import RobustELBO
from advbnn.defenses.optimizers import SGD, Adam, Langevin
from advbnn.defenses.profiles import DATASETS, DEFENSES, defense
from advbnn.defenses.rse import noise_levels
from advbnn.defenses.schedules import Cosine, Stages
from advbnn.errors import ConfigError

PUBLISHED = ("cifar10", "stl10", "imagenet143")
STAGES = {"cifar10": (80, 60, 40, 20), "stl10": (60, 40, 20), "imagenet143": (30, 20, 20, 10)}
EPS = {"cifar10": 8 / 256, "stl10": 8 / 256, "imagenet143": 0.01}

# (sigma_0 = initial std, alpha) of (BNN, Adv-BNN)
VARIATIONAL = {
    ("paper", "cifar10"): ((0.05, 1.0), (0.05, 1.0)),
    ("paper", "stl10"): ((0.15, 0.02), (0.15, 0.02)),
    ("paper", "imagenet143"): ((0.15, 0.02), (0.15, 0.02)),
    ("authors_code", "cifar10"): ((0.05, 0.01), (0.05, 1.0)),
    ("authors_code", "stl10"): ((0.15, 0.01), (0.08, 0.02)),
    ("authors_code", "imagenet143"): ((0.15, 0.01), (0.08, 1.0)),
}


@pytest.mark.parametrize("data", PUBLISHED)
@pytest.mark.parametrize("profile", ["paper", "authors_code"])
@pytest.mark.parametrize("name", DEFENSES)
def test_hyper_parameters_of_the_profiles(name: str, profile: str, data: str) -> None:
    found = defense(name, data, profile)
    assert (found.name, found.profile, found.changed) == (name, profile, ())
    assert found.batch_size == 128 and found.augment and found.attack_mode == "eval"
    assert found.schedule == Stages(epochs=STAGES[data], factor=0.1, fresh_optimizer=profile == "authors_code")

    small = "model_a" if profile == "authors_code" else "model_a_playground"
    assert found.architecture == (small if data == "stl10" else "vgg16")
    assert found.norm_scales == ("uniform" if profile == "authors_code" else "ones")

    if name in ("adv", "adv_bnn"):
        assert found.attack == PGD(Threat("linf", EPS[data]), steps=10, step_size=0.007, random_start=False)
    else:
        assert found.attack is None

    if name in ("bnn", "adv_bnn"):
        std, alpha = VARIATIONAL[profile, data][name == "adv_bnn"]
        assert found.network == Variational(prior_std=std, init_std=std)
        classifier_only = profile == "authors_code" and data != "stl10"
        assert found.objective == RobustELBO(alpha=alpha, kl_scope="classifier" if classifier_only else "all")
        assert found.optimizer == (Adam(lr=0.01) if profile == "authors_code" else SGD(lr=0.01, momentum=0.9))
    else:
        assert found.network == (Noisy(first=0.2, inner=0.1) if name == "rse" else Plain())
        assert found.objective == RobustELBO()
        assert found.optimizer == SGD(lr=0.01, momentum=0.9, weight_decay=5e-4)

    options = (found.clip, found.awp, found.averaging, found.early_stopping, found.objective.trades)
    assert options == (None,) * 5 and found.objective.kl_warmup == "constant"


def test_what_a_source_leaves_open_is_said() -> None:
    paper = defense("adv_bnn", "cifar10", "paper").chosen_by_us
    assert {"optimizer", "schedule", "batch_size", "attack.step_size", "network.init_std"} <= set(paper)
    assert "network.first" not in paper and "network.first" in defense("rse", "cifar10", "paper").chosen_by_us
    assert "attack.step_size" not in defense("none", "cifar10", "paper").chosen_by_us
    assert defense("adv_bnn", "cifar10", "authors_code").chosen_by_us == ()
    assert "network.prior_std" in defense("bnn", "cifar10", "authors_code").chosen_by_us


def test_profile_left_out() -> None:
    assert defense("adv", "stl10").profile == "authors_code"
    assert defense("adv", "digits").profile == "ours"


def test_overrides_change_parts_and_are_named() -> None:
    found = defense(
        "adv_bnn",
        "cifar10",
        batch_size=256,
        objective={"alpha": 0.5},
        attack={"threat": {"eps": "4/255"}, "eot": 3},
        optimizer="sgd",
        schedule={"kind": "cosine", "epochs": 30},
        early_stopping={"patience": 5},
        averaging=Averaging(decay=0.9),
        augment=True,
    )
    assert found.objective == RobustELBO(alpha=0.5, kl_scope="classifier")
    assert found.attack is not None and found.attack.threat.eps == 4 / 255
    assert (found.attack.steps, found.attack.eot) == (10, 3)
    assert (found.optimizer, found.schedule) == (SGD(), Cosine(epochs=30))
    assert found.early_stopping == EarlyStopping(patience=5) and found.averaging == Averaging(decay=0.9)
    assert set(found.changed) == {
        *("batch_size", "objective.alpha", "attack.threat.eps", "attack.eot"),
        *("optimizer", "schedule", "early_stopping", "averaging"),
    }
    assert defense("adv", "cifar10", attack=None).attack is None
    assert defense("none", "cifar10", attack={"kind": "pgd", "steps": 3}).attack == PGD(Threat(), steps=3)


@pytest.mark.parametrize("name", DEFENSES)
def test_build_is_decided_by_the_seed(name: str) -> None:
    one, same, other = (defense(name).build(classes=10, shape=(1, 8, 8), seed=seed) for seed in (0, 0, 1))
    weights = [list(net.state_dict().values()) for net in (one, same, other)]
    assert all(torch.equal(a, b) for a, b in zip(weights[0], weights[1], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(weights[0], weights[2], strict=True))
    assert isinstance(one, Bayesian) == ("bnn" in name)
    assert bool(noise_levels(one)) == (name == "rse")


def test_uniform_scales_follow_the_seed_too() -> None:
    value = defense("none", "digits", norm_scales="uniform")
    nets = [value.build(classes=10, shape=(1, 8, 8), seed=5) for _ in range(2)]
    scales = [torch.cat([m.weight for m in net.modules() if isinstance(m, nn.BatchNorm2d)]) for net in nets]
    assert torch.equal(*scales) and 0 < scales[0].min() < 0.2 and scales[0].max() < 1


def test_a_net_that_is_converted_already_is_left_alone() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten())
    bnn = bayesianize(copy.deepcopy(net), init_std=0.3)
    assert defense("adv_bnn").wrap(bnn) is bnn
    assert defense("none").wrap(net) is net
    noisy = defense("rse").wrap(net)
    assert noisy is not net and defense("rse").wrap(noisy) is noisy


def test_prior_mean_of_normalisation_scales() -> None:
    """At the initial network, scales of 1 diverge only from a prior around 0."""
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    nn.init.zeros_(net[0].weight), nn.init.zeros_(net[0].bias)
    around = {mean: Variational(norm_scale_mean=mean).wrap(copy.deepcopy(net)) for mean in (0.0, 1.0)}
    assert kl_divergence(around[1.0]).item() == pytest.approx(0, abs=1e-4)
    assert kl_divergence(around[0.0]).item() == pytest.approx(2 / (2 * 0.05**2), rel=1e-4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: defense("advbnn"), "did you mean 'adv_bnn'"),
        (lambda: defense("adv", "cifar"), "did you mean 'cifar10'"),
        (lambda: defense("adv", "cifar10", "papers"), "did you mean 'paper'"),
        (lambda: defense("adv", "digits", "paper"), "profile for digits"),
        (lambda: defense("adv", batchsize=3), "key='batchsize' is unknown.*did you mean 'batch_size'"),
        (lambda: defense("adv", attack={"step": 3}), "key='attack.step' is unknown.*did you mean 'attack.steps'"),
        (
            lambda: defense("none", attack={"steps": 3}),
            'attack.steps: attack is none here.*attack = {kind = "pgd", ...}',
        ),
        (lambda: defense("bnn", attack={"threat": {"eps": 0.1}}), "attack.threat: attack is none here.*leave it out"),
        (lambda: defense("rse", network={"prior_std": 1.0}), 'is for network.kind = "variational".*network is "noisy"'),
        (lambda: defense("adv", schedule={"fresh_optimizer": True}), 'is for schedule.kind = "stages", and here'),
        (lambda: defense("adv", network={"std": 1.0}), "key='network.std' is unknown: .*'network.prior_std'"),
        (lambda: defense("adv", optimizer="adma"), "optimizer.kind='adma' is unknown.*did you mean 'adam'"),
        (lambda: defense("adv", batch_size="big"), "batch_size: expected a whole number, got 'big'"),
        (lambda: defense("adv", batch_size=True), "batch_size: expected a whole number, got True"),
        (lambda: defense("adv", clip="x"), "clip: expected a number or \"none\", got 'x'"),
        (lambda: defense("adv", attack={"threat": {"eps": -1}}), "attack.threat: eps must be a radius"),
        (lambda: defense("adv", attack={"threat": {"bounds": [0.0]}}), "attack.threat.bounds: expected a list of 2"),
        (lambda: defense("adv", attack_mode="evaluate"), "did you mean 'eval'"),
        (lambda: defense("adv", norm_scales="one"), "did you mean 'ones'"),
        (lambda: defense("adv", clip=0.0), "clip must be positive"),
        (lambda: defense("none", objective={"trades": 6.0}), "there is no attack"),
        (lambda: defense("adv", objective={"trades": 6.0}, attack={"random_start": False}), "random_start=True"),
        (lambda: defense("adv", attack={"targeted": True}), "targeted=False"),
        (lambda: defense("adv", objective={"likelihood": Gaussian()}), "use loss='nll'"),
        (lambda: defense("bnn", optimizer=Langevin()), "samples the weights of a plain network"),
        (lambda: defense("adv").build(classes=10, shape=(3, 8, 9)), "square images"),
        (
            lambda: defense("adv", averaging=Averaging(start=3), schedule={"kind": "constant", "epochs": 3}),
            "averaging.start=3 is past the last epoch.*give at most 2",
        ),
        (
            lambda: defense("adv", averaging=Averaging(decay=None), early_stopping=EarlyStopping()),
            "the equal average needs its normalisation statistics.*give averaging.decay",
        ),
        (lambda: defense("adv", optimizer=Langevin(), early_stopping=EarlyStopping()), "early_stopping knows none"),
        (lambda: defense("adv", optimizer=Langevin(), averaging=Averaging()), "averaging knows none"),
        (lambda: Averaging(decay=1.0), "decay must lie in"),
        (lambda: EarlyStopping(fraction=1.0), "fraction must lie in"),
        (lambda: EarlyStopping(patience=0), "patience must be at least 1"),
        (lambda: Langevin(burn_in=0), "burn_in and every"),
        (lambda: SGD(lr=0.0), "lr must be positive, got 0.0"),
    ],
)
def test_bad_input(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_every_defence_is_a_value() -> None:
    values = [defense(name, data) for name in DEFENSES for data in DATASETS]
    assert len(set(map(repr, values))) == len(values)
    assert all(value == defense(value.name, data) for value, data in zip(values, 5 * DATASETS, strict=True))
    with pytest.raises(AttributeError):
        values[0].batch_size = 1  # type: ignore[misc]
    assert isinstance(Defense(), Defense) and issubclass(ConfigError, ValueError)
