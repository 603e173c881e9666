"""The audit's `standard` level against AutoAttack's `standard` version: deterministic networks, the same digits.

    python benchmarks/autoattack.py [--images 200] [--output benchmarks/records/autoattack-cpu.json]

Robust accuracies of a network trained on clean digits and of one trained on adversarial ones, at three radii. Each
attack set is run as documented: `advbnn.audit(level="standard")`, and pyautoattack's `run_standard_evaluation`.
"""

import argparse
import json
import platform
import time
import warnings
from importlib.metadata import version
from pathlib import Path

import torch
from common import origin
from torch import nn

import advbnn
from advbnn import attacks, data, models
from advbnn.attacks.threat import Threat
from advbnn.data import to_float
from advbnn.randomness import seeded

RADII = (0.05, 0.1, 0.2)


def trained(adversarially: bool) -> nn.Module:
    """A small network for digits."""
    train = data.load("digits").train
    x, y = to_float(train.images), train.labels
    attack = attacks.PGD(Threat("linf", 0.1), steps=5)
    with seeded(0):
        model = models.build("mlp", classes=10, image_size=8, channels=1)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for step in range(300):
            rows = torch.randint(len(x), (128,))
            batch = attack(model, x[rows], y[rows], seed=step) if adversarially else x[rows]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch), y[rows]).backward()
            optimizer.step()
    return model.eval()


def compare(name: str, model: nn.Module, images: int) -> list[dict[str, object]]:
    """Both robust accuracies at every radius, in percent."""
    from pyautoattack import AutoAttack

    chosen = data.load("digits").test.subset(range(images))
    x, y = to_float(chosen.images), chosen.labels
    began = time.process_time()
    audited = advbnn.audit(model, chosen, [Threat("linf", eps) for eps in RADII], "standard")
    ours = time.process_time() - began
    rows: list[dict[str, object]] = []
    for eps, record in zip(RADII, audited.records, strict=True):
        began = time.process_time()
        with torch.random.fork_rng():
            peer = AutoAttack(model, norm="Linf", eps=eps, version="standard", device="cpu", seed=0)
            found = peer.run_standard_evaluation(x, y, batch_size=images)[0]
        with torch.no_grad():
            theirs = (model(found).argmax(1) == y).double().mean().item()
        rows.append(
            {
                "network": name,
                "eps": eps,
                "audit_percent": round(100 * record.accuracy, 2),
                "autoattack_percent": round(100 * theirs, 2),
                "audit_processor_s": round(ours / len(RADII), 1),
                "autoattack_processor_s": round(time.process_time() - began, 1),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows = [
        row
        for name, adversarially in (("clean training", False), ("adversarial training, eps 0.1", True))
        for row in compare(name, trained(adversarially), arguments.images)
    ]
    record = {
        **origin(),
        "machine": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("torch", "pyautoattack")},
        "images": arguments.images,
        "rows": rows,
    }
    if arguments.output:
        arguments.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
