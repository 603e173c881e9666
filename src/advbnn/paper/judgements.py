"""What records say of the paper's claims, and of what later work asked of it: a function for each."""

from collections.abc import Callable, Sequence
from statistics import fmean

from advbnn.paper import published as paper
from advbnn.paper.evidence import Evidence, Number
from advbnn.paper.protocol import AUTHORS
from advbnn.paper.verdicts import (
    CLEARLY_FASTER,
    ENOUGH_GAIN,
    ENOUGH_IMAGES,
    NOT,
    PARTLY,
    REPRODUCED,
    SMALL_LEAD,
    UNDECIDED,
    UNMEASURED,
    exceeds,
    of_difference,
    share,
    small,
)
from advbnn.report.tables import PLUS_MINUS, percent_at_most

Judgement = tuple[str, str]
"""A verdict, and the evidence for it in words."""


def same_numbers(evidence: Evidence) -> Judgement:
    """Table 1 itself: each number within two points, or better; so few images that five may be chance do not count."""
    pairs = [
        (defense, eps, said, ours)
        for defense in ("adv", "adv_bnn")
        for eps in (0.0, *evidence.radii)
        if (said := evidence.paper_says(defense, eps)) is not None
        and (ours := evidence.authors(defense, eps)) is not None
    ]
    verdicts = [small(said - ours.mean, max(ours.below, ours.above), 2, 5) for _, _, said, ours in pairs]
    met = [ours.mean >= said - 2 for _, _, said, ours in pairs]
    if pairs:
        defense, eps, said, ours = min(pairs, key=lambda pair: pair[3].mean - pair[2])
        words = (
            f"{sum(met)} of {len(met)} numbers are within 2 points of the paper's, or better. Furthest below: "
            f"{TITLES[defense]} at {eps:.4g}, {ours.mean:.1f} % where the paper has {said:.1f} %."
        )
    elif not evidence.paper:
        words = "The paper has no numbers for this data."
    else:
        words = "Neither adversarial training nor Adv-BNN was attacked."
    return share([met for met, of_one in zip(met, verdicts, strict=True) if of_one != UNDECIDED], len(met)), words


def better_than_adversarial_training(evidence: Evidence) -> Judgement:
    """Adv-BNN above adversarial training at every radius."""
    return _comparison(evidence, evidence.authors)


def gain(evidence: Evidence) -> Judgement:
    """About ten points."""
    pairs = _pairs(evidence, evidence.authors)
    if not pairs:
        verdict, words = UNMEASURED, _NEITHER
    else:
        gains = [ours.mean - theirs.mean for _, ours, theirs in pairs]
        mean = fmean(gains)
        # the radii share their images, so that their errors do not cancel
        chance = fmean(of_difference(ours, theirs) for _, ours, theirs in pairs)
        if mean > chance:
            verdict = REPRODUCED if mean >= ENOUGH_GAIN else PARTLY
        else:
            verdict = UNDECIDED if mean + chance >= ENOUGH_GAIN else NOT
        words = (
            f"On average over {_count(len(gains), 'radius', 'radii')} {mean:+.1f} points, from {min(gains):+.1f} to "
            f"{max(gains):+.1f}; up to {chance:.1f} may be chance."
        )
    return verdict, words


def gain_against_averaged_gradients(evidence: Evidence) -> Judgement:
    """The same comparison, by an attack that knows that the network is random."""
    return _comparison(evidence, evidence.averaged)


def gain_in_the_worst_case(evidence: Evidence) -> Judgement:
    """The same comparison, by the audit; images of Adv-BNN that it could not decide prove nothing against a gain."""
    verdict, words = _comparison(evidence, evidence.worst, lambda eps: evidence.undecided("adv_bnn", eps))
    shares = [evidence.undecided("adv_bnn", eps) for eps, _, _ in _pairs(evidence, evidence.worst)]
    if any(shares):
        span = " to ".join(dict.fromkeys(percent_at_most(end / 100) for end in (min(shares), max(shares))))
        words += f" Of Adv-BNN's images {span} % could not be decided and count as fallen."
    return verdict, words


