"""The fast step against Algorithm 1 and the eager step, with the same noise."""

import copy
import functools
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.backends.debugging import aot_eager
from torch.nn import functional

from advbnn.attacks import PGD, GradientAscent
from advbnn.attacks.threat import Threat
from advbnn.bayes.kl import kl_divergence
from advbnn.bayes.likelihoods import Categorical
from advbnn.bayes.mean_field import Bayesian, bayesianize
from advbnn.bayes.priors import GaussianPrior, Prior, ScaleMixturePrior
from advbnn.defenses.defense import Averaging, Defense
from advbnn.defenses.ig_bnn import ParticleEnsemble
from advbnn.defenses.networks import Variational
from advbnn.defenses.objective import RobustELBO
from advbnn.defenses.optimizers import LangevinSampler
from advbnn.defenses.rse import add_noise
from advbnn.training.averaging import WeightAverage
from advbnn.training.awp import perturbed
from advbnn.training.fast_step import _TEACHER_STREAM
from advbnn.training.hidden_biases import hidden_biases
from fast_steps import (
    ALPHA,
    ATTACK,
    EXAMPLES,
    SEED,
    LaplacePrior,
    batch,
    close,
    counted_noise,
    eager,
    fast,
    network,
    residual_network,
)
from quick import same

GAUSSIAN = GaussianPrior(std=0.1)


def algorithm_1(
    bnn: Bayesian, x: Tensor, y: Tensor, objective: RobustELBO, kl_factor: float, mode: str, awp: float | None
) -> tuple[float, float]:
    """One update, straight from the paper; returns the data term and the number of correct predictions.

    With TRADES the attack is on KL(p(. | x, w_0) || p(. | x', w_t)) with sample t, and the data term is the clean loss
    and the KL with one sample.
    """
    statistics = {name: buffer.clone() for name, buffer in bnn.named_buffers()}
    bnn.train(mode == "train")
    beta, kl, streams = objective.trades, objective.likelihood.kl, iter(range(99))

    def outputs(inputs: Tensor) -> Tensor:
        return bnn.run(bnn.sample(counted_noise(bnn, next(streams))), inputs)

    clean, x_adv = None if beta is None else outputs(x).detach(), x
    for _ in range(ATTACK.steps):
        leaf = x_adv.clone().requires_grad_()
        found = outputs(leaf)
        term = functional.cross_entropy(found, y, reduction="sum") if clean is None else kl(clean, found).sum()
        x_adv = x_adv + 0.05 * torch.autograd.grad(term, leaf)[0].sign()
        x_adv = torch.minimum(torch.maximum(x_adv, x - 0.1), x + 0.1).clamp(0, 1)
    for name, buffer in bnn.named_buffers():
        buffer.copy_(statistics[name])
    bnn.train()
    optimizer = torch.optim.SGD(bnn.parameters(), lr=0.1, momentum=0.9)
    noise = [counted_noise(bnn, next(streams)) for _ in range(objective.samples)]
    logits: list[Tensor] = []

    def loss() -> tuple[Tensor, Tensor]:
        inputs = x_adv if beta is None else torch.cat([x, x_adv])
        logits[:] = [bnn.run(bnn.sample(eps), inputs) for eps in noise]
        terms = [functional.cross_entropy(each[: len(y)], y) for each in logits]
        if beta is not None:
            terms = [term + beta * kl(*each.chunk(2)).mean() for term, each in zip(terms, logits, strict=True)]
        nll = torch.stack(terms).mean()
        return nll, nll + ALPHA / EXAMPLES * kl_factor * kl_divergence(bnn, objective.kl_scope)

    with nullcontext() if awp is None else perturbed(bnn, lambda: loss()[1], awp):
        nll, total = loss()
        total.backward()
    optimizer.step()
    right = torch.stack([each[-len(y) :].argmax(1) == y for each in logits])
    return nll.item(), right.float().mean(0).sum().item()


