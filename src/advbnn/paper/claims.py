"""The paper's claims, one by one, with their verdicts; beside them what later work asked of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from advbnn.paper import judgements
from advbnn.paper.evidence import Evidence
from advbnn.paper.judgements import Judgement


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim and its verdict.

    Attributes:
        name: identifies it.
        source: where the paper makes it; empty for a question that the paper does not ask.
        text: what is claimed.
        verdict: `"reproduced"`, `"partly"`, `"not reproduced"`; `"undecided"` where chance could have made the outcome
            as well as its contrary; or `"not measured"`.
        evidence: the numbers that decide.
    """

    name: str
    source: str
    text: str
    verdict: str
    evidence: str


CLAIMS: Sequence[tuple[str, str, str, Callable[[Evidence], Judgement]]] = (
    (
        "numbers",
        "Table 1",
        "The accuracies of adversarial training and of Adv-BNN under PGD-20.",
        judgements.same_numbers,
    ),
    (
        "better",
        "Table 1, Figure 2",
        "Adv-BNN is more robust than adversarial training at every radius, under the paper's attack.",
        judgements.better_than_adversarial_training,
    ),
    ("gain", "Section 4.1", "The gain over adversarial training is about 10 points.", judgements.gain),
    (
        "better_averaged",
        "",
        "The gain stands when the attack averages its gradients over draws of the weights.",
        judgements.gain_against_averaged_gradients,
    ),
    (
        "better_worst",
        "",
        "The gain stands in the worst case of a suite of attacks.",
        judgements.gain_in_the_worst_case,
    ),
    (
        "attack",
        "Section 2.1, appendix A",
        "One draw of the weights at every step is enough to attack a random network.",
        judgements.attack_is_strong_enough,
    ),
    (
        "bnn",
        "Section 4.1",
        "A BNN by itself is no more robust than a network without defence.",
        judgements.bnn_alone_does_not_help,
    ),
    (
        "clean",
        "Section 3, Table 1",
        "Without an attack Adv-BNN is little or not at all less accurate than adversarial training.",
        judgements.price_in_clean_accuracy,
    ),
    (
        "alpha",
        "Table 1, caption",
        "A smaller alpha matches the accuracy of adversarial training without an attack.",
        judgements.smaller_alpha_restores_accuracy,
    ),
    (
        "families",
        "Figure 3",
        "No defence and BNN share their adversarial examples; RSE, adversarial training and Adv-BNN do so less.",
        judgements.two_families,
    ),
    ("draws", "Figure 4, left", "10 to 20 forward passes are enough, at every radius.", judgements.few_draws_suffice),
    (
        "steps",
        "Figure 4, right",
        "More than 20 steps, up to 1000, hardly make the attack stronger.",
        judgements.more_steps_do_not_help,
    ),
    (
        "lipschitz",
        "Section 3",
        "Adversarial training controls the local Lipschitz value on training images and less so on test images; "
        "with random weights it is smaller there.",
        judgements.lipschitz_on_test_images,
    ),
    (
        "overhead",
        "Section 4.1",
        "Adv-BNN doubles the parameters, and training takes hardly longer than adversarial training.",
        judgements.small_overhead,
    ),
)
"""Of each claim its name, source and text, and what judges it."""


def judged(evidence: Evidence) -> list[Claim]:
    """All claims, each with its verdict."""
    claims = []
    for name, source, text, judge in CLAIMS:
        verdict, words = judge(evidence)
        claims.append(Claim(name=name, source=source, text=text, verdict=verdict, evidence=words))
    return claims
