"""Any network becomes a Bayesian one, keeps what it was, and says what it cannot become."""

import copy
import math
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from safetensors.torch import load_model, save_model
from torch import nn

from advbnn.bayes.mean_field import bayesianize
from advbnn.bayes.priors import GaussianPrior, ScaleMixturePrior, SpikeAndSlabPrior, unit_norm_scales
from advbnn.randomness import seeded
from small_nets import conv_net, images
from zoo import ZOO, Tied

zoo = pytest.mark.parametrize("kind", ZOO)


@zoo
def test_any_module_converts_and_is_random(kind: str) -> None:
    case = ZOO[kind]
    net, x = case.net(), case.x()
    bnn = bayesianize(net)
    assert bnn.net is net
    assert bnn.noise_size == sum(p.numel() for p in net.parameters())
    assert bnn(x).shape == net(x).shape
    assert not torch.equal(bnn(x), bnn(x))


@zoo
def test_without_spread_it_is_the_plain_network_bit_for_bit(kind: str) -> None:
    case = ZOO[kind]
    # torch chooses other recurrent kernels for weights that ask for gradients, so let neither network ask
    bnn, x = bayesianize(case.net()).eval().requires_grad_(False), case.x()
    with torch.no_grad():
        for log_std in bnn.log_std.parameters():
            log_std.fill_(-math.inf)
        assert torch.equal(bnn(x), bnn.net(x))
        with bnn.frozen(seed=0):
            assert torch.equal(bnn(x), bnn.net(x))


@zoo
def test_state_dict_deepcopy_pickle_and_safetensors_keep_the_network(kind: str, tmp_path) -> None:
    case = ZOO[kind]
    bnn, x = bayesianize(case.net()).eval(), case.x()
    with seeded(5):
        bnn(x)  # scratch memory exists and must not be stored
    with bnn.frozen(seed=1):
        expected = bnn(x)
        copies = {"deepcopy": copy.deepcopy(bnn), "pickle": pickle.loads(pickle.dumps(bnn))}
    assert all("eps" not in key and "workspace" not in key for key in bnn.state_dict())
    fresh = bayesianize(case.net()).eval()
    fresh.load_state_dict(bnn.state_dict())
    copies["state dict"] = fresh
    save_model(bnn, str(tmp_path / "weights.safetensors"))
    stored = bayesianize(case.net()).eval()
    load_model(stored, str(tmp_path / "weights.safetensors"))
    copies["safetensors"] = stored
    for how, twin in copies.items():
        assert not torch.equal(twin(x), twin(x)), f"{how} is frozen"
        with twin.frozen(seed=1):
            assert torch.equal(twin(x), expected), how


def test_where_chooses_and_the_rest_stays_deterministic() -> None:
    net = conv_net()
    bnn = bayesianize(net, where=lambda name, p: name.startswith("4.") and p.dim() == 2)
    assert [name for name, _, _ in bnn.posterior()] == ["4.weight"]
    assert bnn.noise_size == net[4].weight.numel()
    features = net[:4]
    assert torch.equal(features(images()), features(images()))
    assert not torch.equal(bnn(images()), bnn(images()))
    bnn(images()).sum().backward()
    assert net[0].weight.grad is not None  # deterministic, still trained


def test_initial_spread_may_differ_between_parameters() -> None:
    bnn = bayesianize(conv_net(), init_std={"*": 0.1, "4.weight": 0.2})
    spread = {name: s.exp().unique().item() for name, _, s in bnn.posterior()}
    assert spread["4.weight"] == pytest.approx(0.2)
    assert spread["0.weight"] == pytest.approx(0.1)
    by_function = bayesianize(conv_net(), init_std=lambda name, p: 0.01 + 0.1 * p.abs())
    _, mu, s = next(iter(by_function.posterior()))
    torch.testing.assert_close(s.exp(), 0.01 + 0.1 * mu.abs())


def test_a_deterministic_checkpoint_loads_strictly_as_the_means() -> None:
    torch.manual_seed(9)
    trained = conv_net().state_dict()
    bnn = bayesianize(conv_net())
    bnn.net.load_state_dict(trained, strict=True)
    for name, mu, _ in bnn.posterior():
        assert torch.equal(mu, trained[name])


def test_tied_weights_are_drawn_once() -> None:
    net = Tied()
    bnn = bayesianize(net)
    assert bnn.noise_size == 28
    seen = []
    net.head.register_forward_hook(lambda module, *_: seen.append((module.weight, net.embed.weight)))
    bnn(torch.zeros(1, 2, dtype=torch.long))
    assert seen[0][0] is seen[0][1]


@zoo
def test_a_forward_pass_leaves_the_network_as_it_was(kind: str) -> None:
    case = ZOO[kind]
    net = case.net().eval()
    before = {name: (p, p.detach().clone()) for name, p in net.named_parameters(remove_duplicate=False)}
    bayesianize(net)(case.x())
    for name, p in net.named_parameters(remove_duplicate=False):
        assert p is before[name][0]
        assert torch.equal(p, before[name][1])


def test_training_mode_updates_batchnorm_statistics_as_a_plain_network_does() -> None:
    bnn = bayesianize(conv_net()).train()
    plain = copy.deepcopy(bnn.net)
    with torch.no_grad():
        for s in bnn.log_std.parameters():
            s.fill_(-math.inf)
    bnn(images())
    plain(images())
    assert torch.equal(bnn.net[1].running_mean, plain[1].running_mean)
    assert bnn.net[1].num_batches_tracked == 1