@pytest.mark.parametrize(
    ("objective", "kl_factor", "mode", "awp", "prior"),
    [
        ({}, 1.0, "eval", None, GAUSSIAN),
        ({}, 1.0, "train", None, GAUSSIAN),
        ({"kl_scope": "classifier"}, 0.3, "train", None, GAUSSIAN),
        ({"samples": 2}, 0.5, "eval", None, GAUSSIAN),
        ({"samples": 2}, 0.5, "eval", 0.05, GAUSSIAN),
        ({"samples": 2}, 0.5, "train", 0.05, GAUSSIAN),
        ({"trades": 6.0}, 1.0, "eval", None, GAUSSIAN),
        ({"trades": 6.0}, 1.0, "eval", 0.02, GAUSSIAN),
        ({}, 0.5, "eval", None, LaplacePrior()),
        ({}, 0.5, "eval", 0.05, LaplacePrior()),
        ({}, 0.5, "eval", None, GaussianPrior(std=lambda name, p: 0.1 + p.detach().abs())),
        ({}, 0.5, "eval", 0.05, GaussianPrior(std=lambda name, p: 0.1 + p.detach().abs())),
    ],
)
def test_is_algorithm_1_for_the_same_noise(
    objective: dict, kl_factor: float, mode: str, awp: float | None, prior: Prior
) -> None:
    bnn, (x, y), what = bayesianize(network(), prior=prior), batch(), RobustELBO(alpha=ALPHA, **objective)
    reference = copy.deepcopy(bnn)
    defense = Defense(attack=ATTACK, objective=what, network=Variational(), attack_mode=mode, awp=awp)
    record = fast(bnn, defense)(x, y, SEED, kl_factor=kl_factor)
    kl = kl_divergence(reference, what.kl_scope)
    nll, score = algorithm_1(reference, x, y, what, kl_factor, mode, awp)
    close(bnn, reference)
    if awp is None:
        torch.testing.assert_close(record.kl, kl, rtol=1e-4, atol=1e-3)
    else:
        assert record.kl > kl  # of the moved means
    torch.testing.assert_close(record.loss, record.nll + ALPHA / EXAMPLES * kl_factor * record.kl)
    assert record.nll.item() == pytest.approx(nll, rel=1e-3)
    assert record.score.item() == pytest.approx(score, abs=1)  # one image, if two logits are close


@pytest.mark.parametrize(
    ("options", "labels"),
    [
        ({}, "hard"),
        ({"attack_mode": "train"}, "hard"),
        ({"awp": 0.02}, "hard"),
        ({"awp": 0.02, "objective": RobustELBO(likelihood=Categorical(label_smoothing=0.1)), "clip": 0.5}, "hard"),
        *(({"attack": GradientAscent(Threat(eps=0.3), steps=2, step_size=0.5, eot=eot)}, "hard") for eot in (1, 3)),
        ({}, "mixed"),
        ({"objective": RobustELBO(samples=2)}, "mixed"),
        ({"optimizer": LangevinSampler(lr=0.05, temperature=0.0, prior_std=0.3)}, "hard"),
        ({"optimizer": LangevinSampler(lr=0.01, temperature=0.0, preconditioned=True)}, "hard"),
    ],
)
def test_equals_the_eager_step_of_a_deterministic_network(options: dict, labels: str) -> None:
    nets, defense, (x, y) = (network(), network()), Defense(**{"attack": ATTACK} | options), batch()
    prior = GaussianPrior(std=0.3) if "optimizer" in options else None
    if labels == "mixed":
        y = 0.7 * functional.one_hot(y, 10) + 0.3 * functional.one_hot((y + 1) % 10, 10)
    steps = [make(net, defense, prior) for make, net in zip((fast, eager), nets, strict=True)]
    ours, theirs = (step(x, y, SEED, measure_clean=True) for step in steps)
    for value in ("loss", "nll", "kl"):
        torch.testing.assert_close(getattr(ours, value), getattr(theirs, value), rtol=1e-4, atol=1e-4)
    for one, two in ((ours.score, theirs.score), (ours.clean_score, theirs.clean_score)):
        assert abs(one - two) <= 1  # one image, if two logits are close
    close(*nets)


