"""From a checkpoint to an audited Bayesian network, on the digits, on a CPU.

    python benchmarks/fine_tune.py --out benchmarks/records/fine-tune-cpu.json

Two networks are trained without a defence. From these checkpoints Adv-BNN is fine-tuned for a few epochs, with a prior
around zero and around the checkpoint, and beside it trained as long from fresh weights. Each row has clean accuracy,
accuracy under averaged PGD-20, and for some the worst case of a quick audit, all on the first test images.
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch
from common import Rows
from safetensors.torch import save_file

from advbnn import data
from advbnn.attacks import PGD
from advbnn.defenses.profiles import defense
from advbnn.evaluation.accuracy import evaluate
from advbnn.evaluation.audit.worst_case import audit
from advbnn.training.loop import fit


def main() -> None:
    """Train, fine-tune and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3, help="of fine-tuning")
    parser.add_argument("--images", type=int, default=200, help="test images")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows, digits = Rows(options.out, threads=torch.get_num_threads()), data.load("digits")
    part = range(options.images)

    def measure(name: str, model: torch.nn.Module, steps: int, seconds: float, audited: bool = False) -> None:
        attack = PGD(threat, steps=20, eot=10)
        clean, robust = evaluate(model, digits.test, {"clean": None, "PGD-20": attack}, rows=part, seeds=1)
        row = {"network": name, "steps": steps, "seconds": round(seconds, 1), "eps": threat.eps, "n": clean.n}
        row |= {"clean": clean.accuracy, "robust": robust.accuracy}
        if audited:
            row["worst_case"] = audit(model, digits.test, threat, "quick", rows=part).records[0].accuracy
        rows.add(row)

    how = defense("adv_bnn", "digits", schedule={"epochs": options.epochs})
    centred = defense("adv_bnn", "digits", schedule={"epochs": options.epochs}, network={"prior_mean": "init"})
    threat, shape = how.attack.threat, {"classes": 10, "shape": (1, 8, 8)}
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{seed}.safetensors" for seed in range(2)]
        for seed, file in enumerate(files):
            plain = defense("none", "digits")
            begin = time.perf_counter()
            found = fit(plain.build(**shape, seed=seed), digits, plain, seed=seed)
            save_file(found.model.state_dict(), file)
            measure(f"checkpoint {seed}", found.model, found.steps, time.perf_counter() - begin)
        trainings = {
            "fresh weights": (how, None, 1),
            "checkpoint 0, prior around zero": (how, files[0], 1),
            "checkpoint 0, prior around it": (centred, files[0], 1),
            "both checkpoints as modes, priors around them": (centred, files, 2),
        }
        for name, (value, init, modes) in trainings.items():
            begin = time.perf_counter()
            net = value.build(**shape, seed=0, init=init if modes == 1 else None)
            found = fit(net, digits, value, seed=0, modes=modes, init=init if modes > 1 else None)
            measure(name, found.model, found.steps, time.perf_counter() - begin, audited=init is not None)


if __name__ == "__main__":
    main()
