from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from advbnn.attacks.threat import Threat
from advbnn.data import from_tensors
from advbnn.evaluation.points import PartialPointsWarning, Points
from advbnn.evaluation.rescoring import rescore

THREAT = Threat("linf", 0.2)


class Coin(nn.Module):
    """The class of an image is whether its pixel is below 1/2, plus noise."""

    def __init__(self, noise: float) -> None:
        super().__init__()
        self.noise = noise

    def forward(self, x: Tensor) -> Tensor:
        first = 0.5 - x.flatten(1)[:, 0] + self.noise * torch.randn(len(x))
        return 10 * torch.stack([first, -first], 1)


def data(n: int = 200) -> object:
    images = torch.full((n, 1, 1, 2), 0.4)
    images[:, 0, 0, 1] = torch.linspace(0.4, 0.5, n)  # no two are equal
    return from_tensors(images, torch.zeros(n, dtype=torch.int64), classes=2, name="half")


def points(value: float, n: int = 200) -> Points:
    images = torch.full((n, 1, 1, 2), 0.45)
    images[:, 0, 0, 0] = value
    return Points(sets={"mine": images}, rows=torch.arange(n))


def test_the_worst_of_all_points_and_the_clean_image_counts() -> None:
    net = Coin(0.0)
    assert rescore(net, data(), THREAT, [points(0.3)], samples=1).accuracy == 1.0
    assert rescore(net, data(), THREAT, [points(0.3), points(0.6)], samples=1).accuracy == 0.0
    some = points(0.6, 50)  # for the first 50 images of 200
    with pytest.warns(PartialPointsWarning, match="50 of 200"):
        assert rescore(net, data(), THREAT, [some], samples=1).accuracy == 0.75


def test_the_score_is_unbiased_where_all_points_are_equal() -> None:
    # four sets of points at the boundary: choosing the unluckiest must not lower the score
    found = rescore(Coin(0.1), data(), THREAT, [points(0.5)] * 4, samples=1, ensembles=20, comparison_samples=40)
    chance = 0.5
    assert abs(found.accuracy - chance) < 5 * (0.25 / (200 * 20)) ** 0.5
    assert found.ensembles == 20


def test_other_points_and_another_number_of_ensembles_are_not_taken_for_finished_work(tmp_path: Path) -> None:
    def found(value: float, **options: int) -> tuple[int, ...]:
        out = tmp_path / "records.json"
        return rescore(Coin(0.1), data(), THREAT, [points(value)], samples=1, out=out, **options).correct

    first = found(0.5, ensembles=2)
    assert found(0.5, ensembles=2) == first
    with pytest.raises(ValueError, match="files"):
        found(0.55, ensembles=2)
    with pytest.raises(ValueError, match="2 ensembles.*not 3"):
        found(0.5, ensembles=3)


def test_points_outside_the_ball_and_none_are_refused() -> None:
    with pytest.raises(ValueError, match="ball"):
        rescore(Coin(0.0), data(), THREAT, [points(0.7)], samples=1)
    with pytest.raises(ValueError, match="points"):
        rescore(Coin(0.0), data(), THREAT, [], samples=1)