def attack_is_strong_enough(evidence: Evidence) -> Judgement:
    """That the paper's attack shows what Adv-BNN is worth."""
    pairs = [
        (both[0].mean - both[1].mean, eps, *both)
        for eps in evidence.radii
        if (both := _both(evidence.authors("adv_bnn", eps), evidence.averaged("adv_bnn", eps)))
    ]
    if not pairs:
        verdict, words = UNMEASURED, "Adv-BNN was not attacked in both ways."
    else:
        lost, eps, one_draw, many = max(pairs, key=lambda pair: pair[0])
        chance = of_difference(one_draw, many)
        verdict = small(lost, chance, 2, 5)
        left = f"{one_draw.mean:.1f} %, averaged gradients {many.mean:.1f} %"
        words = f"At {eps:.4g} the paper's attack leaves Adv-BNN {left}"
        audited = evidence.worst("adv_bnn", eps)
        words += f", the worst case {audited.mean:.1f} %" if audited is not None else ""
        words += f"; up to {chance:.1f} points of this may be chance."
    return verdict, words


def bnn_alone_does_not_help(evidence: Evidence) -> Judgement:
    """BNN against no defence, where an attack can still tell them apart."""
    found = [
        (both[0].mean - both[1].mean, of_difference(*both), eps, both[0].mean, both[1].mean)
        for eps in evidence.radii
        if (both := _both(evidence.averaged("bnn", eps), evidence.averaged("none", eps)))
    ]
    if not found:
        verdict, words = UNMEASURED, "BNN and the network without defence were not both attacked."
    else:
        lead, chance, eps, random, plain = max(found)
        verdict = small(lead, chance, 5, 15)
        words = (
            f"It is furthest ahead at {eps:.4g}: {random:.1f} % against {plain:.1f} % without defence, under the "
            f"attack along averaged gradients; up to {chance:.1f} points may be chance."
        )
    return verdict, words


def price_in_clean_accuracy(evidence: Evidence) -> Judgement:
    """Adv-BNN not far below adversarial training without an attack; in Table 1 it is 0.6 to 3.3 points."""
    ours, theirs = evidence.clean("adv_bnn"), evidence.clean("adv")
    if ours is None or theirs is None:
        verdict, words = UNMEASURED, _NEITHER
    else:
        lost = theirs.mean - ours.mean
        verdict = small(lost, of_difference(ours, theirs), 3.5, 10)
        words = f"Adv-BNN {ours.mean:.1f} %, adversarial training {theirs.mean:.1f} % without an attack."
    return verdict, words


def smaller_alpha_restores_accuracy(evidence: Evidence) -> Judgement:
    """The remark under Table 1."""
    clean, robust, target = evidence.alpha("clean"), evidence.alpha(AUTHORS), evidence.clean("adv")
    if len(clean) < 2 or target is None:
        verdict, words = UNMEASURED, "There are no trainings with a smaller alpha to compare."
    elif (first := next(iter(clean.items())))[1].mean >= target.mean:
        verdict = UNMEASURED
        words = (
            f"There is no gap to close: alpha {first[0]:g} has {first[1].mean:.1f} % without an attack, adversarial "
            f"training {target.mean:.1f} %."
        )
    else:
        _, *smaller = clean.items()
        alpha, best = max(smaller, key=lambda item: item[1].mean)
        matches, larger = best.mean >= target.mean - 0.5, best.mean > first[1].mean
        verdict = REPRODUCED if matches else PARTLY if larger else NOT
        if max(of_difference(best, target), of_difference(best, first[1])) > 5:
            verdict = UNDECIDED
        lost = ""
        if alpha in robust and first[0] in robust:
            lost = f"; under attack {robust[first[0]].mean:.1f} % becomes {robust[alpha].mean:.1f} %"
        words = (
            f"Alpha {first[0]:g} gives {first[1].mean:.1f} % without an attack, {alpha:g} gives {best.mean:.1f} %, and "
            f"adversarial training has {target.mean:.1f} %{lost}."
        )
    return verdict, words


