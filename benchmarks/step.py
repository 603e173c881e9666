"""How long a training step takes: engines, batch sizes and defences, against the arithmetic floor.

    python benchmarks/step.py --network vgg16 --out benchmarks/records/step.json

Times whole steps on random images, after the engine has warmed up, and writes one record: the machine, the versions,
and for each row the median and spread of milliseconds a step, seconds an epoch of 50,000 images, the share of the
measured matrix rate, and the peak memory.
"""

import argparse
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from advbnn import models
from advbnn.attacks import PGD
from advbnn.defenses import Defense
from advbnn.engine import make_step
from advbnn.objective import RobustELBO, RobustLoss
from advbnn.posterior import bayesianize
from advbnn.threat import Threat

IMAGES = 50_000
SIZES = {"vgg16": 32, "resnet18": 32, "model_a": 96, "small_cnn": 32}


def main() -> None:
    """Measure every combination that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=SIZES, default="vgg16")
    parser.add_argument("--engines", nargs="+", default=["graph"])
    parser.add_argument("--batches", nargs="+", type=int, default=[128, 512])
    parser.add_argument("--defenses", nargs="+", default=["adv", "adv_bnn"])
    parser.add_argument("--attack-steps", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5, help="timed rounds")
    parser.add_argument("--steps", type=int, default=10, help="steps a round")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    record: dict[str, Any] = {
        "machine": torch.cuda.get_device_name() if device.type == "cuda" else platform.processor(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "network": options.network,
        "forward_gflop_an_image": forward_flop(options.network) / 1e9,
        "matrix_tflops": matrix_rate(device) / 1e12,
        "rows": [],
    }
    for defense in options.defenses:
        for engine in options.engines:
            for batch in options.batches:
                row = measure(defense, engine, batch, options, device, record)
                record["rows"].append(row)
                print(json.dumps(row), flush=True)
                if options.out is not None:
                    options.out.parent.mkdir(parents=True, exist_ok=True)
                    options.out.write_text(json.dumps(record, indent=1) + "\n")


def measure(
    name: str, engine: str, batch: int, options: argparse.Namespace, device: torch.device, record: dict[str, Any]
) -> dict[str, Any]:
    """One row: a defence, an engine and a batch size."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(0)
    net = models.build(options.network, classes=10, image_size=SIZES[options.network]).to(device)
    model = (bayesianize(net) if "bnn" in name else net).train()
    attack = PGD(Threat("linf", 8 / 256), steps=options.attack_steps, step_size=0.007, random_start=False)
    defense = Defense(attack=attack if "adv" in name else None, objective=RobustELBO(kl_scope="classifier"))
    loss = RobustLoss(model, defense.objective, IMAGES)
    step = make_step(engine, loss, torch.optim.Adam(loss.parameters(), lr=1e-4), defense)
    x = torch.rand(batch, 3, SIZES[options.network], SIZES[options.network], device=device)
    y = torch.randint(10, (batch,), device=device)
    begin = time.perf_counter()
    step(x, y, 0)
    synchronize(device)
    setup = time.perf_counter() - begin
    for warm_up in range(3):
        step(x, y, warm_up)
    rounds = []
    for number in range(options.repeats):
        synchronize(device)
        begin = time.perf_counter()
        for i in range(options.steps):
            step(x, y, number * options.steps + i)
        synchronize(device)
        rounds.append((time.perf_counter() - begin) / options.steps)
    seconds = statistics.median(rounds)
    passes = (2 * options.attack_steps if "adv" in name else 0) + 3  # an input gradient costs one more forward pass
    flops = passes * record["forward_gflop_an_image"] * 1e9 * batch / seconds
    return {
        "defense": name,
        "engine": engine,
        "batch": batch,
        "ms_a_step": 1e3 * seconds,
        "ms_spread": [1e3 * min(rounds), 1e3 * max(rounds)],
        "s_an_epoch": seconds * IMAGES / batch,
        "tflops": flops / 1e12,
        "share_of_matrix_rate": flops / 1e12 / record["matrix_tflops"],
        "setup_s": setup,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None,
    }


def forward_flop(network: str) -> int:
    """Floating-point operations of one image's forward pass, counted by torch; a multiply-add is two."""
    from torch.utils.flop_counter import FlopCounterMode

    net = models.build(network, classes=10, image_size=SIZES[network]).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        net(torch.zeros(1, 3, SIZES[network], SIZES[network]))
    return int(counter.get_total_flops())


def matrix_rate(device: torch.device, size: int = 8192) -> float:
    """Operations a second of a large matrix product, bfloat16 on a GPU and float32 on a CPU."""
    size = size if device.type == "cuda" else 1024
    a = torch.randn(size, size, device=device, dtype=torch.bfloat16 if device.type == "cuda" else torch.float32)
    for _ in range(3):
        a @ a
    synchronize(device)
    begin = time.perf_counter()
    for _ in range(10):
        a @ a
    synchronize(device)
    return 10 * 2 * size**3 / (time.perf_counter() - begin)


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
