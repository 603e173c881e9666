"""Renders `results/*/results.md` and their figures in `docs/images` again from the stored records, without measuring.

    python benchmarks/render_results.py [RESULT ...]

What `PAIRED` lists has a picture of networks and their differences, `docs/images/RESULT/paired.png`, what `TRADEOFF`
lists one of their worst case against their accuracy without an attack, `tradeoff.png`, and what `GROWTH` lists those of
the worst case against the number of modes, `growth.png`, or another number.
"""

import shutil
import sys
from pathlib import Path

from advbnn.evaluation.records import Records
from advbnn.paper import write_all
from advbnn.paper.experiment import FILE
from advbnn.report.growth import growth_png
from advbnn.report.paired import paired_png, read_network
from advbnn.report.tradeoff import tradeoff_png

ROOT = Path(__file__).parents[1]
PAIRED = {  # files of records by title, compared with the first beside it; title of differences; radii of training
    "modes-vgg16": (
        (
            {
                "one network, trained at 8/255": "one_network_120_epochs",
                "three modes, trained at 8/255": "three_modes_of_40_epochs",
            },
            {
                "one network, trained at 12/255": "one_network_90_epochs_at_12",
                "three modes, trained at 12/255": "three_modes_of_30_epochs_at_12",
            },
        ),
        "Three modes minus one network",
        {"8/255": 8 / 255, "12/255": 12 / 255},
    ),
}

TRADEOFF = {  # files of records by kind, and by 255 times the radius of training
    "cifar10-few-images": {
        "one network of 200 epochs": {str(radius): f"one_{radius}-5000_images" for radius in (8, 10, 12)},
        "three modes of 150 epochs": {"8": "long_modes3_8-5000_images"},
        "one network of 450 epochs": {"8": "long_one_8-5000_images"},
        "five modes of 40 epochs": {"8": "modes5_8-5000_images"},
        "one wide network of 150 epochs": {"8": "long_wide_8-5000_images"},
    },
}

RADII = (0.2, 0.25, 0.3, 0.35, 0.4)
GROWTH = {  # by picture: files of one network and of several modes for each number, titles, the name of the number
    ("digits-modes", "growth"): (
        {1: "mode_0*", 2: "one_network_30*", 3: "one_network*", 5: "one_network_75*", 10: "one_network_150*"},
        {1: "mode_0*", 2: "two_modes*", 3: "three_modes*", 5: "five_modes*", 10: "ten_modes*"},
        ("one network, trained as long as all modes together", "modes of 15 epochs each"),
        "number of modes",
    ),
    ("digits-modes", "budget"): (
        {45: "one_network_at_0.2*", 150: "one_network_150_at_0.2*", 450: "one_network_450_at_0.2*"},
        {45: "three_modes_at_0.2*", 150: "ten_modes_at_0.2*", 450: "ten_modes_45_at_0.2*"},
        ("one network", "three modes of 15 epochs, ten of 15, ten of 45"),
        "epochs of training in all",
    ),
    ("digits-modes", "radius"): (
        {eps: f"one_network_450_at_{eps}*" for eps in RADII},
        {eps: f"ten_modes_45_at_{eps}*" for eps in RADII},
        ("one network of 450 epochs", "ten modes of 45 epochs"),
        "training radius",
    ),
}


def main(names: list[str]) -> None:
    for file in sorted((ROOT / "results").glob(f"*/{FILE}")):
        folder = file.parent
        if not names or folder.name in names:
            report = write_all(folder, figures=ROOT / "docs" / "images" / folder.name)
            shutil.rmtree(report.parent)  # large, and made by `advbnn reproduce` on demand
            print(folder / "results.md")
    for result, (pairs, differences, trained_at) in PAIRED.items():
        if not names or result in names:
            found = [{title: read(result, file) for title, file in networks.items()} for networks in pairs]
            paired_png(picture(result, "paired"), found, differences=differences, trained_at=trained_at)
    for result, kinds in TRADEOFF.items():
        if not names or result in names:
            found = {title: {at: read(result, file) for at, file in files.items()} for title, files in kinds.items()}
            tradeoff_png(picture(result, "tradeoff"), found)
    for (result, name), (*both, titles, against) in GROWTH.items():
        if not names or result in names:
            alone, several = ({number: read(result, one) for number, one in files.items()} for files in both)
            growth_png(picture(result, name), alone, several, titles=titles, against=against)


def picture(result: str, name: str) -> Path:
    """Where a picture goes."""
    file = ROOT / "docs" / "images" / result / f"{name}.png"
    file.parent.mkdir(parents=True, exist_ok=True)
    print(file)
    return file


def read(result: str, file: str) -> Records:
    return read_network(ROOT / "results" / result, file)


if __name__ == "__main__":
    main(sys.argv[1:])
