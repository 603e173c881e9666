"""A network that no fast engine can run is said to run eagerly, once and with the reason."""

import warnings
from collections.abc import Callable

import pytest
from torch import Tensor, nn

from accelerated_nets import ATTACK, batch, network, results
from advbnn.bayes.modes import Modes
from advbnn.evaluation.accuracy import evaluate
from advbnn.evaluation.audit.worst_case import audit
from advbnn.fast.acceleration import accelerate
from advbnn.fast.fallback import EagerWarning, Fallback
from cheats import Counting
from inconsistent_nets import Offering
from trained_nets import digits


def hooked() -> nn.Module:
    net = network()
    net.classifier.register_forward_hook(lambda part, inputs, outputs: None)
    return net


SLOW: dict[str, Callable[[], nn.Module]] = {
    "the model and itself differ": lambda: Counting(network()),
    "resampled at every pass": lambda: Offering(network()),
    "forward hooks": hooked,
}


@pytest.mark.parametrize("reason", SLOW)
def test_an_evaluation_warns_once_and_keeps_the_reason(reason: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        records = evaluate(
            SLOW[reason]().eval(),
            digits(),
            {"clean": None, "pgd": ATTACK},
            rows=range(100),
            batch_size=50,
            samples=2,
            seeds=1,
            engine="compile",
        )
    (found,) = [one for one in caught if one.category is EagerWarning]
    assert reason in str(found.message)
    assert all(reason in record.versions["why eager"] for record in records)


def test_a_network_that_is_also_attacked_with_other_logits_is_one_network() -> None:
    class Small(nn.Module):
        """Logits far below the usual size, so that an audit attacks the network with larger ones, too."""

        def __init__(self) -> None:
            super().__init__()
            self.net = Counting(network())

        def forward(self, x: Tensor) -> Tensor:
            return 1e-3 * self.net(x)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        audit(Small().eval(), digits(), ATTACK.threat, "quick", rows=range(20), seeds=1, engine="compile")
    assert len([one for one in caught if one.category is EagerWarning]) == 1


@pytest.mark.parametrize("engine", ["auto", "eager"])
def test_nothing_is_said_of_a_choice(engine: str) -> None:
    (record,) = evaluate(Counting(network()).eval(), digits(), rows=range(100), samples=2, seeds=1, engine=engine)
    assert record.versions["engine"] == "eager" and "why eager" not in record.versions


def test_members_are_one_network() -> None:
    fallback = Fallback(warn=True)
    model = Modes([Counting(network()), Counting(network())]).eval()
    fast = accelerate(model, "compile", fallback=fallback)
    with pytest.warns(EagerWarning) as caught:
        for component in fast.components:
            results(component, *batch())
    assert len(caught) == 1 and fallback.reason is not None and fallback.reason in str(caught[0].message)
