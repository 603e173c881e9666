"""Training curves of Adv-BNN and adversarial training: accuracies, and the largest standard deviation of a weight.

    python benchmarks/training_curves.py

Drawn from the metrics of the runs in results/cifar10/runs.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot

ROOT = Path(__file__).parent.parent
ADV_BNN, ADV = "#c4540a", "#1b4f9c"


def main() -> None:
    """Draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=ROOT / "results" / "cifar10" / "runs")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images" / "cifar10" / "course.png")
    options = parser.parse_args()
    bnn, adv = metrics(options.runs / "adv_bnn"), metrics(options.runs / "adv")
    pyplot.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for lines, colour, name in ((bnn, ADV_BNN, "Adv-BNN"), (adv, ADV, "adversarial training")):
        epochs = [line["epoch"] for line in lines]
        left.plot(epochs, percent(lines, "robust_accuracy"), color=colour, label=f"{name}: attacked, batch statistics")
        label = f"{name}: clean, running statistics"
        left.plot(epochs, percent(lines, "clean_accuracy"), color=colour, linestyle=":", label=label)
    left.set(xlabel="epoch", ylabel="% of the training images", ylim=(0, 100))
    left.legend(frameon=False, fontsize=8, loc="lower right")
    right.plot([line["epoch"] for line in bnn], [line["max_std"] for line in bnn], color=ADV_BNN)
    right.set(xlabel="epoch", yscale="log")
    right.set_title("largest standard deviation of a weight, Adv-BNN", size=10)
    for axes in (left, right):
        axes.grid(color="0.92")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.out, dpi=140, metadata={"Software": None})
    print(options.out)


def metrics(run: Path) -> list[dict[str, Any]]:
    """The logged metrics of a run."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def percent(lines: list[dict[str, Any]], key: str) -> list[float]:
    """A metric of each line in per cent."""
    return [100 * line[key] for line in lines]


if __name__ == "__main__":
    main()
