"""Ball and box hold exactly after rounding, projections are nearest points, directions are steepest."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from advbnn.attacks.threat import NORMS, Threat
from every_attack import assert_within

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]

shapes = st.sampled_from([(1,), (5,), (3, 7), (2, 1, 4, 4), (4, 3, 8, 8), (1, 700)])
radii = st.one_of(st.sampled_from([0.0, 8 / 255, 0.1, 0.7, 1e-7]), st.floats(0, 3))


@settings(max_examples=200, deadline=None)
@given(
    norm=st.sampled_from(NORMS),
    eps=radii,
    dtype=st.sampled_from(DTYPES),
    shape=shapes,
    bounds=st.sampled_from([(0.0, 1.0), (-1.0, 1.0), (0.1, 0.9), (-2.1179, 2.64)]),
    seed=st.integers(0, 10**6),
    scale=st.sampled_from([0.01, 1.0, 30.0]),
)
def test_ball_and_box_hold_exactly(norm, eps, dtype, shape, bounds, seed, scale):
    generator = torch.Generator().manual_seed(seed)
    low, high = bounds
    x = torch.rand(shape, generator=generator).mul(high - low).add(low).to(dtype).clamp(low, high)
    x[0] = low  # at the edge of the box
    threat = Threat(norm, eps, bounds)
    z = (x + scale * torch.randn(shape, generator=generator)).to(dtype)
    ball = threat.around(x)
    projected = ball.project(z)
    assert_within(projected, x, threat)
    again = ball.project(projected)
    assert torch.equal(again, projected) or (dtype == torch.float64 and torch.allclose(again, projected, atol=1e-14))
    assert torch.equal(ball.project(x), x)
    assert_within(ball.start(generator), x, threat)


@pytest.mark.parametrize("norm", NORMS)
def test_the_projection_is_the_nearest_allowed_point(norm):
    """Against a general-purpose solver; l2 far from the box, which is cut after the ball there."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(6, 5, generator=generator, dtype=torch.float64)
    threat = Threat(norm, 0.4, (-9.0, 9.0) if norm == "l2" else (0.0, 1.0))
    z = x + torch.randn(6, 5, generator=generator, dtype=torch.float64)
    for origin, point, ours in zip(x.numpy(), z.numpy(), threat.project(z, x).numpy(), strict=True):
        np.testing.assert_allclose(ours - origin, nearest_by_solver(threat, origin, point - origin), atol=1e-5)


def nearest_by_solver(threat, x, wish):
    """The allowed perturbation nearest to `wish`, as up - down with both non-negative, so that norms are smooth."""

    def perturbation(v):
        return v[:5] - v[5:]

    def room(v):
        if threat.norm == "l1":
            return np.array([threat.eps - v.sum()])
        return threat.eps - v if threat.norm == "linf" else np.array([threat.eps**2 - (perturbation(v) ** 2).sum()])

    low, high = threat.bounds
    best = minimize(
        lambda v: ((perturbation(v) - wish) ** 2).sum(),
        x0=[1e-3] * 10,
        bounds=[(0, high - o) for o in x] + [(0, o - low) for o in x],
        constraints={"type": "ineq", "fun": room},
        options={"ftol": 1e-14, "maxiter": 500},
    )
    return perturbation(best.x)


@pytest.mark.parametrize("norm", NORMS)
def test_the_direction_has_norm_one_and_climbs_at_least_as_fast_as_any_other(norm):
    generator = torch.Generator().manual_seed(1)
    gradient = torch.randn(4, 3, 5, 5, generator=generator, dtype=torch.float64)
    threat = Threat(norm, 1.0, (-9.0, 9.0))
    direction = threat.around(torch.zeros_like(gradient)).direction(gradient)
    torch.testing.assert_close(threat.distance(direction, torch.zeros_like(direction)), torch.ones(4).double())
    climb = (direction * gradient).flatten(1).sum(1)
    for _ in range(50):
        other = torch.randn(gradient.shape, generator=generator, dtype=torch.float64)
        length = threat.distance(other, torch.zeros_like(other)).view(-1, 1, 1, 1)
        assert ((other / length * gradient).flatten(1).sum(1) <= climb).all()


