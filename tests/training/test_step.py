import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from advbnn import models
from advbnn.attacks import PGD
from advbnn.attacks.threat import Threat
from advbnn.bayes.kl import kl_divergence
from advbnn.defenses.defense import Defense, Noisy, Plain, Variational
from advbnn.defenses.objective import RobustELBO
from advbnn.defenses.optimizers import SGD, set_learning_rate
from advbnn.modules import evaluating
from advbnn.randomness import derive_seed, seeded
from advbnn.training.awp import perturbed
from advbnn.training.hidden_biases import HiddenBiases
from advbnn.training.objective import RobustLoss
from advbnn.training.step import EagerStep, StepRecord, attacked, step_seed

ATTACK = PGD(Threat("linf", 0.1), steps=3, step_size=0.05)
ADV_BNN = Defense(
    name="adv_bnn", network=Variational(), attack=ATTACK, objective=RobustELBO(alpha=0.5), optimizer=SGD(lr=0.1)
)
EXAMPLES = 100


def batch(n: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.rand(n, 1, 8, 8, generator=generator), torch.arange(n) % 10


def stepper(defense: Defense) -> EagerStep:
    with seeded(0):
        model = defense.wrap(models.build("small_cnn", image_size=8, channels=1)).train()
    loss = RobustLoss(model, defense.objective, EXAMPLES)
    return EagerStep(loss, defense.optimizer.build(loss.parameters(), EXAMPLES), defense)


def state(step: EagerStep) -> list[Tensor]:
    return [tensor.clone() for tensor in step.loss.model.state_dict().values()]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_gradients_that_were_left_behind_do_not_count() -> None:
    clean, stale = stepper(ADV_BNN), stepper(ADV_BNN)
    for parameter in stale.parameters:
        parameter.grad = torch.ones_like(parameter)
    for step in (clean, stale):
        step(*batch(), seed=1)
    assert same(state(clean), state(stale))


def test_weights_are_perturbed_against_the_loss_that_is_minimised(monkeypatch: pytest.MonkeyPatch) -> None:
    step = stepper(replace(ADV_BNN, awp=0.01))
    asked: list[tuple[float, float]] = []
    forward = RobustLoss.forward

    def watching(self, x, x_adv, y, kl_factor=1.0, share=1.0):
        asked.append((kl_factor, share))
        return forward(self, x, x_adv, y, kl_factor, share)

    monkeypatch.setattr(RobustLoss, "forward", watching)
    step(*batch(), seed=1, kl_factor=0.25, share=0.5)
    assert asked == [(0.25, 0.5)] * 2


def test_step_is_algorithm_1() -> None:
    """Against the paper's lines, written out."""
    (x, y), seed = batch(), step_seed(1, 2, 3)
    reference = stepper(ADV_BNN)
    model, n = reference.loss.model, EXAMPLES
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x_adv = ATTACK(model, x, y, derive_seed(seed, "attack"))
    with seeded(derive_seed(seed, "update")), HiddenBiases(model).without_gradients():
        loss_ce = functional.cross_entropy(model(x_adv), y)
    loss = loss_ce + 0.5 / n * kl_divergence(model)
    loss.backward()
    optimizer.step()

    step = stepper(ADV_BNN)
    record = step(x, y, seed)
    assert same(state(step), state(reference))
    torch.testing.assert_close(record.loss, loss.detach())
    torch.testing.assert_close(record.nll, loss_ce.detach())
    assert record.examples == 8 and record.clean_score is None
    assert all(p.grad is None for p in step.parameters)


def test_seed_decides_everything() -> None:
    x, y = batch()
    results = []
    for seed in (step_seed(0, 0, 0), step_seed(0, 0, 0), step_seed(0, 0, 1)):
        torch.rand(3)  # the caller's random numbers do not matter
        step = stepper(ADV_BNN)
        before = torch.get_rng_state()
        step(x, y, seed, measure_clean=True)
        assert torch.equal(torch.get_rng_state(), before)
        results.append(state(step))
    assert same(results[0], results[1])
    assert not same(results[0], results[2])


def test_measuring_the_clean_score_changes_nothing_else() -> None:
    (x, y), seed = batch(), 7
    plain, measuring = stepper(ADV_BNN), stepper(ADV_BNN)
    plain(x, y, seed)
    record = measuring(x, y, seed, measure_clean=True)
    assert same(state(plain), state(measuring))
    assert record.clean_score is not None and 0 <= record.clean_score <= 8


def test_the_robust_score_is_by_batch_statistics_and_the_clean_one_by_running_ones() -> None:
    (x, y), seed = batch(100), 7
    step = stepper(ADV_BNN)

    def right(inputs: Tensor, stream: str, training: bool) -> float:
        with seeded(derive_seed(seed, stream)), torch.no_grad():
            return float((copy.deepcopy(step.loss.model).train(training)(inputs).argmax(1) == y).sum())

    x_adv = attacked(step.loss.model, ADV_BNN, x, y, derive_seed(seed, "attack"))
    by_batch, by_running = (right(x_adv, "update", training) for training in (True, False))
    record = step(x, y, seed, measure_clean=True)
    assert record.score == by_batch != by_running
    by_batch, by_running = (right(x, "clean", training) for training in (True, False))
    assert record.clean_score == by_running != by_batch


def test_step_seeds_are_all_different() -> None:
    seeds = {step_seed(s, e, t, r) for s in range(3) for e in range(5) for t in range(20) for r in range(3)}
    assert len(seeds) == 3 * 5 * 20 * 3
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_statistics_see_the_update_alone(mode: str) -> None:
    """Whichever way the attack normalises, its passes leave no trace in the running statistics."""
    x, y = batch()
    step = stepper(replace(ADV_BNN, attack_mode=mode))
    step(x, y, 0)
    norms = [m for m in step.loss.model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert norms and all(norm.num_batches_tracked == 1 for norm in norms)
    assert all(module.training for module in step.loss.model.modules())


def test_attack_mode_decides_the_normalisation_of_the_attack() -> None:
    x, y = batch()
    seen: list[bool] = []

    class Watching(nn.BatchNorm2d):
        def forward(self, inputs: Tensor) -> Tensor:
            seen.append(self.training)
            return super().forward(inputs)

    for mode, expected in (("eval", [False, False, False, True]), ("train", [True, True, True, True])):
        defense = replace(ADV_BNN, network=Plain(), attack_mode=mode)
        net = nn.Sequential(Watching(1), nn.Flatten(), nn.Linear(64, 10)).train()
        loss = RobustLoss(net, defense.objective, EXAMPLES)
        seen.clear()
        EagerStep(loss, defense.optimizer.build(loss.parameters(), EXAMPLES), defense)(x, y, 0)
        assert seen == expected


def test_without_attack_nothing_is_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, reading one value would wait for all of the work before it."""
    x, y = batch()
    step = stepper(replace(ADV_BNN, attack=None, clip=1.0))

    def refuse(self: Tensor, *args: object) -> None:
        raise AssertionError("a value was read")

    step(x, y, 0)
    for name in ("item", "tolist", "__bool__", "__float__", "__int__"):
        monkeypatch.setattr(Tensor, name, refuse)
    record = step(x, y, 1)
    monkeypatch.undo()
    assert isinstance(record, StepRecord) and torch.isfinite(record.loss)


def test_clipping_limits_the_update() -> None:
    x, y = batch()
    step = stepper(replace(ADV_BNN, clip=0.01))
    before = [p.detach().clone() for p in step.parameters]
    step(x, y, 0)
    change = torch.cat([(p.detach() - b).flatten() for p, b in zip(step.parameters, before, strict=True)])
    assert change.norm().item() == pytest.approx(0.1 * 0.01, rel=1e-3)


def test_weight_perturbation_takes_the_gradient_at_the_worst_weights() -> None:
    (x, y), seed, rho = batch(), 5, 0.05
    defense = replace(ADV_BNN, attack=None, awp=rho)
    reference = stepper(defense)
    noise = derive_seed(seed, "update")

    @contextmanager
    def seeded_loss() -> Iterator[Tensor]:
        with seeded(noise):
            yield reference.loss(x, x, y).total

    def loss() -> Tensor:
        with seeded_loss() as total:
            return total

    with perturbed(reference.loss.model, loss, rho):
        loss().backward()
    reference.optimizer.step()
    step, plain = stepper(defense), stepper(replace(defense, awp=None))
    step(x, y, seed)
    plain(x, y, seed)
    assert same(state(step), state(reference))
    assert not same(state(step), state(plain))


@pytest.mark.parametrize("network", [Plain(), Noisy(), Variational()])
def test_trades_attacks_the_divergence(network: Plain | Noisy | Variational) -> None:
    x, y = batch()
    step = stepper(replace(ADV_BNN, network=network, objective=RobustELBO(trades=6.0)))
    model, likelihood = step.loss.model, step.loss.objective.likelihood
    x_adv = attacked(model, step.defense, x, y, 0)
    start = ATTACK.threat.start(x, torch.Generator().manual_seed(0))
    assert ATTACK.threat.distance(x_adv, x).max() <= 0.1

    def divergence(z: Tensor) -> float:
        with torch.no_grad(), evaluating(model), seeded(1):
            clean = model(x)
        with torch.no_grad(), evaluating(model), seeded(1):
            return likelihood.kl(clean, model(z)).mean().item()

    assert divergence(x_adv) > 1.3 * divergence(start)
    assert torch.isfinite(step(x, y, 0).loss)


def test_trades_compares_each_row_with_itself_where_memory_makes_it_work_in_parts() -> None:
    class Tight(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Tensor) -> Tensor:
            if torch.is_grad_enabled() and len(x) > 3:
                raise torch.OutOfMemoryError("CUDA out of memory")
            outputs: Tensor = self.model(x)
            return outputs

    step = stepper(replace(ADV_BNN, network=Plain(), objective=RobustELBO(trades=6.0)))
    x, y = batch()
    whole = attacked(step.loss.model, step.defense, x, y, 0)
    torch.testing.assert_close(attacked(Tight(step.loss.model), step.defense, x, y, 0), whole)


def test_learning_rate_as_a_tensor_stays_in_its_place() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=torch.tensor(0.1))
    lr = optimizer.param_groups[0]["lr"]
    set_learning_rate(optimizer, 0.25)
    assert optimizer.param_groups[0]["lr"] is lr and lr == 0.25
