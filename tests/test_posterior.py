"""Conversion, draws, freezing and the divergence: what a network with random weights must be."""

import copy
import math
import pickle
from collections import Counter

import pytest
import torch
from safetensors.torch import load_model, save_model
from torch import nn
from torch.func import functional_call, vmap
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from advbnn.models import build
from advbnn.modes import without_parameter_gradients
from advbnn.posterior import Bayesian, bayesianize, kl_divergence
from advbnn.priors import GaussianPrior, unit_norm_scales
from advbnn.rng import seeded
from zoo import ZOO, Tied

zoo = pytest.mark.parametrize("kind", ZOO)


def small_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 6, 3)).eval()


def images(n: int = 5) -> torch.Tensor:
    return torch.rand(n, 1, 8, 8, generator=torch.Generator().manual_seed(1))


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
def test_same_noise_gives_the_same_bits_and_every_path_agrees(kind: str) -> None:
    case = ZOO[kind]
    bnn, x = bayesianize(case.net()).eval(), case.x()
    eps = bnn.noise(seed=3)[0]
    with torch.no_grad():
        with bnn.frozen(eps=eps):
            first = bnn(x)
        with bnn.frozen(seed=3):
            assert torch.equal(bnn(x), first)
        assert torch.equal(bnn.run(bnn.sample(eps), x), first)
    with seeded(3):
        recording = bnn.sample()
    with seeded(3), without_parameter_gradients(bnn):
        bare = bnn.sample()
    for name, weight in bnn.sample(eps).items():
        assert torch.equal(recording[name], weight)
        assert torch.equal(bare[name], weight)
    with seeded(3), torch.no_grad():
        assert torch.equal(bnn(x), first)


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


def test_draws_have_the_posterior_mean_and_spread() -> None:
    bnn = bayesianize(small_net(), init_std=0.3)
    draws = [bnn.sample() for _ in range(2000)]
    for name, mu, s in bnn.posterior():
        w = torch.stack([d[name] for d in draws]).detach()
        standard_error = 0.3 / math.sqrt(len(draws))
        assert (w.mean(0) - mu).abs().max() < 5.5 * standard_error
        assert ((w.std(0) / s.exp()) - 1).abs().max() < 0.12
    flat = torch.stack([torch.cat([w.flatten() for w in d.values()]) for d in draws[:400]])
    correlation = torch.corrcoef(flat.T[:60])
    assert (correlation - torch.eye(60)).abs().max() < 0.25  # coordinates are independent


@pytest.mark.parametrize("passes", [2, 10, 100])
def test_many_forward_passes_before_one_backward_give_exact_gradients(passes: int) -> None:
    bnn, x = bayesianize(nn.Linear(3, 2, dtype=torch.float64)), torch.rand(4, 3, dtype=torch.float64)
    with seeded(7):
        torch.stack([bnn(x).square().sum() for _ in range(passes)]).mean().backward()
    grads = {name: (mu.grad, s.grad) for name, mu, s in bnn.posterior()}
    bnn.zero_grad()
    reference = torch.stack(
        [functional_call(bnn.net, bnn.sample(e), (x,)).square().sum() for e in bnn.noise(passes, seed=7)]
    )
    reference.mean().backward()
    for name, mu, s in bnn.posterior():
        torch.testing.assert_close(grads[name], (mu.grad, s.grad), rtol=1e-12, atol=1e-12)


def test_gradients_equal_the_reparameterisation_formula() -> None:
    """Eq. 11: d/dmu = dh/dw and d/ds = exp(s) * eps * dh/dw."""
    bnn, x = bayesianize(small_net().double()), images().double()
    eps = bnn.noise(seed=2)[0]
    with seeded(2):
        bnn(x).square().sum().backward()
    weights = {name: w.detach().requires_grad_() for name, w in bnn.sample(eps).items()}
    by_weight = torch.autograd.grad(functional_call(bnn.net, weights, (x,)).square().sum(), list(weights.values()))
    pieces = eps.split([w.numel() for w in weights.values()])
    for (_, mu, s), grad, piece in zip(bnn.posterior(), by_weight, pieces, strict=True):
        torch.testing.assert_close(mu.grad, grad)
        torch.testing.assert_close(s.grad, s.exp() * piece.view(s.shape).double() * grad)


def test_noise_rows_do_not_depend_on_how_many_are_drawn() -> None:
    bnn = bayesianize(small_net())
    assert torch.equal(bnn.noise(5, seed=1)[:3], bnn.noise(3, seed=1))
    assert not torch.equal(bnn.noise(seed=1), bnn.noise(seed=2))
    assert bnn.noise(4).shape == (4, bnn.noise_size)


def test_antithetic_noise_comes_in_opposite_pairs() -> None:
    bnn = bayesianize(small_net())
    eps = bnn.noise(6, seed=0, antithetic=True)
    assert torch.equal(eps[0::2], -eps[1::2])
    assert not torch.equal(eps[0], eps[2])


