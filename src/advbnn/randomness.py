"""Seeds: a block of code with its own random state, and a separate seed for every purpose.

Crafting an attack and scoring it never share random numbers.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from advbnn.errors import whole


def _default_generator(device: torch.device) -> torch.Generator:
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        return torch.cuda.default_generators[index]
    return torch.default_generator


@contextmanager
def seeded(seed: int | None, device: torch.device | str = "cpu") -> Iterator[None]:
    """Within the block, torch's default generators of the CPU and of `device` follow `seed`.

    Afterwards both are restored, also when the block raises. With `seed=None` the block has no effect: random numbers
    come from the caller's generators.
    """
    if seed is None:
        yield
        return
    check_seed(seed)
    generators = {torch.default_generator, _default_generator(torch.device(device))}
    states = [(generator, generator.get_state()) for generator in generators]
    try:
        for generator in generators:
            generator.manual_seed(seed)
        yield
    finally:
        for generator, state in states:
            generator.set_state(state)


def check_seed(seed: int, argument: str = "seed") -> int:
    """Refuse what torch does not take for a seed."""
    return whole(argument, seed, -(2**63), 2**63 - 1)


def derive_seed(seed: int, purpose: str, index: int = 0) -> int:
    """A seed in [0, 2^63) for every (seed, purpose, index), by hashing the three; `index` may be that of a batch."""
    key = hashlib.blake2b(f"{purpose} {seed} {index}".encode(), digest_size=8).digest()
    return int.from_bytes(key, "big") >> 1


def crafting_seed(seed: int, batch: int) -> int:
    """The seed of an attack on a batch."""
    return derive_seed(seed, "craft", batch)


def scoring_seed(seed: int) -> int:
    """The seed of the classifier's weight samples: the same ensemble for every batch and attack."""
    return derive_seed(seed, "score")
