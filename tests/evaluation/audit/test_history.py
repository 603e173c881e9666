"""Networks whose outputs depend on earlier passes are told from deterministic, random and hidden-random ones."""

import pytest
import torch
from torch import Tensor, nn

from advbnn.attacks import PGD
from advbnn.attacks.threat import Threat
from advbnn.bayes.prediction import Ensemble, predict
from advbnn.data import to_float
from advbnn.evaluation.accuracy import evaluate
from advbnn.evaluation.attackable import attackable
from advbnn.evaluation.audit.history import History, candidates, look_back
from advbnn.evaluation.identity import ModelIdentity
from advbnn.randomness import Resampled, is_random, transparent
from cheats import Counting, Jittered, Wrapped
from inconsistent_nets import SOURCES, ByMethod, Fresh, Offering, PerBatch, PerShape, Sticky, Tired, Unseeded
from trained_nets import bnn, digits, net

X, Y = to_float(digits().images[:20]), digits().labels[:20]


def default_noise() -> Tensor:
    return torch.randn(1, 8, 8)


def history(model: nn.Module) -> History:
    return look_back(attackable(model, X), X[:2], seed=4)


@pytest.mark.parametrize(
    "model",
    [
        *(Sticky(net(), every) for every in (3, 10, 100, 1000)),
        *(Sticky(net(), every, default_noise) for every in (10, 1000)),
        PerBatch(net()),
        PerShape(net()),
        Tired(net(), after=300),
    ],
    ids=["3", "10", "100", "1000", "10 seeded", "1000 seeded", "per batch", "per shape", "counter"],
)
def test_a_state_that_is_kept_is_seen(model: nn.Module) -> None:
    found = history(model)
    assert found.random and found.keeps_state


@pytest.mark.parametrize(
    ("model", "random", "repeated"),
    [
        (net(), False, False),
        (bnn(), True, False),
        (Jittered(net()), True, False),
        (Fresh(net()), True, False),
        (Offering(net()), True, False),
        (Resampled(ByMethod(net()), by=lambda net, seed: net.random_noise()), True, False),
        (Counting(net()), True, True),
        *((Unseeded(net(), draw), True, True) for draw in SOURCES.values()),
        (ByMethod(net()), False, False),  # its name alone gives it away
    ],
    ids=["plain", "bnn", "jittered", "fresh", "offering", "adapted", "counting", *SOURCES, "by method"],
)
def test_other_networks_keep_none(model: nn.Module, random: bool, repeated: bool) -> None:
    found = history(model)
    assert not found.keeps_state
    assert (found.random, found.repeated > 0) == (random, repeated)


def test_a_slow_network_is_not_probed_for_long() -> None:
    assert look_back(Wrapped(net()), X[:2], 0, seconds=0.0).passes < 100 < history(Wrapped(net())).passes


def test_methods_that_may_draw_a_state_are_named_and_not_called() -> None:
    class Published(Wrapped):
        def random_rpf(self) -> None:
            raise AssertionError

        redraw = set_rand_path = new_noise = resample = random_rpf
        random_rp_matrix = set_rands = set_norms_mixed = set_precision = random_rpf  # in published code

        def operand(self) -> None: ...

        def set_temperature(self) -> None: ...

    found = {name.rpartition(".")[2] for name in candidates(Published(net()))}
    invented = {"random_rpf", "redraw", "set_rand_path", "new_noise", "resample"}
    assert found == invented | {"random_rp_matrix", "set_rands", "set_norms_mixed", "set_precision"}
    assert candidates(bnn()) == candidates(nn.Sequential(nn.Dropout(), nn.Linear(2, 2))) == ()


def test_attacks_know_that_a_state_kept_for_a_few_passes_or_a_batch_is_random() -> None:
    for model in (Sticky(net(), 10), Sticky(net(), 10, default_noise), PerBatch(net())):
        assert is_random(model, X[:2])
    assert not is_random(ByMethod(net()), X[:2])
    told = attackable(ByMethod(net()), X)
    told.known_random = True
    assert is_random(told, X[:2])


def test_every_sample_of_every_computation_is_fresh_and_seeded() -> None:
    """With the hook, a sticky network does what the same network does with fresh noise at every pass."""
    kept: list[Tensor] = []

    class Spy(Offering):
        def forward(self, x: Tensor) -> Tensor:
            kept.append(self.noise)
            return super().forward(x)

    def states(run: object) -> int:
        kept.clear()
        first = run()
        seen, drawn = len(kept), len({tuple(noise.flatten().tolist()) for noise in kept})
        kept.clear()
        second = run()
        assert torch.equal(first, second)
        assert drawn == seen
        return drawn

    model, threat = Spy(net()), Threat("linf", 0.1)
    assert states(lambda: predict(model, X, samples=7, seed=0).probs) == 7
    assert states(lambda: Ensemble(model, samples=5, seed=0)(X)) == 5
    assert states(lambda: PGD(threat, steps=3, eot=4, selection_samples=2)(model, X, Y, seed=0)) > 12
    evaluation = {"samples": 6, "seeds": 1, "batch_size": 20}
    with pytest.warns(UserWarning, match="20 images"):
        counted = states(lambda: evaluate(model, digits().subset(range(20)), **evaluation)[0].right)
    assert counted == 6


def test_the_state_is_no_part_of_the_identity_of_a_network_that_draws_it() -> None:
    class Buffered(Wrapped):
        def __init__(self, net: nn.Module) -> None:
            super().__init__(net)
            self.register_buffer("shift", torch.zeros(1))

        def resample(self, seed: int) -> None:
            self.shift = torch.rand(1)

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x + self.shift)

    model = Buffered(net())
    before = ModelIdentity.of(model)
    predict(model, X, samples=3)
    assert ModelIdentity.of(model) == before


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    model[1].register_forward_hook(lambda part, inputs, output: 2 * output)
    return model


def patched() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    model[1].forward = lambda x: x[:, :10]
    return model


def test_a_network_of_known_layers_gets_fewer_passes() -> None:
    for model in (net(), bnn(), nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Dropout())):
        assert transparent(model) and history(model).passes < 100
    of_user = nn.TransformerEncoderLayer(64, 1, activation=lambda x: x)
    for model in (Wrapped(net()), Offering(net()), hooked(), patched(), of_user):
        assert not transparent(model)
    with pytest.warns(DeprecationWarning):
        assert not transparent(torch.jit.trace(net().eval(), X))
    assert history(Wrapped(net())).passes > 1000
