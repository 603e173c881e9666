"""Judges networks of finite support twice on the same images: by the audit, and by AutoAttack from outside.

The accuracy without an attack is that on all test images.

    python benchmarks/judge.py NETWORK [NETWORK ...] --root /data/cifar10 --label five_modes --out results/x.json

A NETWORK is a run folder, or the beginning of the names of files that hold pieces of one state dict as safetensors
(`weights/r18-0` for `weights/r18-0.1.safetensors`, ...), built as `--config` says. Several are the mean of their
probabilities. AutoAttack is pyautoattack's `standard` version, and gets the logarithm of that mean as one network.

Half of AutoAttack's time is Square's. `--bf16 square` (or more of its four attacks) attacks the network in bfloat16 and
scores the points in float32. An image that falls in bfloat16 and stands in float32 is attacked again in float32: none
counts as broken by its bfloat16 outputs alone. What an attack in bfloat16 does not break goes to the next attack: for a
number to publish, leave at least `apgd-ce` and `apgd-t` in float32.

Everything is resumed from `--out` and what lies beside it.
"""

import argparse
import functools
import json
import logging
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import advbnn
from advbnn.attacks.threat import Threat
from advbnn.bayes.protocol import Member, members, random_parts
from advbnn.data.imageset import Examples
from advbnn.display.progress import duration
from advbnn.evaluation.accuracy import Evaluation
from advbnn.evaluation.batchwise import Batch
from advbnn.evaluation.options import Options
from advbnn.evaluation.records import Record
from advbnn.fast import accelerate
from advbnn.modules import evaluating, without_parameter_gradients
from advbnn.randomness import crafting_seed, seeded_globally
from advbnn.training import load_config, load_trained

ATTACKS = ("apgd-ce", "apgd-t", "fab-t", "square")
"""Of AutoAttack's version `standard`, in its order."""

AUTOATTACK = "AutoAttack standard"


class MeanProbability(nn.Module):
    """log sum_k weight_k softmax(net_k(x)): a finite mixture as one network."""

    def __init__(self, parts: Sequence[Member]) -> None:
        super().__init__()
        self.nets = nn.ModuleList(part.net for part in parts)
        self.log_weights = [math.log(part.weight) for part in parts]

    def forward(self, x: Tensor) -> Tensor:
        logs = [net(x).log_softmax(-1) + log for net, log in zip(self.nets, self.log_weights, strict=True)]
        return torch.stack(logs).logsumexp(0)


def one_network(model: nn.Module) -> MeanProbability:
    """The mixture, or the plain network, as one deterministic network."""
    return MeanProbability(members(model) or (Member(1.0, model),)).eval()


