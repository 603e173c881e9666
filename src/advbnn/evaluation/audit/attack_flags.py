"""Flags that come of comparing attacks: who tries harder, or knows more, must not achieve less."""

from advbnn.attacks import PGD
from advbnn.evaluation.audit.attack_suite import BLACK_BOX, NOISE, PAPER, TRANSFER, WHITE_BOX, pairs
from advbnn.evaluation.audit.flags import SMALLEST, Findings, Flag, below, more_than, percent, share

_OVERSTATED = 0.25
"""The share of what survives single draws, and falls to averaging, from which single draws say little."""


def attack_flags(found: Findings) -> tuple[Flag, ...]:
    """The flags of one radius."""
    return (
        _effort(found, "eot", "draws a step"),
        _effort(found, "steps", "steps"),
        _effort(found, "restarts", "starts"),
        _large_eps(found),
        _black_box(found),
        _noise(found),
        _single_draw(found),
    )


def _effort(found: Findings, field: str, effort: str) -> Flag:
    """Of two attacks that differ in one thing, the one that does more must not be the weaker one."""
    compared = pairs(found.entries, field)
    if not compared:
        return Flag(field, False, "The network is not random: nothing is averaged.", {})
    less, more = max(compared, key=lambda pair: share(found.under(pair[1])) - share(found.under(pair[0])))
    before, after = found.under(less), found.under(more)
    numbers = {"less": share(before), "more": share(after)}
    seen = f"{found.entries[more].name} leaves {percent(after)} right, {found.entries[less].name} {percent(before)}"
    if below(before, after):
        words = f"{seen}. An attack with more {effort} must not be weaker; something leads it astray."
        return Flag(field, True, words, numbers)
    return Flag(field, False, f"No attack with more {effort} was weaker beyond chance. At worst, {seen}.", numbers)


def _large_eps(found: Findings) -> Flag:
    if found.large_eps is None:
        return Flag("large_eps", False, "Not tried: the inputs are not bounded.", {})
    numbers = {"accuracy": share(found.large_eps)}
    left = percent(found.large_eps)
    seen = (
        f"At half the range of the pixels, where every image can be made plain grey, its gradients leave {left} right"
    )
    if more_than(SMALLEST, found.large_eps > 0.5):
        return Flag("large_eps", True, f"{seen}. They do not lead to what is certainly there.", numbers)
    return Flag("large_eps", False, f"{seen}, as they should.", numbers)


def _black_box(found: Findings) -> Flag:
    inside, outside = found.strongest(PAPER, WHITE_BOX), found.strongest(TRANSFER, BLACK_BOX)
    by_gradients, without = found.under(inside), found.under(outside)
    numbers = {"white_box": share(by_gradients), "black_box": share(without)}
    seen = (
        f"The best attack by its gradients on all images ({found.entries[inside].name}) leaves {percent(by_gradients)} "
        f"right, the best that does not use them ({found.entries[outside].name}) {percent(without)}"
    )
    if below(without, by_gradients):
        return Flag("black_box", True, f"{seen}. Who knows less does better: the gradients are masked.", numbers)
    return Flag("black_box", False, f"{seen}.", numbers)


def _noise(found: Findings) -> Flag:
    """Where attacks can do something at all, gradients must do more than chance."""
    inside, noise = found.strongest(PAPER, WHITE_BOX), found.strongest(NOISE)
    by_gradients, by_chance = found.under(inside), found.under(noise)
    numbers = {"white_box": share(by_gradients), "noise": share(by_chance), "standing": share(found.standing)}
    seen = f"Random noise leaves {percent(by_chance)} right, the best attack by gradients {percent(by_gradients)}"
    if not below(by_gradients, by_chance) and below(found.standing, by_chance):
        words = f"{seen}, though all attacks together leave {percent(found.standing)}. Its gradients lead nowhere."
        return Flag("noise", True, words, numbers)
    return Flag("noise", False, f"{seen}.", numbers)


def _single_draw(found: Findings) -> Flag:
    compared = [(a, b) for a, b in pairs(found.entries, "eot") if _draws(found, a) == 1]
    if not compared:
        return Flag("single_draw", False, "The network is not random: one draw is all there is.", {})
    one, many = max(compared, key=lambda pair: share(found.under(pair[0])) - share(found.under(pair[1])))
    single, averaged = found.under(one), found.under(many)
    numbers = {"single": share(single), "averaged": share(averaged)}
    seen = f"{found.entries[one].name} leaves {percent(single)} right, {found.entries[many].name} {percent(averaged)}"
    if below(averaged, single) and share(averaged) <= (1 - _OVERSTATED) * share(single):
        words = f"{seen}. Attacks that look at one draw a step overstate its robustness; do not believe them."
        return Flag("single_draw", True, words, numbers)
    return Flag("single_draw", False, f"{seen}.", numbers)


def _draws(found: Findings, number: int) -> int:
    attack = found.entries[number].attack
    return attack.eot if isinstance(attack, PGD) else 1
