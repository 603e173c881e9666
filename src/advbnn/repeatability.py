"""Whether the passes of a network are random: if not, one pass says as much as many."""

import sys
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from advbnn.randomness import seeded

_PASSES = 32
"""Passes that are compared to see whether a network is random."""


@torch.no_grad()
def is_random(model: nn.Module, x: Tensor, passes: int = _PASSES, seed: int = 0) -> bool:
    """Whether a pass of the model uses random numbers, or passes differ; `x` holds a few inputs.

    A network that keeps its random state for some passes shows it within these, or when the batch changes. An audit
    looks at more passes, and the attribute `known_random` of the model that it attacks says what it found.
    """
    known: object = getattr(model, "known_random", None)
    if isinstance(known, bool):
        return known
    # a compiled model would be compiled again for a few inputs; without dynamo, which is slow to import, none is
    compiling = "torch._dynamo" in sys.modules
    with torch.compiler.set_stance("force_eager") if compiling else nullcontext(), seeded(seed, x.device):
        before, first = random_state(x.device), None
        for _ in range(passes):
            outputs = model(x)
            if not torch.equal(before, random_state(x.device)):
                return True
            if not isinstance(outputs, Tensor):
                return False
            if first is not None and not torch.equal(first, outputs):
                return True
            if first is None:
                first = outputs
                model(x.flip(-1))  # another batch, after which it may draw a new state
    return False


@torch.no_grad()
def draws(network: nn.Module, x: Tensor) -> bool:
    """Whether a pass of the network uses random numbers of torch."""
    with seeded(0, x.device):
        before = random_state(x.device)
        network(x)
        return not torch.equal(before, random_state(x.device))


def random_state(device: torch.device) -> Tensor:
    """The state of torch's default generators of the CPU and of a device."""
    cpu = torch.get_rng_state()
    return torch.cat([cpu, torch.cuda.get_rng_state(device)]) if device.type == "cuda" else cpu