@pytest.mark.parametrize("training", [True, False])
def test_converting_keeps_the_mode(training: bool) -> None:
    assert bayesianize(conv_net().train(training)).training is training


@pytest.mark.parametrize("std", [0.0, -0.1, math.nan, math.inf])
def test_refuses_a_spread_that_is_none(std: float) -> None:
    with pytest.raises(ValueError, match="init_std.*positive"):
        bayesianize(nn.Linear(2, 2), init_std=std)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"init_std": {"wieght": 1.0, "*": 0.1}}, "init_std names the parameter 'wieght'.*did you mean 'weight'"),
        ({"init_std": {"wieght": 1.0}}, "did you mean 'weight'"),
        ({"prior": GaussianPrior(mean={"wieght": 1.0})}, r"prior\.mean names the parameter 'wieght'.*'weight'"),
        ({"prior": GaussianPrior(std={"bais": 1.0, "*": 0.1})}, r"prior\.std names.*did you mean 'bias'"),
        ({"prior": ScaleMixturePrior(narrow_std={"b": 1.0, "*": 0.1})}, r"prior\.narrow_std names the parameter 'b'"),
        (
            {"prior": SpikeAndSlabPrior(spike_std={"weights": 1.0, "*": 0.1})},
            r"prior\.spike_std.*mean 'weight'",
        ),
    ],
)
def test_refuses_a_misspelt_name_of_a_parameter(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bayesianize(nn.Linear(2, 2), **options)


def test_a_name_may_be_that_of_a_parameter_which_is_not_random_or_has_two() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    prior = GaussianPrior(mean=unit_norm_scales(net))
    bnn = bayesianize(net, prior=prior, init_std={"2.weight": 0.1, "2.bias": 0.1, "0.bias": 0.3}, where=_of_last_layer)
    assert [name for name, _, _ in bnn.posterior()] == ["2.weight", "2.bias"]
    assert bayesianize(Tied(), init_std={"head.weight": 0.1, "*": 0.2}).noise_size == 28


def _of_last_layer(name: str, parameter: nn.Parameter) -> bool:
    return name.startswith("2.")


def test_a_prior_of_another_kind_may_map_what_it_likes() -> None:
    @dataclass(frozen=True)
    class Grouped:
        groups: Mapping[str, float]

        def kl(self, name: str, mu: torch.Tensor, log_std: torch.Tensor) -> torch.Tensor:
            return self.groups["weights"] * mu.square().sum()

    assert bayesianize(nn.Linear(2, 2), prior=Grouped({"weights": 1.0})).prior.groups == {"weights": 1.0}


def test_refuses_what_is_no_network() -> None:
    with pytest.raises(TypeError, match="net must be"):
        bayesianize("vgg16")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no parameters"):
        bayesianize(nn.ReLU())
    with pytest.raises(TypeError, match="prior must"):
        bayesianize(nn.Linear(2, 2), prior=0.05)  # type: ignore[arg-type]


def test_refuses_to_convert_twice() -> None:
    bnn = bayesianize(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="converted already"):
        bayesianize(bnn)
    with pytest.raises(ValueError, match="its part '1'"):
        bayesianize(nn.Sequential(nn.Linear(2, 2), bnn))


def test_refuses_means_that_are_not_numbers_and_names_them() -> None:
    net = conv_net()
    with torch.no_grad():
        net[4].bias[1] = math.nan
    with pytest.raises(ValueError, match=r"'4\.bias'.*NaN"):
        bayesianize(net)


def test_refuses_a_lazy_network() -> None:
    with pytest.raises(ValueError, match="lazy"):
        bayesianize(nn.LazyLinear(3))


def test_leaves_complex_and_integer_parameters_alone_and_says_so() -> None:
    net = nn.Linear(2, 2)
    net.phase = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    net.steps = nn.Parameter(torch.ones(2, dtype=torch.int64), requires_grad=False)
    with pytest.warns(UserWarning, match=r"phase \(complex64\), steps \(int64\)"):
        bnn = bayesianize(net)
    assert [name for name, _, _ in bnn.posterior()] == ["weight", "bias"]


def test_refuses_a_choice_of_nothing() -> None:
    with pytest.raises(ValueError, match="no parameter is chosen.*weight, bias"):
        bayesianize(nn.Linear(2, 2), where=lambda name, p: False)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.rand(1, 1, 8, 8, dtype=torch.float64), r"input 0 is torch.float64.*x.to\(torch.float32\)"),
        (torch.zeros(1, 1, 8, 8, dtype=torch.uint8), r"input 0 is torch.uint8.*in \[0, 1\]"),
        (torch.rand(1, 1, 8, 8, device="meta"), "input 0 is on meta.*cpu"),
    ],
)
def test_an_input_of_another_type_or_device_is_explained(x: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bayesianize(conv_net())(x)


def test_other_errors_of_the_network_pass_unchanged() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        bayesianize(nn.Linear(3, 2))(torch.rand(1, 4))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        bayesianize(nn.Sequential(nn.Embedding(5, 3), nn.Linear(4, 2)))(torch.zeros(1, 1, dtype=torch.long))
