"""Calibration, abstention and detection of several networks on the same images, and how each differs from the first.

    python benchmarks/modes_gains.py one modes5 adv_bnn5 --foreign FOLDER --root /data/cifar10 --eps 8/255

Every network is attacked by itself, with the attacks of `modes_worth.py uncertainty`; foreign images are those in
FOLDER. Detection and abstention are by entropy. The intervals of the differences are of a bootstrap: each resample
has the same images for all networks. It covers the choice of images, not that of trainings. Prints a table, and writes
its numbers to `RESULTS-gains/gains.json`.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from judge import add_options, evaluation_options
from modes import add_places, place, title_of
from modes_worth import attacks_on, foreign, threat_of
from torch import Tensor

import advbnn
from advbnn.attacks import Attack
from advbnn.data.imageset import Examples
from advbnn.evaluation.abstention import threshold
from advbnn.evaluation.accuracy import Evaluation
from advbnn.evaluation.batchwise import Batch, batchwise
from advbnn.evaluation.metrics import aurc, auroc, expected_calibration_error, negative_log_likelihood
from advbnn.report.elements import Cell, Table
from advbnn.training import load_trained

RESAMPLES = 1000

Tensors = Mapping[str, Tensor]
"""Of each image: `probs`, `entropy`, `correct` and `labels`."""


def undetected(of: Mapping[str, Tensors], coverage: float) -> float:
    """The share of attacked images that are misclassified, with an entropy that `coverage` of clean ones have."""
    attacked = of["evasive"]
    below = attacked["entropy"] <= threshold(of["clean"]["entropy"], coverage)
    return (below & ~attacked["correct"]).double().mean().item()


def separated(of: Mapping[str, Tensors], name: str) -> float:
    return auroc(of["clean"]["entropy"], of[name]["entropy"])


MEASURES: dict[str, tuple[Callable[[Mapping[str, Tensors]], float], int]] = {  # and whether more is better
    "accuracy": (lambda of: of["clean"]["correct"].double().mean().item(), 1),
    "accuracy, attacked": (lambda of: of["pgd"]["correct"].double().mean().item(), 1),
    "NLL": (lambda of: negative_log_likelihood(of["clean"]["probs"], of["clean"]["labels"]), -1),
    "NLL, attacked": (lambda of: negative_log_likelihood(of["pgd"]["probs"], of["pgd"]["labels"]), -1),
    "ECE": (lambda of: expected_calibration_error(of["clean"]["probs"], of["clean"]["labels"]), -1),
    "ECE, attacked": (lambda of: expected_calibration_error(of["pgd"]["probs"], of["pgd"]["labels"]), -1),
    "AURC, attacked": (lambda of: aurc(of["pgd"]["entropy"], of["pgd"]["correct"]), -1),
    "AURC, evasive attack": (lambda of: aurc(of["evasive"]["entropy"], of["evasive"]["correct"]), -1),
    "wrong and not detected, evasive attack, 90 % coverage": (lambda of: undetected(of, 0.9), -1),
    "wrong and not detected, evasive attack, 95 % coverage": (lambda of: undetected(of, 0.95), -1),
    "AUROC, attacked": (lambda of: separated(of, "pgd"), 1),
    "AUROC, evasive attack": (lambda of: separated(of, "evasive"), 1),
    "AUROC, foreign": (lambda of: separated(of, "foreign"), 1),
    "AUROC, foreign, attacked": (lambda of: separated(of, "foreign, attacked"), 1),
}


def predictions(evaluation: Evaluation, attack: Attack | None, images: Examples, rows: Any = None) -> Tensors:
    """Of one network, for images as they are or attacked."""

    def work(x: Tensor, y: Tensor, batch: Batch) -> dict[str, Tensor]:
        x, y = evaluation.prepared(x, y)
        found = evaluation.classify(evaluation.craft(attack, x, y, 0, batch), 0)
        return {"probs": found.probs, "entropy": found.entropy, "correct": found.label == y, "labels": y}

    return batchwise(work, images, batch_size=evaluation.batch_size, rows=rows).tensors


def resampled(of: Mapping[str, Tensors], ours: Tensor, others: Tensor) -> dict[str, Tensors]:
    chosen = {name: others if name.startswith("foreign") else ours for name in of}
    return {name: {key: values[chosen[name]] for key, values in found.items()} for name, found in of.items()}


def measured(of: Mapping[str, Tensors]) -> Tensor:
    return torch.tensor([measure(of) for measure, _ in MEASURES.values()], dtype=torch.float64)


def gains(networks: Mapping[str, Mapping[str, Tensors]], resamples: int = RESAMPLES) -> dict[str, Any]:
    """Of each network and measure the value, its difference from that of the first network, and the 95 % interval."""
    generator, first = torch.Generator().manual_seed(0), next(iter(networks))
    sizes = [len(networks[first][name]["labels"]) for name in ("clean", "foreign")]
    values = {label: measured(of) for label, of in networks.items()}
    samples: dict[str, list[Tensor]] = {label: [] for label in networks}
    for _ in range(resamples):
        rows = [torch.randint(size, (size,), generator=generator) for size in sizes]
        for label, of in networks.items():
            samples[label].append(measured(resampled(of, *rows)))
    found: dict[str, Any] = {}
    for label in networks:
        differences = torch.stack(samples[label]) - torch.stack(samples[first])
        ends = differences.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64), 0).T.tolist()
        shift = (values[label] - values[first]).tolist()
        numbers = zip(MEASURES, values[label].tolist(), shift, ends, strict=True)
        found[label] = {name: {"value": v, "difference": d, "interval": e} for name, v, d, e in numbers}
    return found


def table(found: Mapping[str, Any]) -> Table:
    """A row per measure and a column per network; in bold where a network is better than the first."""
    labels, rows = list(found), []
    for name, (_, sign) in MEASURES.items():
        cells = [Cell(name), Cell(f"{found[labels[0]][name]['value']:.3f}")]
        for label in labels[1:]:
            one = found[label][name]
            low, high = one["interval"]
            note = f"({one['difference']:+.3f} [{low:+.3f}, {high:+.3f}])"
            cells.append(Cell(f"{one['value']:.3f}", note, strong=min(sign * low, sign * high) > 0))
        rows.append(cells)
    caption = (
        f"In brackets the difference from {labels[0]} and its 95 % interval by a paired bootstrap over images; in bold "
        "where it is better. Smaller is better for NLL, ECE, AURC and the errors that are not detected."
    )
    return Table(name="gains", caption=caption, columns=["", *labels], rows=rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_places(parser)
    add_options(parser)
    parser.set_defaults(images=2000)
    parser.add_argument("--foreign", type=Path, required=True, help="folder of images of other kinds")
    given = parser.parse_args()
    data = advbnn.data.load(given.data, root=given.root).test
    others, threat, networks = foreign(given.foreign, data), threat_of(given), {}
    for name in given.rows:
        model = load_trained(given.runs / place(name, given.seed), device=given.device).model
        label = title_of(name, given.seed)
        options = evaluation_options(model, given, label, Path())
        evaluation = Evaluation(model, data, **{**options, "out": None})
        attacks = attacks_on(model, threat)
        networks[label] = {
            "clean": predictions(evaluation, None, data, options["rows"]),
            **{which: predictions(evaluation, attacks[which], data, options["rows"]) for which in ("pgd", "evasive")},
            "foreign": predictions(evaluation, None, others),
            "foreign, attacked": predictions(evaluation, attacks["overconfident"], others),
        }
    found = gains(networks)
    about = {"command": " ".join(["python", *sys.argv]), "torch": torch.__version__, "resamples": RESAMPLES}
    about |= {"images": given.images, "foreign": len(others), "threat": str(threat)}
    file = given.results.with_name(f"{given.results.name}-gains") / f"{place('gains', given.seed)}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({**about, "networks": found}, indent=1) + "\n", encoding="utf-8")
    print(table(found).markdown())


if __name__ == "__main__":
    main()
