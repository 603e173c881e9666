"""Adam's moments against torch's optimizer, and coordinates whose gradient is not known."""

import torch
from torch import nn

from advbnn.attacks.adam import AdamMoments
from advbnn.attacks.finite_differences import adam_direction
from advbnn.attacks.threat import Threat

X = torch.zeros(2, 5, dtype=torch.float64)


def test_the_steps_are_those_of_torch():
    generator = torch.Generator().manual_seed(0)
    parameter = nn.Parameter(X.clone())
    optimizer = torch.optim.Adam([parameter], lr=1.0, eps=0.0, maximize=True)
    all_at_once, masked, everywhere = AdamMoments(X), AdamMoments(X), torch.ones_like(X, dtype=torch.bool)
    point, ball = X, Threat("linf", 1.0).around(X)
    for _ in range(6):
        parameter.grad = torch.randn(2, 5, generator=generator, dtype=torch.float64)
        optimizer.step()
        moments = all_at_once.update(parameter.grad)
        torch.testing.assert_close(masked.update(parameter.grad, everywhere), moments)
        point = point + adam_direction(ball, point, *moments)
        torch.testing.assert_close(point, parameter.detach())


def test_unknown_coordinates_keep_their_moments():
    x = X[:1, :3]
    moments, ball = AdamMoments(x), Threat("linf", 1.0).around(x)
    for gradient, known, expected in (
        ([2.0, -3.0, 7.0], [True, True, False], [1.0, -1.0, 0.0]),
        ([9.0, 9.0, -4.0], [False, False, True], [1.0, -1.0, -1.0]),
    ):
        found = moments.update(torch.tensor([gradient]).double(), torch.tensor([known]))
        torch.testing.assert_close(adam_direction(ball, x, *found), torch.tensor([expected]).double())
