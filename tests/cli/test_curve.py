from collections.abc import Callable
from pathlib import Path

from advbnn.evaluation.records import Records

QUICK = ["--limit", "120", "--samples", "2", "--seeds", "2", "--device", "cpu", "--steps", "2"]


def test_varies_one_quantity(runs: Path, advbnn: Callable[..., str]) -> None:
    run = runs / "robust"
    for over, at in (("radius", (0, 0.1)), ("ensemble", (1, 3)), ("steps", (1, 2)), ("eot", (1, 2))):
        values = [part for value in at for part in ("--at", value)]
        advbnn("curve", run, over, "--attack", "pgd", *values, *QUICK)
        assert [record.at for record in Records.load(run / "records.json").where(curve=over)] == list(at)
    assert "clean" in advbnn("curve", run, "ensemble", "--attack", "clean", "--at", 2, *QUICK)
