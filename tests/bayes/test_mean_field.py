"""Mean-field networks: conversion of any network, weight samples and their gradients, function transforms."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from advbnn.bayes.mean_field import bayesianize
from advbnn.bayes.priors import GaussianPrior, ScaleMixturePrior, unit_norm_scales
from advbnn.models import build
from advbnn.modules import without_parameter_gradients
from advbnn.randomness import seeded
from small_nets import conv_net, images
from zoo import ZOO, Tied

zoo = pytest.mark.parametrize("kind", ZOO)


@zoo
def test_any_network_converts_and_is_random(kind: str) -> None:
    case = ZOO[kind]
    net, x = case.net(), case.x()
    before = {name: (p, p.detach().clone()) for name, p in net.named_parameters(remove_duplicate=False)}
    bnn = bayesianize(net)
    assert bnn.net is net and bnn.noise_size == sum(p.numel() for p in net.parameters())
    assert bnn(x).shape == net(x).shape
    assert not torch.equal(bnn(x), bnn(x))
    for name, p in net.named_parameters(remove_duplicate=False):  # a pass leaves the network as it was
        assert p is before[name][0] and torch.equal(p, before[name][1])


@zoo
@pytest.mark.parametrize("training", [True, False])
def test_with_zero_std_it_equals_the_plain_network_bit_for_bit(kind: str, training: bool) -> None:
    case = ZOO[kind]
    # torch uses other recurrent kernels for weights that require gradients
    bnn, x = bayesianize(case.net()).train(training).requires_grad_(False), case.x()
    plain = copy.deepcopy(bnn.net)
    for log_std in bnn.log_std.parameters():
        log_std.fill_(-math.inf)
    assert torch.equal(bnn(x), plain(x))
    assert all(torch.equal(a, b) for a, b in zip(bnn.buffers(), plain.buffers(), strict=True))  # running statistics


@zoo
def test_all_ways_to_use_a_noise_vector_give_the_same_bits(kind: str) -> None:
    case = ZOO[kind]
    bnn, x = bayesianize(case.net()).eval(), case.x()
    eps = bnn.noise(seed=3)[0]
    with torch.no_grad(), seeded(3):
        assert torch.equal(bnn(x), bnn.run(bnn.sample(eps), x))
    with seeded(3):
        differentiable = bnn.sample()
    with seeded(3), without_parameter_gradients(bnn):
        bare = bnn.sample()
    for name, weight in bnn.sample(eps).items():
        assert torch.equal(differentiable[name], weight) and torch.equal(bare[name], weight)


def test_where_chooses_and_the_rest_stays_deterministic() -> None:
    net = conv_net()
    bnn = bayesianize(net, where=lambda name, p: name.startswith("4.") and p.dim() == 2)
    assert [name for name, _, _ in bnn.posterior()] == ["4.weight"]
    assert bnn.noise_size == net[4].weight.numel()
    bnn(images()).sum().backward()
    assert net[0].weight.grad is not None  # deterministic, still trained


def test_initial_std_may_differ_between_parameters() -> None:
    bnn = bayesianize(conv_net(), init_std={"*": 0.1, "4.weight": 0.2})
    std = {name: s.exp().unique().item() for name, _, s in bnn.posterior()}
    assert std["4.weight"] == pytest.approx(0.2) and std["0.weight"] == pytest.approx(0.1)
    by_function = bayesianize(conv_net(), init_std=lambda name, p: 0.01 + 0.1 * p.abs())
    _, mu, s = next(iter(by_function.posterior()))
    torch.testing.assert_close(s.exp(), 0.01 + 0.1 * mu.abs())


def test_samples_have_the_posterior_mean_and_std_and_are_independent() -> None:
    n = 2000
    bnn = bayesianize(conv_net(), init_std=0.3)
    torch.manual_seed(0)
    flat = torch.stack([torch.cat([w.flatten() for w in bnn.sample().values()]) for _ in range(n)]).detach()
    mean = torch.cat([mu.flatten() for _, mu, _ in bnn.posterior()]).detach()
    # six standard errors of a mean, a standard deviation and a correlation
    assert (flat.mean(0) - mean).abs().max() < 6 * 0.3 / math.sqrt(n)
    assert (flat.std(0) / 0.3 - 1).abs().max() < 6 / math.sqrt(2 * n)
    assert (torch.corrcoef(flat.T[:60]) - torch.eye(60)).abs().max() < 6 / math.sqrt(n)


def test_many_forward_passes_before_one_backward_give_exact_gradients() -> None:
    passes = 20
    bnn, x = bayesianize(nn.Linear(3, 2, dtype=torch.float64)), torch.rand(4, 3, dtype=torch.float64)
    with seeded(7):
        torch.stack([bnn(x).square().sum() for _ in range(passes)]).mean().backward()
    grads = {name: (mu.grad, s.grad) for name, mu, s in bnn.posterior()}
    bnn.zero_grad()
    rows = bnn.noise(passes, seed=7)
    torch.stack([functional_call(bnn.net, bnn.sample(e), (x,)).square().sum() for e in rows]).mean().backward()
    for name, mu, s in bnn.posterior():
        torch.testing.assert_close(grads[name], (mu.grad, s.grad), rtol=1e-12, atol=1e-12)


def test_gradients_equal_the_reparameterisation_formula() -> None:
    """Eq. 11: d/dmu = dh/dw and d/ds = exp(s) * eps * dh/dw."""
    bnn, x = bayesianize(conv_net().double()), images().double()
    eps = bnn.noise(seed=2)[0]
    with seeded(2):
        bnn(x).square().sum().backward()
    weights = {name: w.detach().requires_grad_() for name, w in bnn.sample(eps).items()}
    by_weight = torch.autograd.grad(functional_call(bnn.net, weights, (x,)).square().sum(), list(weights.values()))
    pieces = eps.split([w.numel() for w in weights.values()])
    for (_, mu, s), grad, piece in zip(bnn.posterior(), by_weight, pieces, strict=True):
        torch.testing.assert_close(mu.grad, grad)
        torch.testing.assert_close(s.grad, s.exp() * piece.view(s.shape).double() * grad)


def test_noise_rows_and_antithetic_pairs() -> None:
    bnn = bayesianize(conv_net())
    before = torch.get_rng_state()
    assert torch.equal(bnn.noise(5, seed=1)[:3], bnn.noise(3, seed=1))
    assert not torch.equal(bnn.noise(seed=1), bnn.noise(seed=2))
    eps = bnn.noise(6, seed=0, antithetic=True)
    assert eps.shape == (6, bnn.noise_size)
    assert torch.equal(eps[0::2], -eps[1::2]) and not torch.equal(eps[0], eps[2])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_precisions(dtype: torch.dtype) -> None:
    bnn, x = bayesianize(conv_net().to(dtype)), images().to(dtype)
    with seeded(0):
        out = bnn(x)
    assert out.dtype == dtype
    out.float().square().sum().backward()
    assert all(s.grad is not None and s.grad.dtype == dtype for s in bnn.log_std.parameters())
    with bnn.frozen(seed=0):
        assert torch.equal(bnn(x), out)


def test_one_network_may_have_parameters_of_several_precisions() -> None:
    net = nn.Sequential(nn.Linear(4, 4).bfloat16(), nn.Linear(4, 2).bfloat16())
    net[1].bias = nn.Parameter(net[1].bias.float())
    dtypes = {name: w.dtype for name, w in bayesianize(net).sample().items()}
    assert dtypes["1.bias"] == torch.float32 and dtypes["0.weight"] == torch.bfloat16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"init_std": 0.0}, "init_std .*0.0"),
        ({"init_std": {"wieght": 1.0}}, "init_std.*'wieght'.*'weight'"),
        ({"prior": GaussianPrior(mean={"wieght": 1.0})}, r"prior\.mean.*'wieght'.*'weight'"),
        ({"prior": ScaleMixturePrior(narrow_std={"bais": 1.0, "*": 0.1})}, r"prior\.narrow_std.*'bais'.*'bias'"),
        ({"where": lambda name, p: False}, "no parameter is chosen.*weight, bias"),
    ],
)
def test_options_that_do_not_fit_the_network_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bayesianize(nn.Linear(2, 2), **options)


def test_names_of_deterministic_and_tied_parameters_are_accepted() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    prior, std = GaussianPrior(mean=unit_norm_scales(net)), {"2.weight": 0.1, "2.bias": 0.1, "0.bias": 0.3}
    bnn = bayesianize(net, prior=prior, init_std=std, where=lambda name, p: name.startswith("2."))
    assert [name for name, _, _ in bnn.posterior()] == ["2.weight", "2.bias"]
    assert bayesianize(Tied(), init_std={"head.weight": 0.1, "*": 0.2}).noise_size == 28


def test_networks_that_cannot_be_converted_are_refused() -> None:
    broken = conv_net()
    with torch.no_grad():
        broken[4].bias[1] = math.nan
    for net, message in ((nn.ReLU(), "no parameters"), (nn.LazyLinear(3), "lazy"), (broken, r"'4\.bias'.*NaN")):
        with pytest.raises(ValueError, match=message):
            bayesianize(net)
    with pytest.raises(TypeError, match="prior must"):
        bayesianize(nn.Linear(2, 2), prior=0.05)  # type: ignore[arg-type]


def test_integer_parameters_stay_deterministic() -> None:
    net = nn.Linear(2, 2)
    net.steps = nn.Parameter(torch.ones(2, dtype=torch.int64), requires_grad=False)
    assert [name for name, _, _ in bayesianize(net).posterior()] == ["weight", "bias"]


def test_noise_of_another_length_is_refused() -> None:
    bnn = bayesianize(nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"eps.*6 random weights.*\(5,\)"):
        bnn.sample(torch.zeros(5))
    with pytest.raises(ValueError, match="even"):
        bnn.noise(3, antithetic=True)


def test_vmap_over_noise_equals_the_loop() -> None:
    bnn, x = bayesianize(conv_net().double()), images().double()
    eps = bnn.noise(4, seed=0)
    at_once = vmap(lambda e: bnn.run(bnn.sample(e), x))(eps)
    torch.testing.assert_close(at_once, torch.stack([bnn.run(bnn.sample(e), x) for e in eps]), rtol=1e-12, atol=1e-12)
    fresh = vmap(lambda _: bnn(x), randomness="different")(torch.arange(3))
    assert not torch.equal(fresh[0], fresh[1])


@pytest.mark.parametrize("training", [True, False])
def test_compiles_into_one_graph(training: bool) -> None:
    bnn, x = bayesianize(conv_net()).train(training), images()
    compiled = torch.compile(bnn, fullgraph=True, backend="aot_eager")
    assert not torch.equal(compiled(x), compiled(x))
    assert bnn.net[1].num_batches_tracked == (2 if training else 0)
    compiled(x).square().sum().backward()
    assert all(p.grad is not None for p in bnn.parameters())
    with bnn.frozen(seed=1):
        torch.testing.assert_close(compiled(x), bnn(x), rtol=1e-5, atol=1e-5)


class CountOps(TorchDispatchMode):
    """Counts all operations of torch."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def attack_iteration(model: nn.Module) -> int:
    x: Tensor = torch.rand(1, 3, 32, 32, requires_grad=True)
    with CountOps() as ops:
        loss = functional.cross_entropy(model(x), torch.zeros(1, dtype=torch.long), reduction="sum")
        torch.autograd.grad(loss, x)
    return ops.count


def test_an_attack_iteration_costs_few_operations_more_than_the_plain_network() -> None:
    net = build("vgg16", classes=10, image_size=32).eval()
    plain, bnn = attack_iteration(net), bayesianize(net)
    attack_iteration(bnn)  # allocates the noise vector
    assert attack_iteration(bnn) - plain <= 10
    with without_parameter_gradients(bnn):
        assert attack_iteration(bnn) - plain <= 10


def test_a_deterministic_checkpoint_loads_strictly_as_the_means() -> None:
    torch.manual_seed(9)
    trained = conv_net().state_dict()
    bnn = bayesianize(conv_net())
    bnn.net.load_state_dict(trained, strict=True)
    assert all(torch.equal(mu, trained[name]) for name, mu, _ in bnn.posterior())
