"""Time of evaluation: the paper's curve, PGD with EOT, the budget of AutoAttack's `rand`, and how the cost scales.

    python benchmarks/evaluate.py --parts curve eot --engines eager graph --out benchmarks/records/evaluate.json
    python benchmarks/evaluate.py --parts autoattack --engines graph --images 1000 --scale

Networks are Adv-BNNs with random weights, and images are random: the time does not depend on their values. Everything
runs through `advbnn.evaluate` and `advbnn.evaluation.curves`. In a row, `seconds` is the time of all batches, from
images on the host to counts, median over `--repeats`; `wall_s` is the time of the whole call, with the checksums of
network and images; `setup_s` is the time of capturing or compiling on one batch. With `--scale` a row also has
`seconds_for_all`: `seconds` times 10,000 over the number of images measured. Nothing is extrapolated without it.
"""

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch
from common import SIZES, Rows, best_device, forward_flop, median_and_spread, peak_gib, reset_peak_memory, seconds_of
from torch import nn

from advbnn import data, models
from advbnn.attacks import APGD, PGD, paper_pgd
from advbnn.attacks.apgd import COMPARED_AT, checkpoints
from advbnn.attacks.threat import Threat
from advbnn.bayes.mean_field import bayesianize
from advbnn.evaluation.accuracy import Evaluation, evaluate
from advbnn.evaluation.curves import RADII, radius_curve
from advbnn.evaluation.identity import precision_of
from advbnn.evaluation.records import Records
from advbnn.fast.acceleration import accelerate, engine_of, rough_gradients

ALL = 10_000
"""The test images of CIFAR-10."""

THREAT = Threat("linf", 8 / 255)
PARTS = ("curve", "eot", "autoattack", "grow-eot", "grow-ensemble", "grow-network", "grow-data")
NETWORKS = ("small_cnn", "model_a", "resnet18", "vgg11", "vgg13", "vgg16", "vgg19")

Case = tuple[dict[str, Any], str, int, int, Callable[..., Records], dict[str, Any]]
"""What varies, the network, the number of images, forward passes per image, the measurement and its options."""


