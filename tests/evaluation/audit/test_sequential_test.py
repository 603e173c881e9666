import math

import pytest
import torch
from torch import Tensor, nn

from advbnn.bayes.mean_field import bayesianize
from advbnn.bayes.prediction import predict
from advbnn.evaluation.audit.sequential_test import RobustSet, Verdict, filled_up, sequential_test
from advbnn.randomness import seeded
from judged import digits


class Coins(nn.Module):
    """Two classes, or more; each input is the chance with which class 0 is likeliest, with probability 0.9."""

    def __init__(self, classes: int = 2) -> None:
        super().__init__()
        self.classes, self.drawn = classes, 0

    def forward(self, x: Tensor) -> Tensor:
        self.drawn += len(x)
        heads = torch.rand(len(x)) < x[:, 0]
        probs = torch.full((len(x), self.classes), 0.1 / (self.classes - 1))
        probs[heads, 0], probs[~heads, -1] = 0.9, 0.9
        probs[heads, -1] = probs[~heads, 0] = 0.1 / (self.classes - 1)
        return probs.log()


def flip(chance: float, points: int = 1000, classes: int = 2, **options: float) -> Verdict:
    x, y = torch.full((points, 1), chance), torch.zeros(points, dtype=torch.int64)
    return sequential_test(Coins(classes), x, y, **{"seed": 0, "most_draws": 300, "batch_size": points, **options})


def test_each_error_is_as_rare_as_stated() -> None:
    # on the boundary either answer is an error
    for classes in (2, 5):
        verdict = flip(0.5, classes=classes, false_right=0.05, false_wrong=0.1)
        assert 0 < verdict.right.float().mean() <= 0.05
        assert 0 < verdict.wrong.float().mean() <= 0.1
        assert not (verdict.right & verdict.wrong).any()


@pytest.mark.parametrize("chance", [0.7, 0.9, 1.0])
def test_finds_the_answer(chance: float) -> None:
    right, wrong = flip(chance), flip(1 - chance)
    assert right.right.float().mean() > 0.99
    assert wrong.wrong.float().mean() > 0.99


def test_is_about_as_fast_as_a_test_that_knows_the_odds() -> None:
    # the wealth of who knows the odds grows by their divergence from a fair coin at every draw
    chance, error = 0.7, 0.01
    divergence = math.log(2) + chance * math.log(chance) + (1 - chance) * math.log(1 - chance)
    draws = flip(chance, most_draws=1000, false_right=error).draws.float().mean()
    assert draws < 2 * math.log(1 / error) / divergence
    assert flip(1.0).draws.float().mean() < draws / 3


def test_what_cannot_be_decided_stays_open() -> None:
    verdict = flip(0.52, points=50, most_draws=10)
    assert not verdict.right.any()
    assert not verdict.wrong.any()
    assert (verdict.draws == 10).all()


def test_points_that_are_decided_are_not_asked_about_again() -> None:
    model, x = Coins(), torch.tensor([[1.0], [0.5]])
    verdict = sequential_test(model, x, torch.zeros(2, dtype=torch.int64), seed=0, most_draws=500, false_right=1e-9)
    assert model.drawn == verdict.draws.sum()
    assert verdict.draws[0] < 50


def test_needs_the_label_to_beat_every_class() -> None:
    class Tied(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.tensor([0.4, 0.2, 0.4]).log().expand(len(x), 3)

    verdict = sequential_test(Tied(), torch.zeros(1, 1), torch.tensor([0]), seed=0, most_draws=300)
    assert not verdict.right.any()


def test_agrees_with_a_large_ensemble_however_points_are_batched() -> None:
    x, y = digits().images / 255, digits().labels
    with seeded(0):
        model = bayesianize(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), init_std=0.05)
    probs = predict(model, x, samples=2000, seed=5).probs
    surely = probs.topk(2, 1).values.diff(dim=1).abs().squeeze(1) > 0.04
    y = torch.where(torch.arange(120) % 2 == 0, probs.argmax(1), y)
    right = probs.argmax(1) == y
    assert 10 < int((right & surely).sum()) < int(surely.sum()) - 10
    state = torch.get_rng_state()
    verdict = sequential_test(model, x, y, seed=1, most_draws=500)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(verdict.right[surely], right[surely])
    assert torch.equal(verdict.wrong[surely], ~right[surely])
    for one, other in zip(verdict, sequential_test(model, x, y, seed=1, most_draws=500, batch_size=50), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("count", "size"), [(1, 6), (6, 6), (7, 25), (25, 25), (26, 100), (100, 100)])
