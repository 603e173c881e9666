"""Probes of whether a network remembers the images that it is tested on.

A network that stores test images with their labels resists attacks at these images and nowhere else. Where its memory
ends, its output changes abruptly: at some distance from a test image, or half-way between two. The same images shifted
by one pixel, which nobody stored, tell that from other abrupt networks.
"""

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from advbnn.evaluation.attackable import Attackable
from advbnn.evaluation.audit.consistency import total_variation
from advbnn.randomness import pass_under

_FEW_IMAGES = 64
"""The images of a batch that are compared with each other."""

_PARTS = 25
"""The equal parts of a way along which outputs are compared; the middle one is around the middle."""

_ASIDE = 0.05
"""How far, relative to the pixels, a way leads past the middle of two images, where quantised pixels may jump too."""


@torch.no_grad()
def memory(model: Attackable, x: Tensor, nearby: Tensor, seed: int) -> dict[str, Tensor]:
    """Per image, [n] each:

    - jump_elsewhere: the total variation between the predictions of the shifted `x` and the shifted `nearby`, which is
      `x` up to a tiny change.
    - abrupt: of all changes of the logits on a straight way from the image to a meaningless one, the largest share that
      falls on one of 25 parts; abrupt_elsewhere: the same for the shifted image.
    - half_way: of all changes on a way past a similar image of another class, the share that falls on the middle part.

    NaN where it was not measured, as for all but a few images of a batch. All outputs have the same seed.
    """
    logits = functools.partial(pass_under, seed, model)
    generator, few = torch.Generator(x.device).manual_seed(seed), x[:_FEW_IMAGES]
    pixels = torch.randperm(few[0].numel(), generator=generator, device=x.device)
    meaningless = few.flip(0).flatten(1)[:, pixels].view_as(few)
    found = {
        "abrupt": _changes(logits, few, meaningless).amax(0),
        "abrupt_elsewhere": _changes(logits, _shift(few), meaningless).amax(0),
        "half_way": _half_way(logits, few, generator),
    }
    unknown = torch.full((len(x),), math.nan, dtype=torch.float64, device=x.device)
    measured = {name: unknown.index_copy(0, torch.arange(len(few), device=x.device), v) for name, v in found.items()}
    jump = total_variation(logits(_shift(x)).softmax(1), logits(_shift(nearby)).softmax(1))
    return {"jump_elsewhere": jump, **measured}


def _half_way(logits: Callable[[Tensor], Tensor], x: Tensor, generator: torch.Generator) -> Tensor:
    label, flat = logits(x).argmax(1), x.flatten(1).float()
    distances = torch.cdist(flat, flat).masked_fill(label[:, None] == label, math.inf)
    distance, other = distances.min(1)
    way = flat[other] - flat
    aside = _ASIDE * torch.randn(flat.shape, generator=generator, device=x.device)
    # at a right angle, so that every point is as near to one image of the two as it was
    aside -= way * (aside * way).sum(1, keepdim=True) / way.square().sum(1, keepdim=True).clamp_min(1e-12)
    aside = aside.view_as(x).to(x.dtype)
    share = _changes(logits, x + aside, x[other] + aside)[_PARTS // 2]
    return share.masked_fill(distance.isinf(), math.nan)


def _changes(logits: Callable[[Tensor], Tensor], start: Tensor, end: Tensor) -> Tensor:
    """The share of the change of the logits on each part of the way from `start` to `end`, [parts, n]."""
    on_the_way = torch.stack([logits(torch.lerp(start, end, k / _PARTS)) for k in range(_PARTS + 1)]).double()
    change = on_the_way.diff(dim=0).abs().sum(-1)
    return change / change.sum(0).clamp_min(torch.finfo(change.dtype).tiny)


def _shift(x: Tensor) -> Tensor:
    return x.roll(1, -1)