def two_families(evidence: Evidence) -> Judgement:
    """Figure 3: none and BNN alike, the three robust ones less so."""
    rho = evidence.affinity
    plain = _among(rho, ("none", "bnn"))
    robust = _among(rho, ("rse", "adv", "adv_bnn"))
    if len(plain) < 2 or len(robust) < 6:
        verdict, words = UNMEASURED, "The affinity of all pairs of the five defences is not known."
    else:
        low, high = paper.AFFINITY_OF_ROBUST
        of_robust = sum(robust) / len(robust)
        strong = min(plain) >= paper.AFFINITY_OF_PLAIN - 0.1
        moderate = low - 0.1 <= of_robust <= high + 0.1
        parted = sum(plain) / len(plain) > of_robust
        verdict = REPRODUCED if strong and moderate else PARTLY if strong or moderate or parted else NOT
        if min(record.n for record in evidence.records.where(kind="transfer")) < ENOUGH_IMAGES:
            verdict = UNDECIDED
        words = (
            f"No defence and BNN: {plain[0]:.2f} and {plain[1]:.2f} (the paper: about {paper.AFFINITY_OF_PLAIN}). RSE, "
            f"adversarial training and Adv-BNN: {of_robust:.2f} on average, {min(robust):.2f} to {max(robust):.2f} "
            f"(the paper: about {low} to {high})."
        )
    return verdict, words


def few_draws_suffice(evidence: Evidence) -> Judgement:
    """Figure 4 left: ten to twenty forward passes."""
    few, enough = paper.ENOUGH_DRAWS
    gaps: dict[int, list[float]] = {few: [], enough: []}
    chances: list[float] = []
    for eps in (0.0, *evidence.experiment.protocol.study_radii):
        curve = evidence.curve("ensemble", eps)
        for size in gaps:
            if curve and size in curve:
                of_size, largest = (Number.of([curve[at]]) for at in (size, max(curve)))
                gaps[size].append(abs(largest.mean - of_size.mean))
                chances.append(of_difference(largest, of_size))
    if not gaps[few] or not gaps[enough]:
        verdict, words = UNMEASURED, "Accuracy by the size of the ensemble is not known."
    else:
        one = 1 + 1e-9  # a point, but for rounding
        verdict = REPRODUCED if max(gaps[few]) <= one else PARTLY if max(gaps[enough]) <= one else NOT
        if small(max(gaps[few]), max(chances), one, 5) == UNDECIDED:
            verdict = UNDECIDED
        words = (
            f"Against the largest ensemble, {few} draws are off by at most {max(gaps[few]):.1f} points and {enough} "
            f"draws by {max(gaps[enough]):.1f}, over {_count(len(gaps[few]), 'radius', 'radii')}; "
            f"up to {max(chances):.1f} may be chance."
        )
    return verdict, words


def more_steps_do_not_help(evidence: Evidence) -> Judgement:
    """Figure 4 right: the accuracy stays where it is from 20 steps on."""
    drops: list[tuple[float, float, float, float, float]] = []
    for eps in evidence.experiment.protocol.study_radii:
        curve = {at: Number.of([record]) for at, record in evidence.curve("steps", eps).items()}
        begin = min(curve, key=lambda at: abs(at - paper.ENOUGH_STEPS), default=0.0)
        if later := [curve[at] for at in curve if at > begin]:
            lowest = min(later, key=lambda number: number.mean)
            lost, chance = curve[begin].mean - lowest.mean, of_difference(curve[begin], lowest)
            drops.append((max(0.0, lost), eps, begin, max(curve), chance))
    if not drops:
        verdict, words = UNMEASURED, "Accuracy by the steps of the attack is not known."
    else:
        lost, eps, begin, end, chance = max(drops)
        far_enough = end >= paper.MOST_STEPS
        verdict = small(lost, chance, 2, 5)
        verdict = PARTLY if verdict == REPRODUCED and not far_enough else verdict
        words = (
            f"From {begin:.0f} steps to {end:.0f} the accuracy of Adv-BNN falls by at most {lost:.1f} points, at "
            f"{eps:.4g}; up to {chance:.1f} may be chance{'' if far_enough else '; longer attacks were not made'}."
        )
    return verdict, words


