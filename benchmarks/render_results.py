"""Renders `results/*/results.md` and their figures in `docs/images` again from the stored records, without measuring.

python benchmarks/render_results.py [RESULT ...]
"""

import shutil
import sys
from pathlib import Path

from advbnn.paper import write_all
from advbnn.paper.experiment import FILE

ROOT = Path(__file__).parents[1]


def main(names: list[str]) -> None:
    for file in sorted((ROOT / "results").glob(f"*/{FILE}")):
        folder = file.parent
        if not names or folder.name in names:
            report = write_all(folder, figures=ROOT / "docs" / "images" / folder.name)
            shutil.rmtree(report.parent)  # large, and made by `advbnn reproduce` on demand
            print(folder / "results.md")


if __name__ == "__main__":
    main(sys.argv[1:])
