"""Counter-based noise: known answers of the generator, normality, and independence of how it is asked for."""

import math

import pytest
import torch

from advbnn.fast.philox import _philox, normals


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        # known answers published with the generator (Random123, philox4x32 10): counters and keys of zeros
        (0, 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ],
)
def test_known_answers(counter: int, key: int, expected: tuple[int, ...]) -> None:
    words = _philox(torch.tensor([counter]), 0, key)
    assert tuple(int(word) for word in words) == expected


def test_is_standard_normal() -> None:
    x = normals(400_000, seed=7).double()
    n = len(x)
    assert abs(x.mean()) < 5 / math.sqrt(n)
    assert abs(x.var() - 1) < 5 * math.sqrt(2 / n)
    assert abs((x**3).mean()) < 5 * math.sqrt(15 / n)
    assert abs((x**4).mean() - 3) < 5 * math.sqrt(96 / n)
    inside = (x.abs() < 1).double().mean()
    assert abs(inside - math.erf(1 / math.sqrt(2))) < 5 * 0.47 / math.sqrt(n)
    neighbours = (x[:-1] * x[1:]).mean()
    assert abs(neighbours) < 5 / math.sqrt(n)


def test_depends_on_position_alone_not_on_how_much_is_asked_for() -> None:
    whole = normals(103, seed=3, stream=2)
    assert torch.equal(normals(10, seed=3, stream=2, start=40), whole[40:50])
    assert torch.equal(normals(103, seed=3, stream=2), whole)


def test_seeds_and_streams_differ() -> None:
    base = normals(1000, seed=1)
    for other in (normals(1000, seed=2), normals(1000, seed=1 + 2**32), normals(1000, seed=1, stream=1)):
        assert abs((base * other).mean()) < 0.2
        assert not torch.equal(base, other)


def test_refuses_a_start_within_a_counter() -> None:
    with pytest.raises(ValueError, match="multiple of 4"):
        normals(3, seed=0, start=2)
