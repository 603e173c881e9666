"""Networks that look at how they are called, or remember images, raise their flag; others raise none of these."""

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from advbnn.attacks.threat import Threat
from advbnn.bayes.sample_bank import SampleBank
from advbnn.data import to_float
from advbnn.defenses.rse import add_noise
from advbnn.evaluation.attackable import attackable
from advbnn.evaluation.audit import probe_flags
from advbnn.evaluation.audit.consistency import WAYS, changed_since, seeded_logits, ways_of_calling
from advbnn.evaluation.audit.flags import Decision, Findings
from advbnn.evaluation.audit.history import look_back
from advbnn.evaluation.audit.memory import memory
from advbnn.evaluation.audit.probes import moved, probe
from advbnn.randomness import Resampled, seeded
from cheats import Hashing, Jittered, Normalising, Rounded, Scaled, Wrapped
from inconsistent_nets import (
    SOURCES,
    WHEN,
    Adding,
    ByMethod,
    Offering,
    PerBatch,
    Remembering,
    Sometimes,
    Sticky,
    Tired,
    Unseeded,
)
from trained_nets import bnn, digits, net

X, Y = to_float(digits().images[:40]), digits().labels[:40]
THREAT = Threat("linf", 0.15)
FLAGS = ("hidden_randomness", "sticky_randomness", "batch", "calling", "memory")


def flags(model: nn.Module, seeds: int = 30) -> dict[str, Decision]:
    """The flags about randomness, as an audit without attacks would raise them."""
    network = attackable(model, X)
    history = look_back(network, X[:2], seed=0, seeds=seeds)
    earlier = seeded_logits(network, X, seed=1)
    probes = probe(network, X, Y, THREAT, samples=3, seed=1, random=history.random)
    probes |= {"later": changed_since(earlier, network, X, seed=1), "revived": torch.zeros(40, dtype=torch.bool)}
    unused = {"entries": (), "right": torch.empty(40, 0), "worst": torch.empty(40), "large_eps": None}
    found = Findings(probes=probes, random=history.random, probabilities=False, history=history, **unused)
    return {name: getattr(probe_flags, name)(found) for name in FLAGS}


def raised(model: nn.Module, seeds: int = 30) -> set[str]:
    return {name for name, decision in flags(model, seeds).items() if decision.raised}


def bank() -> SampleBank:
    found = SampleBank(copy.deepcopy(net()))
    for seed in range(3):
        other = copy.deepcopy(net())
        with seeded(seed), torch.no_grad():
            for weight in other.parameters():
                weight.add_(0.1 * torch.randn_like(weight))
        found.add(other)
    return found.eval()


def with_dropout(on: bool) -> nn.Module:
    model = nn.Sequential(nn.Dropout(0.2), copy.deepcopy(net())).eval()
    model[0].train(on)
    return model


SOUND: dict[str, Callable[[], nn.Module]] = {
    "plain": net,
    "bnn": bnn,
    "bank": bank,
    "rse": lambda: add_noise(net(), before=(nn.Linear,)),
    "batchnorm": lambda: nn.Sequential(nn.BatchNorm2d(1), net()).eval(),
    "dropout off": lambda: with_dropout(False),
    "dropout on": lambda: with_dropout(True),
    "jittered": lambda: Jittered(net()),
    "rounded": lambda: Rounded(net()),
    "scaled": lambda: Scaled(net()),
    "offering": lambda: Offering(net()),
    "adapted": lambda: Resampled(ByMethod(net()), by=lambda net, seed: net.random_noise()),
}


@pytest.mark.parametrize("name", SOUND)
def test_one_function_of_image_and_seed_raises_nothing(name: str) -> None:
    assert raised(SOUND[name]()) == set()


