"""Flags that come of looking at the network itself: whether its gradients and its answers can be relied on."""

import math

import torch
from torch import Tensor

from advbnn.evaluation.audit.flags import CHANCE, Findings, Flag, below, more_than, percent, share

_NOTICEABLE = 0.001
"""The total variation from which two answers that ought to be the same count as different."""

_FEW = 0.01
"""The share of images that may behave oddly."""

_SOME = 0.05
"""The share of images whose gradients may."""

_UNRELATED = 0.1
"""The mean cosine below which gradients of different draws count as unrelated."""


def probe_flags(found: Findings) -> tuple[Flag, ...]:
    """The flags of a network, the same at every radius."""
    return (
        _gradients(found),
        _cosine(found),
        _hidden_randomness(found),
        _discontinuity(found),
        _mode(found),
        _batch(found),
        _probabilities(found),
    )


def _gradients(found: Findings) -> Flag:
    vanished, exploded, explained = (found.probes[name] for name in ("no_gradient", "bad_gradient", "explained"))
    if _forgetful(found):
        explained = torch.full_like(explained, math.nan)  # its noise would be mistaken for the effect of a step
    misled = (explained < 0.5) & ~exploded
    n, median = len(explained), explained.nanmedian().item()
    numbers = {
        "vanished": share(vanished),
        "exploded": share(exploded),
        "misled": share(misled),
        "explained": median if math.isfinite(median) else None,
    }
    seen = [
        f"The gradient of the loss {words} for {int(images.sum())} of {n} images."
        for images, words in (
            (vanished, "is exactly zero"),
            (exploded, "is infinite or not a number"),
            (misled, "says little of what small steps do to the output, less than half of it,"),
        )
        if more_than(_SOME, images)
    ]
    if seen:
        return Flag("gradients", True, " ".join([*seen, "Attacks that follow it prove nothing."]), numbers)
    words = "The gradient neither vanishes nor explodes."
    if math.isfinite(median):
        words += f" It foretells {100 * median:.0f} % (median) of what small random steps do to the output."
    return Flag("gradients", False, words, numbers)


def _cosine(found: Findings) -> Flag:
    cosine = found.probes["cosine"]
    cosine = cosine[cosine.isfinite()]
    if not found.random or len(cosine) < 2:
        reason = "too few images have a gradient" if found.random else "the network is not random"
        return Flag("cosine", False, f"Not measured: {reason}.", {"mean": None})
    mean, error = share(cosine), cosine.std().item() / math.sqrt(len(cosine))
    # the mean gradient of K draws has cosine sqrt(K c / (1 + (K - 1) c)) with that of all draws
    needed = math.ceil(0.81 * (1 - mean) / (0.19 * mean)) if mean > 0 else None
    numbers = {"mean": mean, "standard_error": error, "draws_needed": needed}
    seen = f"Gradients of two of its draws have a cosine of {mean:.2f} on average"
    if mean + _z(CHANCE) * error < _UNRELATED:
        remedy = "more draws than can be paid for" if needed is None else f"about {needed} draws"
        words = f"{seen}: each points where it likes. An attack needs {remedy} a step to see where all of them lead."
        return Flag("cosine", True, words, numbers)
    return Flag("cosine", False, f"{seen}, where 0 is none of their direction in common and 1 all of it.", numbers)


def _hidden_randomness(found: Findings) -> Flag:
    differ = found.probes["repeat"] > _NOTICEABLE
    numbers = {"differ": share(differ), "largest": found.probes["repeat"].max().item()}
    seen = []
    if _forgetful(found):
        seen.append(
            f"Asked twice under the same seed, it answers differently for {_of(differ)} images. It draws from a source "
            "of its own, and nothing measured here can be repeated exactly."
        )
    if bool(found.probes["reseeds"].any()):
        seen.append("It sets torch's seed itself, so that its draws are not the chance that they are taken for.")
    words = " ".join(seen) or "The same seed gives the same answers."
    return Flag("hidden_randomness", bool(seen), words, numbers)


def _discontinuity(found: Findings) -> Flag:
    if bool(found.probes["hair"].isnan().all()):
        words = "Not measured: with fewer digits than float32 has, rounding moves answers too. Audit a copy in float32."
        return Flag("discontinuity", False, words, {})
    seen = "A change of a millionth of the range of the pixels changes the answers to {} images"
    words = "its output jumps, and may do so in a way that is made to be unpredictable."
    return _no_change("discontinuity", found, found.probes["hair"], seen, words)


def _mode(found: Findings) -> Flag:
    evaluation, training = found.probes["evaluation_right"].double(), found.probes["training_right"].double()
    numbers = {"evaluation": share(evaluation), "training": share(training)}
    seen = (
        f"Of the clean images {percent(evaluation)} are right in evaluation mode, {percent(training)} in training mode"
    )
    if below(evaluation, training) or below(training, evaluation):
        words = f"{seen}. This audit is of evaluation mode; without model.eval() one would measure another network."
        return Flag("mode", True, words, numbers)
    return Flag("mode", False, f"{seen}.", numbers)


def _batch(found: Findings) -> Flag:
    seen = "With other images in the same batch the answers to {} images change"
    words = "the output is no function of the image. Does it normalise by the batch in evaluation mode?"
    return _no_change("batch", found, found.probes["batch"], seen, words)


def _probabilities(found: Findings) -> Flag:
    if not found.probabilities:
        return Flag("probabilities", False, "It returns logits.", {})
    words = (
        "It returns probabilities. Losses that expect logits then have gradients near zero, and attacks fail for no "
        "good reason. This audit has taken their logarithms; let the network return logits."
    )
    return Flag("probabilities", True, words, {})


def _no_change(name: str, found: Findings, change: Tensor, seen: str, words: str) -> Flag:
    """Answers that ought to stay the same: raised, with `words`, if more than a few of them change."""
    if _forgetful(found):
        return Flag(name, False, "Cannot be told of a network that does not repeat itself.", {})
    differ = change > _NOTICEABLE
    numbers = {"differ": share(differ), "largest": change.max().item()}
    raised, seen = more_than(_FEW, differ), seen.format(_of(differ))
    return Flag(name, raised, f"{seen}: {words}" if raised else f"{seen}.", numbers)


def _forgetful(found: Findings) -> bool:
    """Whether the network does not repeat itself under the same seed."""
    return more_than(_FEW, found.probes["repeat"] > _NOTICEABLE)


def _of(images: Tensor) -> str:
    return f"{int(images.sum())} of {len(images)}"


def _z(tail: float) -> float:
    """The number that a standard normal variable exceeds with probability `tail`."""
    return math.sqrt(2) * torch.erfinv(torch.tensor(1 - 2 * tail, dtype=torch.float64)).item()
