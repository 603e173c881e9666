"""The numbers of the profiles against those that the paper and its code give."""

import pytest

from advbnn.attacks import PGD
from advbnn.attacks.threat import Threat
from advbnn.defenses.defense import Averaging, EarlyStopping
from advbnn.defenses.networks import Noisy, Plain, Variational
from advbnn.defenses.objective import RobustELBO
from advbnn.defenses.optimizers import AdamOptimizer, SGDOptimizer
from advbnn.defenses.profiles import DEFENSES, defense
from advbnn.defenses.schedules import Cosine, Stages

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


@pytest.mark.parametrize(("profile", "data"), VARIATIONAL)
@pytest.mark.parametrize("name", DEFENSES)
def test_hyper_parameters_of_the_profiles(name: str, profile: str, data: str) -> None:
    found, authors = defense(name, data, profile), profile == "authors_code"
    assert (found.name, found.profile, found.changed) == (name, profile, ())
    assert found.batch_size == 128 and found.augment and found.attack_mode == "eval"
    assert found.schedule == Stages(epochs=STAGES[data], factor=0.1, fresh_optimizer=authors)
    small = "model_a" if authors else "model_a_playground"
    assert found.architecture == (small if data == "stl10" else "vgg16")
    assert found.norm_scales == ("uniform" if authors else "ones")
    pgd = PGD(Threat("linf", EPS[data]), steps=10, step_size=0.007, random_start=False)
    assert found.attack == (pgd if "adv" in name else None)
    if "bnn" in name:
        std, alpha = VARIATIONAL[profile, data][name == "adv_bnn"]
        assert found.network == Variational(prior_std=std, init_std=std)
        scope = "classifier" if authors and data != "stl10" else "all"
        assert found.objective == RobustELBO(alpha=alpha, kl_scope=scope)
        assert found.optimizer == (AdamOptimizer(lr=0.01) if authors else SGDOptimizer(lr=0.01, momentum=0.9))
    else:
        assert found.network == (Noisy(first=0.2, inner=0.1) if name == "rse" else Plain())
        assert found.objective == RobustELBO()
        assert found.optimizer == SGDOptimizer(lr=0.01, momentum=0.9, weight_decay=5e-4)
    assert (found.clip, found.awp, found.averaging, found.early_stopping) == (None,) * 4


def test_settings_that_a_source_leaves_open_are_named() -> None:
    paper = defense("adv_bnn", "cifar10", "paper").chosen_by_us
    assert {"optimizer", "schedule", "batch_size", "attack.step_size", "network.init_std"} <= set(paper)
    assert "network.first" not in paper and "network.first" in defense("rse", "cifar10", "paper").chosen_by_us
    assert "attack.step_size" not in defense("none", "cifar10", "paper").chosen_by_us
    assert defense("adv_bnn", "cifar10", "authors_code").chosen_by_us == ()
    assert "network.prior_std" in defense("bnn", "cifar10", "authors_code").chosen_by_us


def test_the_default_profile() -> None:
    assert defense("adv", "stl10").profile == "authors_code"
    assert defense("adv", "digits").profile == "ours"


def test_changed_names_what_differs_from_the_profile() -> None:
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
        augment=True,  # as it is
    )
    assert found.objective == RobustELBO(alpha=0.5, kl_scope="classifier")
    assert (found.optimizer, found.schedule) == (SGDOptimizer(), Cosine(epochs=30))
    assert found.early_stopping == EarlyStopping(patience=5) and found.averaging == Averaging(decay=0.9)
    assert set(found.changed) == {
        *("batch_size", "objective.alpha", "attack.threat.eps", "attack.eot"),
        *("optimizer", "schedule", "early_stopping", "averaging"),
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("advbnn",), "name='advbnn'.*'adv_bnn'"),
        (("adv", "cifar"), "data='cifar'.*'cifar10'"),
        (("adv", "cifar10", "papers"), "profile.*'paper'"),
        (("adv", "digits", "paper"), "profile for digits"),
    ],
)
def test_unknown_names_are_refused(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        defense(*arguments)
