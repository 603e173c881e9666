"""Milliseconds of one pass of accelerated defences: a prediction, and the gradient of an attack in bfloat16.

    python benchmarks/passes.py plain pni rse --out benchmarks/records/passes.json

ResNet-18 with random weights and statistics, wrapped as each defence does; random images. `folded` is the number of
BatchNorms that are folded into convolutions. Medians of `--rounds` of ten passes.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from common import Rows, best_device, median_and_spread, seconds_of
from torch import nn
from torch.nn import functional

from advbnn import models
from advbnn.defenses.registry import ONE_NETWORK
from advbnn.defenses.rse import add_noise
from advbnn.fast import accelerate
from advbnn.fast.acceleration import engine_of
from advbnn.fast.fused_net import FusedNet

NAMES = ("plain", "rse", *ONE_NETWORK)


def main() -> None:
    """Measure the chosen defences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(NAMES), metavar="name", help=", ".join(NAMES))
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--passes", type=int, default=10, help="in a round")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"unknown {', '.join(unknown)}; expected some of {', '.join(NAMES)}")
    rows = Rows(options.out, network="resnet18", batch=options.batch)
    for name in options.names:
        rows.add({"defence": name, **measure(network(name), options)})


def network(name: str) -> nn.Module:
    """A ResNet-18 with random statistics, as the defence wraps it."""
    torch.manual_seed(0)
    net = models.build("resnet18", classes=10, image_size=32)
    for part in net.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.normal_(part.running_mean, std=0.1)  # type: ignore[arg-type]
            nn.init.uniform_(part.running_var, 0.5, 2)  # type: ignore[arg-type]
    if name == "plain":
        return net
    return add_noise(net) if name == "rse" else ONE_NETWORK[name].network.wrap(net)


def measure(model: nn.Module, options: argparse.Namespace) -> dict[str, object]:
    """One row."""
    device = best_device()
    model = model.to(device).eval().requires_grad_(False)
    x = torch.rand(options.batch, 3, 32, 32, device=device)
    y = torch.arange(options.batch, device=device) % 10
    fast = accelerate(model, "auto", "full", gradients="bf16", batch_size=options.batch)

    def gradient() -> None:
        leaf = x.clone().requires_grad_()
        torch.autograd.grad(functional.cross_entropy(fast(leaf), y, reduction="sum"), leaf)

    def milliseconds(work: Callable[[], object]) -> float:
        def some() -> None:
            for _ in range(options.passes):
                work()

        some()
        return median_and_spread([seconds_of(some) for _ in range(options.rounds)], options.passes / 1000)[0]

    with torch.no_grad():
        forward = milliseconds(lambda: fast(x))
    folded = len(FusedNet(model, torch.float32, training=False).folds)
    return {"engine": engine_of(fast), "folded": folded, "forward_ms": forward, "gradient_ms": milliseconds(gradient)}


if __name__ == "__main__":
    main()
