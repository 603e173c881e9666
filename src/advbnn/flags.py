"""Signs that a robust accuracy is too good to be true, each with its evidence in words.

A flag compares what the attacks of one audit have left, or reads what the probes have found. A difference counts if it
is beyond sampling error and large enough to matter; what is too small to tell never raises a flag.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from advbnn.battery import BLACK_BOX, NOISE, PAPER, TRANSFER, WHITE_BOX, Trial, pairs
from advbnn.intervals import clopper_pearson

CHANCE = 0.001
"""How often, at most, chance alone may make one comparison count."""

SMALLEST = 0.05
"""The smallest difference of two accuracies that counts, however sure it is."""

TITLES = {
    "eot": "More averaging does not help the attack",
    "steps": "More steps do not help the attack",
    "restarts": "More starts do not help the attack",
    "large_eps": "Survives what nothing can survive",
    "black_box": "Attacks without its gradients do better",
    "noise": "Random noise does as much as its gradients",
    "gradients": "Gradients that mislead",
    "cosine": "Draws whose gradients have nothing in common",
    "single_draw": "Robust against single draws only",
    "hidden_randomness": "Randomness that no seed controls",
    "discontinuity": "Invisible changes change the answer",
    "mode": "Another network in training mode",
    "batch": "Answers depend on the rest of the batch",
    "probabilities": "Returns probabilities",
}
"""What each flag is called, when raised."""


@dataclass(frozen=True)
class Flag:
    """One sign of trouble, or of its absence.

    Attributes:
        name: which sign; a key of `TITLES`.
        raised: whether it was found.
        evidence: what was seen, in words.
        numbers: what was seen, in numbers.
    """

    name: str
    raised: bool
    evidence: str
    numbers: Mapping[str, float | None]

    @property
    def title(self) -> str:
        """The sign in a few words."""
        return TITLES[self.name]


@dataclass(frozen=True)
class Findings:
    """What one radius of an audit has shown, per image.

    Attributes:
        trials: the attacks.
        right: which images each left right, the mean over the evaluation seeds; NaN where it was not tried, [n, trials].
        clean: the same without an attack, [n].
        robust: the same for the worst case, [n].
        large_eps: the same at a radius that nothing can survive, [n]; None if there is no such radius.
        probes: what `probe` has found.
        random: whether the network is.
        probabilities: whether it returns those.
    """

    trials: Sequence[Trial]
    right: Tensor
    clean: Tensor
    robust: Tensor
    large_eps: Tensor | None
    probes: Mapping[str, Tensor]
    random: bool
    probabilities: bool

    def of(self, number: int) -> Tensor:
        """What is left by the trial of this number."""
        return self.right[:, number]

    def strongest(self, *roles: str) -> int | None:
        """The number of the trial on all images, of the given roles, that leaves least; None if there is none."""
        numbers = [i for i, trial in enumerate(self.trials) if trial.role in roles and trial.on == "all"]
        return min(numbers, key=lambda i: self.of(i).mean().item(), default=None)


def find_flags(findings: Findings) -> tuple[Flag, ...]:
    """All flags, raised or not, in the order of `TITLES`."""
    return (
        _effort(findings, "eot", "draws a step"),
        _effort(findings, "steps", "steps"),
        _effort(findings, "restarts", "starts"),
        _large_eps(findings),
        _black_box(findings),
        _noise(findings),
        _gradients(findings),
        _cosine(findings),
        _single_draw(findings),
        _hidden_randomness(findings),
        _discontinuity(findings),
        _mode(findings),
        _batch(findings),
        _probabilities(findings),
    )


def below(lower: Tensor, upper: Tensor) -> bool:
    """Whether `lower` is the lower of two accuracies on the same images, by more than chance and enough to matter.

    Images on which one is better are as likely as those on which the other is if both are equally good, so that the
    number of the former is binomial (the sign test; McNemar's exact test for a single seed).

    Args:
        lower: for each image the share of seeds under which it was right, [n].
        upper: the same.
    """
    difference = upper - lower
    wins, losses = int((difference > 0).sum()), int((difference < 0).sum())
    return difference.mean().item() >= SMALLEST and _tail(wins, wins + losses) <= CHANCE


def _tail(successes: int, n: int) -> float:
    """P(X >= successes) for the number X of heads in n throws of a coin."""
    return sum(math.comb(n, k) for k in range(successes, n + 1)) / 2**n


def _many(image: Tensor, share: float) -> bool:
    """Whether something is surely true for more than a share of all such images."""
    return clopper_pearson(int(image.sum()), len(image), 1 - 2 * CHANCE)[0] > share


def _effort(found: Findings, field: str, words: str) -> Flag:
    """More of the attacker's effort must not help the defender."""
    compared = pairs(found.trials, field)
    if not compared:
        reason = "The network is not random" if field == "eot" and not found.random else "The battery has one value"
        return Flag(field, False, f"{reason}, so there is nothing to compare.", {})
    # the pair in which the stronger attack does worst
    a, b = max(compared, key=lambda pair: (found.of(pair[1]) - found.of(pair[0])).mean().item())
    less, more = (getattr(found.trials[i].attack, field) for i in (a, b))
    raised = below(found.of(a), found.of(b))
    numbers = {f"{field}_{less}": _share(found.of(a)), f"{field}_{more}": _share(found.of(b))}
    seen = f"{found.trials[b].name} leaves {_percent(found.of(b))} right, {found.trials[a].name} {_percent(found.of(a))}"
    if raised:
        return Flag(field, True, f"{seen}. An attack with more {words} must not be weaker: its path is blocked.", numbers)
    return Flag(field, False, f"More {words} never made an attack weaker beyond chance: at worst, {seen}.", numbers)


def _large_eps(found: Findings) -> Flag:
    if found.large_eps is None:
        return Flag("large_eps", False, "Not tried: inputs have no bounds, so every radius leaves something.", {})
    left = _percent(found.large_eps)
    numbers = {"accuracy": _share(found.large_eps)}
    if _many(found.large_eps > 0.5, SMALLEST):
        words = (
            f"At half the range of the pixels every image can be made plain grey, so nothing can be robust; yet the "
            f"gradient attack leaves {left} right. It does not find what is certainly there."
        )
        return Flag("large_eps", True, words, numbers)
    return Flag("large_eps", False, f"At half the range of the pixels the attack leaves {left} right, as it should.", numbers)


def _black_box(found: Findings) -> Flag:
    inside, outside = found.strongest(PAPER, WHITE_BOX), found.strongest(TRANSFER, BLACK_BOX)
    if inside is None or outside is None:
        return Flag("black_box", False, "The battery has no attacks to compare.", {})
    by_gradient, without = found.of(inside), found.of(outside)
    numbers = {"white_box": _share(by_gradient), "black_box": _share(without)}
    seen = (
        f"{found.trials[outside].name}, which does not use its gradients, leaves {_percent(without)} right; "
        f"{found.trials[inside].name}, the best that uses them on all images, {_percent(by_gradient)}"
    )
    if below(without, by_gradient):
        return Flag("black_box", True, f"{seen}. Who knows less does better, so the gradients are masked.", numbers)
    return Flag("black_box", False, f"{seen}: knowing the network helps, or does no harm.", numbers)


def _noise(found: Findings) -> Flag:
    """At a radius where attacks can do something, gradients must do more than chance does."""
    inside, noise = found.strongest(PAPER, WHITE_BOX), found.strongest(NOISE)
    if inside is None or noise is None:
        return Flag("noise", False, "The battery has no attacks to compare.", {})
    by_gradient, by_chance = found.of(inside), found.of(noise)
    numbers = {"white_box": _share(by_gradient), "noise": _share(by_chance), "worst_case": _share(found.robust)}
    seen = f"Random noise leaves {_percent(by_chance)} right, the best attack by gradients {_percent(by_gradient)}"
    if not below(by_gradient, by_chance) and below(found.robust, by_chance):
        words = f"{seen}, though only {_percent(found.robust)} survive all attacks. The gradients lead nowhere."
        return Flag("noise", True, words, numbers)
    return Flag("noise", False, f"{seen}.", numbers)


def _gradients(found: Findings) -> Flag:
    none, bad = found.probes["no_gradient"], found.probes["bad_gradient"]
    misled = (found.probes["explained"] < 0.5) & ~bad
    n = len(none)
    numbers = {
        "vanished": _share(none.double()),
        "not_finite": _share(bad.double()),
        "misleading": _share(misled.double()),
        "median_explained": found.probes["explained"].nanmedian().item(),
    }
    seen = []
    if _many(none, 0.05):
        seen.append(f"The gradient of the loss is exactly zero for {_count(none)} of {n} images (it vanishes).")
    if _many(bad, 0.05):
        seen.append(f"The gradient of the loss is not a number, or infinite, for {_count(bad)} of {n} images (it explodes).")
    if _many(misled, 0.05):
        seen.append(
            f"For {_count(misled)} of {n} images the gradient does not tell what small steps do: it explains less than "
            "half of how the output changes."
        )
    if seen:
        return Flag("gradients", True, " ".join([*seen, "Attacks that follow it prove nothing."]), numbers)
    explained = numbers["median_explained"]
    words = f"Gradients are there, and foretell {explained:.0%} (median) of what small random steps do to the output."
    return Flag("gradients", False, words, numbers)


def _cosine(found: Findings) -> Flag:
    if not found.random:
        return Flag("cosine", False, "The network is not random: it has one gradient.", {"mean_cosine": 1.0})
    cosine = found.probes["cosine"]
    cosine = cosine[cosine.isfinite()]
    if len(cosine) < 2:
        return Flag("cosine", False, "Too few images have gradients to compare.", {"mean_cosine": None})
    mean = cosine.mean().item()
    error = cosine.std().item() / math.sqrt(len(cosine))
    # the part of its direction that the mean gradient of K draws shares with that of all draws
    needed = math.inf if mean <= 0 else 0.81 * (1 - mean) / (0.19 * mean)
    numbers = {"mean_cosine": mean, "standard_error": error, "draws_for_0.9": None if math.isinf(needed) else needed}
    seen = f"Gradients of two draws of the network have a cosine of {mean:.2f} on average"
    if mean + _z(CHANCE) * error < 0.1:
        advice = "no number of draws" if math.isinf(needed) else f"about {math.ceil(needed)} draws"
        words = f"{seen}: they point nearly anywhere. It takes {advice} a step to know where the mean points."
        return Flag("cosine", True, words, numbers)
    return Flag("cosine", False, f"{seen}: single draws agree on where to go.", numbers)


def _single_draw(found: Findings) -> Flag:
    compared = [(a, b) for a, b in pairs(found.trials, "eot") if found.trials[a].attack.eot == 1]  # type: ignore[attr-defined]
    if not compared:
        return Flag("single_draw", False, "The network is not random: one draw is all there is.", {})
    a, b = max(compared, key=lambda pair: (found.of(pair[0]) - found.of(pair[1])).mean().item())
    numbers = {"single": _share(found.of(a)), "averaged": _share(found.of(b))}
    seen = (
        f"{found.trials[a].name} leaves {_percent(found.of(a))} right, {found.trials[b].name} averaged "
        f"{_percent(found.of(b))}"
    )
    if below(found.of(b), found.of(a)):
        words = f"{seen}. An attack that looks at one draw a step overstates the robustness; report the averaged one."
        return Flag("single_draw", True, words, numbers)
    return Flag("single_draw", False, f"{seen}: no more apart than chance and small differences are.", numbers)


_NOTICEABLE = 0.001
"""The total variation between two answers that ought to be the same from which they count as different."""


def _hidden_randomness(found: Findings) -> Flag:
    differ, reseeds = found.probes["repeat"] > _NOTICEABLE, found.probes["reseeds"]
    n = len(differ)
    numbers = {"differ": _share(differ.double()), "largest": found.probes["repeat"].max().item()}
    seen = []
    if _many(differ, 0.01):
        seen.append(
            f"Asked twice with the same seed, it answers {_count(differ)} of {n} images differently: it draws from a "
            "source of its own. Averages still hold, but nothing here can be repeated."
        )
    if bool(reseeds.any()):
        seen.append("It sets torch's seed itself, so that its draws are not the chance that they are said to be.")
    if seen:
        return Flag("hidden_randomness", True, " ".join(seen), numbers)
    return Flag("hidden_randomness", False, "The same seed gives the same answers.", numbers)


def _discontinuity(found: Findings) -> Flag:
    if _many(found.probes["repeat"] > _NOTICEABLE, 0.01):
        return Flag("discontinuity", False, "Cannot be told of a network that does not repeat itself.", {})
    differ = found.probes["hair"] > _NOTICEABLE
    numbers = {"differ": _share(differ.double()), "largest": found.probes["hair"].max().item()}
    if _many(differ, 0.01):
        words = (
            f"A change of a millionth of the range of the pixels changes the answer to {_count(differ)} of {len(differ)} "
            "images: the output jumps. It may depend on the input in a way made to be unpredictable."
        )
        return Flag("discontinuity", True, words, numbers)
    return Flag("discontinuity", False, "A change of a millionth of the range changes no answer noticeably.", numbers)


def _mode(found: Findings) -> Flag:
    evaluation, training = (found.probes[f"{mode}_right"].double() for mode in ("evaluation", "training"))
    numbers = {"evaluation": _share(evaluation), "training": _share(training)}
    seen = f"Of clean images {_percent(evaluation)} are right in evaluation mode and {_percent(training)} in training mode"
    if below(evaluation, training) or below(training, evaluation):
        words = f"{seen}. All numbers here are of evaluation mode; whoever forgets model.eval() measures another network."
        return Flag("mode", True, words, numbers)
    return Flag("mode", False, f"{seen}.", numbers)


def _batch(found: Findings) -> Flag:
    if _many(found.probes["repeat"] > _NOTICEABLE, 0.01):
        return Flag("batch", False, "Cannot be told of a network that does not repeat itself.", {})
    differ = found.probes["batch"] > _NOTICEABLE
    numbers = {"differ": _share(differ.double()), "largest": found.probes["batch"].max().item()}
    if _many(differ, 0.01):
        words = (
            f"The answers to {_count(differ)} of {len(differ)} images change with the other images of their batch: it "
            "is not a function of the image. Does it normalise by its batch in evaluation mode?"
        )
        return Flag("batch", True, words, numbers)
    return Flag("batch", False, "Answers do not depend on the other images of a batch.", numbers)


def _probabilities(found: Findings) -> Flag:
    if found.probabilities:
        words = (
            "It returns probabilities. Losses that apply softmax to these have gradients close to zero, and attacks "
            "fail for no good reason. This audit used their logarithms; return logits."
        )
        return Flag("probabilities", True, words, {})
    return Flag("probabilities", False, "It returns logits.", {})


def _share(right: Tensor) -> float:
    return right.double().mean().item()


def _percent(right: Tensor) -> str:
    return f"{_share(right):.1%}".replace("%", " %")


def _count(image: Tensor) -> int:
    return int(image.sum())


def _z(tail: float) -> float:
    """The standard normal quantile above which `tail` lies."""
    return math.sqrt(2) * torch.erfinv(torch.tensor(1 - 2 * tail, dtype=torch.float64)).item()


def from_dict(stored: Mapping[str, Any]) -> Flag:
    """The flag that `dataclasses.asdict` has written."""
    return Flag(**stored)
