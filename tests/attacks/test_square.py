"""Square: schedule, start and proposals, and agreement with the published implementation."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from advbnn.attacks import Square
from advbnn.attacks.square import _Bumps, bump
from advbnn.attacks.threat import Threat

LINF, L2, L1 = Threat("linf", 0.1), Threat("l2", 0.5), Threat("l1", 2.0)


class Recorder(nn.Module):
    """A constant network, so that every proposal is a change of the start."""

    known_random = False  # so that no pass looks whether it is

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []

    def forward(self, x):
        self.seen.append(x)
        return torch.tensor([3.0, 0.0]).expand(len(x), 2)


def walk(threat, x, queries=60):
    """The start, and all proposals, [proposals, n, ...]."""
    model = Recorder()
    Square(threat, queries=queries)(model, x, torch.zeros(len(x), dtype=torch.int64), seed=0)
    # shorter batches come from the test for randomness
    _, start, *proposals = (seen for seen in model.seen if len(seen) == len(x))
    return start, torch.stack(proposals)


def test_p_is_halved_at_the_published_iterations():
    attack = Square(LINF, p=0.8)
    published = {0: 1, 10: 1, 11: 2, 50: 2, 51: 4, 200: 4, 201: 8, 500: 8, 501: 16, 1000: 16, 1001: 32, 2000: 32}
    published |= {2001: 64, 4000: 64, 4001: 128, 6000: 128, 6001: 256, 8000: 256, 8001: 512, 9999: 512}
    for iteration, divisor in published.items():
        side = max(round(math.sqrt(0.8 / divisor * 224 * 224)), 1)
        # half an iteration later, so that no rounding of the quotient decides
        assert attack.size((iteration + 0.5) / 10_000, 224, 224) == (side, side)


@pytest.mark.parametrize("threat", [L2, L1], ids=["l2", "l1"])
def test_bumps_have_odd_sides_of_three_pixels_or_more(threat):
    sizes = {Square(threat).size(i / 1000, 32, 32) for i in range(1000)}
    assert all(height == width and height % 2 == 1 and height >= 3 for height, width in sizes)
    assert (3, 3) in sizes and max(sizes) == (29, 29)


@given(height=st.integers(1, 40), width=st.integers(1, 40), progress=st.floats(0, 1), p=st.floats(0.01, 1))
def test_a_square_fits_and_keeps_its_share_of_an_oblong_image(height, width, progress, p):
    for threat in (LINF, L2):
        tall, wide = Square(threat, p=p).size(progress, height, width)
        assert 1 <= tall <= height and 1 <= wide <= width
    assert Square(LINF, p=0.5).size(0, 1, 40) == (1, 20)


def test_bumps_follow_the_formula_of_the_paper():
    def reference(height, width, power):
        total = torch.zeros(height, width, dtype=torch.float64)
        middle = (height // 2, width // 2)
        for k in range(max(middle) + 1):
            rows = slice(max(middle[0] - k, 0), middle[0] + k + 1)
            columns = slice(max(middle[1] - k, 0), middle[1] + k + 1)
            total[rows, columns] += 1 / (k + 1) ** power
        return total

    for height, width in [(1, 1), (2, 5), (3, 7), (4, 4), (8, 17), (0, 1)]:
        for power in (2, 4):
            torch.testing.assert_close(bump(height, width, power), reference(height, width, power))


def test_linf_starts_from_vertical_stripes():
    x = torch.full((3, 2, 6, 7), 0.5)
    start, _ = walk(LINF, x)
    delta = start - x
    torch.testing.assert_close(delta.abs(), torch.full_like(x, 0.1))
    assert torch.equal(delta, delta[:, :, :1].expand_as(delta))
    assert (delta[:, :, 0].sign().unique(dim=2).shape[2]) > 1, "columns differ"
    assert not torch.equal(delta[0], delta[1])


def test_linf_proposes_one_square_of_one_colour_a_channel():
    x = torch.full((3, 2, 8, 8), 0.5)
    start, proposals = walk(LINF, x, queries=100)
    for number, proposal in enumerate(proposals):
        side, _ = Square(LINF, queries=100).size(number / 98, 8, 8)
        changed = (proposal != start).any(1)
        assert changed.flatten(1).any(1).all(), "a proposal must change something"
        for image, mask, was in zip(proposal, changed, start, strict=True):
            rows, columns = mask.any(1).nonzero().squeeze(1), mask.any(0).nonzero().squeeze(1)
            top, left, bottom, right = rows[0], columns[0], rows[-1] + 1, columns[-1] + 1
            assert bottom - top <= side and right - left <= side
            # channels that the square leaves as they were keep the stripes
            for channel, before in zip(image, was, strict=True):
                patch = channel[top:bottom, left:right]
                assert len(patch.unique()) == 1 or torch.equal(channel, before)


def test_l2_starts_from_a_grid_of_bumps_and_spends_the_whole_radius():
    x = torch.full((3, 2, 32, 32), 0.5, dtype=torch.float64)
    start, proposals = walk(L2, x)
    for points in (start, *proposals):
        torch.testing.assert_close(L2.distance(points, x), torch.full((3,), 0.5, dtype=torch.float64))
    delta = start - x
    assert (delta[:, :, 0] == 0).all() and (delta[:, :, 31] == 0).all(), "five tiles of six pixels, and a rim"
    tiles = delta[:, :, 1:31, 1:31].unfold(2, 6, 6).unfold(3, 6, 6)
    torch.testing.assert_close(tiles.sum((-1, -2)).abs() < tiles.abs().sum((-1, -2)) / 2, torch.ones(3, 2, 5, 5).bool())
    lengths = tiles.square().sum((-1, -2))
    torch.testing.assert_close(lengths, torch.full_like(lengths, 0.25 / 50))


def algorithm_3(x, point, size, u, eps):
    """The published l2 proposal for one image, line by line."""
    channels, height, width = x.shape
    nu = point - x
    corners = [int(u[i] * (limit - size + 1)) for i, limit in enumerate((height, width, height, width))]
    windows = []
    for row, column in (corners[:2], corners[2:]):
        window = torch.zeros(height, width, dtype=torch.bool)
        window[row : row + size, column : column + size] = True
        windows.append(window)
    first, second = windows
    unused = eps**2 - nu.norm() ** 2
    eta = torch.cat([bump(size // 2, size, 2), -bump(size - size // 2, size, 2)])
    eta = (eta / eta.norm() if u[4] < 0.5 else eta.T / eta.norm()).flatten()
    result = nu.clone()
    for i in range(channels):
        rho = -1 if u[5 + i] < 0.5 else 1
        mixed = rho * eta + nu[i][first] / nu[i][first].norm()
        available = (nu[i][first | second].norm() ** 2 + unused / channels).sqrt()
        result[i][second] = 0
        result[i][first] = mixed / mixed.norm() * available
    return (x + eps * result / result.norm()).clamp(0, 1)


def test_l2_proposals_are_those_of_the_published_algorithm():
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(6, 2, 9, 9, generator=generator, dtype=torch.float64)
    threat = Threat("l2", 1.5)
    points = threat.start(x, generator)
    u = torch.rand(6, 7, generator=generator, dtype=torch.float64)
    for size in (3, 5, 9):
        proposals = _Bumps(threat.around(x)).propose(points, (size, size), u)
        for i, proposal in enumerate(proposals):
            torch.testing.assert_close(proposal, algorithm_3(x[i], points[i], size, u[i], threat.eps))


@pytest.mark.peers
@pytest.mark.parametrize("threat", [LINF, Threat("l2", 0.6)], ids=lambda threat: threat.norm)
def test_square_is_as_strong_as_the_published_implementation(threat, net, digits):
    peer = pytest.importorskip("pyautoattack.square")
    x, y = digits.x[:100], digits.y[:100]
    with torch.random.fork_rng():
        theirs = peer.SquareAttack(
            net, norm=threat.norm.capitalize(), eps=threat.eps, n_queries=150, seed=0, device="cpu"
        ).perturb(x, y)
    ours = Square(threat, queries=150)(net, x, y, seed=0)
    right, expected = (net(x_adv).argmax(1) == y for x_adv in (ours, theirs))
    lost, won = int((right & ~expected).sum()), int((expected & ~right).sum())
    assert lost - won <= 1 + 2 * math.sqrt(lost + won)  # two standard errors of a paired comparison
    assert expected.float().mean() < 0.95, "the peer must not fail"
