"""Accuracies that are those of guessing."""

import pytest
import torch

from advbnn.data.chance import chance_level, chance_note, is_near_chance


def test_chance_is_the_share_of_the_most_frequent_class() -> None:
    labels = torch.tensor([0, 1, 1, 2, 1, 0])
    assert (
        chance_level(labels) == 0.5 and chance_level(labels, [0, 3]) == 0.5 and chance_level(labels, range(3)) == 2 / 3
    )
    assert chance_level(torch.rand(4)) is None


@pytest.mark.parametrize(
    ("accuracy", "classes", "near"),
    [
        (0.12, 10, True),
        (0.3, 10, False),
        (0.36, 3, True),
        (0.477, 3, False),
        (0.05, 143, False),
        (0.01, 143, True),
        (0.52, 2, True),
    ],
)
def test_what_is_near_chance(accuracy: float, classes: int, near: bool) -> None:
    assert is_near_chance(accuracy, 1 / classes) == near


def test_the_note_names_both_numbers_and_what_helps() -> None:
    note = chance_note(0.36, 1 / 3, "the clean accuracy")
    assert note is not None and "36.0 %" in note and "33.3 %" in note and "schedule.epochs" in note and "(init)" in note
    assert chance_note(0.9, 1 / 3, "it") is None and chance_note(0.1, None, "it") is None
