"""What a growing radius costs a network that learns without it: small_cnn on the digits, worst case of quick audits.

    python benchmarks/radius_warmup.py --out benchmarks/records/radius-warmup-cpu.json

Rows also compare four attack steps with two, and half as many epochs more: about the same number of passes.
"""

import argparse
from pathlib import Path

import torch
from common import Rows

from advbnn import data
from advbnn.attacks.threat import Threat
from advbnn.defenses.profiles import defense
from advbnn.evaluation.audit.worst_case import audit
from advbnn.training.loop import fit

RADII = (0.1, 0.15, 0.2)
LENGTHS = {4: 15, 2: 23}
"""Epochs by attack steps: (2 steps + 3) times epochs is 165 and 161 passes."""


def main() -> None:
    """Train and audit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--images", type=int, default=500, help="test images")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows, digits = Rows(options.out, threads=torch.get_num_threads()), data.load("digits")
    threats = [Threat("linf", eps) for eps in RADII]
    for steps, epochs in LENGTHS.items():
        attack = {"steps": steps, "step_size": 0.24 / steps}
        for warmup in (0, epochs // 2, epochs - 1):
            value = defense("adv", attack=attack, schedule={"epochs": epochs}, radius_warmup=warmup)
            for seed in options.seeds:
                net = value.build(classes=10, shape=digits.train.shape, seed=seed)
                model = fit(net, digits, value, seed=seed).model
                rule = {"rows": range(options.images), "seeds": 1, "batch_size": options.images}
                found = audit(model, digits.test, threats, "quick", **rule).records
                worst = {f"worst case, {eps}": record.accuracy for eps, record in zip(RADII, found, strict=True)}
                rows.add({"steps": steps, "epochs": epochs, "radius_warmup": warmup, "seed": seed, **worst})


if __name__ == "__main__":
    main()
