from collections.abc import Callable
from pathlib import Path

from advbnn.evaluation.records import Records


def test_shows_affinities(runs: Path, advbnn: Callable[..., str]) -> None:
    plain, robust, out = runs / "plain", runs / "robust", runs / "records.json"
    quick = ["--eps", 0.1, "--steps", 2, "--out", out, "--limit", 120, "--samples", 2, "--seeds", 2, "--device", "cpu"]
    assert "from plain" in advbnn("transfer", plain, robust, *quick)
    assert len(Records.load(out).where(kind="transfer")) == 4
    assert "must differ" in advbnn("transfer", plain, plain, *quick, status=1)
