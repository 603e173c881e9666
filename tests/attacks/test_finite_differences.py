"""NES, SPSA and ZOO: their differences, their gradient estimates, and refused settings."""

import pytest
import torch
from torch import nn

from advbnn.attacks import NES, SPSA, ZOO
from advbnn.attacks.threat import Threat
from advbnn.fast.acceleration import Accelerated

LINF, L2 = Threat("linf", 0.1), Threat("l2", 0.4)
every_attack = pytest.mark.parametrize("kind", [NES, SPSA, ZOO], ids=lambda kind: kind.__name__)


class Tilted(nn.Module):
    """Two classes, the first of which leads by a linear function; keeps its inputs."""

    known_random = False  # so that no pass looks whether it is

    def __init__(self, size: int) -> None:
        super().__init__()
        self.slope = torch.linspace(-1, 1, size, dtype=torch.float64)
        self.seen: list[torch.Tensor] = []

    def forward(self, x):
        self.seen.append(x)
        rise = (x.double().flatten(1) * self.slope).sum(1)
        return torch.stack([50 - rise, torch.zeros_like(rise)], 1)


def first_step(kind, x, **options):
    """Both ends of the first step's differences, [directions, n, ...] each, and the point it reached."""
    model, directions = Tilted(x[0].numel()), options["directions"]
    attack = kind(L2, queries=2 * directions + 2, **options)
    attack(model, x, torch.zeros(len(x), dtype=torch.int64), seed=0)
    _, *ends, moved = (seen for seen in model.seen if len(seen) % len(x) == 0)
    ahead, behind = (torch.cat([one.view(-1, *x.shape) for one in ends[side::2]]) for side in (0, 1))
    assert len(ahead) == directions
    return ahead, behind, moved


@every_attack
def test_differences_are_central(kind):
    x = torch.full((3, 8), 0.5, dtype=torch.float64)
    *ends, _ = first_step(kind, x, directions=8, sigma=0.02)
    ahead, behind = (end - x for end in ends)
    torch.testing.assert_close(ahead, -behind)
    if kind is SPSA:
        torch.testing.assert_close(ahead.abs(), torch.full_like(ahead, 0.02))
    elif kind is ZOO:
        assert ((ahead != 0).sum(2) == 1).all()
        torch.testing.assert_close(ahead.sum(0), torch.full_like(x, 0.02))
    else:
        assert 0.5 < ahead.std() / 0.02 < 1.5


@pytest.mark.parametrize(("kind", "directions", "closeness"), [(NES, 400, 0.9), (SPSA, 400, 0.9), (ZOO, 8, 1 - 1e-9)])
def test_the_estimate_tends_to_the_gradient(kind, directions, closeness):
    x = torch.full((3, 8), 0.5, dtype=torch.float64)
    *_, moved = first_step(kind, x, directions=directions)
    cosine = nn.functional.cosine_similarity(moved - x, Tilted(8).slope.expand(3, -1))
    assert cosine.min() > closeness
    torch.testing.assert_close((moved - x).norm(dim=1), torch.full((3,), 0.08, dtype=torch.float64))


@pytest.mark.parametrize("kind", [NES, SPSA])
def test_directions_of_one_pass_give_what_single_ones_do(kind, monkeypatch):
    x, y = torch.full((3, 8), 0.5, dtype=torch.float64), torch.zeros(3, dtype=torch.int64)
    attack, models = kind(L2, queries=50, directions=5), [Tilted(8), Tilted(8)]
    together = attack.run(models[0], x, y, seed=0)
    monkeypatch.setattr("advbnn.attacks.oracle._ROWS", 1)
    single = attack.run(models[1], x, y, seed=0)
    torch.testing.assert_close(together.x_adv, single.x_adv)
    assert torch.equal(together.queries, single.queries)
    assert len(models[0].seen) < len(models[1].seen)


def test_a_pass_takes_as_many_directions_as_fit_the_batch_of_an_accelerated_network():
    x, y = torch.full((3, 8), 0.5), torch.zeros(3, dtype=torch.int64)
    model = Tilted(8)
    NES(L2, queries=202, directions=100)(Accelerated(model, "eager", batch_size=150), x, y, seed=0)
    assert max(map(len, model.seen)) == 150


def test_zoo_estimates_every_coordinate_of_a_small_input_once():
    x = torch.full((3, 5), 0.5)
    result = ZOO(LINF, queries=12).run(Tilted(5), x, torch.zeros(3, dtype=torch.int64), seed=0)
    assert result.queries.tolist() == [12] * 3, "128 coordinates were allowed, there are 5"


@every_attack
def test_a_flat_network_leaves_x_unchanged(kind):
    class Flat(nn.Module):
        def forward(self, x):
            return torch.tensor([2.0, 0.5]).expand(len(x), 2)

    x = torch.full((3, 5), 0.5)
    assert torch.equal(kind(LINF, queries=40, directions=5)(Flat(), x, torch.zeros(3, dtype=torch.int64), seed=0), x)


def test_bad_settings_are_refused():
    for options, message in (
        ({"directions": 0}, "directions .*0"),
        ({"sigma": 0.0}, "sigma .*0.0"),
        ({"step_size": -1.0}, "step_size .*-1.0"),
        ({"threat": Threat("linf", torch.inf)}, "step_size"),
        ({"momentum": 1}, r"momentum .*\[0, 1\), got 1"),
        ({"queries": 11, "directions": 5}, "queries=11 .*exceed 11.*raise queries"),
    ):
        with pytest.raises(ValueError, match=message):
            NES(**{"threat": LINF, **options})(Tilted(9), torch.full((1, 9), 0.5), torch.tensor([0]))
