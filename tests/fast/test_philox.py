"""Counter-based noise: published values of the generator, normality, and independence of the request."""

import math

import pytest
import torch

from advbnn.fast.philox import _philox, normals


def test_published_values_of_philox() -> None:
    """Random123's test vector of philox4x32-10 for counter and key zero."""
    words = _philox(torch.tensor([0]), 0, 0)
    assert tuple(int(word) for word in words) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)


def test_is_standard_normal() -> None:
    """Moments, central mass and correlation of neighbours, within five standard errors."""
    x = normals(400_000, seed=7).double()
    n = len(x)
    assert abs(x.mean()) < 5 / math.sqrt(n)
    assert abs(x.var() - 1) < 5 * math.sqrt(2 / n)
    assert abs((x**3).mean()) < 5 * math.sqrt(15 / n)
    assert abs((x**4).mean() - 3) < 5 * math.sqrt(96 / n)
    assert abs((x.abs() < 1).double().mean() - math.erf(1 / math.sqrt(2))) < 5 * 0.47 / math.sqrt(n)
    assert abs((x[:-1] * x[1:]).mean()) < 5 / math.sqrt(n)


def test_depends_on_the_position_and_not_on_the_count() -> None:
    whole = normals(103, seed=3, stream=2)
    torch.testing.assert_close(normals(10, seed=3, stream=2, start=40), whole[40:50])
    assert torch.equal(normals(103, seed=3, stream=2), whole)


def test_seeds_and_streams_are_uncorrelated() -> None:
    base = normals(1000, seed=1)
    for other in (normals(1000, seed=2), normals(1000, seed=1 + 2**32), normals(1000, seed=1, stream=1)):
        assert abs((base * other).mean()) < 5 / math.sqrt(1000)


def test_a_start_within_a_counter_is_refused() -> None:
    with pytest.raises(ValueError, match="start.*multiple of 4"):
        normals(3, seed=0, start=2)
