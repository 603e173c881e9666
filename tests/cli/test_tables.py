"""advbnn tables."""

from pathlib import Path

from typer.testing import CliRunner

import made_up_records as made_up
from advbnn.cli.app import app


def tables(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["tables", *map(str, arguments)])
    return result.exit_code, result.output.replace("\n", "")


def test_tables_are_refreshed_and_checked(tmp_path: Path) -> None:
    made_up.clean().save(tmp_path / "results" / "digits.json")
    document = tmp_path / "README.md"
    document.write_text("<!-- table: digits/headline -->\n<!-- end -->\n")
    arguments = [document, "--results", tmp_path / "results"]
    code, output = tables(*arguments, "--check")
    assert code == 1 and "advbnn tables" in output
    assert tables(*arguments)[0] == 0
    assert "| Adv-BNN | - | 90.6 [87.2, 93.4] |" in document.read_text()
    assert tables(*arguments, "--check")[0] == 0


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "image.png").write_bytes(b"\xff\xfe")
    (tmp_path / "plain.md").write_text("No table.\n")
    for name, message in (("image.png", "not UTF-8 text"), ("plain.md", "<!-- table:"), ("missing.md", "missing.md")):
        code, output = tables(tmp_path / name)
        assert code != 0 and message in output