def autoattack(
    model: nn.Module, data: Examples, threat: Threat, *, bf16: Sequence[str] = (), quick: bool = False, **options: Any
) -> Record:
    """The accuracy under AutoAttack's `standard` version; `bf16` names the attacks that run in bfloat16 first.

    Its four attacks run one after the other, each on the images that stand after the one before, as in the package. An
    image counts as broken if the attacked network or the classifier errs at a point, in float32. The details say how
    many images each attack got and broke, how many fell in bfloat16 alone, and how many of these fell again in float32.
    `quick` is for a dry run: few steps, few queries.
    """
    evaluation = Evaluation(model, data, **options)
    full = one_network(evaluation.fast)
    low = one_network(accelerate(model, options.get("engine", "auto"), "bf16")) if bf16 else full
    seed = evaluation.seed_list[0]

    def attacked(name: str, net: nn.Module, x: Tensor, y: Tensor, number: int) -> Tensor:
        """Points, and in the last row of each image whether this network errs there."""
        crafting = crafting_seed(seed, number)
        peer = _peer(net, name, threat, crafting % 2**31, x.device, quick)
        with evaluating(net), without_parameter_gradients(net), seeded_globally(crafting, x.device):
            found, labels = peer.run_standard_evaluation(x, y, batch_size=len(x))
        return torch.cat([found.detach().flatten(1), (labels != y)[:, None].to(x)], 1)

    def work(x: Tensor, y: Tensor, batch: Batch) -> dict[str, Tensor]:
        n = len(x)
        broken = evaluation.classify(x, seed).label != y
        by = torch.where(broken, 0, len(ATTACKS) + 1).to(torch.int8)  # 0: without an attack
        counts = torch.zeros(n, len(ATTACKS), 4, dtype=torch.bool, device=x.device)
        seconds = torch.zeros(n, len(ATTACKS), dtype=torch.float64)
        for number, name in enumerate(ATTACKS):
            left = (~broken).nonzero().flatten()
            for precision, net in (("bf16", low), ("float32", full)) if name in bf16 else (("float32", full),):
                if not len(left):
                    continue
                started = time.perf_counter()
                inputs, labels = x[left], y[left]
                make = functools.partial(attacked, name, net, inputs, labels, batch.number)
                rows = batch.part(f"{name} {precision}", inputs, make)
                points, fooled = threat.project(rows[:, :-1].view_as(inputs), inputs), rows[:, -1] > 0
                wrong = evaluation.classify(points, seed).label != labels
                again = precision == "float32" and name in bf16
                counts[left, number, 2 if again else 0] = True  # attacked
                if precision == "bf16":
                    counts[left, number, 1] = wrong
                    broken[left] = wrong
                    left = left[fooled & ~wrong]
                else:
                    counts[left, number, 3 if again else 1] = wrong | fooled
                    broken[left] = wrong | fooled
                seconds[:, number] += (time.perf_counter() - started) / n
            by[broken & (by > number)] = number + 1
        print(f"{AUTOATTACK}, batch {batch.number}: {n - int(broken.sum())} of {n} stand", file=sys.stderr, flush=True)
        return {"correct": ~broken[:, None, None], "by": by, "counts": counts, "seconds_of": seconds}

    def details(results: dict[str, Tensor]) -> list[dict[str, Any]]:
        attacks = {}
        for number, name in enumerate(ATTACKS):
            sums = results["counts"][:, number].sum(0).tolist()
            found = {"attacked": sums[0], "broken": sums[1]}
            if name in bf16:
                found |= {"fell in bfloat16 alone, attacked again": sums[2], "of these broken": sums[3]}
            attacks[name] = {**found, "seconds": round(results["seconds_of"][:, number].sum().item(), 1)}
        return [{"clean": int((results["by"] > 0).sum()), "attacks": attacks}]

    settings = {
        "name": "pyautoattack.AutoAttack",
        "version": "dry run" if quick else "standard",
        "in bfloat16 first": sorted(bf16),
        "seed": "of the batch",
    }
    plan = replace(evaluation.plan, kind="attack", name=AUTOATTACK, attack=settings, threat=threat)
    _announce(evaluation, full, low, bf16)
    logging.getLogger("auto-attack").setLevel(logging.WARNING)
    return evaluation.measure([plan], work, details)[0]


def _peer(net: nn.Module, name: str, threat: Threat, seed: int, device: torch.device, quick: bool) -> Any:
    """AutoAttack that runs one attack of its `standard` version."""
    from pyautoattack import AutoAttack  # type: ignore[import-not-found, import-untyped, unused-ignore]

    norm = {"linf": "Linf", "l2": "L2"}[threat.norm]
    peer = AutoAttack(net, norm=norm, eps=threat.eps, version="standard", seed=seed, device=device)
    peer.attacks_to_run = [name]
    if quick:
        peer.apgd.n_iter = peer.apgd_targeted.n_iter = peer.fab.n_iter = peer.square.n_queries = 3
        peer.apgd.n_iter_orig = peer.apgd_targeted.n_iter_orig = 3
        peer.apgd_targeted.n_target_classes = peer.fab.n_target_classes = 2
    return peer


def _announce(evaluation: Evaluation, full: nn.Module, low: nn.Module, bf16: Sequence[str]) -> None:
    """Print roughly how long AutoAttack takes, for a network that half of the images survive."""
    stored, _ = next(iter(evaluation.data.gather([torch.arange(min(evaluation.batch_size, len(evaluation.data)))])))
    x = stored.to(evaluation.device, torch.float32) / 255
    passes = {  # with and without a gradient, per image: 83 % are right, 55 % survive the first attack
        "apgd-ce": (83, 0),
        "apgd-t": (0.55 * 900, 0),
        "fab-t": (0.53 * 900, 0.53 * 900),
        "square": (0, 0.53 * 5000),
    }
    seconds = 0.0
    for name, (gradients, forwards) in passes.items():
        net = low if name in bf16 else full
        seconds += gradients * seconds_per_image(net, x, True) if gradients else 0
        seconds += forwards * seconds_per_image(net, x, False) if forwards else 0
    total = duration(seconds * evaluation.plan.n)
    print(f"{AUTOATTACK}: {evaluation.plan.n:,} images, roughly {total} in all", file=sys.stderr, flush=True)


