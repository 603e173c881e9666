"""Flags from comparing attacks: an attack that does more, or knows more, must not be weaker."""

import torch

from advbnn.evaluation.audit.attack_suite import ALL, BLACK_BOX, NOISE, PAPER, TRANSFER, WHITE_BOX, pairs
from advbnn.evaluation.audit.flags import SMALLEST, Decision, Findings, below, decision, flag, more_than, percent, share

_OVERSTATED = 0.25
"""The share of the accuracy under one weight sample per step that averaging must break to raise `single_sample`."""

_UNRELIABLE = "Gradient attacks are unreliable here; the worst case depends on the other attacks alone."
_MEANINGLESS = "Gradient attacks say nothing about this model; its true accuracy may be far lower."


@flag("More EOT samples make the attack weaker", _UNRELIABLE)
def eot(found: Findings) -> Decision:
    """Averaging the gradient over more weight samples must not weaken an attack."""
    return _more_effort(found, "eot", "EOT samples per step")


@flag("More steps make the attack weaker", _UNRELIABLE)
def steps(found: Findings) -> Decision:
    """More steps must not weaken an attack."""
    return _more_effort(found, "steps", "steps")


@flag("More restarts make the attack weaker", _UNRELIABLE)
def restarts(found: Findings) -> Decision:
    """More restarts must not weaken an attack."""
    return _more_effort(found, "restarts", "restarts")


@flag("Robust at a radius at which no classifier can be", _MEANINGLESS)
def large_eps(found: Findings) -> Decision:
    """At half the range of the pixels, a gradient attack must succeed."""
    if found.large_eps is None:
        return Decision(False, "Not measured: the inputs are not bounded.")
    seen = (
        "At half the range of the pixels, where every image can be made plain grey, the accuracy under a gradient "
        f"attack is {percent(found.large_eps)}"
    )
    missed = "the gradients miss adversarial examples that certainly exist"
    return decision(more_than(SMALLEST, found.large_eps > 0.5), seen, missed, accuracy=share(found.large_eps))


@flag("Attacks without its own gradients are stronger", "Quote the lower number; a better attack may find a lower one.")
def black_box(found: Findings) -> Decision:
    """White-box attacks must not be weaker than black-box and transfer attacks.

    A black-box attack on the survivors of all other attacks must not break many. What it did not attack counts as under
    the strongest white-box attack, so that this accuracy falls by what it breaks and nothing else.
    """
    inside = found.strongest(PAPER, WHITE_BOX)
    by_gradients = found.under(inside)
    outside = {
        number: torch.where(found.under(number).isnan(), by_gradients, found.under(number))
        for number, entry in enumerate(found.entries)
        if entry.role in (TRANSFER, BLACK_BOX)
    }
    strongest = min(outside, key=lambda number: share(outside[number]))
    without, entry = outside[strongest], found.entries[strongest]
    seen = (
        f"For the strongest attacks with its gradients and without, the accuracy is {percent(by_gradients)} under "
        f"{found.entries[inside].name} and {percent(without)} under {entry.name}"
    )
    if entry.on != ALL:
        tried = ~found.under(strongest).isnan()
        seen += f" on the survivors of other attacks, of which it tried {int(tried.sum())}"
    numbers = {"white_box": share(by_gradients), "black_box": share(without)}
    why = "the gradients are masked, or of little use at the size of its logits"
    return decision(below(without, by_gradients), seen, why, **numbers)


@flag("Gradient attacks are no stronger than random noise", _MEANINGLESS)
def noise(found: Findings) -> Decision:
    """Where adversarial examples exist, gradient attacks must be stronger than random noise."""
    by_gradients, by_noise = found.under(found.strongest(PAPER, WHITE_BOX)), found.under(found.strongest(NOISE))
    # with few images, a difference that is not significant does not show that there is none
    worst = (found.worst > 0.5).double()
    raised = not below(by_gradients, by_noise) and below(worst, by_noise) and below(worst, by_gradients)
    words = (
        f"The accuracy is {percent(by_noise)} under random noise and {percent(by_gradients)} under the strongest "
        "white-box attack"
    )
    words += f", though {percent(found.worst)} under all attacks together." if raised else "."
    numbers = {"white_box": share(by_gradients), "noise": share(by_noise), "worst": share(found.worst)}
    return Decision(raised, words, numbers)


@flag(
    "Robust only to attacks with one weight sample per step",
    "Quote the worst case, or an attack with EOT, and no attack with one weight sample per step.",
)
def single_sample(found: Findings) -> Decision:
    """EOT must not break much of what attacks with one weight sample per step leave."""
    compared = [(a, b) for a, b in pairs(found.entries, "eot") if getattr(found.entries[a].attack, "eot", 1) == 1]
    if not compared:
        return Decision(False, "Not measured: the network is not random.")
    one, many = max(compared, key=lambda pair: share(found.under(pair[0])) - share(found.under(pair[1])))
    single, averaged = found.under(one), found.under(many)
    raised = below(averaged, single) and share(averaged) <= (1 - _OVERSTATED) * share(single)
    problem = "attacks with one weight sample per step overestimate the robustness"
    return decision(raised, f"The {_two(found, one, many)}", problem, single=share(single), averaged=share(averaged))


def _more_effort(found: Findings, field: str, effort: str) -> Decision:
    """Of two attacks that differ in one field, the one with more of it must not be weaker."""
    compared = pairs(found.entries, field)
    if not compared:
        return Decision(False, "Not measured: the network is not random.")
    less, more = max(compared, key=lambda pair: share(found.under(pair[1])) - share(found.under(pair[0])))
    before, after = found.under(less), found.under(more)
    raised, seen = below(before, after), _two(found, less, more)
    words = f"An attack with more {effort} is weaker: the {seen}."
    if not raised:
        words = f"No attack with more {effort} is significantly weaker. In the worst pair, the {seen}."
    return Decision(raised, words, {"less": share(before), "more": share(after)})


def _two(found: Findings, *numbers: int) -> str:
    accuracies = (f"{percent(found.under(number))} under {found.entries[number].name}" for number in numbers)
    return f"accuracy is {' and '.join(accuracies)}"
