"""Networks and the first of them on the same images."""

from pathlib import Path
from typing import Any

import pytest
import torch

import made_up_records as made_up
from advbnn.attacks.threat import Threat
from advbnn.evaluation.intervals import paired_interval
from advbnn.evaluation.outcomes import pack
from advbnn.evaluation.records import Records
from advbnn.report.elements import NOTHING
from advbnn.report.paired import over_seeds, paired_png, paired_table, read_network

GENERATOR = torch.Generator().manual_seed(0)
CHANCES = {"one": (0.8, 0.3, 0.1), "modes": (0.7, 0.5, 0.1)}  # without an attack, at 8/255, at 0.07


def judged(label: str) -> tuple[Records, list[torch.Tensor]]:
    rights = [torch.rand(made_up.N, generator=GENERATOR) < chance for chance in CHANCES[label]]
    kinds: list[dict[str, Any]] = [
        {"kind": "clean", "name": "clean"},
        *({"kind": "worst_case", "name": "quick", "threat": Threat("linf", eps)} for eps in (8 / 255, 0.07)),
    ]
    records = Records(
        made_up.record(label, None, seeds=(0,), correct=(int(right.sum()),), outcomes=(pack(right.int(), 1),), **kind)
        for right, kind in zip(rights, kinds, strict=True)
    )
    return records, rights


@pytest.fixture(scope="module")
def both() -> list[tuple[Records, list[torch.Tensor]]]:
    return [judged("one"), judged("modes")]


def test_differences_have_their_paired_intervals(both: list[tuple[Records, list[torch.Tensor]]]) -> None:
    (one, first), (modes, second) = both
    table = paired_table([one, modes])
    assert list(table.columns) == ["network", "no attack", "worst case, 8/255", "worst case, 0.07"]
    assert [row[0].text for row in table.rows] == ["one", "modes"]
    assert all(cell.note == "" and not cell.strong for cell in table.rows[0])
    for column, (a, b) in enumerate(zip(first, second, strict=True), 1):
        low, high = paired_interval(b.double(), a.double())
        cell = table.rows[1][column]
        assert cell.text == f"{100 * b.double().mean().item():.1f}"
        assert f"[{100 * low:+.1f}, {100 * high:+.1f}]" in cell.note
        assert cell.strong == (low > 0)
    assert [cell.strong for cell in table.rows[1]] == [False, False, True, False]
    assert "quick audit of 400 images" in table.caption
    assert list(paired_table([one, modes], [8 / 255]).columns) == list(table.columns[:3])
    clean = [Records(records.where(kind="clean")) for records in (one, modes)]
    worst = [Records(records.where(kind="worst_case")) for records in (one, modes)]
    assert paired_table(worst).caption.endswith("quick audit of 400 images.")
    assert "audit" not in (said := paired_table(clean).caption) and "worst case" not in said.lower()


def test_what_was_not_measured_alike_is_not_compared(both: list[tuple[Records, list[torch.Tensor]]]) -> None:
    one, modes = both[0][0], both[1][0]
    other = Records(
        made_up.record("thorough", 0.5, kind="worst_case", name="thorough", threat=record.threat)
        for record in modes.where(kind="worst_case")
    )
    row = paired_table([one, other]).rows[1]
    assert row[1] == NOTHING and all(cell.note == "" for cell in row)


def test_the_judge_from_outside_has_columns_of_its_own(both: list[tuple[Records, list[torch.Tensor]]]) -> None:
    more = made_up.record("one", 0.3, kind="attack", name="AutoAttack standard", threat=Threat("linf", 8 / 255))
    table = paired_table([both[0][0] + [more], both[1][0]])
    assert table.columns[-1] == "AutoAttack, 8/255" and table.rows[1][-1] == NOTHING
    # what the first network lacks has nothing to be compared with
    assert "AutoAttack, 8/255" not in paired_table([both[1][0], both[0][0] + [more]]).columns


def test_seeds_are_one_network_of_mean_accuracy(tmp_path: Path) -> None:
    trainings = [judged("modes") for _ in range(3)]
    one = judged("one")[0]
    for (records, _), file in zip(trainings, ("modes", "modes-seed1", "modes-seed2"), strict=True):
        records.save(tmp_path / f"{file}.json")
    Records(one.where(kind="clean")).save(tmp_path / "modes_of_another_length-seed1.json")
    pooled = read_network(tmp_path, "modes*")
    assert len(pooled) == 3 and read_network(tmp_path, "modes-seed1") == trainings[1][0]
    for place, record in enumerate(pooled):
        share = torch.stack([rights[place].double() for _, rights in trainings]).mean(0)
        torch.testing.assert_close(record.right, share)
        assert record.accuracy == pytest.approx(share.mean().item())
    table = paired_table([one, pooled])
    assert table.rows[1][0].text == "modes, 3 seeds" and "mean over seeds" in table.caption
    low, high = paired_interval(pooled[1].right, one[1].right)
    assert f"[{100 * low:+.1f}, {100 * high:+.1f}]" in table.rows[1][2].note


def test_seeds_have_what_all_of_them_have(both: list[tuple[Records, list[torch.Tensor]]]) -> None:
    records = both[0][0]
    pooled = over_seeds([records, Records(records.where(kind="clean"))])
    assert [record.kind for record in pooled] == ["clean"]
    assert over_seeds([records]) == records


def test_the_picture(both: list[tuple[Records, list[torch.Tensor]]], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    networks = dict(zip(("one", "modes"), (records for records, _ in both), strict=True))
    swapped = dict(reversed(networks.items()))
    for name, pairs in {"x": [networks], "y": [networks], "z": [networks, swapped]}.items():
        paired_png(tmp_path / f"{name}.png", pairs, differences="modes less one")
    paired_png(tmp_path / "marked.png", [networks], differences="modes less one", trained_at={"8/255": 8 / 255})
    assert (tmp_path / "x.png").read_bytes() == (tmp_path / "y.png").read_bytes()
    assert (tmp_path / "z.png").stat().st_size > (tmp_path / "x.png").stat().st_size  # with the other direction
    assert (tmp_path / "marked.png").stat().st_size > (tmp_path / "x.png").stat().st_size
