"""The KL of Adv-BNN on CIFAR-10 by kind of parameter: at initialisation with each profile, and of trained runs.

    python benchmarks/kl.py RUN ...

The KL over all weights from the prior of the run, in nats: in total, of convolutions and the classifier, of BatchNorm
scales, and of the rest. Written to results/cifar10-alpha/kl.json.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from advbnn.bayes.kl import kl_divergence
from advbnn.bayes.protocol import Choice
from advbnn.defenses.profiles import defense
from advbnn.training.loading import load_trained

ROOT = Path(__file__).parent.parent


def main() -> None:
    """Measure the initial networks and the given runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "cifar10-alpha" / "kl.json")
    options = parser.parse_args()
    nets: dict[str, nn.Module] = {
        f"start of {profile}": defense("adv_bnn", "cifar10", profile).build(classes=10, shape=(3, 32, 32), seed=0)
        for profile in ("paper", "authors_code")
    }
    nets |= {str(run): load_trained(run, device="cpu").model for run in options.runs}
    rows = {name: kl_by_kind(net) for name, net in nets.items()}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    for name, parts in rows.items():
        print(name, {part: round(nats) for part, nats in parts.items()})


@torch.no_grad()
def kl_by_kind(model: nn.Module) -> Mapping[str, float]:
    """In total and by kind of parameter."""

    def scale(name: str, mu: Tensor) -> bool:
        return mu.dim() == 1 and name.endswith("weight")

    parts: dict[str, str | Choice] = {
        "all": "all",
        "weights": lambda name, mu: mu.dim() > 1,
        "scales": scale,
        "shifts and biases": lambda name, mu: mu.dim() == 1 and not scale(name, mu),
    }
    return {part: float(kl_divergence(model, which)) for part, which in parts.items()}


if __name__ == "__main__":
    main()
