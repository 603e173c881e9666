"""The paper's claims, and what later work adds to them: a function each, with text, source and rule in one place.

A new claim is one more function with `@_claim`, which returns a verdict and the evidence for it in words.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from statistics import fmean

from advbnn.evaluation.audit.headline import OLD_RULE
from advbnn.paper import published as paper
from advbnn.paper.evidence import Evidence
from advbnn.paper.number import Number, margin
from advbnn.paper.protocol import AUTHORS
from advbnn.paper.verdicts import INCONCLUSIVE, NOT, PARTLY, REPRODUCED, UNMEASURED, exceeds, share, small_loss
from advbnn.report.elements import PLUS_MINUS, percent_at_most
from advbnn.report.style import TITLES

_ENOUGH_GAIN = 0.75 * paper.GAIN  # in points, about the paper's gain
_SMALL_LEAD = 2.0  # a lead that is certainly smaller, in points, is none
_ENOUGH_IMAGES = 100  # with fewer images an affinity may be off by ten points and more
_TOO_FAST = 0.9  # training time relative to adversarial training; if less, the two were not timed alike
_NOT_BOTH = "Adv-BNN and adversarial training were not both measured."

Verdict = tuple[str, str]
"""The verdict, and the evidence in words."""
Check = Callable[[Evidence], Verdict]
_Accuracy = Callable[[float], Number | None]
_Pairs = list[tuple[float, Number, Number]]
_CHECKS: list[tuple[str, str, str, Check]] = []


@dataclass(frozen=True)
class Claim:
    """A claim and its verdict, one of `VERDICTS`; `source` is empty for a question that the paper does not raise."""

    name: str
    source: str
    text: str
    verdict: str
    evidence: str


def check_claims(evidence: Evidence) -> list[Claim]:
    return [Claim(name, source, text, *check(evidence)) for name, source, text, check in _CHECKS]


def _claim(name: str, source: str, text: str) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        _CHECKS.append((name, source, text, check))
        return check

    return register


@_claim("numbers", "Table 1", "The accuracies of adversarial training and of Adv-BNN under PGD-20.")
def _numbers(evidence: Evidence) -> Verdict:
    """Each number at most two points lower; numbers on so few images that five points may be chance do not count."""
    pairs = [
        (defense, eps, reported, ours)
        for defense in ("adv", "adv_bnn")
        for eps in (0.0, *evidence.radii)
        if (reported := evidence.paper_says(defense, eps)) is not None
        and (ours := evidence.authors(defense, eps)) is not None
    ]
    if not evidence.paper:
        return UNMEASURED, "The paper has no numbers for this data."
    if not pairs:
        return UNMEASURED, "Neither adversarial training nor Adv-BNN was attacked."
    losses = [(reported - ours.mean, max(ours.below, ours.above)) for _, _, reported, ours in pairs]
    met = sum(lost <= 2 for lost, _ in losses)
    clear = [loss[0] <= 2 for loss in losses if small_loss(*loss, 2, 5) != INCONCLUSIVE]
    defense, eps, reported, ours = min(pairs, key=lambda pair: pair[3].mean - pair[2])
    return share(clear, len(pairs)), (
        f"{met} of {len(pairs)} numbers are at most 2 points below the paper's. Largest gap: {TITLES[defense]} at "
        f"{eps:.4g}, {ours.mean:.1f} % against {reported:.1f} %."
    )


@_claim(
    "better",
    "Table 1, Figure 2",
    "Adv-BNN is more robust than adversarial training at every radius under the paper's attack.",
)
def _better(evidence: Evidence) -> Verdict:
    return _comparison(evidence, evidence.authors)


@_claim("gain", "Section 4.1", "The gain over adversarial training is about 10 points.")
def _gain(evidence: Evidence) -> Verdict:
    pairs = _ours_and_theirs(evidence, evidence.authors)
    if not pairs:
        return UNMEASURED, _NOT_BOTH
    gains = [ours.mean - theirs.mean for _, ours, theirs in pairs]
    mean = fmean(gains)
    # all radii use the same images, so their errors do not cancel
    chance = fmean(margin(ours, theirs) for _, ours, theirs in pairs)
    if mean > chance:
        verdict = REPRODUCED if mean >= _ENOUGH_GAIN else PARTLY
    else:
        verdict = INCONCLUSIVE if mean + chance >= _ENOUGH_GAIN else NOT
    return verdict, (
        f"{mean:+.1f} points on average over {_radii(len(gains))}, from {min(gains):+.1f} to {max(gains):+.1f}; "
        f"95 % margin {chance:.1f}."
    )


@_claim("better_averaged", "", "The gain remains when the attack averages its gradients over weight samples.")
def _better_averaged(evidence: Evidence) -> Verdict:
    return _comparison(evidence, evidence.averaged)


@_claim("better_worst", "", "The gain remains in the worst case over a suite of attacks.")
def _better_worst(evidence: Evidence) -> Verdict:
    """By the audit's old rule Adv-BNN has a band: ahead if its lower end is, behind if its upper end is."""

    def slack(eps: float) -> float:
        least, most = evidence.worst("adv_bnn", eps), evidence.worst_at_most("adv_bnn", eps)
        return most.mean - least.mean if least is not None and most is not None else 0.0

    verdict, words = _comparison(evidence, evidence.worst, slack)
    shares = [slack(eps) for eps, _, _ in _ours_and_theirs(evidence, evidence.worst)]
    if any(shares):
        span = " to ".join(dict.fromkeys(percent_at_most(end / 100) for end in (min(shares), max(shares))))
        words += f" Of Adv-BNN these are the images {OLD_RULE}; {span} points more are possible."
    return verdict, words


