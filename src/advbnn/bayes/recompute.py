"""Refusing activation checkpointing inside a sampled forward pass.

Checkpointing runs part of the network again during the backward pass. By then the sampled weights have left
the network, so the second run would use the means: gradients would be wrong, and nothing would say so.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils import checkpoint

MESSAGE = (
    "the network uses activation checkpointing (torch.utils.checkpoint), whose second run during the backward "
    "pass would not see the sampled weights and give wrong gradients; switch it off in the network (for example "
    "`gradient_checkpointing_disable()` or `use_checkpoint=False`), or checkpoint the whole Bayesian instead: "
    "`checkpoint(bnn, x, use_reentrant=False)`"
)

# the two ways into checkpointing, looked up by torch at every call of `checkpoint`
_ENTRANCES = ("CheckpointFunction", "_checkpoint_without_reentrant_generator")
_lock = threading.Lock()
_sampling = threading.local()
_originals: dict[str, Any] = {}
_users = 0


class _Refusing:
    """Stands in for one entrance: refuses the thread that is inside a sampled forward pass, lets others through."""

    def __init__(self, original: Any) -> None:
        self.original = original

    def _check(self) -> None:
        if getattr(_sampling, "depth", 0):
            raise RuntimeError(MESSAGE)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._check()
        return self.original(*args, **kwargs)

    def apply(self, *args: Any, **kwargs: Any) -> Any:
        self._check()
        return self.original.apply(*args, **kwargs)


@contextmanager
def refusing_checkpointing() -> Iterator[None]:
    """Within the block, `torch.utils.checkpoint` raises in this thread; it is back to normal afterwards."""
    global _users
    with _lock:
        if _users == 0:
            for name in _ENTRANCES:
                _originals[name] = getattr(checkpoint, name)
                setattr(checkpoint, name, _Refusing(_originals[name]))
        _users += 1
    _sampling.depth = getattr(_sampling, "depth", 0) + 1
    try:
        yield
    finally:
        _sampling.depth -= 1
        with _lock:
            _users -= 1
            if _users == 0:
                for name in _ENTRANCES:
                    setattr(checkpoint, name, _originals.pop(name))
