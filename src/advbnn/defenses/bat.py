"""Boosted adversarial training (BAT; Pinot et al., ICML 2020): at each query one of two networks, chosen at random.

The first network is trained adversarially, the second plainly on adversarial examples of the first. Both are one run
with `how = "boosted"`, see `advbnn.training.ModePlan`. Dbouk and Shanbhag (ICML 2022) showed that the mixture is no
more robust than its first network, by the attack `ARC`.
"""

from advbnn.attacks import PGD
from advbnn.attacks.threat import Threat
from advbnn.defenses.published import EVERY_PASS, AuthorsProtocol, Claim, Published

WEIGHTS = (0.9, 0.1)
"""The probabilities of the two networks, in `Modes(networks, WEIGHTS)`.

It answers by one pass: evaluate it with `samples=1, exact=False`. The exact mean of the two is another classifier.
"""

PUBLISHED = Published(
    name="bat",
    title="Boosted adversarial training",
    paper="Pinot et al., Randomization matters. How to defend against strong adversarial attacks",
    venue="ICML 2020",
    code="https://github.com/hsndbk4/ARC",
    random="which of two networks answers",
    redrawn=EVERY_PASS,
    # the loss is averaged over both networks
    protocol=AuthorsProtocol(PGD(Threat("linf", 8 / 255), steps=20, step_size=2 / 255, random_start=False, eot=2)),
    claims=(
        Claim("PGD-20 on the mean loss", 61.6, None, "ResNet-18", "by Dbouk & Shanbhag, image in their repository"),
        Claim("ARC", 47.4, None, "ResNet-18", "by Dbouk & Shanbhag, image in their repository"),
    ),
    differences=(
        "no training code of the paper was found: this follows its text; code and numbers are of Dbouk & Shanbhag, who "
        "trained it again, with normalised inputs; those of the paper could not be confirmed",
        "the protocol of Dbouk & Shanbhag scores the expected accuracy; ours draws one network for each image",
    ),
    recipe="configs/cifar10-bat.toml",
)
