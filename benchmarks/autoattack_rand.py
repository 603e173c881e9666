"""What AutoAttack's `rand` reports about two random networks, and what an audit gives on the same images.

    python benchmarks/autoattack_rand.py [--images 100] [--output benchmarks/records/autoattack-rand-cpu.json]

Trains RSE and Adv-BNN on the digits, then for each radius:

- `printed`: the robust accuracy that `rand` prints;
- `its_points`: the accuracy of the deployed classifier, 20 weight samples, on the images that `rand` returns;
- `handed_back`: the share of these that are the clean images;
- `audit`: the expected accuracy of the same classifier at the worst points of an audit.
"""

import argparse
import json
import platform
import tempfile
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from common import origin
from torch import Tensor, nn

import advbnn
from advbnn.bayes.prediction import predict
from advbnn.data import ImageSet, to_float
from advbnn.evaluation.audit.worst_case import audit
from advbnn.training.config import load_config
from advbnn.training.loop import fit_config

RADII = {"rse": (0.05, 0.1), "adv_bnn": (0.1, 0.15)}
SAMPLES, ENSEMBLES = 20, 20
CONFIGS = Path(__file__).parent.parent / "configs"


def trained(defense: str) -> nn.Module:
    """The network of a configuration for digits."""
    config = load_config(CONFIGS / f"digits-{defense}.toml")
    with tempfile.TemporaryDirectory() as folder:
        fit_config(config, config.load_data(), out=Path(folder) / defense, resume=False, device="cpu")
        return advbnn.load_trained(Path(folder) / defense).model


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """The expected accuracy of the deployed classifier: the mean over independent ensembles."""
    right = [(predict(model, x, SAMPLES, seed=1000 + seed).label == y).double().mean() for seed in range(ENSEMBLES)]
    return torch.stack(right).mean().item()


def compare(model: nn.Module, images: ImageSet, eps: float, level: str) -> dict[str, Any]:
    """Both tools at one radius."""
    from pyautoattack import AutoAttack

    x, y = to_float(images.images), images.labels
    with torch.random.fork_rng():
        x_adv, y_adv = AutoAttack(model, version="rand", eps=eps, seed=0).run_standard_evaluation(x, y)
    record = audit(model, images, advbnn.Threat("linf", eps), level, samples=SAMPLES).records[0]
    return {
        "eps": eps,
        "clean": accuracy(model, x, y),
        "printed": (y_adv == y).double().mean().item(),
        "its_points": accuracy(model, x_adv, y),
        "handed_back": (x_adv == x).flatten(1).all(1).double().mean().item(),
        "audit": record.accuracy,
        "audit_interval": list(record.interval),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--level", default="quick")
    output = Path(__file__).parent / "records" / "autoattack-rand-cpu.json"
    parser.add_argument("--output", type=Path, default=output)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # of the other library
    images = advbnn.data.load("digits").test.subset(range(arguments.images))
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    record = {
        "what": "AutoAttack's rand and an audit on the same random networks; digits, small_cnn, linf",
        **origin(),
        "machine": platform.processor() or platform.machine(),
        "versions": {name: version(name) for name in ("torch", "pyautoattack")},
        "images": len(images),
        "samples": SAMPLES,
        "level": arguments.level,
        "rows": rows,
    }
    for defense, radii in RADII.items():
        model = trained(defense)
        for eps in radii:
            rows.append({"defense": defense, **compare(model, images, eps, arguments.level)})
            print(json.dumps(rows[-1]), flush=True)
            arguments.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
