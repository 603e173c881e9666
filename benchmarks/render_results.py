"""Renders `results/*/results.md` and their figures in `docs/images` again from the stored records, without measuring.

    python benchmarks/render_results.py [RESULT ...]

A `paired` table of README.md has a picture too, `docs/images/RESULT/paired.png`.
"""

import re
import shutil
import sys
from pathlib import Path

from advbnn.evaluation.records import Records
from advbnn.paper import write_all
from advbnn.paper.experiment import FILE
from advbnn.report.paired import paired_png

ROOT = Path(__file__).parents[1]
PAIRED = re.compile(r"^<!-- table: ([^/\s]+)/paired:([^@\s]+)\S* -->$", re.MULTILINE)


def main(names: list[str]) -> None:
    for file in sorted((ROOT / "results").glob(f"*/{FILE}")):
        folder = file.parent
        if not names or folder.name in names:
            report = write_all(folder, figures=ROOT / "docs" / "images" / folder.name)
            shutil.rmtree(report.parent)  # large, and made by `advbnn reproduce` on demand
            print(folder / "results.md")
    for result, files in PAIRED.findall((ROOT / "README.md").read_text(encoding="utf-8")):
        if not names or result in names:
            picture, folder = ROOT / "docs" / "images" / result / "paired.png", ROOT / "results" / result
            picture.parent.mkdir(parents=True, exist_ok=True)
            paired_png(picture, [Records.load(folder / f"{one}.json") for one in files.split(",")])
            print(picture)


if __name__ == "__main__":
    main(sys.argv[1:])
