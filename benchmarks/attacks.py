"""Time of PGD-20 in advbnn, foolbox, ART and torchattacks: same network, same budget.

    python benchmarks/attacks.py [--rounds 15] [--output benchmarks/records/attacks-cpu.json]

The libraries take turns within each round, so that other load on the machine affects all of them alike. Each is used
as documented, and timed from the call to the returned tensor.
"""

import argparse
import json
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from datetime import date
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor, nn

from advbnn import attacks, data, models
from advbnn.attacks.threat import Threat
from advbnn.bayes.mean_field import bayesianize

EPS, STEP, STEPS = 0.1, 0.01, 20
Run = Callable[[], object]


def libraries(model: nn.Module, x: Tensor, y: Tensor, eot: int) -> dict[str, Run]:
    """PGD by each library that can average a gradient over `eot` weight samples."""
    import foolbox
    import torchattacks
    from art.attacks.evasion import ProjectedGradientDescentPyTorch
    from art.estimators.classification import PyTorchClassifier

    ours = attacks.PGD(Threat("linf", EPS), steps=STEPS, step_size=STEP, eot=eot)
    wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    if eot > 1:
        wrapped = foolbox.models.ExpectationOverTransformationWrapper(wrapped, n_steps=eot)
    foolbox_pgd = foolbox.attacks.LinfPGD(abs_stepsize=STEP, steps=STEPS)
    runs: dict[str, Run] = {
        "advbnn": lambda: ours(model, x, y),
        "foolbox": lambda: foolbox_pgd(wrapped, x, y, epsilons=EPS),
    }
    if eot > 1:
        eot_pgd = torchattacks.EOTPGD(model, eps=EPS, alpha=STEP, steps=STEPS, eot_iter=eot)
        return {**runs, "torchattacks": lambda: eot_pgd(x, y)}
    pgd = torchattacks.PGD(model, eps=EPS, alpha=STEP, steps=STEPS)
    classifier = PyTorchClassifier(
        model, nn.CrossEntropyLoss(), tuple(x.shape[1:]), 10, clip_values=(0.0, 1.0), device_type="cpu"
    )
    art_pgd = ProjectedGradientDescentPyTorch(
        classifier, eps=EPS, eps_step=STEP, max_iter=STEPS, num_random_init=1, batch_size=len(x), verbose=False
    )
    arrays = x.numpy(), nn.functional.one_hot(y, 10).numpy()
    return {**runs, "torchattacks": lambda: pgd(x, y), "art": lambda: art_pgd.generate(*arrays)}


def measure(runs: dict[str, Run], rounds: int) -> dict[str, dict[str, float]]:
    """Seconds of each library: median and extremes of the time, and of the processor time."""
    wall: dict[str, list[float]] = {name: [] for name in runs}
    processor: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    for number in range(rounds):
        names = list(runs)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            began, worked = time.perf_counter(), time.process_time()
            runs[name]()
            wall[name].append(time.perf_counter() - began)
            processor[name].append(time.process_time() - worked)
    return {
        name: {
            "median_s": round(statistics.median(wall[name]), 5),
            "fastest_s": round(min(wall[name]), 5),
            "slowest_s": round(max(wall[name]), 5),
            "processor_median_s": round(statistics.median(processor[name]), 5),
            "processor_fastest_s": round(min(processor[name]), 5),
        }
        for name in runs
    }


def machine() -> dict[str, object]:
    """The machine and the versions."""
    cpu = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = names[0] if names else cpu
    packages = ("torch", "foolbox", "adversarial-robustness-toolbox", "torchattacks")
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in packages},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "records" / "attacks-cpu.json")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # of the other libraries
    torch.manual_seed(0)
    test = data.load("digits").test
    digits = test.images[:128].float() / test.images.max(), test.labels[:128]
    pictures = torch.rand(4, 3, 32, 32), torch.randint(10, (4,))
    small = {"classes": 10, "image_size": 8, "channels": 1}
    cases = {
        "small_cnn, 128 digits": (models.build("small_cnn", **small), digits, 1),
        "Bayesian small_cnn, 128 digits": (bayesianize(models.build("small_cnn", **small)), digits, 1),
        "Bayesian small_cnn, 128 digits, 5 EOT samples": (bayesianize(models.build("small_cnn", **small)), digits, 5),
        "vgg11, 4 images of 32x32": (models.build("vgg11"), pictures, 1),
        "Bayesian vgg11, 4 images of 32x32": (bayesianize(models.build("vgg11")), pictures, 1),
    }
    results: dict[str, object] = {}
    record: dict[str, object] = {
        "what": f"PGD, {STEPS} steps, linf, random start; seconds per call, libraries taking turns",
        "date": date.today().isoformat(),
        "machine": machine(),
        "rounds": arguments.rounds,
        "results": results,
    }
    for name, (model, (x, y), eot) in cases.items():
        results[name] = times = measure(libraries(model.eval(), x, y, eot), arguments.rounds)
        print(name)
        for library, seconds in sorted(times.items(), key=lambda item: item[1]["median_s"]):
            spread = f"{seconds['fastest_s'] * 1e3:.1f} to {seconds['slowest_s'] * 1e3:.1f}"
            busy = seconds["processor_median_s"] * 1e3
            print(f"  {library:<13}{seconds['median_s'] * 1e3:8.1f} ms  ({spread}), processor {busy:.1f} ms")
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
