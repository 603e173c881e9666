"""Flags from probing the network itself: whether its gradients and predictions are reliable."""

import math
from collections.abc import Sequence
from statistics import NormalDist

import torch
from torch import Tensor

from advbnn.evaluation.audit.consistency import CLEAR, SIZES, WAYS
from advbnn.evaluation.audit.flags import CHANCE, Decision, Findings, below, decision, flag, more_than, percent, share

_NOTICEABLE = 0.001
"""The total variation from which two predictions that should be equal count as different."""

_FEW = 0.01
"""The share of images whose predictions may be unreliable without a flag."""

_SOME = 0.05
"""The share of images whose gradients may be unreliable without a flag."""

_MOST = 0.5
"""The share of images that a memory must hold to be recognised."""

_PLACES = "", " at a random point of the allowed set", " after a step along it"
"""Where a gradient is unreliable, in words: at which of the `points_nearby`."""

_ABRUPT = 0.1
"""The share of all changes of the output on a way that is abrupt if it falls on one of its 25 parts."""

_UNCORRELATED = 0.1
"""The mean cosine below which gradients of different weight samples count as nearly uncorrelated."""


@flag("Gradients are unreliable", "Look at the attacks without gradients; the true accuracy may be below them.")
def gradients(found: Findings) -> Decision:
    """The gradient must exist, be finite, and predict what small steps do, also at points near the image."""
    zero, infinite, explained = (found.probes[name] for name in ("zero_gradient", "infinite_gradient", "explained"))
    if _depends_on_time(found):
        explained = torch.full_like(explained, math.nan)  # hidden noise would look like the effect of a step
    misleading = (explained < 0.5) & ~infinite
    median = explained.nanmedian().item()
    problems = []
    numbers: dict[str, float | None] = {"explained": median if math.isfinite(median) else None}
    for name, unreliable, words in (
        ("zero", zero, "is exactly zero"),
        ("infinite", infinite, "is infinite or NaN"),
        ("misleading", misleading, "predicts less than half of the effect of small steps on the output"),
    ):
        images, place = max(zip(unreliable.unbind(1), _PLACES, strict=True), key=lambda at: share(at[0]))
        numbers[name] = share(images)
        if more_than(_SOME, images):
            problems.append(f"The gradient of the loss {words} for {_count(images)} images{place}.")
    words = "The gradient is neither zero nor infinite."
    if math.isfinite(median):
        words += f" It predicts {100 * median:.0f} % (median) of the effect of small random steps on the output."
    return Decision(bool(problems), " ".join(problems) or words, numbers)


@flag(
    "Gradients of different weight samples are nearly uncorrelated",
    "The attacks of the suite may use too few EOT samples; the true accuracy may be lower.",
)
def cosine(found: Findings) -> Decision:
    """Gradients of different weight samples must share a direction that an attack can find."""
    values = found.probes["cosine"]
    values = values[values.isfinite()]
    if not found.random or len(values) < 2:
        reason = "too few images have a gradient" if found.random else "the network is not random"
        return Decision(False, f"Not measured: {reason}.", {"mean": None})
    mean, error = share(values), values.std().item() / math.sqrt(len(values))
    # the mean gradient of K weight samples has cosine sqrt(K c / (1 + (K - 1) c)) with the expected gradient: 0.9
    needed = math.ceil(0.81 * (1 - mean) / (0.19 * mean)) if mean > 0 else None
    numbers = {"mean": mean, "standard_error": error, "eot_needed": needed}
    words = f"Gradients of different weight samples have mean cosine {mean:.2f}"
    raised = mean + NormalDist().inv_cdf(1 - CHANCE) * error < _UNCORRELATED
    if raised:
        count = "more EOT samples than are affordable" if needed is None else f"about {needed} EOT samples"
        words += f", nearly uncorrelated: an attack needs {count} per step"
    return Decision(raised, f"{words}.", numbers)


@flag("Randomness that no seed controls", "Nobody can repeat these numbers exactly.")
def hidden_randomness(found: Findings) -> Decision:
    """The same seed must give the same predictions, and another seed other weight samples."""
    differ = found.probes["repeat"] > _NOTICEABLE
    problems = []
    if _not_reproducible(found):
        own = "the network has a random source of its own."
        problems.append(f"Two predictions with the same seed differ for {_count(differ)} images: {own}")
    if bool(found.probes["reseeds"].any()):
        problems.append("The network sets torch's seed itself: its weight samples are not independent.")
    words = " ".join(problems) or "The same seed gives the same predictions."
    numbers = {"differ": share(differ), "largest": found.probes["repeat"].max().item()}
    return Decision(bool(problems), words, numbers)


