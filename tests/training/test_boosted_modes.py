"""Boosted adversarial training: two modes as one run, the second of which learns attacked images of the first."""

from dataclasses import replace
from pathlib import Path

import pytest
from torch import nn

from advbnn.data import ImageSet, Splits
from advbnn.defenses.defense import EarlyStopping
from advbnn.defenses.registry import PUBLISHED
from advbnn.evaluation.accuracy import SmallSampleWarning
from advbnn.leaderboard.measure import measure
from advbnn.training.adversarial_copy import adversarial_copy
from advbnn.training.loading import load_trained
from advbnn.training.loop import fit
from advbnn.training.mode_plan import ModePlan
from quick import quick, same, train


def test_boosted_modes_are_one_run_that_is_measured_for_the_leaderboard(
    digits: Splits[ImageSet], tmp_path: Path
) -> None:
    value, plan, out = quick("adv"), ModePlan(count=2, how="boosted"), tmp_path / "run"
    result = train(digits, value, modes=plan, seed=7, out=out)
    first, second = result.model.net
    attacked = adversarial_copy(first, digits.train, value.attack, seed=plan.seed_of("1", 7))
    plain = plan.defense_of("1", value)
    fresh = plain.build(classes=10, shape=digits.train.shape, seed=plan.seed_of("1", 7))
    by_hand = fit(fresh, replace(digits, train=attacked), plain, seed=plan.seed_of("1", 7)).model
    assert same(second, by_hand) and not same(first, second)
    in_memory, loaded = train(digits, value, modes=plan, seed=7).model, load_trained(out)
    for model in (result.model, in_memory, loaded.model):
        assert same(model, result.model) and model.weights == (0.9, 0.1)
    assert loaded.finished and load_trained(out / "modes" / "1").config.defense.attack is None
    assert train(digits, value, modes=plan, seed=7, out=out, resume=True).steps == result.steps  # nothing is left to do
    parts, threat = ("clean", "protocol"), value.attack.threat
    with pytest.warns(SmallSampleWarning):
        found = measure(PUBLISHED["bat"], loaded.model, digits.test, threat, only=parts)
    assert [(record.n, record.samples) for record in found] == [(len(digits.test), 1)] * 2


def test_the_last_weights_of_boosted_modes_keep_their_probabilities(digits: Splits[ImageSet], tmp_path: Path) -> None:
    value = quick("adv", early_stopping=EarlyStopping(fraction=0.2))
    train(digits, value, modes=ModePlan(count=2, how="boosted"), out=tmp_path / "run")
    assert load_trained(tmp_path / "run", last=True).model.weights == (0.9, 0.1)


def test_boosted_modes_stop_early_by_attacked_images(digits: Splits[ImageSet], monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[int] = []

    def counted(model: nn.Module, data: ImageSet, attack: object, **how: object) -> ImageSet:
        copied.append(len(data))
        return replace(data, images=255 - data.images)

    monkeypatch.setattr("advbnn.training.mode_run.adversarial_copy", counted)
    value = quick("adv", early_stopping=EarlyStopping(fraction=0.2))
    train(digits, value, modes=ModePlan(count=2, how="boosted"))
    assert sum(copied) == len(digits.train) and len(copied) == 2
