"""The recipe for small sets learns an easy one within a few hundred updates."""

import runpy
from pathlib import Path

import pytest

import advbnn
from advbnn.data import Splits

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "small_data.py"


def test_coloured_shapes_are_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Smaller images and fewer epochs than in the benchmark, where it takes minutes."""
    monkeypatch.syspath_prepend(BENCHMARK.parent)
    shapes = runpy.run_path(str(BENCHMARK))["shapes"]
    data = Splits(shapes(240, seed=0, size=16), shapes(150, seed=1, size=16))
    how = advbnn.defense("adv_bnn", "images", schedule={"epochs": 10})
    net = how.build(classes=3, shape=(3, 16, 16), seed=0)
    result = advbnn.fit(net, data, how, seed=0)
    found = advbnn.predict(result.model, data.test.images / 255, samples=10, seed=0)
    assert (found.label == data.test.labels).float().mean() > 0.75  # chance is 1/3; 0.9 is usual
