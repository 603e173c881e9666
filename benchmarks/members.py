"""Time and memory of one input gradient of the exact mean over K networks, whose CUDA graphs share their memory.

    python benchmarks/members.py --members 1 5 10 --out benchmarks/records/members-h200.json

Weights and images are random. An objective is a loss and what is averaged over the members. Peaks are
since the mixture was built, set-up included; `held_gib` is what stays reserved afterwards. `difference` is the distance
of the gradient from the eager one, relative to its norm, without TF32: that rounds the weights of a convolution with
and without its BatchNorm differently, which changes the signs of a few activations, and so the gradient.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from common import SIZES, Rows, best_device, median_and_spread, peak_gib, reset_peak_memory, seconds_of

from advbnn import models
from advbnn.attacks.gradient import expected_gradient
from advbnn.attacks.losses import Objective
from advbnn.bayes.modes import Modes
from advbnn.bayes.protocol import members
from advbnn.fast.acceleration import accelerate, engine_of

SETUP = 5
"""Gradients before the measurement; a fast pass is built at the third."""


def main() -> None:
    """One row for each number of members, objective and engine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, nargs="+", default=[1, 5, 10])
    parser.add_argument("--network", choices=SIZES, default="resnet18")
    parser.add_argument("--images", type=int, default=1000, help="in one batch")
    parser.add_argument("--objectives", nargs="+", default=["ce/loss", "ce/probability", "dlr/probability"])
    parser.add_argument("--engines", nargs="+", default=["auto"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = Rows(options.out, network=options.network, weights="random", images="random", tf32=True)
    for count in options.members:
        for objective in options.objectives:
            for engine in options.engines:
                rows.add({"members": count, "objective": objective, **measure(count, objective, engine, options)})


def measure(count: int, name: str, engine: str, options: argparse.Namespace) -> dict[str, Any]:
    """One row."""
    torch.manual_seed(0)
    allow_tf32(True)
    side, device = SIZES[options.network], best_device()
    nets = [models.build(options.network, classes=10, image_size=side) for _ in range(count)]
    model = Modes(nets).to(device).eval().requires_grad_(False)
    x = torch.rand(options.images, 3, side, side, device=device)
    y = torch.randint(10, (len(x),), device=device)
    loss, _, average = name.partition("/")
    objective = Objective(loss=loss, average=average)
    reset_peak_memory()
    fast = accelerate(model, engine)

    def gradient(network: torch.nn.Module) -> torch.Tensor:
        parts = members(network)
        return expected_gradient([one.net for one in parts], x, y, objective, [one.weight for one in parts]).gradient

    setup = seconds_of(lambda: [gradient(fast) for _ in range(SETUP)])
    seconds, spread = median_and_spread([seconds_of(lambda: gradient(fast)) for _ in range(options.repeats)])
    row = {"images": len(x), "engine": engine_of(members(fast)[0].net), "seconds": seconds, "spread": spread}
    row |= {"setup_s": setup, **peak_gib()}
    if device.type == "cuda":
        torch.cuda.empty_cache()
        row["held_gib"] = torch.cuda.memory_reserved() / 2**30
    allow_tf32(False)
    expected, found = gradient(model), [gradient(fast) for _ in range(SETUP)][-1]
    return {**row, "difference": ((found - expected).norm() / expected.norm()).item()}


def allow_tf32(allowed: bool) -> None:
    """In convolutions and in products of matrices."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = allowed


if __name__ == "__main__":
    main()