@flag(
    "Predictions depend on earlier passes",
    "Let the network draw a fresh random state for every weight sample: give its modules a method resample(seed), or "
    "wrap it as advbnn.Resampled(net, by=lambda net, seed: ...). Without that EOT averages a single draw, attacks and "
    "scores share it, and the true accuracy may be lower or higher.",
)
def sticky_randomness(found: Findings) -> Decision:
    """The same input and seed must give the same output, whatever was passed before; and no state may stay unseen."""
    history, later = found.history, found.probes["later"] > _NOTICEABLE
    numbers = {"repeated": history.repeated, "later": history.later, "over_the_attacks": share(later)}
    methods = f" {', '.join(history.candidates)} may draw a new state." if history.candidates else ""
    # a random source that changes at every pass is another flag's
    hidden = (history.repeated > 0 or _not_reproducible(found)) and not history.keeps_state
    over_attacks = more_than(_FEW, later) and not hidden
    if history.keeps_state or over_attacks:
        seen = []
        if history.keeps_state:
            again = f"{100 * history.later:.1f} % of the passes differ from an earlier one with the same input and seed"
            seen.append(f"{again}, but only {100 * history.repeated:.1f} % from the one before.")
        if over_attacks:
            seen.append(f"The outputs of {_count(later)} images changed while the attacks ran, under the same seed.")
        problem = "The network keeps a random state between passes, or counts them."
        return Decision(True, f"{' '.join(seen)} {problem}{methods}", numbers)
    if history.candidates and not history.random:
        looks = "The network looks deterministic, but has methods that may draw a random state:"
        return Decision(True, f"{looks} {', '.join(history.candidates)}.", numbers)
    if hidden:
        return Decision(False, "Not measured: the network has a random source of its own.", numbers)
    words = "Outputs do not depend on earlier passes."
    if history.resampled:
        words += " The network keeps its random state between passes; every weight sample drew a fresh one."
    return Decision(False, words, numbers)


@flag(
    "The output changes abruptly",
    "Gradient attacks cannot see such jumps; the true accuracy may be lower.",
)
def discontinuity(found: Findings) -> Decision:
    """Changes near the resolution of float32 must not change predictions, and outputs must not jump on a long way."""
    elsewhere = found.probes["abrupt_elsewhere"]
    abrupt = elsewhere[~elsewhere.isnan()] > 3 * _ABRUPT
    if more_than(_SOME, abrupt) and not _depends_on_time(found):
        seen = f"On the way to a meaningless image the output of {_count(abrupt)} images jumps"
        return Decision(True, f"{seen}, also if they are shifted by one pixel.", {"abrupt": share(abrupt)})
    change = found.probes["tiny_change"]
    if change.isnan().all():
        return Decision(False, "Not measured: below float32, rounding changes predictions too; audit a float32 copy.")
    seen = "A change of a millionth of the range of the pixels changes the prediction of {} images"
    return _unchanged(found, change, seen, "the output is discontinuous, possibly on purpose")


@flag("Training and evaluation mode differ", "Make sure that the network in use is the one that was evaluated.")
def mode(found: Findings) -> Decision:
    """Training mode must not have another clean accuracy than evaluation mode."""
    evaluation, training = found.probes["evaluation_right"].double(), found.probes["training_right"].double()
    raised = below(evaluation, training) or below(training, evaluation)
    words = f"The clean accuracy is {percent(evaluation)} in evaluation mode, {percent(training)} in training mode."
    if raised:
        words += " The audit uses evaluation mode; without model.eval() the network behaves differently."
    return Decision(raised, words, {"evaluation": share(evaluation), "training": share(training)})


@flag("Predictions depend on the rest of the batch", "These numbers hold for this batch size and image order only.")
def batch(found: Findings) -> Decision:
    """The prediction of an image must not depend on the other images of its batch."""
    seen = "Other images in the same batch change the prediction of {} images"
    problem = "the output is not a function of the image; the network may use batch statistics in evaluation mode"
    decided = _unchanged(found, found.probes["batch"], seen, problem)
    revived = found.probes["revived"]
    if not decided.raised and not _depends_on_time(found) and more_than(_FEW, revived):
        seen = f"The worst points of {_count(revived)} images are misclassified beside points of the same attack"
        return Decision(True, f"{seen}, and correct beside the worst points of other images: {problem}.")
    by_size = _called(found, SIZES, "the network looks at the size of the batch")
    return by_size if by_size.raised and not decided.raised else decided


