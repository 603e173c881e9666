"""What several modes are worth beyond accuracy, and what they cost: for rows that `modes.py train` has trained.

    python benchmarks/modes_worth.py uncertainty one modes5 adv_bnn5 --foreign FOLDER --root /data/cifar10
    python benchmarks/modes_worth.py number modes10 --root ...     # the worst case of the first 1, 2, 3, 5, 10 modes
    python benchmarks/modes_worth.py average modes5 snapshots ...  # one network with the mean weights of all modes
    python benchmarks/modes_worth.py cost one wide modes5 ...      # images per second, alone and with a gradient

`uncertainty` measures calibration, abstention and the detection of attacks, and of the images in FOLDER, clean and
attacked until the network is certain of them. Records go to `RESULTS-COMMAND/ROW.json`, for `advbnn report` and
`advbnn tables`. All commands resume, and `cost` measures again.
"""

import argparse
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import Rows
from judge import one_network, seconds_per_image, show
from modes import ROWS, place
from torch import Tensor, nn

import advbnn
from advbnn.attacks import PGD, Attack, registry
from advbnn.attacks.threat import Threat
from advbnn.bayes.protocol import members
from advbnn.data import from_tensors, to_float
from advbnn.data.image import decode_all
from advbnn.data.imageset import Examples
from advbnn.data.splits import Splits
from advbnn.evaluation.records import Records
from advbnn.evaluation.uncertainty import ood_detection, uncertainty
from advbnn.fast import accelerate
from advbnn.training import load_trained
from advbnn.training.averaging import refresh_batchnorm

NUMBERS = (1, 2, 3, 5, 10)
ATTACKS = ("pgd", "evasive", "overconfident", "underconfident")


def worth(model: nn.Module, data: Splits[Any], threat: Threat, given: argparse.Namespace, **options: Any) -> Records:
    """Calibration, abstention and detection, of clean, attacked and foreign images."""
    made = {name: registry.make_attack(name, threat, model) for name in ATTACKS}
    found = uncertainty(model, data.test, {"clean": None, **made}, **options)
    for folder in given.foreign:
        others = {folder.name: foreign(folder, data.test)}
        for attack in (None, made["overconfident"]):
            found += ood_detection(model, data.test, others, attack, **options)
    return found


def foreign(folder: Path, like: Examples) -> Examples:
    """All images of a folder, of the size of others; their labels mean nothing."""
    files = sorted(file for file in folder.rglob("*") if file.suffix in (".png", ".jpg", ".jpeg", ".webp"))
    pixels = torch.from_numpy(np.ascontiguousarray(decode_all(files, like.shape[-1], lambda done, of: None)))
    labels = torch.zeros(len(pixels), dtype=torch.int64)
    return from_tensors(pixels[:, : like.shape[0]], labels, classes=like.classes, name=folder.name)


def number(model: nn.Module, data: Splits[Any], threat: Threat, given: argparse.Namespace, **options: Any) -> Records:
    """The worst case of the first modes, and of more and more of them."""
    nets, found, label = [member.net for member in members(model)], Records(), options.pop("label")
    for count in (count for count in NUMBERS if count <= len(nets)):
        first = advbnn.Modes(nets[:count])
        found += advbnn.audit(first, data.test, threat, given.level, label=f"{count} of {label}", **options).records
    return found


def average(model: nn.Module, data: Splits[Any], threat: Threat, given: argparse.Namespace, **options: Any) -> Records:
    """The mixture, and one network with the mean of its weights, under the same attack."""
    attack, label, found = PGD(threat, steps=20, eot=2), options.pop("label"), Records()
    networks = {label: model, f"mean weights of {label}": mean_weights(model, data.train, attack, given.device)}
    for name, network in networks.items():
        found += advbnn.evaluate(network, data.test, {"clean": None, "PGD-20": attack}, label=name, **options)
    return found


def mean_weights(model: nn.Module, train: Examples, attack: Attack, device: str) -> nn.Module:
    """One network with the mean weights of all members; statistics of BatchNorm from attacked training images."""
    found = members(model)
    network = copy.deepcopy(found[0].net)
    states = [member.net.state_dict() for member in found]
    weights = [member.weight for member in found]
    network.load_state_dict(
        {
            name: sum(w * state[name] for w, state in zip(weights, states, strict=True))
            if first.is_floating_point()
            else first
            for name, first in states[0].items()
        }
    )

    def batches() -> Iterator[Tensor]:
        for stored, labels in train.gather(list(torch.arange(min(5000, len(train))).split(250))):
            yield attack(network, to_float(stored.to(device)), labels.to(device), seed=0)

    refresh_batchnorm(network, batches())
    return network


def cost(name: str, model: nn.Module, data: Splits[Any], given: argparse.Namespace, rows: Rows) -> None:
    """Images per second of a prediction and of a gradient, in float32 and bfloat16; a random network: of one sample."""
    x = to_float(data.test.images[: given.batch or 1000].to(given.device))
    for precision in ("full", "bf16"):
        fast = one_network(accelerate(model, "auto", precision))
        seconds = {what: seconds_per_image(fast, x, what == "gradient") for what in ("prediction", "gradient")}
        per_second = {f"{what}s_a_second": round(1 / took, 1) for what, took in seconds.items()}
        rows.add({"row": name, "networks": len(members(model)) or 1, "precision": precision, **per_second})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands: dict[str, Any] = {"uncertainty": worth, "number": number, "average": average, "cost": cost}
    parser.add_argument("command", choices=commands)
    parser.add_argument("rows", nargs="+", choices=ROWS, metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--root", default=None, help="folder of CIFAR-10")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--runs", type=Path, default=Path("runs/modes"))
    parser.add_argument("--results", type=Path, default=Path("results/modes"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--foreign", type=Path, nargs="*", default=[], help="folders of images of other kinds")
    parser.add_argument("--images", type=int, default=2000, help="the first so many test images")
    parser.add_argument("--eps", type=float, default=8 / 255)
    parser.add_argument("--level", default="quick", help="of the audits of `number`")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    data, threat = advbnn.data.load(given.data, root=given.root), Threat("linf", given.eps)
    folder = given.results.with_name(f"{given.results.name}-{given.command}")
    rows = Rows(folder / "cost.json", batch=given.batch or 1000) if given.command == "cost" else None
    for name in given.rows:
        model = load_trained(given.runs / place(name, given.seed), device=given.device).model
        if rows is not None:
            cost(name, model, data, given, rows)
            continue
        options = {
            "label": ROWS[name].title + ("" if given.seed == 0 else f", seed {given.seed}"),
            "rows": range(given.images),
            "out": folder / f"{place(name, given.seed)}.json",
            "batch_size": given.batch or max(250, 2000 // (len(members(model)) or 1)),
            "seeds": 1,
            "progress": True,
            "command": f"python benchmarks/modes_worth.py {given.command} {name}",
        }
        for record in commands[given.command](model, data, threat, given, **options):
            show(record)


if __name__ == "__main__":
    main()