def test_seeded_noise_and_frozen_leave_the_global_random_state_alone() -> None:
    bnn = bayesianize(small_net())
    before = torch.get_rng_state()
    bnn.noise(3, seed=1)
    with bnn.frozen(seed=4):
        bnn(images())
    assert torch.equal(torch.get_rng_state(), before)


def test_frozen_blocks_nest_and_end_when_the_block_raises() -> None:
    bnn, x = bayesianize(small_net()), images()
    with bnn.frozen(seed=1) as same:
        assert same is bnn
        outer = bnn(x)
        with bnn.frozen(seed=2):
            assert not torch.equal(bnn(x), outer)
        assert torch.equal(bnn(x), outer)
        assert not outer.requires_grad
    with pytest.raises(KeyError), bnn.frozen(seed=1):
        raise KeyError
    assert not torch.equal(bnn(x), bnn(x))


def test_where_chooses_and_the_rest_stays_deterministic() -> None:
    net = small_net()
    bnn = bayesianize(net, where=lambda name, p: name.startswith("4.") and p.dim() == 2)
    assert [name for name, _, _ in bnn.posterior()] == ["4.weight"]
    assert bnn.noise_size == net[4].weight.numel()
    features = net[:4]
    assert torch.equal(features(images()), features(images()))
    assert not torch.equal(bnn(images()), bnn(images()))
    bnn(images()).sum().backward()
    assert net[0].weight.grad is not None  # deterministic, still trained


def test_initial_spread_may_differ_between_parameters() -> None:
    bnn = bayesianize(small_net(), init_std={"*": 0.1, "4.weight": 0.2})
    spread = {name: s.exp().unique().item() for name, _, s in bnn.posterior()}
    assert spread["4.weight"] == pytest.approx(0.2)
    assert spread["0.weight"] == pytest.approx(0.1)
    by_function = bayesianize(small_net(), init_std=lambda name, p: 0.01 + 0.1 * p.abs())
    _, mu, s = next(iter(by_function.posterior()))
    torch.testing.assert_close(s.exp(), 0.01 + 0.1 * mu.abs())


def test_a_deterministic_checkpoint_loads_strictly_as_the_means() -> None:
    torch.manual_seed(9)
    trained = small_net().state_dict()
    bnn = bayesianize(small_net())
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
    bnn = bayesianize(small_net()).train()
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
    assert bayesianize(small_net().train(training)).training is training


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_precisions(dtype: torch.dtype) -> None:
    bnn, x = bayesianize(small_net().to(dtype)), images().to(dtype)
    with seeded(0):
        out = bnn(x)
    assert out.dtype == dtype
    out.float().square().sum().backward()
    assert all(s.grad is not None and s.grad.dtype == dtype for s in bnn.log_std.parameters())
    assert kl_divergence(bnn).dtype in (torch.float32, torch.float64)
    with bnn.frozen(seed=0):
        assert torch.equal(bnn(x), out)


def test_parameters_of_several_precisions_in_one_network() -> None:
    net = nn.Sequential(nn.Linear(4, 4).bfloat16(), nn.Flatten(), nn.Linear(4, 2).bfloat16())
    net[2].bias = nn.Parameter(net[2].bias.float())
    bnn = bayesianize(net, where=lambda name, p: True)
    dtypes = {name: w.dtype for name, w in bnn.sample().items()}
    assert dtypes["2.bias"] == torch.float32
    assert dtypes["0.weight"] == torch.bfloat16


def test_vmap_over_draws_equals_the_loop() -> None:
    bnn, x = bayesianize(small_net().double()), images().double()
    eps = bnn.noise(4, seed=0)
    at_once = vmap(lambda e: bnn.run(bnn.sample(e), x))(eps)
    one_by_one = torch.stack([bnn.run(bnn.sample(e), x) for e in eps])
    torch.testing.assert_close(at_once, one_by_one, rtol=1e-12, atol=1e-12)


def test_vmap_with_fresh_noise_draws_apart() -> None:
    bnn, x = bayesianize(small_net()), images()
    outputs = vmap(lambda _: bnn(x), randomness="different")(torch.arange(3))
    assert not torch.equal(outputs[0], outputs[1])


def test_function_transforms_differentiate_the_input() -> None:
    bnn, x = bayesianize(small_net().double()), images().double()
    with bnn.frozen(seed=0):
        by_transform = torch.func.grad(lambda z: bnn(z).square().sum())(x)
        leaf = x.clone().requires_grad_()
        torch.testing.assert_close(by_transform, torch.autograd.grad(bnn(leaf).square().sum(), leaf)[0])
    assert torch.func.grad(lambda z: bnn(z).sum())(x).shape == x.shape


def test_compiles_into_one_graph() -> None:
    bnn, x = bayesianize(small_net()), images()
    compiled = torch.compile(bnn, fullgraph=True, backend="aot_eager")
    assert not torch.equal(compiled(x), compiled(x))
    compiled(x).sum().backward()
    assert all(p.grad is not None for p in bnn.parameters())
    with bnn.frozen(seed=1):
        torch.testing.assert_close(compiled(x), bnn(x), rtol=1e-5, atol=1e-5)


