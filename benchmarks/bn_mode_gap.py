"""The gap between a Bayesian network with running BatchNorm statistics and the same one with batch statistics.

    python benchmarks/bn_mode_gap.py RUN --root DATA

During training the attack sees running statistics while the update uses batch statistics. Here the network is attacked
in each of the two modes and tested in both: as trained, with the largest of all standard deviations reduced, and with
all others reduced. Running statistics are estimated again in all cases, on clean training images and with fresh weight
samples, so that they fit the reduced noise. Records are written to results/bn_mode_gap/NAME-*.json, the standard
deviations of each layer to NAME-spread.json.
"""

import argparse
import copy
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from advbnn import data
from advbnn.attacks import paper_pgd
from advbnn.bayes.mean_field import Bayesian
from advbnn.bayes.protocol import gaussian_parameters
from advbnn.evaluation.transfer import transfer_matrix
from advbnn.randomness import seeded
from advbnn.training.averaging import refresh_batchnorm
from advbnn.training.loading import load_trained
from advbnn.training.noise_share import posterior_scale

ROOT = Path(__file__).parent.parent
EPS = 8 / 256
BATCH = 128


def main() -> None:
    """Measure the given run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--root", type=Path, help="the folder of CIFAR-10")
    parser.add_argument("--most", type=float, default=0.2, help="the reduced standard deviation")
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--steps", type=int, default=10, help="of the attack, as in training")
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "bn_mode_gap")
    options = parser.parse_args()
    command = f"python benchmarks/bn_mode_gap.py {options.run} --images {options.images}"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    trained, splits = load_trained(options.run, device=device), data.load("cifar10", options.root).to(device)
    nets: dict[str, nn.Module] = {"as trained": trained.model}
    if gaussian_parameters(trained.model):
        options.out.mkdir(parents=True, exist_ok=True)
        found = {"spread": asdict(posterior_scale(trained.model)), "layers": layers(trained.model)}
        text = json.dumps({"command": command, **found}, indent=1)
        (options.out / f"{options.run.name}-spread.json").write_text(text + "\n", encoding="utf-8")
        nets["largest cut"] = with_cut(trained.model, options.most, others=False)
        nets["others cut"] = with_cut(trained.model, options.most, others=True)
    images = torch.split(splits.train.images[:4000].float() / 255, BATCH)
    for name, net in nets.items():
        with seeded(0, device):
            refresh_batchnorm(net, images)
        records = transfer_matrix(
            {"running": net, "batch": by_batch_statistics(net)},
            splits.test,
            paper_pgd(EPS, options.steps),
            rows=range(options.images),
            samples=options.samples,
            seeds=1,
            batch_size=BATCH,
            out=options.out / f"{options.run.name}-{name.replace(' ', '_')}.json",
            command=command,
        )
        for record in records:
            print(f"{name}: {record.model.label} statistics, {record.name}: {100 * record.accuracy:.1f} %", flush=True)


def layers(model: Bayesian) -> list[dict[str, Any]]:
    """The standard deviations of every convolution, and the BatchNorm scale of the channel with the largest."""
    means, rows = dict(model.net.named_parameters()), []
    parameters = [name for name, _, _ in model.posterior()]
    for name, mu, log_std in model.posterior():
        if mu.dim() < 4:
            continue
        std = log_std.detach().exp()
        channel = int(std.flatten(1).amax(1).argmax())
        rows.append(
            {
                "name": name,
                "weights": std.numel(),
                "median": std.median().item(),
                "largest": std.flatten().topk(3).values.tolist(),
                "share_above_1": (std > 1).float().mean().item(),
                "rms_of_means": mu.detach().square().mean().sqrt().item(),
                "channel_of_the_largest": channel,
            }
        )
        scale = next((after for after in parameters[parameters.index(name) + 1 :] if after.endswith("weight")), "")
        if scale and means[scale].dim() == 1:
            values = means[scale].detach()
            rows[-1] |= {"scale_of_that_channel": values[channel].item(), "median_scale": values.abs().median().item()}
    return rows


@torch.no_grad()
def with_cut(model: Bayesian, most: float, others: bool) -> Bayesian:
    """A copy in which the largest of all standard deviations is `most`, or all others are at most `most`."""
    copied = copy.deepcopy(model)
    parameter = max(copied.log_std.parameters(), key=lambda log_std: float(log_std.max()))
    parameter.data = parameter.data.contiguous()  # so that `view` exists
    largest = parameter.data.view(-1)[int(parameter.argmax())]
    kept = largest.clone()
    if not others:
        largest.fill_(math.log(most))
        return copied
    for log_std in copied.log_std.parameters():
        log_std.clamp_(max=math.log(most))
    largest.copy_(kept)
    return copied


def by_batch_statistics(model: nn.Module) -> nn.Module:
    """A copy that uses batch statistics, also in evaluation mode."""
    copied = copy.deepcopy(model)
    for norm in copied.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.running_mean = norm.running_var = None
    return copied


if __name__ == "__main__":
    main()
