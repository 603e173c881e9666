"""Time of an audit, and where its passes go: by phase and attack, with captured graphs and waits for the device.

    python benchmarks/audit.py --levels quick --random yes no --out benchmarks/records/audit.json
    python benchmarks/audit.py --network small_cnn --images 64 --breakdown

Networks have random weights and the running statistics of the images, which are random too. Labels are the network's
own predictions, and radii are those at which PGD-10 on the mean network leaves `--survivors` of the images, so that an
audit meets survivors as it does on a trained network. The noise of random weights is such that a weight sample agrees
with the mean network on `--agreement` of the images: the comparison of points and the test of the infinite ensemble
cost what the undecided images cost, which are few on a trained network, and most of them where samples disagree.

`seconds` is the time of `advbnn.evaluation.audit` from start to end, without calibrating; `first_seconds` that of the
first audit of the process, with `--repeats` above 1. In the breakdown a pass is one call of the network: `forward`
without and `gradient` with the gradient of the input, and `image_passes` counts its images. With `--breakdown` each
phase also waits for the device at its end, which takes time.
"""

import argparse
import math
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from common import SIZES, Rows, best_device, median_and_spread, peak_gib, reset_peak_memory, synchronize
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from advbnn import data, models
from advbnn.attacks import PGD
from advbnn.attacks.threat import Threat
from advbnn.bayes.mean_field import bayesianize
from advbnn.data import to_float
from advbnn.evaluation.attackable import Attackable
from advbnn.evaluation.audit import runner
from advbnn.evaluation.audit.batch_audit import BatchAudit
from advbnn.evaluation.audit.sequential_test import CertainSet
from advbnn.evaluation.audit.worst_case import Audit, audit
from advbnn.fast.fast_passes import FastPasses
from advbnn.modules import dtype_of
from advbnn.randomness import seeded

_SAMPLES = 8
"""Weight samples by which the noise is chosen."""


@dataclass
class Phase:
    """What one phase of an audit did."""

    seconds: float = 0.0
    calls: int = 0
    forward: int = 0
    gradient: int = 0
    image_passes: int = 0
    synchronisations: int = 0
    shapes: Counter[str] = field(default_factory=Counter)


