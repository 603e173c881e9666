"""Seeding a block of code without touching the caller's random state."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def _default_generator(device: torch.device) -> torch.Generator:
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        return torch.cuda.default_generators[index]
    return torch.default_generator


@contextmanager
def seeded(seed: int | None, device: torch.device | str = "cpu") -> Iterator[None]:
    """Within the block, torch's default generators of the CPU and of `device` follow `seed`.

    Afterwards both are as they were, also when the block raises. With `seed=None` nothing is
    seeded and nothing is restored: the block draws from the caller's stream, as any torch code does.
    """
    if seed is None:
        yield
        return
    generators = {torch.default_generator, _default_generator(torch.device(device))}
    states = [(generator, generator.get_state()) for generator in generators]
    try:
        for generator in generators:
            generator.manual_seed(seed)
        yield
    finally:
        for generator, state in states:
            generator.set_state(state)
