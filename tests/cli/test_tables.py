from collections.abc import Callable
from pathlib import Path

import made_up_records as made_up
from advbnn.leaderboard.entry import save
from made_up_entries import board


def test_tables_are_refreshed_and_checked(tmp_path: Path, advbnn: Callable[..., str]) -> None:
    made_up.clean().save(tmp_path / "results" / "digits.json")
    document = tmp_path / "README.md"
    document.write_text("<!-- table: digits/headline -->\n<!-- end -->\n")
    command = ["tables", document, "--results", tmp_path / "results"]
    assert "advbnn tables" in advbnn(*command, "--check", status=1)
    advbnn(*command)
    assert "| Adv-BNN | - | 90.6 [87.2, 93.4] |" in document.read_text()
    advbnn(*command, "--check")


def test_tables_of_the_leaderboard(tmp_path: Path, advbnn: Callable[..., str]) -> None:
    document = tmp_path / "README.md"
    document.write_text("<!-- table: entries/all -->\n<!-- end -->\n\n<!-- table: entries/attacks -->\n<!-- end -->\n")
    assert "missing" in advbnn("tables", document, "--entries", tmp_path / "missing", status=1)
    for entry in board():
        save(entry, tmp_path / "board" / f"{entry.id}.json")
    advbnn("tables", document, "--entries", tmp_path / "board")
    assert document.read_text().count("| Defence cifar10-loses") == 2
    assert "up to date" in advbnn("tables", document, "--entries", tmp_path / "board", "--check")


def test_mistakes_are_one_line(tmp_path: Path, advbnn: Callable[..., str]) -> None:
    (tmp_path / "image.png").write_bytes(b"\xff\xfe")
    (tmp_path / "plain.md").write_text("No table.\n")
    for name, message in (("image.png", "not UTF-8 text"), ("plain.md", "<!-- table:"), ("missing.md", "missing.md")):
        assert message in advbnn("tables", tmp_path / name, status=1)
