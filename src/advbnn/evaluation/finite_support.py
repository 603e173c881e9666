"""Scores of a classifier that picks some of finitely many networks at random."""

from collections.abc import Sequence

import torch
from torch import Tensor

from advbnn.bayes.prediction import prediction_of, sampled_log_probs
from advbnn.bayes.protocol import Member


def picked(found: Sequence[Member], count: int, seed: int) -> Tensor:
    """`count` of the members, each as often as its probability says, rounded up or down by chance: their numbers.

    Independent picks of a rare member are seldom as many as expected, and all images would share the error. The picks
    are at equal distances, from a random one on, of members in random order: of more members than picks, other ones are
    picked under other seeds, however they are stored.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(found), generator=generator)
    shares = torch.tensor([one.weight for one in found], dtype=torch.float64)[order].cumsum(0)
    places = (torch.arange(count) + torch.rand((), dtype=torch.float64, generator=generator)) / count
    picks = order[torch.searchsorted(shares / shares[-1], places).clamp_max(len(found) - 1)]
    return picks[torch.randperm(count, generator=generator)]


@torch.no_grad()
def correct_ensembles(
    found: Sequence[Member], x: Tensor, y: Tensor, ensembles: int, samples: int, rule: str, seed: int
) -> Tensor:
    """Whether each of so many ensembles, of `samples` picked members, is correct, [n, ensembles]; members run once."""
    log_probs = torch.cat([sampled_log_probs(one.net, x, 1, seed) for one in found])
    ways = picked(found, ensembles * samples, seed).view(ensembles, samples)
    return torch.stack([prediction_of(log_probs[some], rule).label == y for some in ways], 1)
