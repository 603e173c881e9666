"""Whether a network's outputs depend on earlier passes: a random state that is kept between passes, or a counter.

The output of a network, random or not, must be a function of its input and the seed. Published defences that draw
random filters, masks or bit widths often keep the draw until a method of theirs is called, or for a number of passes.
EOT then averages one draw, and attacks and scores share it.
"""

import math
import re
import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from advbnn.modules import evaluating
from advbnn.randomness import derive_seed, draws, offers_resample, pass_under, transparent

_SEEDS = 400
"""Seeds of the passes. Each is used three times, so that a state that is kept for 1,000 passes changes meanwhile."""

_FEWEST_SEEDS, _SECONDS = 20, 20.0
"""A slow network is stopped after these seconds, but not before that many seeds. A `transparent` one needs no more."""

_RELATIVE = 1e-3
"""The change of the outputs, relative to the largest of them, from which two passes count as different."""

_REDRAWS = re.compile(
    r"re_?(sample|draw|roll|randomi[sz]e)"
    r"|(\w+_)?rand(s|om\w*)?(_\w+)?"
    r"|(new|draw|sample|generate|update|refresh|renew|reset|set|switch|change)_(\w+_)?"
    r"(noise|paths?|masks?|bits?|precision|norms?|filters?|draw)(_mixed)?"
)
"""Names of methods that may draw a new random state, among them those of published code: RPF, RNA, CTRW, DCS, DWQ."""


@dataclass(frozen=True)
class History:
    """How a network behaves over many passes on a few images.

    Attributes:
        random: passes use torch's random numbers, or differ.
        passes: how many passes were made.
        repeated: the share of passes that differ from the pass before them, with the same input and seed.
        later: the share of passes that differ from a pass long before them, with the same input and seed.
        resampled: whether the network offers to draw a fresh random state, which is used for every pass.
        candidates: the names of other methods that may draw one; never called.
    """

    random: bool = False
    passes: int = 0
    repeated: float = 0.0
    later: float = 0.0
    resampled: bool = False
    candidates: tuple[str, ...] = ()

    @property
    def keeps_state(self) -> bool:
        """Whether outputs depend on earlier passes: a random source that changes at every pass has no memory.

        For such a source both shares estimate the same probability, from a third of the passes each.
        """
        return self.later > 1.25 * self.repeated + 4 * math.sqrt(self.repeated / max(1, self.passes // 3))


@torch.no_grad()
def look_back(
    model: nn.Module, x: Tensor, seed: int, *, seeds: int | None = None, seconds: float = _SECONDS
) -> History:
    """Pass a few images `x` through the network, under many seeds; and again, after another batch and other seeds.

    The second time differs if a state is kept for n passes (the passes in between shift the phase of a counter), until
    the batch or its size changes, or if the network changes its behaviour after some passes. A network that is still
    not done after some seconds gets fewer seeds, and so does a `transparent` one.
    """
    seeds = seeds or (_FEWEST_SEEDS if transparent(model) else _SEEDS)

    def outputs(z: Tensor, number: int) -> Tensor:
        return pass_under(derive_seed(seed, "history", number), model, z)

    first, repeated, started = [], [], time.perf_counter()
    with evaluating(model):
        uses_generator = draws(model, x)
        for number in range(seeds):
            first.append(outputs(x, number))
            repeated.append(outputs(x, number))
            # two thirds of the passes
            if number >= _FEWEST_SEEDS and time.perf_counter() - started > seconds * 2 / 3:
                break
        for number, other in enumerate((x.flip(-1), x[:1], x), start=seeds):
            outputs(other, number)
        later = [outputs(x, number) for number in range(len(first))]
    a, b, c = (torch.stack(found) for found in (first, repeated, later))
    varies = bool(_differ(a, a[:1]).any() or _differ(b, a).any() or _differ(c, a).any())
    return History(
        random=uses_generator or varies,
        passes=3 * len(first) + 4,
        repeated=_differ(b, a).double().mean().item(),
        later=_differ(c, a).double().mean().item(),
        resampled=offers_resample(model),
        candidates=candidates(model),
    )


def relative_change(a: Tensor, b: Tensor) -> Tensor:
    """The largest difference of the outputs of each input, relative to the largest output."""
    return (a - b).abs().amax(-1) / a.abs().amax(-1).clamp_min(torch.finfo(a.dtype).tiny)


def _differ(a: Tensor, b: Tensor) -> Tensor:
    """Whether passes, [passes, n, classes], differ for one of the inputs."""
    return (relative_change(a, b) > _RELATIVE).any(-1)


def candidates(model: nn.Module) -> tuple[str, ...]:
    """Methods of the network's own modules whose names say that they draw something, as `Class.method`."""
    found: dict[str, None] = {}
    for kind in {type(part): None for part in model.modules()}:
        if kind.__module__.partition(".")[0] in ("torch", "advbnn"):
            continue
        names = (name for name in dir(kind) if not hasattr(nn.Module, name) and _REDRAWS.fullmatch(name))
        found |= {f"{kind.__name__}.{name}": None for name in names if callable(getattr(kind, name))}
    return tuple(found)
