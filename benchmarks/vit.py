"""A small vision transformer on the digits: from fresh weights, with a growing radius, and from trained weights.

    python benchmarks/vit.py --out benchmarks/records/vit-cpu.json

Each row has clean accuracy and accuracy under averaged PGD-20 on the first test images.
"""

import argparse
from pathlib import Path

import torch
from common import Rows
from torch import Tensor, nn

from advbnn import data
from advbnn.attacks import PGD
from advbnn.defenses.profiles import defense
from advbnn.evaluation.accuracy import evaluate
from advbnn.training.loop import fit

FRESH = {
    "none": ("none", {}),
    "adv": ("adv", {}),
    "adv_bnn": ("adv_bnn", {}),
    "adv_bnn, alpha = 1e-6": ("adv_bnn", {"objective": {"alpha": 1e-6}}),
    "adv_bnn, 30 epochs": ("adv_bnn", {"schedule": {"epochs": 30}}),
    "adv, growing radius": ("adv", {"radius_warmup": 14}),
    "adv_bnn, growing radius": ("adv_bnn", {"radius_warmup": 14}),
    "adv_bnn, growing radius and KL": (
        "adv_bnn",
        {"radius_warmup": 14, "objective": {"kl_warmup": "linear", "kl_warmup_epochs": 10.0}},
    ),
}
"""Trainings from fresh weights; the first is the checkpoint of the last one."""


class ViT(nn.Module):
    """Patches of 2 x 2 pixels, two layers of attention, the mean over patches."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed, self.position = nn.Conv2d(1, width, 2, 2), nn.Parameter(0.02 * torch.randn(16, width))
        settings = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}
        self.layers = nn.Sequential(*(nn.TransformerEncoderLayer(width, 4, 2 * width, **settings) for _ in range(2)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.embed(x).flatten(2).transpose(1, 2) + self.position
        return self.head(self.norm(self.layers(patches)).mean(1))


def main() -> None:
    """Train and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--images", type=int, default=200, help="test images")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows, digits = Rows(options.out, threads=torch.get_num_threads()), data.load("digits")
    attack = PGD(defense("adv_bnn", "digits").attack.threat, steps=20, eot=5)
    for seed in options.seeds:
        checkpoint = None
        for label, (name, changes) in {**FRESH, "adv_bnn, from the checkpoint": ("adv_bnn", {})}.items():
            torch.manual_seed(seed)
            init = None if label in FRESH else checkpoint
            result = fit(ViT(), digits, defense(name, "digits", **changes), seed=seed, init=init)
            if checkpoint is None:
                checkpoint = {key: value.clone() for key, value in result.model.state_dict().items()}
            attacks = {"clean": None, "PGD-20": attack}
            clean, robust = evaluate(result.model, digits.test, attacks, rows=range(options.images), seeds=1)
            row = {"training": label, "seed": seed, "steps": result.steps, "eps": attack.threat.eps, "n": clean.n}
            rows.add({**row, "kl": result.history[-1].get("kl"), "clean": clean.accuracy, "robust": robust.accuracy})


if __name__ == "__main__":
    main()