@pytest.mark.parametrize("build", [network, residual_network])
@pytest.mark.parametrize("options", [{}, {"attack_mode": "train"}, {"awp": 0.02}, {"clip": 0.5}])
def test_trades_equals_the_eager_step_of_a_deterministic_network(
    options: dict, build: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    (x, y), nets = batch(), (build(), build())
    noise = 0.1 * (2 * torch.rand(x.shape, generator=torch.Generator().manual_seed(5)) - 1)
    # the steps draw their random start from different streams; at x itself the KL has no gradient
    monkeypatch.setattr(Threat, "start", lambda threat, at, generator=None: threat.project(at + noise, at))
    defense = Defense(attack=replace(ATTACK, random_start=True), objective=RobustELBO(trades=6.0), **options)
    ours, theirs = (make(net, defense)(x, y, SEED) for make, net in zip((fast, eager), nets, strict=True))
    still = eager(build(), replace(defense, attack=replace(defense.attack, step_size=1e-9)))(x, y, SEED)
    assert ours.nll > still.nll + 1e-3  # further than rounding from the random start
    for value in ("loss", "nll"):
        torch.testing.assert_close(getattr(ours, value), getattr(theirs, value), rtol=1e-4, atol=1e-4)
    assert abs(ours.score - theirs.score) <= 1  # one image, if two logits are close
    close(*nets)


def test_labels_as_probabilities_of_one_are_the_labels() -> None:
    x, y = batch()
    records = [
        fast(network(), Defense(attack=ATTACK))(x, each, SEED) for each in (y, functional.one_hot(y, 10).float())
    ]
    torch.testing.assert_close(records[0].nll, records[1].nll, rtol=1e-4, atol=1e-5)


def test_the_particles_of_ig_bnn_are_trained_as_by_the_eager_step() -> None:
    defense = Defense(attack=ATTACK, network=ParticleEnsemble(count=2), objective=RobustELBO(information_gain=5.0))
    model = defense.wrap(network()).train()
    reference = copy.deepcopy(model)
    records = [fast(model, defense)(*batch(), SEED), eager(reference, defense)(*batch(), SEED)]
    torch.testing.assert_close(records[0].loss, records[1].loss)
    for found, expected in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_loss_that_is_half_clean_is_that_of_the_eager_step() -> None:
    defense = Defense(attack=ATTACK, objective=RobustELBO(clean=0.5))
    nets = (network(), network())
    records = [make(net, defense)(*batch(), SEED) for make, net in zip((fast, eager), nets, strict=True)]
    torch.testing.assert_close(records[0].loss, records[1].loss)
    close(*nets, rtol=1e-4, atol=1e-5)
    # and another one than that of perturbed inputs alone
    assert eager(network(), Defense(attack=ATTACK))(*batch(), SEED).loss > records[1].loss


@pytest.mark.parametrize("awp", [None, 0.02])
def test_the_consistency_term_equals_the_eager_one(awp: float | None) -> None:
    defense = Defense(attack=ATTACK, averaging=Averaging(decay=0.9, consistency=2.0), awp=awp)
    (x, y), nets, losses = batch(), (network(), network()), []
    for make, net in zip((fast, eager), nets, strict=True):
        step, average = make(net, defense), WeightAverage(net, decay=0.9)
        for i in range(3):
            record = step(x, y, SEED + i, teacher=average if i else None)
            average.update(net)
        with_teacher, plain = (make(copy.deepcopy(net), defense)(x, y, SEED, teacher=each) for each in (average, None))
        assert with_teacher.nll > plain.nll
        losses.append(record.nll)
    torch.testing.assert_close(*losses, rtol=1e-3, atol=1e-4)
    close(*nets, rtol=1e-3, atol=2e-4)


def test_the_average_of_a_bayesian_network_teaches_with_a_weight_sample_of_its_own() -> None:
    bnn, average_of, (x, y) = bayesianize(network()), bayesianize(network(), init_std=0.2), batch()
    average = WeightAverage(average_of)
    before = copy.deepcopy(bnn.state_dict())
    defense = Defense(averaging=Averaging(decay=0.9, consistency=2.0))
    record = fast(copy.deepcopy(bnn), defense)(x, y, SEED, teacher=average)

    student = bnn.run(bnn.sample(counted_noise(bnn, 0)), x)
    teacher = average_of.run(average_of.sample(counted_noise(average_of, _TEACHER_STREAM)), x)
    expected = functional.cross_entropy(student, y) + 2 * RobustELBO().likelihood.kl(teacher, student).mean()
    torch.testing.assert_close(record.nll, expected.detach(), rtol=1e-4, atol=1e-5)
    # only the update has changed the network: its statistics are those of one pass
    step = fast(twin := copy.deepcopy(bnn), defense)
    twin.load_state_dict(before)
    step(x, y, SEED)
    without = {name: buffer.clone() for name, buffer in twin.named_buffers()}
    twin.load_state_dict(before)
    step(x, y, SEED, teacher=average)
    torch.testing.assert_close(dict(twin.named_buffers()), without)


def test_a_prior_with_its_own_noise_follows_the_seed() -> None:
    seeds = (SEED, SEED, SEED + 1)
    results = [fast(bayesianize(network(), prior=ScaleMixturePrior()), Defense())(*batch(), seed).kl for seed in seeds]
    assert results[0] == results[1] != results[2]


def test_weights_are_perturbed_only_if_asked() -> None:
    nets = [network() for _ in range(3)]
    for net, awp, perturb in zip(nets, (0.05, None, 0.05), (False, True, True), strict=True):
        fast(net, Defense(attack=ATTACK, awp=awp))(*batch(), SEED, perturb_weights=perturb)
    assert same(nets[0], nets[1]) and not same(nets[2], nets[1])


def test_a_step_may_have_another_attack_than_the_defence() -> None:
    smaller = replace(ATTACK, threat=replace(ATTACK.threat, eps=0.02), step_size=0.01)
    (x, y), given, own, full = batch(), network(), network(), network()
    results = [
        fast(given, Defense(attack=ATTACK))(x, y, SEED, attack=smaller),
        fast(own, Defense(attack=smaller))(x, y, SEED),
        fast(full, Defense(attack=ATTACK))(x, y, SEED),
    ]
    assert results[0].nll == results[1].nll < results[2].nll and same(given, own)
    reference = network()
    expected = eager(reference, Defense(attack=ATTACK))(x, y, SEED, attack=smaller)
    torch.testing.assert_close(results[0].nll, expected.nll, rtol=1e-4, atol=1e-5)
    close(given, reference)


def test_deterministic_parts_are_trained_too() -> None:
    bnn = bayesianize(network(), where=lambda name, p: "classifier" in name)
    before = {name: p.detach().clone() for name, p in bnn.named_parameters()}
    fast(bnn, Defense(attack=ATTACK))(*batch(), SEED)
    hidden = {f"net.{bias}" for bias, _ in hidden_biases(bnn.net)}
    assert all(torch.equal(p, before[name]) is (name in hidden) for name, p in bnn.named_parameters())


@pytest.mark.parametrize("wrap", [add_noise, bayesianize])
def test_all_noise_follows_the_seed_and_the_global_random_state_is_untouched(wrap) -> None:
    results = []
    for state in (1, 2):
        model = wrap(network())
        step = fast(model, Defense(attack=PGD(Threat("linf", 0.1), steps=2)))
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
        step = fast(bnn, Defense(attack=ATTACK), precision=precision)
        losses[precision] = torch.stack([step(*batch(), SEED + i).nll for i in range(4)])
        assert all(p.dtype == torch.float32 for p in bnn.parameters())
    torch.testing.assert_close(losses[torch.bfloat16], losses[torch.float32], rtol=0.05, atol=0.02)


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("build", [network, residual_network])
def test_compiled_equals_eager_for_the_same_noise(build, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # traced and differentiated as for any compiler, but without building C++
    monkeypatch.setattr(torch, "compile", functools.partial(_traced, torch.compile))
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", aot_eager)
    nets = [bayesianize(build()) for _ in range(2)]
    for net, compiled in zip(nets, (False, True), strict=True):
        fast(net, Defense(attack=ATTACK, attack_mode=mode), compiled=compiled)(*batch(), SEED)
    close(*nets, rtol=1e-3, atol=1e-4)


def _traced(compile_, function, backend="aot_eager", **options):
    return compile_(function, backend=backend, **options)


@pytest.mark.parametrize("wrap", [lambda net: net, bayesianize])
def test_parameters_without_requires_grad_do_not_change(wrap) -> None:
    net = network()
    for part in net.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.requires_grad_(False)
    model = wrap(net)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    fast(model, Defense(attack=ATTACK))(*batch(), SEED)
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            assert parameter.grad is None and torch.equal(parameter, before[name]), name
