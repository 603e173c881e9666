"""The fast step against Algorithm 1 and the eager step, with the same noise."""

import copy
import functools
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional

from advbnn import attacks, models
from advbnn.attacks import PGD
from advbnn.attacks.threat import Threat
from advbnn.bayes.kl import kl_divergence
from advbnn.bayes.likelihoods import Categorical, Gaussian
from advbnn.bayes.mean_field import Bayesian, bayesianize
from advbnn.bayes.priors import GaussianPrior, ScaleMixturePrior
from advbnn.defenses import defense as defenses
from advbnn.defenses.ig_bnn import ParticleEnsemble
from advbnn.defenses.kept_draw import KeptDraw
from advbnn.defenses.objective import RobustELBO
from advbnn.defenses.optimizers import LangevinSampler
from advbnn.defenses.rse import add_noise
from advbnn.errors import UnsupportedError
from advbnn.fast.philox import normals
from advbnn.training import fast_step as fast_step_module
from advbnn.training.averaging import WeightAverage
from advbnn.training.awp import perturbed
from advbnn.training.fast_step import FastStep
from advbnn.training.hidden_biases import hidden_biases
from advbnn.training.objective import RobustLoss
from advbnn.training.step import EagerStep
from inconsistent_nets import Offering

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


def eager(model: nn.Module, defense: defenses.Defense) -> EagerStep:
    loss = RobustLoss(model, defense.objective, EXAMPLES)
    return EagerStep(loss, torch.optim.SGD(loss.parameters(), lr=0.1, momentum=0.9), defense)


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


def algorithm_1(
    bnn: Bayesian, x, y, *, scope: str, samples: int, kl_factor: float, mode: str, awp: float | None = None
) -> tuple[float, float]:
    """One update, straight from the paper; returns the data term and the number of correct predictions."""
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
    noise = [counted_noise(bnn, ATTACK.steps + sample) for sample in range(samples)]
    logits = []

    def loss() -> tuple[torch.Tensor, torch.Tensor]:
        logits[:] = [bnn.run(bnn.sample(eps), x_adv) for eps in noise]
        nll = torch.stack([functional.cross_entropy(each, y) for each in logits]).mean()
        return nll, nll + ALPHA / EXAMPLES * kl_factor * kl_divergence(bnn, scope)

    with nullcontext() if awp is None else perturbed(bnn, lambda: loss()[1], awp):
        nll, total = loss()
        total.backward()
    optimizer.step()
    return nll.item(), torch.stack([each.argmax(1) == y for each in logits]).float().mean(0).sum().item()


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize(
    ("scope", "samples", "kl_factor", "awp"),
    [("all", 1, 1.0, None), ("classifier", 1, 0.3, None), ("all", 2, 0.5, None), ("all", 2, 0.5, 0.05)],
)
def test_is_algorithm_1_for_the_same_noise(
    scope: str, samples: int, kl_factor: float, awp: float | None, mode: str
) -> None:
    bnn = bayesianize(network(), prior=GaussianPrior(std=0.1))
    reference = copy.deepcopy(bnn)
    objective = RobustELBO(alpha=ALPHA, kl_scope=scope, samples=samples)
    step = fast(bnn, defenses.Defense(attack=ATTACK, objective=objective, attack_mode=mode, awp=awp))
    x, y = batch()
    record = step(x, y, SEED, kl_factor=kl_factor)
    kl = kl_divergence(reference, scope)
    nll, score = algorithm_1(reference, x, y, scope=scope, samples=samples, kl_factor=kl_factor, mode=mode, awp=awp)
    for (name, ours), theirs in zip(bnn.state_dict().items(), reference.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-5, msg=name)
    if awp is None:
        torch.testing.assert_close(record.kl, kl, rtol=1e-5, atol=1e-3)
    else:
        assert record.kl > kl  # of the moved means
    torch.testing.assert_close(record.loss, record.nll + ALPHA / EXAMPLES * kl_factor * record.kl)
    assert record.nll.item() == pytest.approx(nll, rel=1e-3)
    assert record.score.item() == pytest.approx(score, abs=1)  # one image, if two logits are close


