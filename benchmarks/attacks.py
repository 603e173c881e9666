"""Time of PGD-20 and APGD-100 in advbnn and other libraries: same network, same budget.

    python benchmarks/attacks.py [--rounds 15] [--output benchmarks/records/attacks-cpu.json]
    python benchmarks/attacks.py --table          # the table of docs/speed.md, from the record

The libraries take turns within each round, so that other load on the machine affects all of them alike; processor time
leaves most of it out. Each is used as documented, on one thread, and timed from the call to the returned tensor. The
networks on digits are trained, so that the accuracy which an attack leaves can be compared.
"""

import argparse
import json
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from common import origin
from torch import Tensor, nn

import advbnn
from advbnn import attacks, data, models
from advbnn.attacks.threat import Threat
from advbnn.bayes.mean_field import bayesianize

RECORD = Path(__file__).parent / "records" / "attacks-cpu.json"
EPS, STEP, STEPS, APGD_STEPS = 0.1, 0.01, 20, 100
PACKAGES = {
    "advbnn": "advbnn",
    "foolbox": "foolbox",
    "art": "adversarial-robustness-toolbox",
    "torchattacks": "torchattacks",
    "pyautoattack": "pyautoattack",
}
Run = Callable[[], Any]


def pgd(model: nn.Module, x: Tensor, y: Tensor, eot: int) -> dict[str, Run]:
    """PGD by each library that can average a gradient over `eot` weight samples."""
    import foolbox
    import torchattacks
    from art.attacks.evasion import ProjectedGradientDescentPyTorch

    ours = attacks.PGD(Threat("linf", EPS), steps=STEPS, step_size=STEP, eot=eot)
    wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    if eot > 1:
        wrapped = foolbox.models.ExpectationOverTransformationWrapper(wrapped, n_steps=eot)
    foolbox_pgd = foolbox.attacks.LinfPGD(abs_stepsize=STEP, steps=STEPS)
    runs: dict[str, Run] = {
        "advbnn": lambda: ours(model, x, y),
        "foolbox": lambda: foolbox_pgd(wrapped, x, y, epsilons=EPS)[1],
    }
    if eot > 1:
        eot_pgd = torchattacks.EOTPGD(model, eps=EPS, alpha=STEP, steps=STEPS, eot_iter=eot)
        return {**runs, "torchattacks": lambda: eot_pgd(x, y)}
    their_pgd = torchattacks.PGD(model, eps=EPS, alpha=STEP, steps=STEPS)
    art_pgd = ProjectedGradientDescentPyTorch(
        _classifier(model, x),
        eps=EPS,
        eps_step=STEP,
        max_iter=STEPS,
        num_random_init=1,
        batch_size=len(x),
        verbose=False,
    )
    arrays = x.numpy(), nn.functional.one_hot(y, 10).numpy()
    return {**runs, "torchattacks": lambda: their_pgd(x, y), "art": lambda: art_pgd.generate(*arrays)}


def apgd(model: nn.Module, x: Tensor, y: Tensor, eot: int) -> dict[str, Run]:
    """APGD on the cross-entropy by each library that has it; foolbox has not."""
    import torchattacks
    from art.attacks.evasion import AutoProjectedGradientDescent
    from pyautoattack.autopgd_base import APGDAttack

    ours = attacks.APGD(Threat("linf", EPS), steps=APGD_STEPS, eot=eot)
    theirs = torchattacks.APGD(model, eps=EPS, steps=APGD_STEPS, eot_iter=eot)
    peer = APGDAttack(model, eps=EPS, n_iter=APGD_STEPS, eot_iter=eot, device="cpu")
    runs: dict[str, Run] = {
        "advbnn": lambda: ours(model, x, y),
        "torchattacks": lambda: theirs(x, y),
        "pyautoattack": lambda: peer.perturb(x, y),
    }
    if eot > 1:
        return runs
    art_apgd = AutoProjectedGradientDescent(
        _classifier(model, x),
        eps=EPS,
        eps_step=2 * EPS,
        max_iter=APGD_STEPS,
        nb_random_init=1,
        batch_size=len(x),
        loss_type="cross_entropy",
        verbose=False,
    )
    arrays = x.numpy(), nn.functional.one_hot(y, 10).numpy()
    return {**runs, "art": lambda: art_apgd.generate(*arrays)}


def _classifier(model: nn.Module, x: Tensor) -> Any:
    from art.estimators.classification import PyTorchClassifier

    return PyTorchClassifier(
        model, nn.CrossEntropyLoss(), tuple(x.shape[1:]), 10, clip_values=(0.0, 1.0), device_type="cpu"
    )


