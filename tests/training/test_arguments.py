"""Networks, data and defences that do not fit together are refused before training."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from advbnn.bayes.likelihoods import Gaussian
from advbnn.bayes.mean_field import bayesianize
from advbnn.bayes.modes import Modes
from advbnn.bayes.protocol import RandomNetwork, Weights
from advbnn.bayes.sample_bank import SampleBank
from advbnn.bayes.swag import SWAG
from advbnn.data import Splits, from_tensors
from advbnn.defenses.objective import RobustELBO
from advbnn.defenses.optimizers import AdamOptimizer, LangevinSampler
from advbnn.errors import ArgumentError, ArgumentTypeError
from advbnn.training.loop import fit
from advbnn.training.mode_plan import ModePlan
from quick import quick


def few(inputs: Tensor, targets: Tensor) -> Splits[Any]:
    examples = from_tensors(inputs, targets, name="mine")
    return Splits(examples, examples)


FLAT = few(torch.rand(20, 12), torch.arange(20) % 4)
REAL = few(torch.rand(20, 12), torch.rand(20, 1))
IMAGES = few(torch.rand(20, 3, 8, 8), torch.arange(20) % 4)
DOUBLE = few(torch.rand(20, 12).double(), torch.arange(20) % 4)
GOOD = {"weight": torch.zeros(4, 12), "bias": torch.zeros(4)}


@pytest.mark.parametrize(
    ("net", "splits", "error", "message"),
    [
        (nn.Conv2d(1, 4, 3), IMAGES, ValueError, r"net .*inputs of mine, torch.float32 of shape \[2, 3, 8, 8\]"),
        (nn.Linear(12, 4), DOUBLE, TypeError, r"torch.float64 of .*weights are torch.float32"),
        (nn.Linear(12, 3), FLAT, ValueError, "label 3.*3 classes"),
        (nn.Sequential(nn.Linear(12, 4), nn.Softmax(1)), FLAT, ValueError, "probabilities"),
        (nn.Linear(12, 1), REAL, ValueError, r"objective.likelihood to Gaussian\(\)"),
        (nn.Flatten(0), FLAT, ValueError, "net must have parameters"),
        (nn.Linear(12, 4).requires_grad_(False), FLAT, ValueError, "net must have parameters.*requires_grad_"),
        (Modes([nn.Linear(12, 4), nn.Linear(12, 4)]), FLAT, ValueError, "net is a mixture.*modes="),
        (SampleBank(nn.Linear(12, 4)), FLAT, ValueError, "net holds a SampleBank.*plain network, net.net"),
        (nn.Sequential(SWAG(nn.Linear(12, 4))), FLAT, ValueError, "net holds a SWAG.*plain network, net.0.net"),
        (lambda x: x, FLAT, TypeError, "net must be a torch.nn.Module.*function"),
        (nn.Linear(12, 4), FLAT.train, TypeError, r"data must be Splits.*TensorSet.*from_tensors"),
    ],
)
def test_a_network_that_does_not_fit_the_data(net: Any, splits: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        fit(net, splits, quick("none"))


@pytest.mark.parametrize("init", [{"state_dict": {}}, [{}, 3], 3], ids=["nested", "a number in a list", "a number"])
def test_initial_weights_are_files_or_tensors_by_name(tmp_path: Path, init: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="init must"):
        fit(nn.Linear(12, 4), FLAT, quick("none"), init=init, modes=2, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("how", "init"),
    [
        (ModePlan(count=2), [GOOD, {"weight": torch.zeros(4, 3), "bias": torch.zeros(4)}]),
        (ModePlan(count=2, how="snapshots"), [GOOD, GOOD]),
        (ModePlan(count=2, how="branches", trunk=1), [GOOD, GOOD]),
    ],
    ids=["the second does not fit", "snapshots", "branches"],
)
def test_all_initial_weights_are_tried_before_the_first_mode_trains(tmp_path: Path, how: ModePlan, init: Any) -> None:
    with pytest.raises(ArgumentError, match="init"):
        fit(nn.Linear(12, 4), FLAT, quick("none"), init=init, modes=how, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_second_network_that_learns_attacked_images_needs_them_in_memory(tmp_path: Path) -> None:
    batches = [(FLAT.train.inputs, FLAT.train.targets)] * 2
    with pytest.raises(ArgumentError, match="boosted.*Splits"):
        fit(nn.Linear(12, 4), batches, quick("adv"), modes=ModePlan(count=2, how="boosted"), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_parameters_of_a_defence_are_trained_on_a_frozen_network() -> None:
    frozen = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 4)).requires_grad_(False)
    model = fit(frozen, IMAGES, quick("pni")).model
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert trained and all(name.endswith("alpha") for name in trained)


def test_a_defence_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"Gaussian likelihood.*Categorical\(\)"):
        fit(nn.Linear(12, 4), FLAT, quick("none", objective=RobustELBO(likelihood=Gaussian())))
    with pytest.raises(TypeError, match=r"defense .*'adv_bnn'.*advbnn.defense\("):
        fit(nn.Linear(12, 4), FLAT, "adv_bnn")


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [(LangevinSampler(burn_in=1), "Langevin.*Bayesian"), (AdamOptimizer(weight_decay=0.01), "set weight_decay to 0")],
)
def test_an_optimizer_that_does_not_fit_random_weights(optimizer: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit(bayesianize(nn.Linear(12, 4)), FLAT, quick("adv", optimizer=optimizer))


@pytest.mark.parametrize("name", ["none", "adv_bnn"])
def test_a_last_batch_of_one_needs_batchnorm_to_see_several_values(name: str) -> None:
    def dense() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.BatchNorm1d(5), nn.Linear(5, 4))

    value = quick(name, batch_size=19)  # of 20
    net = dense()
    with pytest.raises(ArgumentError, match="batch_size=19 .*BatchNorm.*drop_last"):
        fit(net, FLAT, value)
    assert int(net[2].num_batches_tracked) == 0
    assert fit(dense(), FLAT, quick(name, batch_size=19, drop_last=True)).steps == 2
    frozen = dense()
    frozen[2].eval()
    assert fit(frozen, FLAT, value).steps == 4
    convolution = nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 4))
    assert fit(convolution, IMAGES, value).steps == 4  # 36 values of one image per channel


class _Scaled(RandomNetwork):
    """A family of its own: all weights times one random number, N(1, std^2)."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net)
        self.log_std = nn.Parameter(torch.tensor(-3.0))

    def sample(self) -> Weights:
        scale = 1 + self.log_std.exp() * torch.randn(())
        return {name: scale * parameter for name, parameter in self.net.named_parameters()}


class _Penalized(_Scaled):
    def penalty(self) -> Tensor:
        return self.log_std.exp() ** 2 / 2 - self.log_std


def test_a_family_of_its_own_is_trained_with_a_kl_of_its_own() -> None:
    torch.manual_seed(0)
    value = quick("bnn", optimizer=AdamOptimizer(lr=0.1))
    with pytest.raises(ArgumentError, match=r"net has no KL.*penalty\(\)"):
        fit(_Scaled(nn.Linear(12, 4)), FLAT, value)
    fit(_Scaled(nn.Linear(12, 4)), FLAT, quick("none"))
    model = _Penalized(nn.Linear(12, 4))
    assert fit(model, FLAT, value).model is model
    assert model.log_std > -3  # towards the prior
