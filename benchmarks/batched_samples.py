"""The gradient of the mean loss over weight samples: one pass for each, or one batched pass of all (torch.func.vmap).

    python benchmarks/batched_samples.py --threads 1 --out benchmarks/records/batched-samples-cpu.json
    python benchmarks/batched_samples.py --network vgg16 --images 8 32 128 --rounds 5 --tf32

A Bayesian network, by default small_cnn on images of 8x8 pixels, in evaluation mode; gradients of the input alone.
On a CPU processor time is counted, which other programs disturb less. On a GPU both ways are also captured as CUDA
graphs, with all their samples.
"""

import argparse
import copy
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from common import SIZES, Rows, best_device, median_and_spread, seconds_of
from torch import Tensor
from torch.func import vmap

from advbnn import models
from advbnn.bayes.mean_field import Bayesian, bayesianize
from advbnn.modules import without_parameter_gradients


def separate(bnn: Bayesian, x: Tensor, y: Tensor, samples: int) -> Tensor:
    losses = [torch.nn.functional.cross_entropy(bnn(x), y) for _ in range(samples)]
    return torch.stack(losses).mean()


def batched(bnn: Bayesian, x: Tensor, y: Tensor, samples: int) -> Tensor:
    drawn = [bnn.sample() for _ in range(samples)]
    weights = {name: torch.stack([one[name] for one in drawn]) for name in drawn[0]}
    logits = vmap(lambda sample: bnn.run(sample, x))(weights)
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.repeat(samples))


def gradient(loss: Callable[..., Tensor], bnn: Bayesian, x: Tensor, y: Tensor, samples: int) -> Tensor:
    leaf = x.clone().requires_grad_()
    (found,) = torch.autograd.grad(loss(bnn, leaf, y, samples), leaf)
    return found


def main() -> None:
    """Both ways, taking turns; first they must agree for the same weight samples."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=SIZES, default="small_cnn")
    parser.add_argument("--images", nargs="+", type=int, default=[50, 250])
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tf32", action="store_true", help="convolutions in TF32 on a GPU")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.backends.cudnn.allow_tf32 = options.tf32
    device, network = best_device(), options.network
    shape = (1, 8, 8) if network == "small_cnn" else (3, *[SIZES[network]] * 2)
    about = {"network": network, "image": shape, "tf32": options.tf32, "threads": options.threads}
    rows = Rows(options.out, **about, samples=options.samples, rounds=options.rounds)
    for images in options.images:
        torch.manual_seed(0)
        net = models.build(network, classes=10, image_size=shape[-1], channels=shape[0])
        bnn = bayesianize(net, init_std=0.02).to(device).eval()
        x, y = torch.rand(images, *shape, device=device), torch.randint(10, (images,), device=device)
        with without_parameter_gradients(bnn):
            check(bnn, x, y, options.samples)
            ways: dict[str, Callable[[], object]] = {
                way.__name__: partial(gradient, way, bnn, x, y, options.samples) for way in (separate, batched)
            }
            if device.type == "cuda":
                ways |= {f"{name}_captured": captured(work) for name, work in ways.items()}
            times: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(options.rounds):
                for name, work in ways.items():
                    times[name].append(clock(work, device))
        row = {f"{name}_ms": median_and_spread(found, 1e-3)[0] for name, found in times.items()}
        rows.add({"images": images, **row, "times": row["batched_ms"] / row["separate_ms"]})


def captured(work: Callable[[], object]) -> Callable[[], object]:
    """The work as a CUDA graph, to be replayed."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def clock(work: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        return seconds_of(work)
    started = time.process_time()
    work()
    return time.process_time() - started


def check(bnn: Bayesian, x: Tensor, y: Tensor, samples: int) -> None:
    """Refuses to time two different computations; in double precision, where rounding does not tell them apart."""
    bnn, x, found = copy.deepcopy(bnn).double(), x.double(), []
    for way in (separate, batched):
        torch.manual_seed(1)
        found.append(gradient(way, bnn, x, y, samples))
    if (difference := (found[0] - found[1]).abs().max() / found[0].abs().max()) > 1e-9:
        raise SystemExit(f"the two gradients differ by {difference:.1e} of the largest entry")


if __name__ == "__main__":
    main()