@_claim("attack", "Section 2.1, appendix A", "One weight sample per step is enough to attack a random network.")
def _attack(evidence: Evidence) -> Verdict:
    pairs = _pairs(evidence, partial(evidence.authors, "adv_bnn"), partial(evidence.averaged, "adv_bnn"))
    if not pairs:
        return UNMEASURED, "Adv-BNN was not attacked in both ways."
    eps, single, averaged = max(pairs, key=lambda pair: pair[1].mean - pair[2].mean)
    chance = margin(single, averaged)
    ends = [evidence.worst("adv_bnn", eps), evidence.worst_at_most("adv_bnn", eps)]
    worst = " to ".join(dict.fromkeys(f"{end.mean:.1f}" for end in ends if end is not None))
    words = f"At {eps:.4g} Adv-BNN has {single.mean:.1f} % under the paper's attack, {averaged.mean:.1f} % under "
    words += f"averaged gradients{f' and {worst} % in the worst case' if worst else ''}"
    return small_loss(single.mean - averaged.mean, chance, 2, 5), f"{words}; 95 % margin {chance:.1f} points."


@_claim("bnn", "Section 4.1", "A BNN by itself is no more robust than a network without defence.")
def _bnn(evidence: Evidence) -> Verdict:
    pairs = _pairs(evidence, partial(evidence.averaged, "bnn"), partial(evidence.averaged, "none"))
    if not pairs:
        return UNMEASURED, "BNN and the network without defence were not both attacked."
    found = [(bnn.mean - none.mean, margin(bnn, none), eps, bnn.mean, none.mean) for eps, bnn, none in pairs]
    lead, chance, eps, random, plain = max(found)
    return small_loss(lead, chance, 5, 15), (
        f"Largest lead at {eps:.4g}: {random:.1f} % against {plain:.1f} % without defence, under averaged gradients; "
        f"95 % margin {chance:.1f} points."
    )


@_claim("clean", "Section 3, Table 1", "Without attack Adv-BNN is about as accurate as adversarial training.")
def _clean(evidence: Evidence) -> Verdict:
    """In Table 1 Adv-BNN is 0.6 to 3.3 points lower."""
    ours, theirs = evidence.clean("adv_bnn"), evidence.clean("adv")
    if ours is None or theirs is None:
        return UNMEASURED, _NOT_BOTH
    words = f"Without attack: Adv-BNN {ours.mean:.1f} %, adversarial training {theirs.mean:.1f} %."
    return small_loss(theirs.mean - ours.mean, margin(ours, theirs), 3.5, 10), words


@_claim("alpha", "Table 1, caption", "With a smaller alpha Adv-BNN matches the clean accuracy of adversarial training.")
def _alpha(evidence: Evidence) -> Verdict:
    clean, robust, target = evidence.alpha("clean"), evidence.alpha(AUTHORS), evidence.clean("adv")
    if len(clean) < 2:
        return UNMEASURED, "There are no trainings with a smaller alpha."
    if target is None:
        return UNMEASURED, "Adversarial training was not measured, so there is no accuracy to match."
    (first, default), *smaller = clean.items()
    if default.mean >= target.mean:
        words = f"There is no gap to close: without attack alpha {first:g} has {default.mean:.1f} %, "
        return UNMEASURED, f"{words}adversarial training {target.mean:.1f} %."
    alpha, best = max(smaller, key=lambda item: item[1].mean)
    verdict = REPRODUCED if best.mean >= target.mean - 0.5 else PARTLY if best.mean > default.mean else NOT
    if max(margin(best, target), margin(best, default)) > 5:
        verdict = INCONCLUSIVE
    words = f"Without attack alpha {first:g} has {default.mean:.1f} %, alpha {alpha:g} {best.mean:.1f} % and "
    words += f"adversarial training {target.mean:.1f} %"
    if alpha in robust and first in robust:
        words += f"; under attack {robust[first].mean:.1f} % becomes {robust[alpha].mean:.1f} %"
    return verdict, f"{words}."


