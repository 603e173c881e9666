"""Renders `results/*/results.md` and their figures in `docs/images` again from the stored records, without measuring.

    python benchmarks/render_results.py [RESULT ...]

A `paired` table of README.md has a picture too, `docs/images/RESULT/paired.png`, and what `GROWTH` lists has one of the
worst case against the number of modes, `growth.png`.
"""

import re
import shutil
import sys
from pathlib import Path

from advbnn.evaluation.records import Records
from advbnn.paper import write_all
from advbnn.paper.experiment import FILE
from advbnn.report.growth import growth_png
from advbnn.report.paired import paired_png

ROOT = Path(__file__).parents[1]
PAIRED = re.compile(r"^<!-- table: ([^/\s]+)/paired:([^@\s]+)\S* -->$", re.MULTILINE)

GROWTH = {  # of one network, and of as many modes as cost the same: files of records by the number of modes
    "digits-modes": (
        {1: "mode_0", 2: "one_network_30", 3: "one_network", 5: "one_network_75", 10: "one_network_150"},
        {1: "mode_0", 2: "two_modes", 3: "three_modes", 5: "five_modes", 10: "ten_modes"},
        ("one network, trained as long as all modes together", "modes of 15 epochs each"),
    )
}


def main(names: list[str]) -> None:
    for file in sorted((ROOT / "results").glob(f"*/{FILE}")):
        folder = file.parent
        if not names or folder.name in names:
            report = write_all(folder, figures=ROOT / "docs" / "images" / folder.name)
            shutil.rmtree(report.parent)  # large, and made by `advbnn reproduce` on demand
            print(folder / "results.md")
    for result, files in PAIRED.findall((ROOT / "README.md").read_text(encoding="utf-8")):
        if not names or result in names:
            paired_png(picture(result, "paired"), [read(result, one) for one in files.split(",")])
    for result, (*both, titles) in GROWTH.items():
        if not names or result in names:
            alone, several = ({number: read(result, one) for number, one in files.items()} for files in both)
            growth_png(picture(result, "growth"), alone, several, titles=titles)


def picture(result: str, name: str) -> Path:
    """Where a picture goes."""
    file = ROOT / "docs" / "images" / result / f"{name}.png"
    file.parent.mkdir(parents=True, exist_ok=True)
    print(file)
    return file


def read(result: str, file: str) -> Records:
    return Records.load(ROOT / "results" / result / f"{file}.json")


if __name__ == "__main__":
    main(sys.argv[1:])