@flag(
    "Predictions depend on how the network is called",
    "Attacks, scores and users may see different networks: find what looks at gradients or memory formats, and remove "
    "it.",
)
def calling(found: Findings) -> Decision:
    """Gradient modes and memory formats must not change predictions."""
    others = [way for way in WAYS if way not in SIZES]
    return _called(found, others, "the network in use may not be the one that was attacked")


@flag(
    "The network remembers the test images",
    "Audit it on images that its authors have never had; around these its accuracy is unknown.",
)
def memory(found: Findings) -> Decision:
    """Outputs must not change abruptly where the surroundings of the test images end, and only there."""
    probes = found.probes
    here, elsewhere, middle = (
        probes[name][~probes[name].isnan()] for name in ("abrupt", "abrupt_elsewhere", "half_way")
    )
    abrupt, half_way = (here > _ABRUPT) & (here > 2 * elsewhere), middle > 2 * _ABRUPT
    jump, jump_elsewhere = (probes[name] > _NOTICEABLE for name in ("tiny_change", "jump_elsewhere"))
    numbers = {
        "abrupt": share(abrupt),
        "jump": share(jump),
        "jump_elsewhere": share(jump_elsewhere),
        "half_way": share(half_way) if len(half_way) else None,
    }
    if _depends_on_time(found):
        return Decision(False, "Not measured: predictions are not reproducible under the same seed.")
    shifted = "if they are shifted by one pixel"
    problems = []
    if share(abrupt) > _MOST:
        problems.append(
            f"At some distance from {_count(abrupt)} images the output changes abruptly, and not {shifted}."
        )
    if below(jump_elsewhere.double(), jump.double()):
        problems.append(
            f"A tiny change changes the prediction of {_count(jump)} images, but of {_count(jump_elsewhere)} {shifted}."
        )
    if len(half_way) and share(half_way) > _MOST:
        problems.append(f"Half-way to another image the output changes abruptly, for {_count(half_way)} images.")
    words = "The test images are not treated differently from shifted ones."
    return Decision(bool(problems), " ".join(problems) or words, numbers)


@flag("Returns probabilities", "Tools that do not notice report an accuracy that is too high.")
def probabilities(found: Findings) -> Decision:
    """The network should return logits."""
    if not found.probabilities:
        return Decision(False, "The network returns logits.")
    words = "Losses of logits then have vanishing gradients, and attacks fail. The audit attacked their logarithms"
    return Decision(True, f"The network returns probabilities. {words}; let the network return logits.")


def _called(found: Findings, ways: Sequence[str], problem: str) -> Decision:
    """Predictions that should not depend on the way of calling."""
    if _depends_on_time(found):
        return Decision(False, "Not measured: predictions are not reproducible under the same seed.")
    measured = {way: found.probes[way][~found.probes[way].isnan()] for way in ways}
    if not all(map(len, measured.values())):
        return Decision(False, "Not measured: below float32, rounding changes predictions too; audit a float32 copy.")
    numbers = {way: share(change > CLEAR) for way, change in measured.items()}
    raised = [way for way, change in measured.items() if more_than(_FEW, change > CLEAR)]
    if not raised:
        return Decision(False, "Predictions do not depend on how the network is called.", numbers)
    seen = "; ".join(f"{_count(measured[way] > CLEAR)} images are classified differently {WAYS[way]}" for way in raised)
    return Decision(True, f"{seen}: {problem}.", numbers)


def _unchanged(found: Findings, change: Tensor, seen: str, problem: str) -> Decision:
    """Predictions that should not change: raised if more than a few do."""
    if _depends_on_time(found):
        return Decision(False, "Not measured: predictions are not reproducible under the same seed.")
    differ = change > _NOTICEABLE
    numbers = {"differ": share(differ), "largest": change.max().item()}
    return decision(more_than(_FEW, differ), seen.format(_count(differ)), problem, **numbers)


def _depends_on_time(found: Findings) -> bool:
    """Whether outputs under the same seed differ, from one pass to the next or in the long run."""
    return _not_reproducible(found) or found.history.keeps_state or more_than(_FEW, found.probes["later"] > _NOTICEABLE)


def _not_reproducible(found: Findings) -> bool:
    return more_than(_FEW, found.probes["repeat"] > _NOTICEABLE)


def _count(images: Tensor) -> str:
    return f"{int(images.sum())} of {len(images)}"
