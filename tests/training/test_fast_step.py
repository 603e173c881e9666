"""The fast step against Algorithm 1 written out with the same noise."""

import copy
import functools

import pytest
import torch
from torch import nn
from torch.nn import functional

from advbnn import attacks, models
from advbnn.attacks import PGD
from advbnn.attacks.threat import Threat
from advbnn.bayes.kl import kl_divergence
from advbnn.bayes.likelihoods import Gaussian
from advbnn.bayes.mean_field import Bayesian, bayesianize
from advbnn.bayes.priors import GaussianPrior, ScaleMixturePrior
from advbnn.defenses import defense as defenses
from advbnn.defenses.objective import RobustELBO
from advbnn.defenses.rse import add_noise
from advbnn.errors import UnsupportedError
from advbnn.fast.philox import normals
from advbnn.fast.weights import SampledWeights
from advbnn.training import fast_step as faststep
from advbnn.training.fast_step import FastStep
from advbnn.training.hidden_biases import hidden_biases
from advbnn.training.objective import RobustLoss
from advbnn.training.step import EagerStep

EXAMPLES, SEED, ALPHA = 500, 12345, 0.5
ATTACK = PGD(Threat("linf", 0.1), steps=3, step_size=0.05, random_start=False)


def batch(n: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.rand(n, 1, 8, 8, generator=generator), torch.randint(10, (n,), generator=generator)


def network() -> nn.Module:
    torch.manual_seed(0)
    return models.build("small_cnn", classes=10, image_size=8, channels=1)


def fast(model: nn.Module, defense: defenses.Defense, **options) -> FastStep:
    loss = RobustLoss(model, defense.objective, EXAMPLES)
    optimizer = torch.optim.SGD(loss.parameters(), lr=0.1, momentum=0.9)
    options = {"precision": torch.float32, "compiled": False, "captured": False} | options
    return FastStep(loss, optimizer, defense, **options)


def counted_noise(bnn: Bayesian, stream: int) -> torch.Tensor:
    """The fast step's noise in the order of `bnn.noise`: matrices come first in its count, then vectors."""
    parts, start = {}, 0
    for wanted in (True, False):
        entries = [(n, mu) for n, mu, _ in bnn.posterior() if (mu.dim() > 1) is wanted]
        size = sum(mu.numel() for _, mu in entries)
        pieces = normals(size, seed=SEED, stream=stream, start=start).split([mu.numel() for _, mu in entries])
        parts |= {name: piece for (name, _), piece in zip(entries, pieces, strict=True)}
        start += -(-size // 4) * 4
    return torch.cat([parts[name] for name, _, _ in bnn.posterior()])


def algorithm_1(bnn: Bayesian, x, y, *, scope: str, draws: int, kl_factor: float, mode: str = "eval") -> None:
    """One update, straight from the paper."""
    optimizer = torch.optim.SGD(bnn.parameters(), lr=0.1, momentum=0.9)
    statistics = {name: buffer.clone() for name, buffer in bnn.named_buffers()}
    bnn.train(mode == "train")
    x_adv = x
    for stream in range(ATTACK.steps):
        with bnn.frozen(weights=bnn.sample(counted_noise(bnn, stream))):
            leaf = x_adv.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(functional.cross_entropy(bnn(leaf), y, reduction="sum"), leaf)
        x_adv = x_adv + 0.05 * gradient.sign()
        x_adv = torch.minimum(torch.maximum(x_adv, x - 0.1), x + 0.1).clamp(0, 1)
    for name, buffer in bnn.named_buffers():
        buffer.copy_(statistics[name])
    bnn.train()
    loss = ALPHA / EXAMPLES * kl_factor * kl_divergence(bnn, scope)
    for draw in range(draws):
        weights = bnn.sample(counted_noise(bnn, ATTACK.steps + draw))
        loss = loss + functional.cross_entropy(bnn.run(weights, x_adv), y) / draws
    loss.backward()
    optimizer.step()


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize(("scope", "draws", "kl_factor"), [("all", 1, 1.0), ("classifier", 1, 0.3), ("all", 2, 0.5)])
def test_is_algorithm_1_for_the_same_noise(scope: str, draws: int, kl_factor: float, mode: str) -> None:
    bnn = bayesianize(network(), prior=GaussianPrior(std=0.1))
    reference = copy.deepcopy(bnn)
    objective = RobustELBO(alpha=ALPHA, kl_scope=scope, draws=draws)
    step = fast(bnn, defenses.Defense(attack=ATTACK, objective=objective, attack_mode=mode))
    x, y = batch()
    record = step(x, y, SEED, kl_factor=kl_factor)
    divergence = kl_divergence(reference, scope)
    algorithm_1(reference, x, y, scope=scope, draws=draws, kl_factor=kl_factor, mode=mode)
    for (name, ours), theirs in zip(bnn.state_dict().items(), reference.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-5, msg=name)
    torch.testing.assert_close(record.kl, divergence, rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(record.loss, record.nll + ALPHA / EXAMPLES * kl_factor * record.kl)
    assert 0 <= record.score <= 16


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_equals_the_eager_step_of_a_network_without_randomness(mode: str) -> None:
    net = network()
    twin = copy.deepcopy(net)
    defense = defenses.Defense(attack=ATTACK, attack_mode=mode)
    x, y = batch()
    ours = fast(net, defense)(x, y, SEED, measure_clean=True)
    loss = RobustLoss(twin, defense.objective, EXAMPLES)
    optimizer = torch.optim.SGD(loss.parameters(), lr=0.1, momentum=0.9)
    theirs = EagerStep(loss, optimizer, defense)(x, y, SEED, measure_clean=True)
    torch.testing.assert_close((ours.loss, ours.nll, ours.score), (theirs.loss, theirs.nll, theirs.score))
    assert ours.clean_score == theirs.clean_score
    for a, b in zip(net.state_dict().values(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5)


def test_parts_that_are_not_random_are_trained_too() -> None:
    bnn = bayesianize(network(), where=lambda name, p: "classifier" in name)
    before = {name: p.detach().clone() for name, p in bnn.named_parameters()}
    fast(bnn, defenses.Defense(attack=ATTACK))(*batch(), SEED)
    hidden = {f"net.{bias}" for bias, _ in hidden_biases(bnn.net)}
    assert all(torch.equal(p, before[name]) is (name in hidden) for name, p in bnn.named_parameters())


def test_noisy_networks_and_clean_training_run() -> None:
    record = fast(add_noise(network()), defenses.Defense())(*batch(), SEED)
    assert torch.isfinite(record.loss)
    assert record.kl == 0


@pytest.mark.parametrize("eot", [1, 3])
def test_plain_gradient_ascent_takes_steps_of_the_same_length(eot: int) -> None:
    net = network()
    twin = copy.deepcopy(net)
    defense = defenses.Defense(attack=attacks.SGD(Threat("linf", 0.3), steps=2, step_size=0.5, eot=eot))
    fast(net, defense)(*batch(), SEED)
    loss = RobustLoss(twin, defense.objective, EXAMPLES)
    EagerStep(loss, torch.optim.SGD(loss.parameters(), lr=0.1, momentum=0.9), defense)(*batch(), SEED)
    for a, b in zip(net.state_dict().values(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("noisy", [True, False])
def test_all_noise_follows_the_seed_and_the_callers_random_numbers_stay(noisy: bool) -> None:
    results = []
    for state in (1, 2):
        model = bayesianize(add_noise(network()) if noisy else network())
        step = fast(model, defenses.Defense(attack=PGD(Threat("linf", 0.1), steps=2)))
        torch.manual_seed(state)
        before = torch.get_rng_state()
        record = step(*batch(), SEED, measure_clean=True)
        assert torch.equal(torch.get_rng_state(), before)
        results.append([record.nll, record.clean_score, *model.state_dict().values()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_half_precision_stays_near_single_precision() -> None:
    losses = {}
    for precision in (torch.float32, torch.bfloat16):
        bnn = bayesianize(network())
        step = fast(bnn, defenses.Defense(attack=ATTACK), precision=precision)
        losses[precision] = torch.stack([step(*batch(), SEED + i).nll for i in range(4)])
        assert all(p.dtype == torch.float32 for p in bnn.parameters())
    torch.testing.assert_close(losses[torch.bfloat16], losses[torch.float32], rtol=0.05, atol=0.02)


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_compiled_equals_eager_for_the_same_noise(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # traced and differentiated as for any compiler, but without building C++
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    results = []
    for compiled in (False, True):
        bnn = bayesianize(network())
        fast(bnn, defenses.Defense(attack=ATTACK, attack_mode=mode), compiled=compiled)(*batch(), SEED)
        results.append(bnn.state_dict())
    for name, ours in results[0].items():
        torch.testing.assert_close(ours, results[1][name], rtol=1e-3, atol=1e-4, msg=name)


def with_history(net: nn.Module) -> nn.Module:
    """A network with a tensor that came out of a computation, as a weight that a hook computes does."""
    net.computed = 2 * next(net.parameters())
    return net


@pytest.mark.parametrize(
    ("model", "options", "reason"),
    [
        (bayesianize, {"objective": RobustELBO(likelihood=Gaussian())}, "Gaussian likelihood"),
        (bayesianize, {"attack": PGD(Threat(), pick="best")}, "compares candidates"),
        (lambda net: bayesianize(net, prior=ScaleMixturePrior()), {}, "no closed form"),
        (lambda net: nn.Sequential(bayesianize(net)), {}, "several random parts"),
        (lambda net: nn.Sequential(net, nn.BatchNorm1d(10, momentum=None)), {}, "without a momentum"),
        (with_history, {}, "cannot be copied"),
    ],
)
def test_says_what_it_does_not_know(model, options: dict, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        fast(model(network()), defenses.Defense(**options))


class KeepsItsStatistics(nn.Sequential):
    """The usual way to freeze normalisation for good."""

    def train(self, mode: bool = True) -> "KeepsItsStatistics":
        super().train(mode)
        self[-1].eval()
        return self


@pytest.mark.parametrize("begin", [True, False])
def test_frozen_normalisation_is_left_to_the_eager_step(begin: bool) -> None:
    net = KeepsItsStatistics(network(), nn.BatchNorm1d(10)).train(begin)
    with pytest.raises(UnsupportedError, match="parts that are kept in evaluation mode"):
        fast(net, defenses.Defense())
    fast(net[0].eval(), defenses.Defense())  # none of it in training mode, and so all of it will be


@pytest.mark.parametrize("wrap", [lambda net: net, bayesianize])
def test_parameters_that_ask_for_no_gradient_stay(wrap) -> None:
    net = network()
    for part in net.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.requires_grad_(False)
    model = wrap(net)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    fast(model, defenses.Defense(attack=ATTACK))(*batch(), SEED)
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            assert parameter.grad is None and torch.equal(parameter, before[name]), name


def test_refuses_a_prior_that_it_would_ignore() -> None:
    loss = RobustLoss(network(), RobustELBO(), EXAMPLES, GaussianPrior(std=0.1))
    with pytest.raises(UnsupportedError, match="a prior over weights that are not random"):
        FastStep(loss, torch.optim.SGD(loss.parameters(), lr=0.1), defenses.Defense())


class FakeRecording:
    """Stands in for a CUDA graph: runs the step itself."""

    made = 0

    def __init__(self, step, x, y, state) -> None:
        self.replay, self.x = step, x
        FakeRecording.made += 1


def test_processes_with_shards_of_different_sizes_record_at_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faststep, "GraphedStep", FakeRecording)
    recorded = []
    for rank in range(2):
        step, made = fast(network(), defenses.Defense(), captured=True), []
        # 32 examples a batch and 31 in the last one of two epochs
        for whole in (32, 31, 32, 31):
            size = len(range(rank, whole, 2))
            FakeRecording.made = 0
            step(*batch(size), SEED, share=2 * size / whole)
            made.append(FakeRecording.made)
        recorded.append(made)
    assert recorded[0] == recorded[1] == [1, 1, 0, 0]


@pytest.mark.parametrize(("sizes", "compiled"), [((16, 7), [True, False]), ((7, 16), [True, True])])
def test_whole_batches_are_compiled_also_after_resuming_at_the_last_one(
    sizes: tuple[int, int], compiled: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []

    def look(self: FastStep, x: torch.Tensor, y: torch.Tensor, passes: object) -> torch.Tensor:
        found.append(passes is self.passes)
        return torch.zeros(4)

    monkeypatch.setattr(faststep, "GraphedStep", FakeRecording)
    monkeypatch.setattr(FastStep, "_step", look)
    step = fast(network(), defenses.Defense(), captured=True)
    for size in sizes:
        step(*batch(size), SEED)
    assert found == compiled


def test_weights_of_any_number_of_dimensions_are_laid_out_for_the_gpu() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv3d(3, 4, 3), nn.Linear(3, 4))
    faststep._lay_out_channels_last(net)
    assert net[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert net[1].weight.is_contiguous()


def test_draws_repeat_for_a_seed_and_differ_between_streams() -> None:
    weights = SampledWeights(bayesianize(network()), torch.float32, lambda name: 0.0)
    weights.refresh()
    seed = torch.tensor([4])
    first, again, other = weights.sample(seed, 0), weights.sample(seed, 0), weights.sample(seed, 1)
    for name in first:
        assert torch.equal(first[name], again[name])
        assert not torch.equal(first[name], other[name])


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@needs_gpu
@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("bayesian", [True, False])
def test_a_recorded_step_equals_the_plain_one_for_the_same_noise(bayesian: bool, mode: str) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    results = []
    for how in ({"compiled": True, "captured": True}, {"compiled": False, "captured": False}):
        model = (bayesianize(network()) if bayesian else network()).cuda().train()
        step = fast(model, defenses.Defense(attack=ATTACK, attack_mode=mode), **how)
        # the odd batch in the middle does not fit the recording
        for i, n in enumerate((16, 16, 7, 16)):
            x, y = (t.cuda() for t in batch(n))
            record = step(x, y, SEED + i, measure_clean=True)
        results.append((model.state_dict(), record))
    for name, ours in results[0][0].items():
        torch.testing.assert_close(ours, results[1][0][name], rtol=1e-3, atol=1e-3, msg=name)
    torch.testing.assert_close(results[0][1].nll, results[1][1].nll, rtol=1e-3, atol=1e-3)
    assert results[0][1].clean_score == results[1][1].clean_score


@needs_gpu
def test_the_step_that_is_recorded_has_the_noise_of_its_seed() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).cuda()
    loss = RobustLoss(model, RobustELBO(), EXAMPLES)
    defense = defenses.Defense(attack=PGD(Threat("linf", 0.3), steps=1, step_size=0.01))
    step = FastStep(loss, torch.optim.SGD(loss.parameters(), lr=0.0), defense, compiled=False)
    x, y = (t.cuda() for t in batch())
    before = torch.cuda.get_rng_state()
    recorded, replayed, other = (step(x, y, seed).nll for seed in (SEED, SEED, SEED + 1))
    assert recorded == replayed != other
    assert torch.equal(torch.cuda.get_rng_state(), before)


@needs_gpu
def test_recording_leaves_no_trace_of_its_warm_up() -> None:
    model = bayesianize(network()).cuda().train()
    loss = RobustLoss(model, RobustELBO(), EXAMPLES)
    optimizer = torch.optim.Adam(loss.parameters(), lr=0.0)
    step = FastStep(loss, optimizer, defenses.Defense(attack=ATTACK))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    x, y = (t.cuda() for t in batch())
    step(x, y, SEED)
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name])
    assert all(state["step"] == 1 for state in optimizer.state.values())
    assert model.net.features[1].num_batches_tracked == 1
