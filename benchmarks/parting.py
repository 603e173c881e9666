"""How far a Bayesian network by running statistics and the same by those of the batch are apart, and why.

    python benchmarks/parting.py RUN --root DATA

The attack of training sees BatchNorm's running statistics, the update those of the batch. Here each of the two is
attacked and tried on the other, once as it was trained and once with large standard deviations cut down. Statistics are
estimated anew in all cases, with the mean over fresh draws, so that a cut is not blamed for statistics that it made
wrong. Records go to results/parting/NAME.json.
"""

import argparse
import copy
import math
from pathlib import Path

import torch
from torch import nn

from advbnn import data
from advbnn.attacks import paper_pgd
from advbnn.averaging import refresh_batchnorm
from advbnn.posterior import Bayesian
from advbnn.rng import seeded
from advbnn.trained import load_trained
from advbnn.transfer_matrix import transfer_matrix

ROOT = Path(__file__).parent.parent
EPS = 8 / 256
BATCH = 128


def main() -> None:
    """Measure the run that was named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--root", type=Path, help="where CIFAR-10 is")
    parser.add_argument("--caps", type=float, nargs="*", default=[0.2], help="largest standard deviations to try")
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--steps", type=int, default=10, help="of the attack, as in training")
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    trained, splits = load_trained(options.run, device=device), data.load("cifar10", options.root).to(device)
    nets = {"as trained": trained.model}
    if isinstance(trained.model, Bayesian):
        nets |= {f"std at most {cap:g}": capped(trained.model, cap) for cap in options.caps}
    images = torch.split(splits.train.images[:4000].float() / 255, BATCH)
    models: dict[str, nn.Module] = {}
    for name, net in nets.items():
        with seeded(0, device):
            refresh_batchnorm(net, images)
        models |= {f"{name}, running": net, f"{name}, batch": by_batch_statistics(net)}
    transfer_matrix(
        models,
        splits.test,
        paper_pgd(EPS, options.steps),
        rows=range(options.images),
        samples=options.samples,
        seeds=1,
        batch_size=BATCH,
        out=options.out or ROOT / "results" / "parting" / f"{options.run.name}.json",
        progress=True,
        command=f"python benchmarks/parting.py {options.run}",
    )


def capped(model: Bayesian, most: float) -> Bayesian:
    """A copy whose standard deviations are at most `most`."""
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for log_std in copied.log_std.parameters():
            log_std.clamp_(max=math.log(most))
    return copied


def by_batch_statistics(model: nn.Module) -> nn.Module:
    """A copy that normalises by the statistics of each batch, also in evaluation mode."""
    copied = copy.deepcopy(model)
    for norm in copied.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.running_mean = norm.running_var = None
    return copied


if __name__ == "__main__":
    main()