class Breakdown:
    """Counts passes, waits and graphs by phase; nothing of the audit is changed."""

    def __init__(self, timed: bool) -> None:
        self.phases: dict[str, Phase] = defaultdict(Phase)
        self.captures: list[dict[str, Any]] = []
        self._timed, self._names = timed, ["other"]

    @property
    def current(self) -> Phase:
        return self.phases[self._names[-1]]

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Within the block, passes belong to this phase; of nested phases, to the inner one."""
        if self._timed:
            synchronize()
        begin, inner = time.perf_counter(), sum(phase.seconds for phase in self.phases.values())
        self._names.append(name)
        self.current.calls += 1
        try:
            yield
        finally:
            if self._timed:
                synchronize()
            elapsed = time.perf_counter() - begin
            self.current.seconds += elapsed - (sum(phase.seconds for phase in self.phases.values()) - inner)
            self._names.pop()

    def within(self, name: Callable[..., str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Wraps a function whose calls are a phase, named by its arguments."""

        def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
            def called(*args: Any, **kwargs: Any) -> Any:
                with self.phase(name(*args)):
                    return function(*args, **kwargs)

            return called

        return wrap

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Within the block, audits are counted."""
        logits, build = Attackable.logits, FastPasses._build

        def counted(net: Attackable, x: Tensor) -> Tensor:
            wanted = torch.is_grad_enabled() and x.requires_grad
            now = self.current
            now.forward, now.gradient = now.forward + (not wanted), now.gradient + wanted
            now.image_passes += len(x)
            now.shapes[f"{len(x)}{' gradient' if wanted else ''}"] += 1
            return logits(net, x)

        def built(passes: FastPasses, key: tuple[Any, ...], x: Tensor) -> None:
            begin = time.perf_counter()
            build(passes, key, x)
            if self._timed:
                synchronize()
            seconds = time.perf_counter() - begin
            self.captures.append({"images": len(x), "gradient": key[3], "phase": self._names[-1], "seconds": seconds})

        of = self.within
        replaced = {
            (BatchAudit, "_craft"): of(lambda self, name, *rest: f"attack: {name.split(': ')[-1]}"),
            (BatchAudit, "_offer"): of(lambda *args: "score every attack"),
            (BatchAudit, "_compare"): of(lambda *args: "compare contenders"),
            (BatchAudit, "_score"): of(lambda *args: "score the worst point"),
            (CertainSet, "test"): of(lambda *args: "test the infinite ensemble"),
            (runner, "probe"): of(lambda *args: "probes"),
            (runner, "look_back"): of(lambda *args: "look back"),
        }
        patches = [patch.object(place, name, wrap(getattr(place, name))) for (place, name), wrap in replaced.items()]
        patches += [patch.object(Attackable, "logits", counted), patch.object(FastPasses, "_build", built)]
        for one in patches:
            one.start()
        try:
            with _Waits(self) if self._timed else nullcontext():
                yield
        finally:
            for one in reversed(patches):
                one.stop()

    def summary(self) -> dict[str, Any]:
        """All phases, the longest first, and their sum."""
        phases = {
            name: {
                **{key: value for key, value in vars(phase).items() if key != "shapes"},
                "shapes": len(phase.shapes),
                "commonest_shapes": dict(phase.shapes.most_common(4)),
            }
            for name, phase in sorted(self.phases.items(), key=lambda item: -item[1].seconds)
        }
        keys = ("forward", "gradient", "image_passes", "synchronisations")
        return {
            "passes": {key: sum(phase[key] for phase in phases.values()) for key in keys},
            "phases": phases,
            "captures": self.captures,
        }


class _Waits(TorchDispatchMode):
    """Counts the operations after which the host waits for the device, on a CPU too."""

    _NAMES = ("_local_scalar_dense", "nonzero", "equal", "masked_select", "unique_dim", "_unique2")

    def __init__(self, breakdown: Breakdown) -> None:
        super().__init__()
        self._breakdown = breakdown

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        masks = name in ("index", "index_put", "index_put_") and any(
            isinstance(index, Tensor) and index.dtype == torch.bool for index in args[1]
        )
        if masks or name in self._NAMES:
            self._breakdown.current.synchronisations += 1
        return func(*args, **(kwargs or {}))


def main() -> None:
    """Measure audits of every level, random and not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--levels", nargs="+", default=["quick"])
    parser.add_argument("--network", choices=SIZES, default="vgg16")
    parser.add_argument("--random", nargs="+", choices=("yes", "no"), default=["yes", "no"])
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=250, help="images attacked at a time")
    parser.add_argument("--survivors", nargs="+", type=float, default=[0.8, 0.6, 0.4, 0.2], help="one radius for each")
    parser.add_argument("--agreement", type=float, default=0.95, help="of weight samples with the mean network")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--precision", default="full")
    parser.add_argument("--gradients", nargs="+", default=["full"], help="the precision of attacks' gradients")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--breakdown", action="store_true", help="count and time the phases, which takes time itself")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # about few images and vanishing gradients, which do not matter here
    rows = Rows(options.out, weights="random", images="random", labels="of the network")
    for level, random, gradients in product(options.levels, options.random, options.gradients):
        rows.add(measure(level, random == "yes", gradients, options))


