import pytest

from advbnn.leaderboard.words import network_words, randomness_words, settings_words
from made_up_entries import entry


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("resnet18", "ResNet-18"),
        ("ResNet-18", "ResNet-18"),
        ("preact_resnet18", "PreActResNet-18"),
        ("PreActResNet-18", "PreActResNet-18"),
        ("vgg16", "VGG-16"),
        ("VGG16", "VGG-16"),
        ("WRN-34-5", "WRN-34-5"),
        ("mlp", "mlp"),
        ("ResNet-18 with attention", "ResNet-18 with attention"),
    ],
)
def test_a_network_has_one_spelling(written: str, shown: str) -> None:
    assert network_words(written) == shown


def test_only_what_is_random_is_drawn_anew() -> None:
    assert randomness_words(entry(kind="no randomness", random="nothing", redrawn="never", shared=True)) == "nothing"
    words = randomness_words(entry(random="noise", redrawn="every forward pass", shared=False))
    assert words == "noise; drawn anew: every forward pass, another draw for each image"


def test_settings_are_words_and_radii_of_grey_levels() -> None:
    threat = {"norm": "linf", "eps": 8 / 255}
    pgd = {"name": "PGD", "threat": threat, "step_size": 2 / 255, "random_start": False, "eot": 20}
    assert settings_words(pgd) == "PGD, linf 8/255, step 2/255, no random start, EOT samples 20"
    protocol = {"name": "AuthorsProtocol", "attack": pgd, "redrawn": "between attack and score", "passes": 30}
    assert settings_words(protocol) == f"{settings_words(pgd)}, drawn anew between attack and score, forward passes 30"
    assert settings_words({**protocol, "redrawn": "never"}) == f"{settings_words(pgd)}, forward passes 30"
    assert settings_words({"name": "PGD", "step_size": 0.007}) == "PGD, step 0.007"
    assert settings_words({"steps": 20, "targeted": True, "of": {"name": "A", "b": [1, 2.5]}}) == (
        "steps 20, targeted, of (A, b 1 2.5)"
    )
    assert settings_words({}) == ""