@pytest.mark.parametrize("norm", NORMS)
def test_a_zero_gradient_has_no_direction_and_a_tiny_one_has(norm):
    gradient = torch.zeros(2, 4)
    gradient[1] = torch.tensor([1.0, -2.0, 3.0, 4.0]) * 1e-30
    direction = Threat(norm, 1.0).around(torch.zeros_like(gradient)).direction(gradient)
    assert torch.equal(direction[0], torch.zeros(4))
    torch.testing.assert_close(
        Threat(norm, 1.0).distance(direction[1:], torch.zeros(1, 4)), torch.ones(1, dtype=torch.float64)
    )


def test_the_l1_direction_leaves_out_coordinates_at_the_edge_of_the_box():
    ball = Threat("l1", 1.0).around(torch.tensor([[0.5, 1.0, 0.0]]))
    at = torch.tensor([[0.5, 1.0, 0.0]])
    assert ball.direction(torch.tensor([[1.0, 5.0, -5.0]]), at).tolist() == [[1.0, 0.0, 0.0]]
    assert ball.direction(torch.tensor([[1.0, -5.0, 1.0]]), at).tolist() == [[0.0, -1.0, 0.0]]


def test_linf_starts_are_uniform_in_ball_and_box():
    x = torch.tensor([0.0, 0.5]).repeat(20000, 1)
    start = Threat("linf", 0.1).start(x, torch.Generator().manual_seed(0))
    for column, (low, high) in zip(start.T, [(0.0, 0.1), (0.4, 0.6)], strict=True):
        expected = torch.linspace(low, high, 5)
        torch.testing.assert_close(column.quantile(torch.linspace(0, 1, 5)), expected, atol=3e-3, rtol=0)


@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_other_starts_are_uniform_in_the_ball(norm):
    """The share of the points within half of the radius is the share of the volume, 2^-d."""
    threat = Threat(norm, 0.3, (-1.0, 1.0))
    x = torch.zeros(40000, 3)
    start = threat.start(x, torch.Generator().manual_seed(0))
    assert (threat.distance(start, x) < 0.15).float().mean().item() == pytest.approx(1 / 8, abs=0.006)
    assert start.mean(0).abs().max() < 3e-3
    assert (start > 0).float().mean(0).sub(0.5).abs().max() < 0.01


def test_infinite_eps_leaves_the_box():
    x, z = torch.rand(3, 4), torch.randn(3, 4) * 5
    for norm in NORMS:
        torch.testing.assert_close(Threat(norm, math.inf).project(z, x), z.clamp(0, 1))
    with pytest.raises(ValueError, match="finite eps"):
        Threat("l2", math.inf).start(x)
    with pytest.raises(ValueError, match="finite eps"):
        Threat("linf", math.inf, (-math.inf, math.inf)).start(x)


@pytest.mark.parametrize("norm", NORMS)
def test_infinite_bounds_leave_the_ball(norm):
    threat = Threat(norm, 0.5, (-math.inf, math.inf))
    x, z = torch.randn(3, 4) * 10, torch.randn(3, 4) * 50
    projected = threat.project(z, x)
    torch.testing.assert_close(threat.distance(projected, x), torch.full((3,), 0.5).double(), atol=1e-4, rtol=0)


def test_bad_threats_are_refused():
    for arguments, error, message in (
        ({"norm": "l22"}, ValueError, "norm='l22' .*'l2'"),
        ({"eps": math.nan}, ValueError, "eps .*nan"),
        ({"eps": "8/255"}, ValueError, "eps .*'8/255'.*without quotes"),
        ({"eps": torch.tensor(0.1)}, ValueError, "eps .*tensor"),
        ({"bounds": (1.0, 0.0)}, ValueError, "bounds .*low < high"),
        ({"bounds": 1.0}, ValueError, "bounds .*two numbers.*1.0"),
        ({"bounds": (0.0, 0.5, 1.0)}, ValueError, "bounds .*two numbers"),
    ):
        with pytest.raises(error, match=message):
            Threat(**arguments)


def test_numbers_of_other_libraries_are_numbers():
    assert Threat(eps=np.float32(0.5), bounds=(np.float64(0), 1)) == Threat(eps=0.5)
