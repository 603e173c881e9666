"""The worst point found for each image: the one at which the deployed classifier is most likely to be wrong.

Points are compared on weight samples that neither craft nor score them, by an estimate that does not depend on the
scale of the logits. A few samples leave a few contenders for each image, and many samples choose the worst of these.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from advbnn.bayes.prediction import contributions

CONTENDERS = 4
"""Points of each image that are compared on many weight samples."""

_RESAMPLES = 200
"""Ensembles that are resampled, at least; a difference of one of them is the resolution of a chance."""

_BEHIND = 0.5
"""A contender whose chance on the few samples is larger than the lowest by more is not compared on many.

On as many samples as the ensemble has, the standard deviation of a chance is 0.29 at most, and on the same samples that
of a difference is hardly larger.
"""

SURVIVES = 0.05
"""Images that are correct with a smaller probability are broken: more attacks could not lower the result by more."""


def chance_correct(log_probs: Tensor, y: Tensor, size: int, rule: str = "probability") -> Tensor:
    """The estimated probability that an ensemble of `size` weight samples is correct at each of n points, [n].

    An ensemble predicts the class with the largest mean contribution v of its samples (see `contributions`). From the
    given samples, [samples, n, classes], ensembles are resampled with replacement, every sample equally often; the
    estimate is the share that is correct. Points with equal shares, as where no ensemble errs, are ordered by the
    smallest mean(d_c) / std(d_c) with d_c = v_y - v_c, which decides how often a large ensemble errs, since its mean is
    nearly normal: it adds less than the resolution of the share. Neither depends on the scale of v.
    """
    votes = contributions(log_probs.double(), rule).clamp_min(-1e30)  # a logarithm may be infinite
    ensembles = _resampled(len(votes), size).to(votes)
    parts = ensembles.split(20)  # all at once may not fit into memory
    right = torch.cat([torch.einsum("es,snc->enc", part, votes).argmax(-1) == y for part in parts])
    d = votes.gather(-1, y.expand(len(votes), -1)[..., None]) - votes
    std, mean = torch.std_mean(d, 0, correction=0)
    own = functional.one_hot(y, votes.shape[-1]).bool()
    lead = (mean / std.clamp_min(torch.finfo(std.dtype).tiny)).masked_fill(own, math.inf).amin(-1)
    return right.double().mean(0) + (0.5 + lead.atan() / math.pi) / len(ensembles)


def _resampled(samples: int, size: int) -> Tensor:
    """The weight of each sample in each resampled ensemble, [ensembles, samples]; the same at every call."""
    every = torch.arange(samples).repeat(size * math.ceil(_RESAMPLES / samples))
    members = every[torch.randperm(len(every), generator=torch.Generator().manual_seed(0))].view(-1, size)
    return torch.zeros(len(members), samples).scatter_add_(1, members, torch.ones(members.shape)) / size


class WorstPoints:
    """The most dangerous points found so far for each image of a batch.

    Attributes:
        points: a few for each image, in no order, [contenders, n, ...].
        chance: `chance_correct` at these, [contenders, n].
        compared: the same on more weight samples, NaN where it is not known.
    """

    def __init__(self, x: Tensor) -> None:
        self.points = x.repeat(CONTENDERS, *[1] * x.ndim)
        self.chance = torch.full(self.points.shape[:2], math.inf, dtype=torch.float64, device=x.device)
        self.compared = torch.full_like(self.chance, math.nan)

    @property
    def lowest(self) -> Tensor:
        """The chance that an ensemble is correct at the most dangerous point of each image, [n]."""
        return self.chance.amin(0)

    @property
    def most_dangerous(self) -> Tensor:
        """The point of each image with this chance, [n, ...]."""
        return self.points[self.chance.argmin(0), torch.arange(self.chance.shape[1], device=self.chance.device)]

    @property
    def surviving(self) -> Tensor:
        """The numbers of the images that no point so far breaks."""
        return (self.lowest > SURVIVES).nonzero().squeeze(1)

    def offer(self, points: Tensor, chance: Tensor, rows: Tensor) -> None:
        """Each point of the images `rows` takes the place of the least dangerous one, if it is more dangerous."""
        least, place = self.chance[:, rows].max(0)
        better = (chance < least).nonzero().squeeze(1)
        where = place[better], rows[better]
        self.points[where], self.chance[where], self.compared[where] = points[better], chance[better], math.nan

    def choose(self, compare: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """The worst point of each image, [n, ...].

        Where ensembles disagree, `compare(points, rows)` estimates the chance again, on more weight samples, of the
        contenders that are not far behind: once for each point, as the weight samples are the same at every radius. An
        image that has one such contender needs no comparison.
        """
        chance, everyone = self.chance.clone(), torch.arange(self.chance.shape[1], device=self.chance.device)
        lowest = self.lowest
        disagree = (lowest > 1 / _RESAMPLES) & (lowest < 1)
        near = chance <= lowest + _BEHIND
        several = disagree & (near.sum(0) > 1)
        # all contenders together, as a pass of few points takes hardly less time; never more than the batch has images
        for part in (several & self.compared.isnan() & near).nonzero().split(max(1, len(everyone))):
            if len(part):
                contender, rows = part.unbind(1)
                self.compared[contender, rows] = compare(self.points[contender, rows], rows)
        chance = torch.where(several & near, self.compared, chance).masked_fill(~near, math.inf)
        return self.points[chance.argmin(0), everyone]
