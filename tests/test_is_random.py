"""A network that is not random is run once, wherever weight samples are averaged; any other one as often as asked."""

import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from advbnn.attacks import PGD
from advbnn.attacks.threat import Threat
from advbnn.bayes.modes import Modes
from advbnn.bayes.outputs import passes_needed
from advbnn.bayes.prediction import predict
from advbnn.evaluation.accuracy import evaluate
from advbnn.evaluation.attackable import Attackable
from advbnn.evaluation.audit.probes import probe
from advbnn.evaluation.lipschitz import lipschitz_records, local_lipschitz
from advbnn.evaluation.regression import regress
from advbnn.randomness import is_random, seeded
from cheats import Counting, Wrapped
from trained_nets import bnn, digits, net

X, Y = digits().images / 255, digits().labels
THREAT = Threat("linf", 0.1)


class Passes(Wrapped):
    """Counts the passes of many images."""

    many = 0

    def forward(self, x: Tensor) -> Tensor:
        self.many += len(x) > 2
        return self.net(x)


def once(model: nn.Module) -> Any:
    return predict(model, X)


def evaluated(model: nn.Module) -> Any:
    return evaluate(model, digits(), seeds=1)


def attacked(model: nn.Module) -> Any:
    return evaluate(model, digits(), PGD(THREAT, steps=3, eot=5), seeds=1)


def smoothness(model: nn.Module) -> Any:
    return local_lipschitz(model, X, Y, THREAT)


def smoothness_records(model: nn.Module) -> Any:
    return lipschitz_records(model, digits(), PGD(THREAT, steps=3), seeds=1)


# the function, and the passes of a deterministic network and of a random one
CASES: list[tuple[Callable[[nn.Module], Any], int, int]] = [
    (once, 1, 20),
    (partial(regress, x=X), 1, 20),
    (evaluated, 1, 20),
    (attacked, 1 + 3 + 1, 3 * 5 + 20),  # one shows whether other images make it random
    (smoothness, 1, 20),
    (smoothness_records, 3 + 1 + 1 + 1, 3 + 20 + 20 + 20),
]


@pytest.mark.parametrize(("work", "alone", "sampled"), CASES, ids=lambda case: getattr(case, "__name__", None))
def test_passes_of_networks_that_are_random_and_not(work: Callable[..., Any], alone: int, sampled: int) -> None:
    for make, expected in ((net, alone), (bnn, sampled)):
        model = Passes(make()).eval()
        work(model)
        assert model.many == expected, make.__name__


def test_a_single_pass_gives_what_many_do() -> None:
    found, many = predict(net(), X), predict(Passes(net()), X, samples=3)  # of so few, all are made
    assert found.samples == 20
    torch.testing.assert_close(found.probs, many.probs)
    assert torch.equal(found.label, many.label)
    first, mean = local_lipschitz(net(), X, Y, THREAT)
    torch.testing.assert_close(first, local_lipschitz(net(), X, Y, THREAT, samples=2)[0])
    torch.testing.assert_close(first, mean)


def test_known_layers_take_one_pass_of_each_network(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, forward, passes = net(), nn.Linear.forward, []

    @functools.wraps(forward)
    def counted(self: nn.Linear, x: Tensor) -> Tensor:
        passes.append(len(x))
        return forward(self, x)

    monkeypatch.setattr(nn.Linear, "forward", counted)
    layers = sum(isinstance(part, nn.Linear) for part in plain.modules())
    for model, networks in ((plain, 1), (Modes([plain, net(), net()]), 3)):
        passes.clear()
        predict(model, X)
        assert passes == [len(X)] * layers * networks
    passes.clear()
    assert not is_random(plain, X[:2])
    assert passes == [2] * layers


def test_a_random_source_of_its_own_is_seen() -> None:
    model = Passes(Counting(net())).eval()
    predict(model, X)
    assert model.many == 20
    assert is_random(model, X[:2])


def test_looking_leaves_the_random_state_and_the_samples_as_they_were() -> None:
    state = torch.get_rng_state()
    assert passes_needed(bnn(), X, 20) == 20 and passes_needed(net(), X, 20) == 1
    assert torch.equal(torch.get_rng_state(), state)
    with seeded(7):
        by_hand = torch.stack([bnn()(X).softmax(1) for _ in range(20)]).mean(0)
    torch.testing.assert_close(predict(bnn(), X, seed=7).probs, by_hand)


def test_a_network_that_takes_batches_of_one_size_is_run_as_often_as_asked() -> None:
    class Fixed(Wrapped):
        def forward(self, x: Tensor) -> Tensor:
            if len(x) != len(X):
                raise ValueError("takes 120 images")
            return self.net(x)

    model = Passes(Fixed(net())).eval()
    assert torch.equal(predict(model, X).label, predict(net(), X).label)
    assert model.many == 20


def test_probes_of_an_audit_take_fewer_passes_without_randomness() -> None:
    counts = []
    for random in (True, False):
        model = Passes(net()).eval()
        found = probe(Attackable(model), X, Y, THREAT, samples=1, seed=0, random=random)
        counts.append(model.many)
    assert counts[1] < 0.75 * counts[0]  # those along the ways of `memory` have one seed anyway
    assert found["cosine"].isnan().all() and found["explained"].median() > 0.5
