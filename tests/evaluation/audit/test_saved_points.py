"""Audits that keep their points, and audits that are given some."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from advbnn.attacks import APGD
from advbnn.attacks.threat import Threat
from advbnn.data import to_float
from advbnn.evaluation.audit.attack_suite import LEVELS
from advbnn.evaluation.audit.worst_case import Audit, audit, points_file
from advbnn.evaluation.identity import ModelIdentity
from advbnn.evaluation.points import PartialPointsWarning, Points
from cheats import Rounded
from trained_nets import bnn, digits, net

pytestmark = pytest.mark.filterwarnings("ignore::advbnn.evaluation.accuracy.SmallSampleWarning")

SMALL, LARGE = Threat("linf", 0.05), Threat("linf", 0.1)
ROWS = range(10, 34)
X, Y = to_float(digits().images), digits().labels


@pytest.fixture(autouse=True)
def weak(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A level so weak that other points are worse."""
    few: dict[str, Any] = {"eot": (1, 2), "steps": (1,), "restarts": 2, "apgd_steps": 1, "apgd_eot": 1, "targets": 1}
    few |= {"square_queries": 3, "nes_queries": 6, "nes_directions": 2, "max_weight_samples": 5, "query_eot": 1}
    few |= {"selection_samples": 2, "comparison_samples": 10, "ensembles": 1}
    monkeypatch.setitem(LEVELS, "quick", replace(LEVELS["quick"], **few))
    return


def run(model: torch.nn.Module, threats: Any = LARGE, **options: Any) -> Audit:
    return audit(model, digits(), threats, "quick", **{"rows": ROWS, "samples": 10} | options)


@pytest.mark.parametrize("model", [net, bnn], ids=["deterministic", "random"])
def test_keeps_the_points_of_every_attack_and_the_worst(model: Any, tmp_path: Path) -> None:
    file, threats = tmp_path / "points.safetensors", [SMALL, LARGE]
    found = run(model(), threats, save_points=file, command="advbnn audit", batch_size=16)
    files = [points_file(file, threat, threats) for threat in threats]
    assert [one.name for one in files] == ["points-0.05.safetensors", "points-0.1.safetensors"]
    candidates = [X[list(ROWS)]]
    for threat, path, record in zip(threats, files, found.records, strict=True):
        points = Points.load(path)
        assert points.threat == threat and points.rows.tolist() == list(ROWS)
        assert torch.equal(points.labels, Y[list(ROWS)])
        assert points.notes["data_sha256"] == digits().fingerprint() and points.notes["command"] == "advbnn audit"
        assert points.notes["model_sha256"] == ModelIdentity.of(model()).sha256
        attacks = [f"attack/{one['name']}" for one in record.details["attacks"] if one["name"] != "clean"]
        assert list(points.sets) == sorted([*attacks, "worst"])
        for one in points.sets.values():
            assert threat.distance(one, X[list(ROWS)]).max() <= threat.eps
        # the worst point of an image is one of those found at this radius or a smaller one, or the image itself
        candidates += [points.sets[name] for name in attacks]
        same = torch.stack([(points.sets["worst"] == one).flatten(1).all(1) for one in candidates])
        assert bool(same.any(0).all())


def test_points_of_several_seeds_and_where_an_attack_did_not_run(tmp_path: Path) -> None:
    file = tmp_path / "points.safetensors"
    run(net(), save_points=file, seeds=2)
    points = Points.load(file)
    assert {"worst (seed 0)", "worst (seed 1)", "attack/NES (seed 1)"} <= set(points.sets)
    assert list(points.on(digits(), LARGE)) == ["worst (seed 0)", "worst (seed 1)"]
    untouched = (points.sets["attack/NES (seed 0)"] == X[list(ROWS)]).flatten(1).all(1)
    assert bool(untouched.any())  # broken before NES


def test_given_points_lower_the_result_and_are_only_used_where_they_fit(tmp_path: Path) -> None:
    file = tmp_path / "strong.safetensors"
    x, y = X[list(ROWS)], Y[list(ROWS)]
    model = Rounded(net())  # which has no gradient, and so few queries do not break it
    x_adv = APGD(LARGE, steps=10, loss="margin")(net(), x, y, seed=0)
    broken = model(x_adv).argmax(1) != y
    Points.made({"mine": x_adv}, torch.tensor(ROWS), digits(), LARGE, ModelIdentity.of(net())).save(file)
    alone, together = run(model, [SMALL, LARGE]), run(model, [SMALL, LARGE], points=file)
    assert together.records[0].right.tolist() == alone.records[0].right.tolist()  # outside the smaller ball
    expected = (alone.records[1].right == 1) & ~broken
    assert together.records[1].right.tolist() == expected.double().tolist()
    assert together.records[1].accuracy < alone.records[1].accuracy
    entry = next(one for one in together.records[1].details["attacks"] if one["name"] == "strong: mine")
    assert entry["role"] == "given" and entry["attack"]["sha256"] == Points.load(file).sha256
    with pytest.raises(ValueError, match="'mine' .*linf.*row"):
        run(net(), SMALL, points=file)
    with pytest.raises(ValueError, match="rows"):
        run(net(), LARGE, points=file, rows=range(60, 70))
    with pytest.warns(PartialPointsWarning, match=f"{len(ROWS)} of 70 images"):
        run(net(), LARGE, points=file, rows=range(70))


def test_points_in_the_clean_image_change_nothing() -> None:
    unmoved = Points(sets={"clean": X}, rows=torch.arange(120))
    for model in (net(), bnn()):
        assert run(model, points=unmoved).records[0].right.tolist() == run(model).records[0].right.tolist()


def test_a_finished_audit_without_points_is_not_taken_for_one_with(tmp_path: Path) -> None:
    out, file = tmp_path / "records.json", tmp_path / "points.safetensors"
    run(net(), out=out)
    with pytest.raises(ValueError, match="points.*--out"):
        run(net(), out=out, save_points=file)
    other = run(net(), out=tmp_path / "others.json", save_points=file)
    assert run(net(), out=tmp_path / "others.json", save_points=file) == other  # kept, as is the file


def test_files_of_one_name_in_two_folders_both_count_and_close_radii_have_two_files(tmp_path: Path) -> None:
    given = [tmp_path / name / "points.safetensors" for name in ("a", "b")]
    for number, path in enumerate(given):
        path.parent.mkdir()
        moved = (X[list(ROWS)] + 0.01 * (number + 1)).clamp(0, 1)
        Points(sets={"worst": moved}, rows=torch.tensor(ROWS)).save(path)
    found = run(net(), points=given).records[0]
    assert sum(one["name"].startswith("points: worst") for one in found.details["attacks"]) == 2
    close = [Threat("linf", 8 / 255), Threat("linf", 0.03137)]
    assert len({points_file("points.safetensors", one, close) for one in close}) == 2
