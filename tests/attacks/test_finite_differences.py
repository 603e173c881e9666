"""NES, SPSA and ZOO: what they estimate, how they step, and what they refuse."""

import pytest
import torch
from torch import nn

from advbnn.attacks import NES, SPSA, ZOO
from advbnn.attacks.finite_differences import Adam
from advbnn.attacks.threat import Threat

LINF, L2 = Threat("linf", 0.1), Threat("l2", 0.4)
every_attack = pytest.mark.parametrize("kind", [NES, SPSA, ZOO], ids=lambda kind: kind.__name__)


class Tilted(nn.Module):
    """Two classes, the first of which leads by a smooth function with a gradient that is known; keeps what it sees."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.slope = torch.linspace(-1, 1, size, dtype=torch.float64)
        self.seen: list[torch.Tensor] = []

    def forward(self, x):
        self.seen.append(x)
        rise = (x.double().flatten(1) * self.slope).sum(1)
        return torch.stack([50 - rise, torch.zeros_like(rise)], 1)


def first_step(kind, x, **options):
    """The points of the first step's differences, [2 directions, n, ...], and where the step led."""
    model, directions = Tilted(x[0].numel()), options["directions"]
    attack = kind(L2, queries=2 * directions + 2, **options)
    attack(model, x, torch.zeros(len(x), dtype=torch.int64), seed=0)
    _, *asked, moved = (seen for seen in model.seen if len(seen) == len(x))
    return torch.stack(asked), moved


@every_attack
def test_differences_are_central_and_within_reach(kind):
    x = torch.full((3, 8), 0.5, dtype=torch.float64)
    asked, _ = first_step(kind, x, directions=8, sigma=0.02)
    ahead, behind = asked[::2] - x, asked[1::2] - x
    torch.testing.assert_close(ahead, -behind)
    if kind is SPSA:
        torch.testing.assert_close(ahead.abs(), torch.full_like(ahead, 0.02))
    elif kind is ZOO:
        assert ((ahead != 0).sum(2) == 1).all()
        torch.testing.assert_close(ahead.sum(0), torch.full_like(x, 0.02))
    else:
        assert 0.5 < ahead.std() / 0.02 < 1.5


@every_attack
def test_ends_outside_the_box_are_moved_to_its_edge(kind):
    x = torch.tensor([[0.0] * 4 + [1.0] * 4] * 3, dtype=torch.float64)
    asked, _ = first_step(kind, x, directions=8, sigma=0.5)
    assert asked.min() == 0 and asked.max() == 1


@pytest.mark.parametrize(("kind", "directions", "closeness"), [(NES, 400, 0.95), (SPSA, 400, 0.95), (ZOO, 8, 1 - 1e-9)])
def test_the_estimate_tends_to_the_gradient(kind, directions, closeness):
    x = torch.full((3, 8), 0.5, dtype=torch.float64)
    _, moved = first_step(kind, x, directions=directions)
    cosine = nn.functional.cosine_similarity(moved - x, Tilted(8).slope.expand(3, -1))
    assert cosine.min() > closeness
    torch.testing.assert_close((moved - x).norm(dim=1), torch.full((3,), 0.08, dtype=torch.float64))


def test_adam_is_adam():
    generator = torch.Generator().manual_seed(0)
    x = torch.zeros(2, 5, dtype=torch.float64)
    parameter = nn.Parameter(x.clone())
    optimizer = torch.optim.Adam([parameter], lr=1.0, eps=0.0, maximize=True)
    adam, ball = Adam(x), Threat("linf", 1.0).around(x)
    point = x.clone()
    for _ in range(6):
        gradient = torch.randn(2, 5, generator=generator, dtype=torch.float64)
        parameter.grad = gradient
        optimizer.step()
        adam.see(gradient, torch.ones_like(x, dtype=torch.bool))
        point = point + adam.direction(ball, point)
        torch.testing.assert_close(point, parameter.detach())


def test_adam_keeps_what_it_knows_of_coordinates_that_were_not_seen():
    x = torch.zeros(1, 3, dtype=torch.float64)
    adam, ball = Adam(x), Threat("linf", 1.0).around(x)
    adam.see(torch.tensor([[2.0, -3.0, 7.0]]).double(), torch.tensor([[True, True, False]]))
    torch.testing.assert_close(adam.direction(ball, x), torch.tensor([[1.0, -1.0, 0.0]]).double())
    adam.see(torch.tensor([[9.0, 9.0, -4.0]]).double(), torch.tensor([[False, False, True]]))
    torch.testing.assert_close(adam.direction(ball, x), torch.tensor([[1.0, -1.0, -1.0]]).double())


def test_zoo_asks_about_every_coordinate_of_a_small_input_once():
    x = torch.full((3, 5), 0.5)
    outcome = ZOO(LINF, queries=12).run(Tilted(5), x, torch.zeros(3, dtype=torch.int64), seed=0)
    assert outcome.queries.tolist() == [12] * 3, "128 coordinates were allowed, there are 5"


@every_attack
def test_a_network_that_is_flat_leaves_x_where_it_is(kind):
    class Flat(nn.Module):
        def forward(self, x):
            return torch.tensor([2.0, 0.5]).expand(len(x), 2)

    x = torch.full((3, 5), 0.5)
    assert torch.equal(kind(LINF, queries=40, directions=5)(Flat(), x, torch.zeros(3, dtype=torch.int64), seed=0), x)


@every_attack
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"directions": 0}, "directions must be a whole number of at least 1, got 0"),
        ({"sigma": 0.0}, "sigma must be positive and finite, got 0.0"),
        ({"step_size": -1.0}, "step_size must be positive and finite, got -1.0"),
        ({"threat": Threat("linf", torch.inf)}, "give step_size"),
    ],
)
def test_bad_settings_are_refused(kind, options, message):
    with pytest.raises(ValueError, match=message):
        kind(**{"threat": LINF, **options})


@every_attack
def test_a_budget_below_one_step_is_refused(kind):
    attack = kind(LINF, queries=11, directions=5)
    with pytest.raises(ValueError, match="queries=11 does not pay for a step.*5 directions cost 11.*raise queries"):
        attack(Tilted(9), torch.full((1, 9), 0.5), torch.tensor([0]))


def test_momentum_is_a_share():
    with pytest.raises(ValueError, match=r"momentum must lie in \[0, 1\), got 1"):
        NES(LINF, momentum=1)
