"""Draws the plots of docs/speed.md from the records of `step.py` and `evaluate.py` and the runs of `learning.py`.

    python benchmarks/plots.py

Plots without records are left out. Records of a CPU are ignored: the plots compare engines on a GPU.
"""

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.ticker import LogFormatterSciNotation, NullFormatter

ROOT = Path(__file__).parent.parent
AUTHORS = 80.7
"""Seconds per epoch of the authors' Adv-BNN loop on one H200: VGG16, CIFAR-10, PGD-10, batch 128."""

COLOURS = {"eager": "#0072b2", "compile": "#e69f00", "graph": "#009e73"}
OF_RUNS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
DEFENSES = {"adv_bnn": ("Adv-BNN", "-"), "adv": ("adversarial training", "--")}
ACCURACIES = ("clean_accuracy", "robust_accuracy")

Row = dict[str, Any]


def main() -> None:
    """Draw every plot that has records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, default=ROOT / "benchmarks" / "records")
    parser.add_argument("--runs", type=Path, default=ROOT / "results" / "engines", help="folders named NAME-seedN")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    options = parser.parse_args()
    pyplot.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False})
    steps = list(rows_of(options.records, "step-*.json"))
    parts = defaultdict(list)
    for row in rows_of(options.records, "evaluate-*.json"):
        parts[row["part"]].append(row)
    pictures: dict[str, tuple[list[Row], Callable[[Axes, list[Row]], None]]] = {
        "epoch": ([row for row in steps if row["network"] == "vgg16"], draw_epochs),
        "eot": (parts["grow-eot"], partial(draw_growth, by="eot", of="EOT samples per gradient")),
        "ensemble": (parts["grow-ensemble"], partial(draw_growth, by="ensemble", of="weight samples per prediction")),
        "data": (parts["grow-data"], partial(draw_growth, by="images", of="images")),
        "network": (parts["grow-network"], draw_networks),
    }
    for name, (rows, draw) in pictures.items():
        if rows:
            figure, axes = pyplot.subplots(figsize=(6.8, 4.4), layout="constrained")
            draw(axes, rows)
            save(figure, options.out / f"speed-{name}.png")
    curves = learning_curves(options.runs)
    if curves:
        save(draw_learning(curves), options.out / "speed-learning.png")


def rows_of(folder: Path, pattern: str) -> Iterator[Row]:
    """The rows of all records of a GPU, each with the fields that its record shares among them."""
    for path in sorted(folder.glob(pattern)):
        record = json.loads(path.read_text(encoding="utf-8"))
        about = {key: value for key, value in record.items() if key != "rows"}
        yield from ({**about, **row} for row in record["rows"] if row["peak_gib"] is not None)


def draw_epochs(axes: Axes, rows: Sequence[Row]) -> None:
    """Seconds per epoch by batch size, for each engine and defence."""
    for defense, (title, style) in DEFENSES.items():
        for engine, colour in COLOURS.items():
            chosen = sorted(
                (row for row in rows if (row["defense"], row["engine"]) == (defense, engine)), key=lambda r: r["batch"]
            )
            if chosen:
                values = [row["s_an_epoch"] for row in chosen]
                spread = [[end / row["ms_a_step"] * row["s_an_epoch"] for end in row["ms_spread"]] for row in chosen]
                batches = [row["batch"] for row in chosen]
                draw_line(axes, batches, values, spread, colour, style, f"{engine}, {title}")
    batches = sorted({row["batch"] for row in rows})
    floor = min(row["s_an_epoch"] * row["share_of_matrix_rate"] for row in rows if row["defense"] == "adv_bnn")
    draw_level(axes, AUTHORS, f"the authors' Adv-BNN loop, {AUTHORS} s")
    draw_level(axes, floor, f"arithmetic floor of Adv-BNN, {floor:.2f} s")
    whole_numbers(axes, batches)
    axes.set(xlabel="batch size", ylabel="seconds per epoch of 50,000 images", yscale="log")
    plain_numbers(axes)
    finish(axes, f"Training VGG16 with PGD-10 on {machine(rows)}")


def draw_networks(axes: Axes, rows: Sequence[Row]) -> None:
    """Seconds by the arithmetic of a forward pass."""
    sized = []
    for row in rows:
        forwards = row["forwards_an_image"] * row["images"]
        sized.append({**row, "gflop": round(1e3 * row["tflops"] * row["seconds"] / forwards, 6)})
    draw_growth(axes, sized, by="gflop", of="GFLOP of a forward pass per image", named=False)
    of_network = {row["gflop"]: row["network"] for row in sized}
    for number, gflop in enumerate(sorted(of_network)):  # on alternating sides, because some have nearly the same size
        seconds = [row["seconds"] for row in sized if row["gflop"] == gflop]
        above = {"xy": (gflop, max(seconds)), "xytext": (-4, 6), "va": "bottom", "ha": "right"}
        below = {"xy": (gflop, min(seconds)), "xytext": (4, -6), "va": "top", "ha": "left"}
        place: dict[str, Any] = above if number % 2 else below
        axes.annotate(of_network[gflop], textcoords="offset points", size=9, **place)
    axes.margins(y=0.2)


def draw_growth(axes: Axes, rows: Sequence[Row], *, by: str, of: str, named: bool = True) -> None:
    """Seconds against a growing quantity, on logarithmic scales, for each engine and precision, and their floor.

    Args:
        axes: where to draw.
        rows: of one part of `evaluate.py`.
        by: the column of the growing quantity.
        of: its name.
        named: label every value on the axis.
    """
    kinds: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row[by]):
        kinds[row["engine"], "bf16" if "bfloat16" in row["precision"] else "float32"].append(row)
    for (engine, precision), chosen in sorted(kinds.items()):
        values, spread = [row["seconds"] for row in chosen], [row["seconds_spread"] for row in chosen]
        # points of different networks are not connected
        style = "" if not named else "-" if precision == "bf16" else "--"
        draw_line(axes, [row[by] for row in chosen], values, spread, COLOURS[engine], style, f"{engine}, {precision}")
    points = sorted({row[by]: row["seconds"] * row["share_of_matrix_rate"] for row in rows}.items())
    axes.plot(*zip(*points, strict=True), color="0.55", linewidth=1, label="arithmetic floor (bf16)")
    if named:
        whole_numbers(axes, [point for point, _ in points])
    else:
        axes.set_xscale("log")
    axes.set(yscale="log", xlabel=of, ylabel="seconds")
    plain_numbers(axes)
    work = {"none": "Classifying"}.get(rows[0]["attack"], rows[0]["attack"])
    same = {key: {row[key] for row in rows} for key in ("images", "network")}
    images = f", {rows[0]['images']:,} images" if len(same["images"]) == 1 else ""
    network = f", {rows[0]['network']}" if len(same["network"]) == 1 else ""
    finish(axes, f"{work}{images}{network}, {machine(rows)}")


def draw_line(
    axes: Axes, x: list[float], y: list[float], spread: list[list[float]], colour: str, style: str, label: str
) -> None:
    """Medians with their smallest and largest values."""
    below = [median - low for median, (low, _) in zip(y, spread, strict=True)]
    above = [high - median for median, (_, high) in zip(y, spread, strict=True)]
    axes.errorbar(x, y, (below, above), color=colour, linestyle=style, marker="o", markersize=4, capsize=3, label=label)


def draw_level(axes: Axes, value: float, label: str) -> None:
    """A horizontal line with its name on it."""
    axes.axhline(value, color="0.55", linewidth=1)
    where: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
    axes.annotate(label, (1, value), (0, 3), ha="right", size=9, **where)


def learning_curves(folder: Path) -> dict[str, list[dict[int, Row]]]:
    """For each engine, its seeds: the means of the logged metrics over each epoch."""
    curves: dict[str, list[dict[int, Row]]] = defaultdict(list)
    for path in sorted(folder.glob("*/metrics.jsonl")):
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        epochs: dict[int, list[Row]] = defaultdict(list)
        for line in lines:
            epochs[line["epoch"]].append(line)
        means = {
            epoch: {key: mean([line[key] for line in logged if key in line]) for key in ACCURACIES}
            for epoch, logged in epochs.items()
        }
        curves[re.sub(r"-seed\d+$", "", path.parent.name)].append(means)
    return dict(curves)


def draw_learning(curves: dict[str, list[dict[int, Row]]]) -> Any:
    """Clean and robust accuracy on the training batches by epoch: thin lines are seeds, thick ones their mean."""
    figure, both = pyplot.subplots(1, 2, figsize=(9.6, 4.2), layout="constrained", sharey=True)
    for axes, key in zip(both, ACCURACIES, strict=True):
        for (name, seeds), colour in zip(sorted(curves.items()), OF_RUNS, strict=False):
            epochs = sorted(set.intersection(*(set(seed) for seed in seeds)))
            for seed in seeds:
                axes.plot(epochs, [100 * seed[e][key] for e in epochs], color=colour, linewidth=0.7, alpha=0.5)
            average = [100 * mean([seed[e][key] for seed in seeds]) for e in epochs]
            label = f"{name.replace('-', ' ')}, {len(seeds)} seeds"
            axes.plot(epochs, average, color=colour, linewidth=2.2, label=label)
        axes.set(xlabel="epoch")
        axes.set_title(key.replace("_", " "), size=11)
        axes.grid(color="0.92")
    both[0].set(ylabel="% of the training images")
    both[0].legend(frameon=False, fontsize=9)
    return figure


def mean(values: Sequence[float]) -> float:
    """The mean; NaN, which is not drawn, without values."""
    return sum(values) / len(values) if values else float("nan")


def machine(rows: Sequence[Row]) -> str:
    """The machine of the rows."""
    return " and ".join(sorted({row["machine"] for row in rows}))


def whole_numbers(axes: Axes, values: Sequence[float]) -> None:
    """A logarithmic x axis with a label for every measured value."""
    axes.set_xscale("log")
    axes.set_xticks(values, [f"{value:,}" for value in values])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="x", which="minor", length=0)


def plain_numbers(axes: Axes) -> None:
    """Plain numbers instead of powers on logarithmic scales."""
    for axis in (axes.xaxis, axes.yaxis):
        if isinstance(axis.get_major_formatter(), LogFormatterSciNotation):
            axis.set_major_formatter("{x:g}")


def finish(axes: Axes, title: str) -> None:
    """Title, legend and a light grid."""
    axes.set_title(title, size=11)
    axes.grid(color="0.92")
    axes.figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)


def save(figure: Any, path: Path) -> None:
    """Write a figure without the name and version of matplotlib, so that equal figures are equal files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, metadata={"Software": None})
    pyplot.close(figure)
    print(path)


if __name__ == "__main__":
    main()
