from collections.abc import Callable
from pathlib import Path

from advbnn.evaluation.curves import RADII, radii_for
from advbnn.evaluation.records import Records

QUICK = ["--limit", "120", "--samples", "2", "--seeds", "2", "--device", "cpu", "--steps", "2"]


def test_varies_one_quantity(runs: Path, advbnn: Callable[..., str]) -> None:
    run = runs / "robust"
    for over, at in (("radius", (0, 0.1)), ("ensemble", (1, 3)), ("steps", (1, 2)), ("eot", (1, 2))):
        values = [part for value in at for part in ("--at", value)]
        advbnn("curve", run, over, "--attack", "pgd", *values, *QUICK)
        assert [record.at for record in Records.load(run / "records.json").where(curve=over)] == list(at)
    assert "clean" in advbnn("curve", run, "ensemble", "--attack", "clean", "--at", 2, *QUICK)


def test_radii_follow_the_radius_of_training(runs: Path, advbnn: Callable[..., str]) -> None:
    advbnn("curve", runs / "robust", "radius", "--attack", "fgsm", *QUICK[:-2])
    radii = [record.at for record in Records.load(runs / "robust" / "records.json")]
    assert (radii[0], radii[-1], len(radii)) == (0, 0.11, 15)  # 2.24 times 0.05
    assert radii_for(8 / 256) == RADII