def main() -> None:
    """Measure the chosen parts with every engine and precision."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--network", choices=SIZES, default="vgg16", help="for all parts but grow-network")
    parser.add_argument("--engines", nargs="+", default=["eager", "graph"])
    parser.add_argument("--precisions", nargs="+", default=["full", "bf16"])
    parser.add_argument("--gradients", help="the precision of attacks' gradients, if another: full or bf16")
    parser.add_argument("--batch", type=int, default=1000, help="images attacked at a time")
    parser.add_argument("--images", type=int, default=ALL, help="images measured")
    parser.add_argument("--scale", action="store_true", help=f"also extrapolate to {ALL:,} images")
    parser.add_argument("--samples", type=int, default=20, help="weight samples of the classifier")
    parser.add_argument("--selection-samples", type=int, default=20, help="weight samples to compare points of APGD")
    parser.add_argument("--compare", choices=COMPARED_AT, default=COMPARED_AT[0], help="where APGD compares points")
    parser.add_argument("--steps", type=int, help="of all attacks, for a trial; 20 for PGD and 100 for APGD by default")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS), help="for grow-network")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cudnn-benchmark", action="store_true", help="let cuDNN choose its algorithms by measurement")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = options.cudnn_benchmark
    warnings.simplefilter("ignore")  # about few images and vanishing gradients, which do not matter here
    rows = Rows(options.out, weights="random", images="random", cudnn_benchmark=options.cudnn_benchmark)
    for part in options.parts:
        for case, engine, precision in product(cases(part, options), options.engines, options.precisions):
            rows.add({"part": part, **case[0], **measure(case, engine, precision, options, rows.about)})


def cases(part: str, options: argparse.Namespace) -> Iterator[Case]:
    """The cases of a part. An input gradient counts as one more forward pass."""
    samples, images, network, selection = options.samples, options.images, options.network, options.selection_samples
    pgd, apgd = options.steps or 20, options.steps or 100

    def with_pgd(network: str, images: int, eot: int = 1) -> Case:
        attack = PGD(THREAT, steps=pgd, eot=eot)
        about = {"attack": f"PGD-{pgd}", "eot": eot}
        return about, network, images, 2 * pgd * eot + samples, evaluate, {"attacks": attack}

    if part == "curve":
        forwards = len(RADII) * samples + (len(RADII) - 1) * 2 * pgd  # no attack at radius 0
        about = {"attack": f"PGD-{pgd}", "radii": len(RADII)}
        yield about, network, images, forwards, radius_curve, {"attack": paper_pgd(1.0, steps=pgd)}
    elif part == "autoattack":
        attacks = {
            f"APGD-{loss}": APGD(
                THREAT, steps=apgd, eot=20, loss=loss, selection_samples=selection, compare=options.compare
            )
            for loss in ("ce", "dlr")
        }
        compared = apgd + 2 if options.compare == COMPARED_AT[0] else 2 * len(checkpoints(apgd)) + 3
        forwards = 2 * (2 * (apgd + 1) * 20 + compared * selection + samples)
        about = {"attack": f"APGD-CE + APGD-DLR, {apgd} steps, EOT-20", "selection_samples": selection}
        about |= {"compare": options.compare}
        yield about, network, images, forwards, evaluate, {"attacks": attacks}
    elif part in ("eot", "grow-eot"):
        yield from (with_pgd(network, images, eot) for eot in ((20,) if part == "eot" else (1, 2, 5, 10, 20, 50)))
    elif part == "grow-ensemble":
        for size in (1, 2, 5, 10, 20, 50):
            yield {"attack": "none", "ensemble": size}, network, images, size, evaluate, {"samples": size}
    elif part == "grow-network":
        yield from (with_pgd(name, images) for name in options.networks)
    elif part == "grow-data":
        yield from (with_pgd(network, count) for count in (images // 10, images // 5, images // 2, images))


def measure(
    case: Case, engine: str, precision: str, options: argparse.Namespace, about: dict[str, Any]
) -> dict[str, Any]:
    """One row."""
    _, network, images, forwards, work, settings = case
    device, side = best_device(), SIZES[network]
    reset_peak_memory()
    torch.manual_seed(0)
    net = models.build(network, classes=10, image_size=side)
    model = bayesianize(net).eval().to(device)
    pixels = torch.randint(256, (images, 3, side, side), dtype=torch.uint8)
    test = data.ImageSet(pixels, torch.arange(images) % 10, tuple("0123456789"), "random")
    batch = min(options.batch, images)
    fast = accelerate(model, engine, precision, gradients=options.gradients, batch_size=batch)
    # accelerated here, once, so that setup and work are timed separately
    how: dict[str, Any] = {"samples": options.samples, "seeds": 1, "batch_size": batch, "engine": "eager"}
    setup = seconds_of(lambda: [warm_up(fast, test, how, last) for last in {batch, images % batch or batch}])
    times, walls = [], []
    for _ in range(options.repeats):
        begin = time.perf_counter()
        times.append(sum(record.seconds for record in work(fast, test, **how | settings)))
        walls.append(time.perf_counter() - begin)
    seconds, spread = median_and_spread(times)
    tflops = forwards * forward_flop(network) * images / seconds / 1e12
    scaled = {"seconds_for_all": seconds * ALL / images, "scaled_from_images": images} if options.scale else {}
    return {
        "network": network,
        "parameters": sum(p.numel() for p in net.parameters()),
        "engine": engine_of(fast),
        "precision": precision_of(model, device, precision == "bf16", rough_gradients(fast)),
        "batch": batch,
        "images": images,
        "samples": options.samples,
        "seconds": seconds,
        "seconds_spread": spread,
        "wall_s": median_and_spread(walls)[0],
        "repeats": options.repeats,
        "setup_s": setup,
        **scaled,
        "forwards_an_image": forwards,
        "tflops": tflops,
        "share_of_matrix_rate": tflops / about["matrix_tflops"],
        **peak_gib(),
    }


def warm_up(fast: nn.Module, test: data.ImageSet, how: dict[str, Any], size: int) -> None:
    """A short attack on one batch of this size, which makes its fast forms."""
    first = Evaluation(fast, test, **how | {"rows": range(size)})
    first.accuracy("warm-up", PGD(THREAT, steps=4, pick="best", selection_samples=2))


if __name__ == "__main__":
    main()