def test_rows_are_filled_up_to_few_sizes(count: int, size: int) -> None:
    filled = filled_up(torch.arange(count), 100)
    assert filled.tolist() == [*range(count), *[count - 1] * (size - count)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_is_asked_about_few_sizes_and_says_the_same() -> None:
    net = nn.Linear(5, 3)
    model = bayesianize(net, init_std=0.5).cuda()
    x, y = torch.randn(40, 5).cuda(), torch.zeros(40, dtype=torch.int64).cuda()
    seen = set()
    net.register_forward_pre_hook(lambda _, inputs: seen.add(len(inputs[0])))
    many = sequential_test(model, x, y, seed=0, most_draws=100, batch_size=32)
    assert seen <= {2, 8, 32}
    alone = [sequential_test(model, x[i : i + 1], y[:1], seed=0, most_draws=100, batch_size=1).draws for i in range(40)]
    assert (many.draws == torch.cat(alone)).float().mean() > 0.9  # up to rounding


def stand(chances: list[list[float]], *, random: bool = True, rows: list[int] | None = None) -> RobustSet:
    """Images that face points with the given chances, [points, images], to be right."""
    points = torch.tensor(chances)
    standing = RobustSet(
        Coins(),
        torch.zeros(3, dtype=torch.int64),
        random=random,
        points=len(chances),
        error=0.01,
        seed=0,
        most_draws=300,
        batch_size=10,
    )
    standing.test(points[:, :, None], points - 0.5, None if rows is None else torch.tensor(rows))
    return standing


def test_an_image_stands_if_it_stands_all_its_points() -> None:
    standing = stand([[1.0, 1.0, 0.9], [0.9, 0.0, 0.9], [1.0, 1.0, 0.5]])
    assert standing.robust.tolist() == [True, False, False]
    assert standing.undecided.tolist() == [False, False, True]
    assert standing.draws[2] >= 300


def test_an_undecided_image_falls_where_a_later_point_surely_brings_it_down() -> None:
    standing = stand([[0.5, 0.5, 1.0]])
    assert standing.undecided.tolist() == [True, True, False]
    later = torch.tensor([[[1.0], [0.0], [1.0]], [[0.9], [0.9], [1.0]]])
    standing.test(later, later.squeeze(-1) - 0.5)
    assert standing.robust.tolist() == [False, False, True]
    assert standing.undecided.tolist() == [True, False, False]
    before = standing.draws[1].item()
    standing.test(later, later.squeeze(-1) - 0.5)
    assert standing.draws[1] == before  # what has fallen is not asked about again


def test_only_the_images_asked_about_can_fall_and_never_rise() -> None:
    standing = stand([[0.0, 1.0]], rows=[2, 1])
    assert standing.robust.tolist() == [True, True, False]
    before = standing.draws[2].item()
    standing.test(torch.ones(1, 3, 1), torch.ones(1, 3))
    assert standing.robust.tolist() == [True, True, False]
    assert standing.draws[2] == before


def test_a_deterministic_network_is_believed_at_once() -> None:
    standing = stand([[0.6, 0.4, 0.5]], random=False)
    assert standing.robust.tolist() == [True, False, False]
    assert standing.draws.tolist() == [0, 0, 0]


def test_every_decision_has_draws_of_its_own() -> None:
    class Listening(Coins):
        def __init__(self) -> None:
            super().__init__()
            self.heard: list[float] = []

        def forward(self, x: Tensor) -> Tensor:
            self.heard.append(torch.rand(()).item())
            return super().forward(x)

    model, ones = Listening(), torch.ones(1, 2)
    standing = RobustSet(
        model, torch.zeros(2, dtype=torch.int64), random=True, points=2, error=0.01, seed=0, most_draws=50, batch_size=9
    )
    standing.test(ones[..., None], ones)
    standing.test(ones[..., None], ones)
    assert len(model.heard) > 10
    assert len(set(model.heard)) == len(model.heard)
