"""The numbers that the paper reports in tables and text. Its figures come without data."""

RADII = {
    "cifar10": (0.015, 0.035, 0.055, 0.07),
    "stl10": (0.015, 0.035, 0.055, 0.07),
    "imagenet143": (0.004, 0.01, 0.016, 0.02),
}
"""The radii of Table 1, without 0."""

TABLE1: dict[str, dict[str, tuple[float, ...]]] = {
    "cifar10": {"adv": (80.3, 58.3, 31.1, 15.5, 10.3), "adv_bnn": (79.7, 68.7, 45.4, 26.9, 18.6)},
    "stl10": {"adv": (63.2, 46.7, 27.4, 12.8, 7.0), "adv_bnn": (59.9, 51.8, 37.6, 27.2, 21.1)},
    "imagenet143": {"adv": (48.7, 37.6, 23.0, 12.4, 7.5), "adv_bnn": (47.3, 43.8, 39.3, 30.2, 24.6)},
}
"""Table 1: accuracy in % without attack, and under PGD-20 at each of the radii."""

LATER: dict[str, dict[str, tuple[float, ...]]] = {
    "cifar10": {"adv_bnn": (64.2, 37.7, 16.3, 8.1)},
    "stl10": {"adv_bnn": (47.9, 31.4, 16.7, 9.1)},
}
"""Table 2 of the IG-BNN submission (ICLR 2022): accuracy of Adv-BNN in % under an attack with averaged gradients.

Its published code attacks predicted labels and does not clip pixels; both differ from the usual protocol.
"""

TEST_IMAGES = {"cifar10": (10_000,), "stl10": (8_000,), "imagenet143": (7_105, 7_150)}
"""Test images behind the paper's numbers; for ImageNet-143 the paper's count and the one ImageNet gives."""

AFFINITY_OF_PLAIN = 0.85
"""Section 4.2: approximate affinity between the undefended network and the BNN, in both directions."""

AFFINITY_OF_ROBUST = (0.5, 0.6)
"""Section 4.2: approximate affinity among RSE, adversarial training and Adv-BNN."""

GAIN = 10.0
"""Section 4.1: approximate gain over adversarial training, in points."""

ENOUGH_SAMPLES = (10, 20)
"""Section 4.3: sufficient number of forward passes."""

ENOUGH_STEPS = 20
MOST_STEPS = 1000
"""Section 4.3: between these numbers of steps the accuracy changes little."""


def table1(data: str, test_images: int) -> dict[str, tuple[float, ...]]:
    """The rows of Table 1; empty if the paper has no numbers for a data set with so many test images."""
    return TABLE1[data] if data in TABLE1 and test_images in TEST_IMAGES[data] else {}