STICKY = {
    **{f"every {number}": lambda number=number: Sticky(net(), number) for number in (10, 100, 1000)},
    "per batch": lambda: PerBatch(net()),
    "counter": lambda: Tired(net(), after=300),
    "by method": lambda: ByMethod(net()),
}
OTHERS = {
    "hidden_randomness": {name: Unseeded(net(), draw) for name, draw in SOURCES.items()},
    "batch": {
        "statistics": Normalising(net()),
        **{name: Sometimes(net(), WHEN[name]) for name in ("alone", "in pairs")},
    },
    "calling": {name: Sometimes(net(), when) for name, when in WHEN.items() if name not in ("alone", "in pairs")},
    "memory": {
        name: Remembering(net(), X, Y, radius)
        for name, radius in {"looked up": 1e-6, "neighbourhoods": 2.0, "nearest": math.inf}.items()
    }
    | {
        "adds within a radius": Adding(net(), X, Y, 0.15, math.inf),
        "adds for the nearest": Adding(net(), X, Y, math.inf, 2),
    },
}


@pytest.mark.parametrize("name", STICKY)
def test_a_kept_state_is_flagged(name: str) -> None:
    found = raised(STICKY[name](), seeds=400)
    # it may also be caught in the act of changing
    assert "sticky_randomness" in found and found <= {"sticky_randomness", "hidden_randomness"}


@pytest.mark.parametrize(("flag", "name"), [(flag, name) for flag, models in OTHERS.items() for name in models])
def test_an_inconsistent_network_is_flagged_as_what_it_is(flag: str, name: str) -> None:
    assert raised(OTHERS[flag][name]) == {flag}


def test_a_method_that_may_draw_is_named() -> None:
    assert "ByMethod.random_noise" in flags(ByMethod(net()))["sticky_randomness"].evidence
    assert "fresh" in flags(Offering(net()))["sticky_randomness"].evidence


def test_a_change_long_after_the_first_passes_is_seen_over_the_attacks() -> None:
    model = attackable(Tired(net(), after=3), X)
    earlier = seeded_logits(model, X, seed=0)
    assert (changed_since(earlier, model, X, seed=0) < 1e-3).all()
    seeded_logits(model, X, seed=0)
    assert (changed_since(earlier, model, X, seed=0) > 0.1).all()


class Alone(Wrapped):
    """A random network, noise for each image, that is another classifier for a single image."""

    def forward(self, x: Tensor) -> Tensor:
        logits = self.net(x + 0.3 * torch.randn_like(x))
        return logits.roll(1, 1) if len(x) == 1 else logits


def test_random_numbers_that_depend_on_the_batch_size_hide_nothing() -> None:
    def changes(model: nn.Module) -> dict[str, Tensor]:
        return ways_of_calling(attackable(model, X), X, Y, THREAT, seed=3, random=True)

    honest, alone = changes(with_dropout(True)), changes(Alone(net()))
    assert honest["alone"].nan_to_num().max() < 0.01
    assert (alone["alone"][:8] > 0.3).float().mean() > 0.7 and alone["alone"][8:].isnan().all()
    assert alone["in_pairs"].nan_to_num().max() < 0.01


@pytest.mark.parametrize("n", [1, 3])
def test_few_images_are_enough_to_call(n: int) -> None:
    found = ways_of_calling(attackable(net(), X), X[:n], Y[:n], THREAT, seed=0, random=False)
    assert set(found) == set(WAYS) and all(values.shape == (n,) for values in found.values())


def test_rounding_is_not_measured() -> None:
    coarse = copy.deepcopy(net()).bfloat16()
    found = ways_of_calling(attackable(coarse, X.bfloat16()), X.bfloat16(), Y, THREAT, seed=0, random=False)
    assert all(values.isnan().all() for values in found.values())


def test_a_hash_and_quantised_inputs_are_no_memory() -> None:
    for cheat in (Hashing(net()), Rounded(net())):
        found = memory(attackable(cheat, X), X, moved(X, 0.5, 1e-6), seed=0)
        assert found["half_way"].nanquantile(0.9) < 0.2
        assert (found["abrupt"] < 2 * found["abrupt_elsewhere"]).double().mean() > 0.9
