"""How often an attack looks at numbers on the host, for which a GPU has to be waited for."""

import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from advbnn.attacks import APGD, PGD, Attack
from advbnn.attacks.threat import Threat
from advbnn.bayes.mean_field import bayesianize

THREAT = Threat("linf", 0.1)
LOOKS = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.masked_select.default,
    torch.ops.aten.equal.default,
}


class Looks(TorchDispatchMode):
    """Counts operations whose results the host must know to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        # integers are random states and seeds, which are the host's own
        if op in LOOKS and args[0].dtype in (torch.bool, torch.float32, torch.float64):
            self.count += 1
        return op(*args, **(kwargs or {}))


def attacked(attack: Attack, device: str = "cpu") -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(6, 4, generator=generator).to(device), (torch.arange(6) % 3).to(device)
    model = bayesianize(nn.Sequential(nn.Linear(4, 3)), init_std=0.1).eval().to(device)
    attack(model, x, y, seed=0)


ATTACKS = [
    PGD(THREAT),
    PGD(THREAT, eot=3, average="probability", pick="best", momentum=0.9),
    PGD(Threat("l2", 0.5), restarts=2),
    APGD(THREAT, eot=2, selection_samples=2),
    APGD(Threat("l1", 0.5), loss="dlr"),
]


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_steps_of_gradient_attacks_look_at_nothing(attack: Attack) -> None:
    counts = []
    for steps in (2, 9):
        with Looks() as looks:
            attacked(replace(attack, steps=steps))
        counts.append(looks.count)
    assert counts[0] == counts[1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_an_attack_waits_for_the_device_a_few_times(attack: Attack) -> None:
    attacked(attack, "cuda")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            attacked(replace(attack, steps=9), "cuda")
        finally:
            torch.cuda.set_sync_debug_mode("default")
    waits = [warning for warning in caught if "synchronizing CUDA operation" in str(warning.message)]
    # the inputs, the model and the labels on their way; then the checks of inputs, labels, outputs and gradients
    assert len(waits) <= 12
