"""Time from the start of Python to the end of the first training step: with empty caches, and again.

    python benchmarks/setup.py --network resnet18 --batch 256 --out benchmarks/records/setup.json

Each measurement is a process of its own, which keeps its caches where the command line does; see
`advbnn.machine.caches`. The user's cache folder is a temporary one here, filled for the second and later processes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path


def main() -> None:
    """Measure the first and later processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--defense", choices=("adv", "adv_bnn"), default="adv")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        print(json.dumps(first_step(options)))
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        named = ("PYTHONPYCACHEPREFIX", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
        inherited = {key: value for key, value in os.environ.items() if key not in named}
        env = {**inherited, "XDG_CACHE_HOME": folder, "TRITON_HOME": folder}
        for number in range(options.processes):
            command = [sys.executable, *sys.argv, "--child", repr(time.time())]
            found = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
            rows.append({"process": number + 1, **json.loads(found.stdout.splitlines()[-1])})
            print(json.dumps(rows[-1]), flush=True)
    if options.out is not None:
        settings = {key: value for key, value in vars(options).items() if key not in ("out", "child")}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({**settings, "rows": rows}, indent=1) + "\n")


def first_step(options: argparse.Namespace) -> dict[str, object]:
    """Seconds until everything is imported, the network is on the device, the first step, and the second are done."""
    from advbnn.machine.caches import keep_bytecode

    keep_bytecode()
    import torch

    from advbnn import models
    from advbnn.attacks import PGD
    from advbnn.attacks.threat import Threat
    from advbnn.bayes.mean_field import bayesianize
    from advbnn.defenses.defense import Defense
    from advbnn.training.engine import make_step
    from advbnn.training.objective import RobustLoss

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    times = {"imported_s": time.time() - options.child}
    net = models.build(options.network, classes=10, image_size=options.image_size, channels=3)
    model = (bayesianize(net) if options.defense == "adv_bnn" else net).to(device).train()
    defense = Defense(attack=PGD(Threat("linf", 8 / 255), steps=10, step_size=2 / 255))
    loss = RobustLoss(model, defense.objective, 50_000)
    step = make_step(options.engine, loss, torch.optim.SGD(loss.parameters(), lr=0.01, momentum=0.9), defense)
    x = torch.rand(options.batch, 3, options.image_size, options.image_size, device=device)
    y = torch.randint(10, (options.batch,), device=device)
    times["on_device_s"] = time.time() - options.child
    for number, name in enumerate(("first_step_s", "second_step_s")):
        step(x, y, number).loss.item()
        times[name] = time.time() - options.child
    machine = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    caches = {f"{part}: {name}": n for part, found in counted().items() for name, n in found.items() if "cache" in name}
    return {
        **times,
        "caches": caches,
        "bytecode": sys.pycache_prefix or ("not written" if sys.dont_write_bytecode else "beside the sources"),
        "machine": machine,
        "torch": torch.__version__,
        "load_average": os.getloadavg()[0],
    }


def counted() -> Mapping[str, Mapping[str, int]]:
    """What torch's compiler has counted, such as hits and misses of its caches; nothing if it was not needed."""
    return getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})


if __name__ == "__main__":
    main()