@pytest.mark.parametrize(
    ("attack", "options"),
    [
        (ATTACK, {}),
        (ATTACK, {"attack_mode": "train"}),
        (ATTACK, {"awp": 0.02}),
        (ATTACK, {"awp": 0.02, "objective": RobustELBO(likelihood=Categorical(label_smoothing=0.1)), "clip": 0.5}),
        *((attacks.GradientAscent(Threat("linf", 0.3), steps=2, step_size=0.5, eot=eot), {}) for eot in (1, 3)),
    ],
)
def test_equals_the_eager_step_of_a_deterministic_network(attack: PGD, options: dict) -> None:
    net = network()
    other = copy.deepcopy(net)
    defense = defenses.Defense(attack=attack, **options)
    x, y = batch()
    ours = fast(net, defense)(x, y, SEED, measure_clean=True)
    theirs = eager(other, defense)(x, y, SEED, measure_clean=True)
    torch.testing.assert_close((ours.loss, ours.nll), (theirs.loss, theirs.nll), rtol=1e-4, atol=1e-5)
    for one, two in ((ours.score, theirs.score), (ours.clean_score, theirs.clean_score)):
        assert abs(one - two) <= 1  # one image, if two logits are close
    for a, b in zip(net.state_dict().values(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("awp", [None, 0.02])
def test_trades_is_its_definition_for_the_same_noise(awp: float | None) -> None:
    """The attack on KL(p(. | x, w_0) || p(. | x', w_t)) with sample t, then clean loss and KL with one sample."""
    bnn = bayesianize(network(), prior=GaussianPrior(std=0.1))
    reference = copy.deepcopy(bnn).train()
    objective = RobustELBO(alpha=ALPHA, trades=6.0)
    step = fast(bnn, defenses.Defense(attack=ATTACK, objective=objective, network=defenses.Variational(), awp=awp))
    x, y = batch()
    record = step(x, y, SEED)
    kl = objective.likelihood.kl
    reference.eval()
    with torch.no_grad():
        clean = reference.run(reference.sample(counted_noise(reference, 0)), x)
    x_adv = x
    for stream in range(1, ATTACK.steps + 1):
        leaf = x_adv.clone().requires_grad_()
        outputs = reference.run(reference.sample(counted_noise(reference, stream)), leaf)
        (gradient,) = torch.autograd.grad(kl(clean, outputs).sum(), leaf)
        x_adv = x_adv + 0.05 * gradient.sign()
        x_adv = torch.minimum(torch.maximum(x_adv, x - 0.1), x + 0.1).clamp(0, 1)
    reference.train()
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9)
    noise = counted_noise(reference, ATTACK.steps + 1)

    def loss() -> tuple[torch.Tensor, torch.Tensor]:
        one, two = reference.run(reference.sample(noise), torch.cat([x, x_adv])).chunk(2)
        term = functional.cross_entropy(one, y) + 6.0 * kl(one, two).mean()
        return term, term + ALPHA / EXAMPLES * kl_divergence(reference)

    with nullcontext() if awp is None else perturbed(reference, lambda: loss()[1], awp):
        term, total = loss()
        total.backward()
    optimizer.step()
    assert record.nll.item() == pytest.approx(term.item(), rel=1e-3)
    for (name, ours), theirs in zip(bnn.state_dict().items(), reference.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=3e-5, msg=name)


def test_the_particles_of_ig_bnn_are_trained_as_by_the_eager_step() -> None:
    defense = defenses.Defense(
        attack=ATTACK, network=ParticleEnsemble(count=2), objective=RobustELBO(information_gain=5.0)
    )
    model = defense.wrap(network()).train()
    reference = copy.deepcopy(model)
    records = [fast(model, defense)(*batch(), SEED), eager(reference, defense)(*batch(), SEED)]
    torch.testing.assert_close(records[0].loss, records[1].loss)
    for found, expected in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("awp", [None, 0.02])
def test_the_consistency_term_equals_the_eager_one(awp: float | None) -> None:
    averaging = defenses.Averaging(decay=0.9, consistency=2.0)
    defense = defenses.Defense(attack=ATTACK, averaging=averaging, awp=awp)
    (x, y), results = batch(), []
    for make in (fast, eager):
        net = network()
        step, average = make(net, defense), WeightAverage(net, decay=0.9)
        for i in range(3):
            record = step(x, y, SEED + i, teacher=average if i else None)
            average.update(net)
        plain = make(copy.deepcopy(net), defense)(x, y, SEED).nll
        with_teacher = make(copy.deepcopy(net), defense)(x, y, SEED, teacher=average).nll
        assert with_teacher > plain
        results.append((record.nll, net.state_dict()))
    (ours, weights), (theirs, others) = results
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
    for name, value in weights.items():
        torch.testing.assert_close(value, others[name], rtol=1e-3, atol=2e-4, msg=name)


class LaplacePrior:
    """A prior of a user's own, for which -E[log p(w)] is replaced by its value at the mean."""

    def kl(self, name: str, mu: torch.Tensor, log_std: torch.Tensor) -> torch.Tensor:
        return mu.abs().sum() / 0.1 - log_std.sum()


@pytest.mark.parametrize("prior", [LaplacePrior(), GaussianPrior(std=lambda name, p: 0.1 + p.detach().abs())])
@pytest.mark.parametrize("awp", [None, 0.05])
def test_any_prior_is_algorithm_1_for_the_same_noise(prior, awp: float | None) -> None:
    bnn = bayesianize(network(), prior=prior)
    reference = copy.deepcopy(bnn)
    step = fast(bnn, defenses.Defense(attack=ATTACK, objective=RobustELBO(alpha=ALPHA), awp=awp))
    x, y = batch()
    record = step(x, y, SEED, kl_factor=0.5)
    kl = kl_divergence(reference).item()
    nll, _ = algorithm_1(reference, x, y, scope="all", samples=1, kl_factor=0.5, mode="eval", awp=awp)
    for (name, ours), theirs in zip(bnn.state_dict().items(), reference.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=3e-5, msg=name)
    assert record.nll.item() == pytest.approx(nll, rel=1e-3)
    if awp is None:
        assert record.kl.item() == pytest.approx(kl, rel=1e-4)


def test_a_prior_with_its_own_noise_follows_the_seed() -> None:
    results = []
    for seed in (SEED, SEED, SEED + 1):
        bnn = bayesianize(network(), prior=ScaleMixturePrior())
        results.append(fast(bnn, defenses.Defense())(*batch(), seed).kl)
    assert results[0] == results[1] != results[2]


def test_langevin_dynamics_at_temperature_zero_is_the_eager_one() -> None:
    sampler = LangevinSampler(lr=0.05, temperature=0.0, prior_std=0.3)
    defense = defenses.Defense(attack=ATTACK, optimizer=sampler)
    (x, y), results = batch(), []
    for kind in (FastStep, EagerStep):
        net = network()
        loss = RobustLoss(net, defense.objective, EXAMPLES, GaussianPrior(std=0.3))
        optimizer = sampler.build(loss.parameters(), EXAMPLES)
        options = {"precision": torch.float32, "compiled": False, "captured": False} if kind is FastStep else {}
        step = kind(loss, optimizer, defense, **options)
        results.append((step(x, y, SEED), net.state_dict()))
    (ours, weights), (theirs, others) = results
    torch.testing.assert_close((ours.kl, ours.loss), (theirs.kl, theirs.loss), rtol=1e-4, atol=1e-4)
    for name, value in weights.items():
        torch.testing.assert_close(value, others[name], rtol=1e-4, atol=2e-5, msg=name)


@pytest.mark.parametrize("samples", [1, 2])
def test_mixed_labels_equal_the_eager_step(samples: int) -> None:
    x, y = batch()
    probabilities = 0.7 * functional.one_hot(y, 10) + 0.3 * functional.one_hot((y + 1) % 10, 10)
    defense = defenses.Defense(attack=ATTACK, objective=RobustELBO(samples=samples))
    results = []
    for make in (fast, eager):
        net = network()
        results.append((make(net, defense)(x, probabilities, SEED), net.state_dict()))
    (ours, weights), (theirs, others) = results
    torch.testing.assert_close(ours.nll, theirs.nll, rtol=1e-4, atol=1e-5)
    assert abs(ours.score - theirs.score) <= 1
    for name, value in weights.items():
        torch.testing.assert_close(value, others[name], rtol=1e-4, atol=2e-5, msg=name)
    hard = fast(network(), defense)(x, y, SEED)
    same = fast(network(), defense)(x, functional.one_hot(y, 10).float(), SEED)
    torch.testing.assert_close(hard.nll, same.nll, rtol=1e-4, atol=1e-5)


def test_weights_are_perturbed_only_if_asked() -> None:
    x, y = batch()
    results = []
    for awp, perturb in ((0.05, False), (None, True), (0.05, True)):
        net = network()
        fast(net, defenses.Defense(attack=ATTACK, awp=awp))(x, y, SEED, perturb_weights=perturb)
        results.append(net.state_dict())
    for name, plain in results[1].items():
        assert torch.equal(results[0][name], plain), name
    assert any(not torch.equal(results[2][name], plain) for name, plain in results[1].items())


def test_deterministic_parts_are_trained_too() -> None:
    bnn = bayesianize(network(), where=lambda name, p: "classifier" in name)
    before = {name: p.detach().clone() for name, p in bnn.named_parameters()}
    fast(bnn, defenses.Defense(attack=ATTACK))(*batch(), SEED)
    hidden = {f"net.{bias}" for bias, _ in hidden_biases(bnn.net)}
    assert all(torch.equal(p, before[name]) is (name in hidden) for name, p in bnn.named_parameters())


@pytest.mark.parametrize("wrap", [add_noise, bayesianize])
def test_all_noise_follows_the_seed_and_the_global_random_state_is_untouched(wrap) -> None:
    results = []
    for state in (1, 2):
        model = wrap(network())
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
    """A network with a tensor that is not a leaf, such as a weight computed by a hook."""
    net.computed = 2 * next(net.parameters())
    return net


@pytest.mark.parametrize(
    ("model", "options", "reason"),
    [
        (bayesianize, {"objective": RobustELBO(likelihood=Gaussian())}, "Gaussian likelihood"),
        (bayesianize, {"attack": PGD(Threat(), pick="best")}, "compares candidates"),
        (bayesianize, {"averaging": defenses.Averaging(decay=0.9, consistency=1.0)}, "average of random weights"),
        (lambda net: net, {"optimizer": LangevinSampler(preconditioned=True)}, "preconditioner"),
        (lambda net: nn.Sequential(bayesianize(net)), {}, "several random parts"),
        (lambda net: nn.Sequential(net, nn.BatchNorm1d(10, momentum=None)), {}, "without a momentum"),
        (with_history, {}, "cannot be copied"),
        (Offering, {}, "random state"),
    ],
)
def test_unsupported_steps_are_refused_with_the_reason(model, options: dict, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        fast(model(network()), defenses.Defense(**options))


@pytest.mark.parametrize("begin", [True, False])
def test_frozen_batchnorm_is_refused(begin: bool) -> None:
    net = nn.Sequential(network(), nn.BatchNorm1d(10)).train(begin)
    net[1].train = lambda mode=True: net[1]  # the usual way to freeze BatchNorm
    net[1].training = False
    with pytest.raises(UnsupportedError, match="evaluation mode"):
        fast(net, defenses.Defense())
    fast(net[0].eval(), defenses.Defense())  # in evaluation mode as a whole: all of it is trained


@pytest.mark.parametrize("wrap", [lambda net: net, bayesianize])
def test_parameters_without_requires_grad_do_not_change(wrap) -> None:
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


class FakeGraph:
    """Stands in for a CUDA graph: runs the step itself."""

    made = 0

    def __init__(self, step, x, y, state) -> None:
        self.replay, self.x = step, x
        FakeGraph.made += 1


def test_processes_with_shards_of_unequal_size_capture_at_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_step_module, "GraphedStep", FakeGraph)
    recorded = []
    for rank in range(2):
        step, made = fast(network(), defenses.Defense(), captured=True), []
        # 32 examples a batch and 31 in the last one of five epochs
        for whole in (32, 31) * 5:
            size = len(range(rank, whole, 2))
            FakeGraph.made = 0
            step(*batch(size), SEED, share=2 * size / whole)
            made.append(FakeGraph.made)
        recorded.append(made)
    assert recorded[0] == recorded[1] == [1, 0, 0, 0, 0, 0, 0, 1, 0, 0]  # the last batch at its fourth occurrence


@pytest.mark.parametrize(
    ("sizes", "compiled"),
    [((16, 7, 7, 7, 7), [True, False, False, False, False]), ((7, 16, 16, 16, 16), [True, False, False, False, True])],
)
def test_whole_batches_are_compiled_also_after_resuming_at_the_last_one(
    sizes: tuple[int, ...], compiled: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []

    def look(self: FastStep, x: torch.Tensor, y: torch.Tensor, form: object, passes: object) -> torch.Tensor:
        found.append(passes is self.passes)
        return torch.zeros(4)

    monkeypatch.setattr(fast_step_module, "GraphedStep", FakeGraph)
    monkeypatch.setattr(FastStep, "_step", look)
    step = fast(network(), defenses.Defense(), captured=True)
    for size in sizes:
        step(*batch(size), SEED)
    assert found == compiled


def test_weights_of_any_number_of_dimensions_are_laid_out_for_the_gpu() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv3d(3, 4, 3), nn.Linear(3, 4))
    fast_step_module._to_channels_last(net)
    assert net[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert net[1].weight.is_contiguous()


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@needs_gpu
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")  # switched off here on purpose
@pytest.mark.parametrize(
    "options",
    [
        {"attack_mode": "eval"},
        {"attack_mode": "train"},
        {"awp": 0.01},
        {"objective": RobustELBO(trades=6.0), "network": defenses.Variational(), "awp": 0.01},
    ],
)
@pytest.mark.parametrize("bayesian", [True, False])
def test_a_recorded_step_equals_the_plain_one_for_the_same_noise(bayesian: bool, options: dict) -> None:
    if "objective" in options and not bayesian:
        pytest.skip("without noise, the KL of TRADES has no gradient at the input")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    results = []
    for how in ({"compiled": True, "captured": True}, {"compiled": False, "captured": False}):
        model = (bayesianize(network()) if bayesian else network()).cuda().train()
        step = fast(model, defenses.Defense(attack=ATTACK, **options), **how)
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


@needs_gpu
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")  # switched off here on purpose
@pytest.mark.parametrize("what", ["teacher", "prior", "langevin", "mixed"])
def test_every_form_on_a_gpu_is_recorded_as_it_runs(what: str) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    sampler = LangevinSampler(lr=0.05, temperature=0.0)
    options = {
        "teacher": {"averaging": defenses.Averaging(decay=0.9, consistency=2.0)},
        "langevin": {"optimizer": sampler},
    }
    results = []
    for captured in (True, False):
        model = (bayesianize(network(), prior=LaplacePrior()) if what == "prior" else network()).cuda().train()
        defense = defenses.Defense(attack=ATTACK, **options.get(what, {}))
        loss = RobustLoss(model, defense.objective, EXAMPLES, GaussianPrior() if what == "langevin" else None)
        sgd = torch.optim.SGD(loss.parameters(), lr=0.1, momentum=0.9)
        optimizer = sampler.build(loss.parameters(), EXAMPLES) if what == "langevin" else sgd
        step = FastStep(loss, optimizer, defense, precision=torch.float32, compiled=False, captured=captured)
        average = WeightAverage(model, decay=0.9)
        for i in range(6):
            x, y = (t.cuda() for t in batch())
            y = functional.one_hot(y, 10) * 0.9 + 0.01 if what == "mixed" else y
            teacher = average if what == "teacher" and i else None
            record = step(x, y, SEED + i, teacher=teacher)
            average.update(model)
        results.append((model.state_dict(), record))
    for name, ours in results[0][0].items():
        torch.testing.assert_close(ours, results[1][0][name], rtol=1e-3, atol=1e-3, msg=name)
    torch.testing.assert_close(results[0][1].loss, results[1][1].loss, rtol=1e-3, atol=1e-3)


class Gain(KeptDraw):
    """x times a kept number; with a penalty, the draws of a test in their order."""

    def __init__(self, draws: list[float]) -> None:
        super().__init__()
        self.draws, self.seen = iter(draws), []
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.register_buffer("kept", torch.ones(()), persistent=False)

    def redraw(self) -> None:
        self.kept.fill_(next(self.draws))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(self.kept.item())
        return x * (self.scale + self.kept)

    def penalty(self) -> torch.Tensor:
        return -0.1 * self.scale.log()


def test_a_kept_draw_lasts_for_the_attack_and_another_for_the_update() -> None:
    x, y = batch()
    results = []
    for make in (eager, fast):
        layer = Gain([0.3, 0.7])
        model = nn.Sequential(layer, network()).train()
        make(model, defenses.Defense(attack=ATTACK))(x, y, SEED)
        results.append(model)
        # the fast step runs a copy of the layer, with the buffers of this one
        assert make is fast or layer.seen[-1] == pytest.approx(0.7)
        assert make is fast or layer.seen[:-1] == pytest.approx([0.3] * (len(layer.seen) - 1))
        assert layer.kept.item() == pytest.approx(0.7)
    for (name, one), other in zip(results[0].named_parameters(), results[1].parameters(), strict=True):
        torch.testing.assert_close(other, one, msg=lambda text, name=name: f"{name}: {text}", rtol=1e-4, atol=1e-5)
    # the penalty is in the gradient: d/ds (-0.1 log s) = -0.2 at s = 0.5
    unpenalised = nn.Sequential(Gain([0.3, 0.7]), network()).train()
    unpenalised[0].penalty = None
    eager(unpenalised, defenses.Defense(attack=ATTACK))(x, y, SEED)
    assert (results[0][0].scale - unpenalised[0].scale).item() == pytest.approx(0.1 * 0.2, rel=1e-3)