def seconds_per_image(net: nn.Module, x: Tensor, gradient: bool, repeats: int = 5) -> float:
    """The time of the fastest of several passes, with a gradient or without one."""
    took = math.inf
    with without_parameter_gradients(net):
        for _ in range(repeats):  # the fast engine builds its pass at the third
            started = time.perf_counter()
            with torch.set_grad_enabled(gradient):
                inputs = x.clone().requires_grad_(gradient)
                outputs = net(inputs)
                if gradient:
                    torch.autograd.grad(outputs.sum(), inputs)
            if x.is_cuda:
                torch.cuda.synchronize()
            took = min(took, time.perf_counter() - started)
    return took / len(x)


def load(names: Sequence[str], config: str | None, device: str) -> nn.Module:
    """The mixture of the networks, or the only one."""
    nets = [_load(name, config).to(device) for name in names]
    return nets[0] if len(nets) == 1 else advbnn.Modes(nets)


def _load(name: str, config: str | None) -> nn.Module:
    if Path(name).is_dir():
        return load_trained(name).model
    pieces = sorted(Path(name).parent.glob(f"{Path(name).name}.*.safetensors"))
    if not pieces or config is None:
        raise SystemExit(f"{name}: give a run folder, or pieces {name}.1.safetensors, ... with --config")
    defense = load_config(config).defense
    tensors = {key: tensor for piece in pieces for key, tensor in load_file(piece).items()}
    net = defense.build(classes=10, shape=(3, 32, 32), seed=0)
    wanted = net.state_dict()
    net.load_state_dict({key: tensor.to(wanted[key].dtype) for key, tensor in tensors.items()})
    return net.eval()


def evaluation_options(model: nn.Module, given: argparse.Namespace, label: str, out: Path) -> Options:
    """Those of every measurement of a network."""
    count = len(members(model)) or 1
    return {
        "rows": range(given.images),
        "label": label,
        "out": out,
        "batch_size": given.batch or max(250, 2000 // count),  # captured passes of all networks fit into 80 GB
        "seeds": 1,
        "progress": True,
        "command": " ".join(["python", "benchmarks/" + Path(sys.argv[0]).name, *sys.argv[1:]]),
    }


def judge(model: nn.Module, data: Examples, given: argparse.Namespace, label: str, out: Path) -> None:
    """Clean accuracy, and both judges with the options of `add_options`; AutoAttack for finite support alone."""
    shared = evaluation_options(model, given, label, out)
    show(advbnn.evaluate(model, data, **{**shared, "rows": None})[0])
    threats = [Threat("linf", float(Fraction(eps))) for eps in given.eps]
    if "autoattack" in given.judges and (members(model) or not random_parts(model)):
        for threat in threats:
            show(autoattack(model, data, threat, bf16=given.bf16, quick=given.dry_run, **shared))
    if "audit" in given.judges:
        quickly = [Threat("linf", float(Fraction(eps))) for eps in given.quick]
        for level, radii in ((given.level, threats), ("quick", quickly)):
            for record in advbnn.audit(model, data, radii, level, **shared).records if radii else ():
                show(record)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `judge`."""
    parser.add_argument("--images", type=int, default=10_000, help="the first so many test images")
    parser.add_argument("--eps", nargs="+", default=["8/255"])
    parser.add_argument("--quick", nargs="*", default=[], metavar="EPS", help="more radii, by a quick audit alone")
    parser.add_argument("--judges", nargs="+", choices=("autoattack", "audit"), default=["autoattack", "audit"])
    parser.add_argument("--level", default="standard", help="of the audit")
    parser.add_argument("--bf16", nargs="*", choices=ATTACKS, default=[], help="AutoAttack's attacks in bfloat16 first")
    parser.add_argument("--batch", type=int, help="images at a time; by default 2,000 over the number of networks")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dry-run", action="store_true", help="AutoAttack with a few steps")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="+", metavar="NETWORK")
    parser.add_argument("--config", help="TOML file that builds the networks of pieces")
    parser.add_argument("--data", default="cifar10", help="dataset; its test images are attacked")
    parser.add_argument("--root", help="folder of the dataset")
    parser.add_argument("--label", required=True, help="name of the network in the records")
    parser.add_argument("--out", type=Path, required=True, help="file of records")
    add_options(parser)
    given = parser.parse_args()
    data = advbnn.data.load(given.data, root=given.root).test
    judge(load(given.networks, given.config, given.device), data, given, given.label, given.out)


def show(record: Record) -> None:
    """Print a result."""
    print(f"{record!r}, {record.seconds:.0f} s", flush=True)
    if record.name == AUTOATTACK:
        print(json.dumps(record.details), flush=True)


if __name__ == "__main__":
    main()