@_claim(
    "families",
    "Figure 3",
    "The undefended network and the BNN share adversarial examples; RSE, adversarial training and Adv-BNN less so.",
)
def _families(evidence: Evidence) -> Verdict:
    plain, robust = (
        [value for a, b in permutations(names, 2) if (value := evidence.affinity.get(a, {}).get(b)) is not None]
        for names in (("none", "bnn"), ("rse", "adv", "adv_bnn"))
    )
    if len(plain) < 2 or len(robust) < 6:
        return UNMEASURED, "The affinity of all pairs of the five defences was not measured."
    (low, high), mean = paper.AFFINITY_OF_ROBUST, fmean(robust)
    strong, moderate = min(plain) >= paper.AFFINITY_OF_PLAIN - 0.1, low - 0.1 <= mean <= high + 0.1
    partly = strong or moderate or fmean(plain) > mean
    verdict = REPRODUCED if strong and moderate else PARTLY if partly else NOT
    if min(record.n for record in evidence.records.where(kind="transfer")) < _ENOUGH_IMAGES:
        verdict = INCONCLUSIVE
    return verdict, (
        f"No defence and BNN: {plain[0]:.2f} and {plain[1]:.2f} (the paper: about {paper.AFFINITY_OF_PLAIN}). RSE, "
        f"adversarial training and Adv-BNN: {mean:.2f} on average, {min(robust):.2f} to {max(robust):.2f} (the paper: "
        f"about {low} to {high})."
    )


@_claim("samples", "Figure 4, left", "10 to 20 forward passes are enough at every radius.")
def _samples(evidence: Evidence) -> Verdict:
    few, enough = paper.ENOUGH_SAMPLES
    gaps: dict[int, list[float]] = {few: [], enough: []}
    margins: list[float] = []
    for eps in (0.0, *evidence.experiment.protocol.study_radii):
        curve = evidence.curve("ensemble", eps)
        for size in gaps:
            if size in curve:
                number, largest = curve[size], curve[max(curve)]
                gaps[size].append(abs(largest.mean - number.mean))
                margins.append(margin(largest, number))
    if not gaps[few] or not gaps[enough]:
        return UNMEASURED, "The accuracy by number of weight samples was not measured."
    point = 1 + 1e-9  # one point, up to rounding
    verdict = REPRODUCED if max(gaps[few]) <= point else PARTLY if max(gaps[enough]) <= point else NOT
    if small_loss(max(gaps[few]), max(margins), point, 5) == INCONCLUSIVE:
        verdict = INCONCLUSIVE
    return verdict, (
        f"{few} weight samples are within {max(gaps[few]):.1f} points of the largest ensemble, {enough} within "
        f"{max(gaps[enough]):.1f}, over {_radii(len(gaps[few]))}; 95 % margin {max(margins):.1f}."
    )


@_claim("steps", "Figure 4, right", "More than 20 steps, up to 1000, hardly make the attack stronger.")
def _steps(evidence: Evidence) -> Verdict:
    drops: list[tuple[float, float, float, float, float]] = []
    for eps in evidence.experiment.protocol.study_radii:
        curve = evidence.curve("steps", eps)
        begin = min(curve, key=lambda at: abs(at - paper.ENOUGH_STEPS), default=0.0)
        if later := [curve[at] for at in curve if at > begin]:
            lowest = min(later, key=lambda number: number.mean)
            lost, chance = curve[begin].mean - lowest.mean, margin(curve[begin], lowest)
            drops.append((max(0.0, lost), eps, begin, max(curve), chance))
    if not drops:
        return UNMEASURED, "The accuracy by number of attack steps was not measured."
    lost, eps, begin, end, chance = max(drops)
    verdict, far_enough = small_loss(lost, chance, 2, 5), end >= paper.MOST_STEPS
    return PARTLY if verdict == REPRODUCED and not far_enough else verdict, (
        f"From {begin:.0f} to {end:.0f} steps the accuracy of Adv-BNN drops by at most {lost:.1f} points, at {eps:.4g}"
        f"; 95 % margin {chance:.1f}{'' if far_enough else '; longer attacks were not run'}."
    )