def measure(level: str, random: bool, gradients: str, options: argparse.Namespace) -> dict[str, Any]:
    """One row."""
    net, x, test = prepared(options.network, options.images)
    y = test.targets.to(x.device)
    shares = sorted(options.survivors, reverse=True)
    threats = [Threat("linf", radius_of(net, x[:250], y[:250], share)) for share in shares]
    model, noise = randomized(net, x[:250], y[:250], options.agreement) if random else (net, {})
    how: dict[str, Any] = {"batch_size": options.batch, "engine": options.engine, "precision": options.precision}
    how["gradients"] = gradients
    reset_peak_memory()
    times: list[float] = []
    breakdown = Breakdown(options.breakdown)
    for _ in range(options.repeats):
        breakdown = Breakdown(options.breakdown)
        begin = time.perf_counter()
        with breakdown.watching():
            found = audit(model, test, threats, level, **how)
        synchronize()
        times.append(time.perf_counter() - begin)
    seconds, spread = median_and_spread(times[1:] or times)
    return {
        "level": level,
        "network": options.network,
        "random": random,
        "images": options.images,
        "batch": options.batch,
        "radii": [threat.eps for threat in threats],
        **noise,
        "accuracies": accuracies(found),
        "engine": found.records[0].versions["engine"],
        "precision": found.records[0].precision,
        "seconds": seconds,
        "seconds_spread": spread,
        "first_seconds": times[0],
        "repeats": options.repeats,
        **peak_gib(),
        **breakdown.summary(),
    }


def accuracies(found: Audit) -> dict[str, list[float]]:
    """The clean accuracy, and the worst case at each radius."""
    clean = found.records[0].details["attacks"][0]
    return {
        "clean": [sum(clean["correct"]) / sum(clean["n"])],
        "worst": [record.accuracy for record in found.records],
    }


def prepared(network: str, images: int) -> tuple[nn.Module, Tensor, data.ImageSet]:
    """A network, and images that it classifies."""
    device, side = best_device(), SIZES[network]
    torch.manual_seed(0)
    net = models.build(network, classes=10, image_size=side).to(device)
    coarse = torch.rand(images, 3, side // 4, side // 4)
    pixels = (255 * nn.functional.interpolate(coarse, scale_factor=4, mode="bilinear")).round().to(torch.uint8)
    x = to_float(pixels).to(device)
    with torch.no_grad():
        net.train()
        for _ in range(30):  # running statistics
            net(x[:250])
        net.eval()
        logits = torch.cat([net(part) for part in x.split(250)])
        # the classes are equally frequent, and none of them is far ahead
        last = [part for part in net.modules() if isinstance(part, nn.Linear)][-1]
        last.bias -= logits.mean(0)
        scale = 4 / (logits - logits.mean(0)).std()
        last.weight *= scale
        last.bias *= scale
        y = torch.cat([net(part).argmax(1) for part in x.split(250)])
    return net, x, data.ImageSet(pixels, y.cpu(), tuple("0123456789"), "random")


@torch.no_grad()
def randomized(net: nn.Module, x: Tensor, y: Tensor, share: float) -> tuple[nn.Module, dict[str, float]]:
    """The network with random weights, whose samples agree with the labels of the mean on this share, by bisection.

    The posterior standard deviations are `noise` times the spread of the weights of their tensor.
    """
    model = bayesianize(net).eval().to(x.device)

    def agreement(noise: float) -> float:
        for _, mu, s in model.posterior():
            s.fill_(math.log(noise * max(mu.std(correction=0).item(), 0.03)))
        with seeded(0, x.device):  # the same random numbers for every noise
            return sum((model(x).argmax(1) == y).double().mean().item() for _ in range(_SAMPLES)) / _SAMPLES

    low, high = 1e-5, 1.0
    for _ in range(14):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if agreement(middle) > share else (low, middle)
    return model, {"noise": low, "agreement": agreement(low)}


def radius_of(net: nn.Module, x: Tensor, y: Tensor, share: float) -> float:
    """The radius at which PGD-10 leaves this share of the images correct, by bisection."""
    low, high = 1e-5, 0.25
    x = x.to(dtype_of(net))
    for _ in range(12):
        middle = math.sqrt(low * high)
        with torch.no_grad():
            left = (net(PGD(Threat("linf", middle), steps=10)(net, x, y, seed=0)).argmax(1) == y).double().mean().item()
        low, high = (middle, high) if left > share else (low, middle)
    return round(math.sqrt(low * high), 6)


if __name__ == "__main__":
    main()