class Ops(TorchDispatchMode):
    """Counts operations that do work; views, detaching and bare allocation do none."""

    FREE = ("detach", "view", "t", "empty", "split_with_sizes", "_unsafe_view", "alias")

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.all = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().removeprefix("aten::").split(".")[0]
        self.all += 1
        if name not in self.FREE:
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


def attack_iteration(model: nn.Module) -> Ops:
    x = torch.rand(1, 3, 32, 32, requires_grad=True)
    with Ops() as ops:
        loss = functional.cross_entropy(model(x), torch.zeros(1, dtype=torch.long), reduction="sum")
        torch.autograd.grad(loss, x)
    return ops


def test_an_attack_iteration_costs_few_operations_more_than_the_plain_network() -> None:
    net = build("vgg16", classes=10, image_size=32).eval()
    plain = attack_iteration(net)
    bnn = bayesianize(net)
    attack_iteration(bnn)
    random = attack_iteration(bnn)
    assert sum(random.counts.values()) <= 110
    assert random.all - plain.all <= 7
    with without_parameter_gradients(bnn):
        assert attack_iteration(bnn).all - plain.all <= 6


# -- divergence --------------------------------------------------------------------------------------------


def reference_kl(bnn: Bayesian, std: float = 0.05) -> torch.Tensor:
    return sum(
        torch.distributions.kl_divergence(
            torch.distributions.Normal(mu, s.exp()), torch.distributions.Normal(torch.zeros_like(mu), std)
        ).sum()
        for _, mu, s in bnn.posterior()
    )


def test_divergence_covers_every_random_weight() -> None:
    bnn = bayesianize(small_net().double(), init_std=0.07)
    torch.testing.assert_close(kl_divergence(bnn), reference_kl(bnn))


def test_divergence_of_vgg_by_scope() -> None:
    """The authors' VGG returns the divergence of 5,130 weights out of 14.7 million."""
    net = build("vgg16", classes=10, image_size=32)
    bnn = bayesianize(net)
    classifier = sum(
        ((p.detach().double() / 0.05) ** 2 / 2).sum() for p in net.classifier.parameters()
    )  # equal spreads: only the means count
    assert kl_divergence(bnn, scope="classifier").item() == pytest.approx(classifier.item(), rel=1e-5)
    assert kl_divergence(bnn).item() > 500 * classifier.item()
    convolutions = kl_divergence(bnn, scope=lambda name, p: p.dim() == 4)
    rest = kl_divergence(bnn, scope=lambda name, p: p.dim() != 4)
    torch.testing.assert_close(convolutions + rest, kl_divergence(bnn))


def test_prior_mean_one_takes_the_batchnorm_scales_out_of_the_divergence() -> None:
    net = build("vgg16", classes=10, image_size=32)
    centred = bayesianize(net, prior=GaussianPrior(std=0.05, mean=unit_norm_scales(net)))
    plain = kl_divergence(bayesianize(net))
    scales = 4224  # BatchNorm scales of VGG16, each 1 and so 1 / (2 * 0.05^2) = 200 from a prior at 0
    share = (plain - kl_divergence(centred)).item()
    assert share == pytest.approx(scales * 200, rel=1e-4)
    assert share > 0.5 * plain.item()


def test_divergence_does_not_depend_on_forward_passes() -> None:
    bnn = bayesianize(small_net())
    before = kl_divergence(bnn)
    bnn(images())
    assert torch.equal(kl_divergence(bnn), before)


# -- bad input ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("std", [0.0, -0.1, math.nan, math.inf])
def test_refuses_a_spread_that_is_none(std: float) -> None:
    with pytest.raises(ValueError, match="init_std.*positive"):
        bayesianize(nn.Linear(2, 2), init_std=std)


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
    net = small_net()
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


def test_refuses_noise_of_another_length() -> None:
    bnn = bayesianize(nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"eps.*6 random weights.*\(5,\)"):
        bnn.sample(torch.zeros(5))
    with pytest.raises(ValueError, match="eps"), bnn.frozen(eps=torch.zeros(7)):
        pass
    with pytest.raises(ValueError, match="not both"), bnn.frozen(seed=1, eps=torch.zeros(6)):
        pass
    with pytest.raises(ValueError, match="k must be at least 1"):
        bnn.noise(0)
    with pytest.raises(ValueError, match="even"):
        bnn.noise(3, antithetic=True)


def test_refuses_an_unknown_scope_with_the_nearest_name() -> None:
    bnn = bayesianize(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="scope='clasifier'.*did you mean 'classifier'"):
        kl_divergence(bnn, scope="clasifier")
    with pytest.raises(ValueError, match="no Bayesian part"):
        kl_divergence(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="chooses no"):
        kl_divergence(bnn, scope=lambda name, p: False)


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
        bayesianize(small_net())(x)


def test_other_errors_of_the_network_pass_unchanged() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        bayesianize(nn.Linear(3, 2))(torch.rand(1, 4))