def trained(defense: str) -> nn.Module:
    """A small network that resists attacks on digits."""
    digits, how = data.load("digits"), advbnn.defense(defense, "digits")
    net = how.build(classes=10, shape=digits.train.shape, seed=0)
    return advbnn.fit(net, digits, how).model.eval()


def measure(model: nn.Module, y: Tensor, runs: dict[str, Run], rounds: int) -> dict[str, dict[str, float]]:
    """Seconds of each library: median and extremes of the time, and of the processor time; images left correct."""
    wall: dict[str, list[float]] = {name: [] for name in runs}
    processor: dict[str, list[float]] = {name: [] for name in runs}
    left: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    for number in range(rounds):
        names = list(runs)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            began, worked = time.perf_counter(), time.process_time()
            found = torch.as_tensor(runs[name]())
            wall[name].append(time.perf_counter() - began)
            processor[name].append(time.process_time() - worked)
            left[name].append((advbnn.predict(model, found, samples=20, seed=0).label == y).double().mean().item())
    return {
        name: {
            "median_s": round(statistics.median(wall[name]), 5),
            "fastest_s": round(min(wall[name]), 5),
            "slowest_s": round(max(wall[name]), 5),
            "processor_median_s": round(statistics.median(processor[name]), 5),
            "processor_fastest_s": round(min(processor[name]), 5),
            "processor_slowest_s": round(max(processor[name]), 5),
            "accuracy": round(statistics.mean(left[name]), 4),
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
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("torch", *PACKAGES.values())} | {"advbnn": advbnn.__version__},
    }


def table(record: dict[str, Any]) -> str:
    """The medians as a table, ours first: milliseconds of processor time, and the accuracy left in %."""
    lines = [
        f"| ms of processor time (accuracy left) | {' | '.join(PACKAGES.values())} |",
        "| :-- " + "| --: " * 5 + "|",
    ]
    for case, times in record["results"].items():
        cells = []
        for library in PACKAGES:
            found = times.get(library)
            left = f" ({100 * found['accuracy']:.1f})" if found and "vgg11" not in case else ""  # which is not trained
            cells.append(f"{1e3 * found['processor_median_s']:.0f}{left}" if found else "-")
        lines.append(f"| {case} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--output", type=Path, default=RECORD)
    parser.add_argument("--table", action="store_true", help="only print the table of the record")
    arguments = parser.parse_args()
    if arguments.table:
        print(table(json.loads(arguments.output.read_text())))
        return
    warnings.simplefilter("ignore")  # of the other libraries
    torch.set_num_threads(1)
    torch.manual_seed(0)
    test = data.load("digits").test
    digits = test.images[:128].float() / test.images.max(), test.labels[:128]
    pictures = torch.rand(4, 3, 32, 32), torch.randint(10, (4,))
    plain, random = trained("adv"), trained("adv_bnn")
    cases = {
        "PGD-20: small_cnn, 128 digits": (pgd, plain, digits, 1),
        "PGD-20: Bayesian small_cnn, 128 digits": (pgd, random, digits, 1),
        "PGD-20: the same, 5 EOT samples": (pgd, random, digits, 5),
        "APGD-100: small_cnn, 128 digits": (apgd, plain, digits, 1),
        "PGD-20: vgg11, 4 images of 32x32": (pgd, models.build("vgg11"), pictures, 1),
        "PGD-20: Bayesian vgg11, 4 images of 32x32": (pgd, bayesianize(models.build("vgg11")), pictures, 1),
    }
    results: dict[str, object] = {}
    record: dict[str, object] = {
        "what": f"PGD, {STEPS} steps, and APGD, {APGD_STEPS} steps, linf, random start: seconds per call, taking turns",
        **origin(),
        "machine": machine(),
        "rounds": arguments.rounds,
        "results": results,
    }
    for name, (made, model, (x, y), eot) in cases.items():
        results[name] = times = measure(model, y, made(model.eval(), x, y, eot), arguments.rounds)
        print(name)
        for library, seconds in sorted(times.items(), key=lambda item: item[1]["median_s"]):
            spread = f"{seconds['fastest_s'] * 1e3:.1f} to {seconds['slowest_s'] * 1e3:.1f}"
            busy = seconds["processor_median_s"] * 1e3
            left = f"{seconds['accuracy']:.1%} left"
            print(f"  {library:<13}{seconds['median_s'] * 1e3:8.1f} ms  ({spread}), processor {busy:.1f} ms, {left}")
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