def lipschitz_on_test_images(evidence: Evidence) -> Judgement:
    """Section 3: adversarial training flattens training images, Adv-BNN test images too."""
    found = {(name, part): evidence.steepness(name, part) for name in ("adv", "adv_bnn") for part in ("train", "test")}
    values = {key: details["first_order"] for key, details in found.items() if details is not None}
    if len(values) < len(found):
        verdict, words = UNMEASURED, "The local Lipschitz value of the two is not known on both sets."
    else:
        pairs = [
            (values["adv", "test"], values["adv", "train"]),
            (values["adv", "test"], values["adv_bnn", "test"]),
        ]
        so, contrary = [exceeds(a, b) for a, b in pairs], [exceeds(b, a) for a, b in pairs]
        verdict = share(so) if any(so) else NOT if any(contrary) else UNDECIDED
        shown = {key: f"{value['mean']:.3g} {PLUS_MINUS} {2 * value['se']:.2g}" for key, value in values.items()}
        # records of earlier versions have the one part alone
        over = "images and draws" if all("se_draws" in value for value in values.values()) else "images alone"
        words = (
            f"Adversarial training {shown['adv', 'train']} on training and {shown['adv', 'test']} on test images; "
            f"Adv-BNN {shown['adv_bnn', 'train']} and {shown['adv_bnn', 'test']}: nats within the radius of training, "
            f"by the mean gradient, with twice the standard error over {over}."
        )
    return verdict, words


def small_overhead(evidence: Evidence) -> Judgement:
    """Section 4.1: twice the parameters, and hardly more time."""
    ours, theirs = evidence.trainings.get("adv_bnn"), evidence.trainings.get("adv")
    if ours is None or theirs is None:
        verdict, words = UNMEASURED, "The two trainings are not there to be timed."
    else:
        larger = ours.parameters / theirs.parameters
        slower = theirs.examples_per_second / ours.examples_per_second
        verdict = REPRODUCED if slower <= 1.5 and larger <= 2.05 else PARTLY if slower <= 2.5 else NOT
        words = (
            f"Adv-BNN has {larger:.2f} times the parameters of adversarial training, and its training takes "
            f"{slower:.2f} times as long, by the highest speed that each run has logged"
        )
        if slower < CLEARLY_FASTER:
            # it does all that adversarial training does, and more
            verdict = UNDECIDED
            words += ". It cannot be so much faster: the two did not have the same device to themselves."
        else:
            words += "; whether the two had the same device to themselves is not known."
    return verdict, words


TITLES = {"adv": "adversarial training", "adv_bnn": "Adv-BNN"}

_NEITHER = "Adv-BNN and adversarial training were not both measured."


def _pairs(evidence: Evidence, ask: Callable[[str, float], Number | None]) -> list[tuple[float, Number, Number]]:
    """Adv-BNN and adversarial training at every radius where both are known."""
    return [(eps, *both) for eps in evidence.radii if (both := _both(ask("adv_bnn", eps), ask("adv", eps)))]


def _both(one: Number | None, other: Number | None) -> tuple[Number, Number] | None:
    """Two numbers on the same images, if one of them can be had on those of the other; None where one is not known."""
    return None if one is None or other is None else (one.on(other.data), other.on(one.data))


def _comparison(
    evidence: Evidence, ask: Callable[[str, float], Number | None], spare: Callable[[float], float] = lambda eps: 0.0
) -> Judgement:
    """Whether Adv-BNN is ahead of adversarial training by more than chance.

    Args:
        evidence: what was measured.
        ask: the accuracy of a defence at a radius.
        spare: how many points more Adv-BNN may have at a radius than that.
    """
    pairs = _pairs(evidence, ask)
    if not pairs:
        return UNMEASURED, _NEITHER
    leads = [(ours.mean - theirs.mean, of_difference(ours, theirs), spare(eps)) for eps, ours, theirs in pairs]
    ahead = [lead > chance for lead, chance, _ in leads]
    behind = [lead + more < -chance for lead, chance, more in leads]
    could_lead = [lead + more + chance >= SMALL_LEAD for lead, chance, more in leads]
    listed = ", ".join(f"{ours.mean:.1f} against {theirs.mean:.1f} % at {eps:.4g}" for eps, ours, theirs in pairs)
    where = _count(len(pairs), "radius", "radii")
    words = f"Ahead by more than chance at {sum(ahead)} of {where}, and behind at {sum(behind)}: {listed}."
    if any(ahead):
        return REPRODUCED if all(ahead) and len(pairs) == len(evidence.radii) else PARTLY, words
    return UNDECIDED if any(could_lead) and not any(behind) else NOT, words


def _count(number: int, singular: str, plural: str) -> str:
    return f"{number} {singular if number == 1 else plural}"


def _among(rho: dict[str, dict[str, float | None]], names: Sequence[str]) -> list[float]:
    values = [rho.get(a, {}).get(b) for a in names for b in names if a != b]
    return [value for value in values if value is not None]