@_claim(
    "lipschitz",
    "Section 3",
    "Adversarial training keeps the local Lipschitz value small on training images but less so on test images; with "
    "random weights it is smaller there.",
)
def _lipschitz(evidence: Evidence) -> Verdict:
    found = {(name, part): evidence.lipschitz(name, part) for name in ("adv", "adv_bnn") for part in ("train", "test")}
    values = {key: details["first_order"] for key, details in found.items() if details is not None}
    if len(values) < len(found):
        return UNMEASURED, "The local Lipschitz value was not measured for both networks on both sets."
    test, others = values["adv", "test"], (values["adv", "train"], values["adv_bnn", "test"])
    larger = [exceeds(test, other) for other in others]
    opposite = any(exceeds(other, test) for other in others)
    verdict = share(larger) if any(larger) else NOT if opposite else INCONCLUSIVE
    shown = {key: f"{value['mean']:.3g} {PLUS_MINUS} {2 * value['se']:.2g}" for key, value in values.items()}
    over = "images and weight samples" if all("se_samples" in value for value in values.values()) else "images"
    return verdict, (
        f"Adversarial training: {shown['adv', 'train']} on training images, {shown['adv', 'test']} on test images. "
        f"Adv-BNN: {shown['adv_bnn', 'train']} and {shown['adv_bnn', 'test']}. In nats within the training radius, by "
        f"the mean gradient, with two standard errors over {over}."
    )


@_claim(
    "overhead",
    "Section 4.1",
    "Adv-BNN doubles the number of parameters and takes hardly longer to train than adversarial training.",
)
def _overhead(evidence: Evidence) -> Verdict:
    ours, theirs = evidence.speeds.get("adv_bnn"), evidence.speeds.get("adv")
    if ours is None or theirs is None:
        return UNMEASURED, "There are no logs of both trainings."
    larger = ours.parameters / theirs.parameters
    slower = theirs.examples_per_second / ours.examples_per_second
    words = (
        f"Adv-BNN has {larger:.2f} times the parameters and {slower:.2f} times the training time, by the highest speed "
        "that each run logged"
    )
    if slower < _TOO_FAST:
        # Adv-BNN does everything that adversarial training does, and more
        return INCONCLUSIVE, f"{words}. It cannot be that much faster: the runs did not have equal devices."
    verdict = REPRODUCED if slower <= 1.5 and larger <= 2.05 else PARTLY if slower <= 2.5 else NOT
    return verdict, f"{words}; whether both had the same device to themselves is not known."


def _comparison(
    evidence: Evidence,
    accuracy: Callable[[str, float], Number | None],
    slack: Callable[[float], float] = lambda eps: 0.0,
) -> Verdict:
    """Whether Adv-BNN, which may really have `slack` points more, is ahead by more than chance."""
    pairs = _ours_and_theirs(evidence, accuracy)
    if not pairs:
        return UNMEASURED, _NOT_BOTH
    leads = [(ours.mean - theirs.mean, margin(ours, theirs), slack(eps)) for eps, ours, theirs in pairs]
    ahead = [lead > chance for lead, chance, _ in leads]
    behind = [lead + more < -chance for lead, chance, more in leads]
    could_lead = [lead + more + chance >= _SMALL_LEAD for lead, chance, more in leads]
    if any(ahead):
        verdict = REPRODUCED if all(ahead) and len(pairs) == len(evidence.radii) else PARTLY
    else:
        verdict = INCONCLUSIVE if any(could_lead) and not any(behind) else NOT
    listed = ", ".join(f"{ours.mean:.1f} against {theirs.mean:.1f} % at {eps:.4g}" for eps, ours, theirs in pairs)
    words = f"Ahead by more than chance at {sum(ahead)} of {_radii(len(pairs))}, behind at {sum(behind)}: {listed}."
    return verdict, words


def _ours_and_theirs(evidence: Evidence, accuracy: Callable[[str, float], Number | None]) -> _Pairs:
    return _pairs(evidence, partial(accuracy, "adv_bnn"), partial(accuracy, "adv"))


def _pairs(evidence: Evidence, ours: _Accuracy, theirs: _Accuracy) -> _Pairs:
    """Two accuracies at every radius where both are known, on the same images where possible."""
    found = ((eps, ours(eps), theirs(eps)) for eps in evidence.radii)
    return [(eps, a.on(b.data), b.on(a.data)) for eps, a, b in found if a is not None and b is not None]


def _radii(count: int) -> str:
    return f"{count} {'radius' if count == 1 else 'radii'}"
