"""Shared by the speed benchmarks: records of rows, timing, memory, arithmetic of a network, matrix rate."""

import gc
import json
import platform
import statistics
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch

from advbnn import models
from advbnn.training.provenance import git_state

SIZES = {"vgg11": 32, "vgg13": 32, "vgg16": 32, "vgg19": 32, "resnet18": 32, "model_a": 96, "small_cnn": 32}
"""Networks and their image sizes."""


class Rows:
    """A record: the machine and the software, and rows, each of which is printed and written at once.

    Rows of an earlier measurement in the same file are kept if machine and software are the same. Each row has its own
    date and commit, as a file may be filled over days.
    """

    def __init__(self, out: Path | None, **about: Any) -> None:
        device = best_device()
        processor = platform.processor() or platform.machine()
        self._out = out
        self.about: dict[str, Any] = {
            "machine": torch.cuda.get_device_name() if device.type == "cuda" else processor,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "matrix_tflops": matrix_rate(device) / 1e12,
            **about,
        }
        self._rows: list[dict[str, Any]] = []
        if out is not None and out.exists():
            before = json.loads(out.read_text())
            for key, value in json.loads(json.dumps(self.about)).items():
                if key != "matrix_tflops" and before.get(key) != value:
                    raise SystemExit(
                        f"{out} has {key}={before.get(key)!r}, not {value!r}; choose another file for --out"
                    )
            self._rows, self.about["matrix_tflops"] = before["rows"], before["matrix_tflops"]

    def add(self, row: dict[str, Any]) -> None:
        """Prints and writes a row."""
        self._rows.append(row | origin())
        print(json.dumps(row), flush=True)
        if self._out is not None:
            self._out.parent.mkdir(parents=True, exist_ok=True)
            self._out.write_text(json.dumps({**self.about, "rows": self._rows}, indent=1) + "\n")


def origin() -> dict[str, str | None]:
    """The date, and the commit that is checked out; None outside a repository."""
    state = git_state(Path(__file__).resolve().parent)
    return {"date": date.today().isoformat(), "commit": state["commit"] if state else None}


def best_device() -> torch.device:
    """The GPU, if any."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def synchronize() -> None:
    """Wait for the GPU."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def seconds_of(work: Callable[[], object]) -> float:
    """The time of some work, including its kernels."""
    synchronize()
    begin = time.perf_counter()
    work()
    synchronize()
    return time.perf_counter() - begin


def median_and_spread(values: list[float], unit: float = 1) -> tuple[float, list[float]]:
    """The median, and the smallest and largest value, in multiples of `unit`."""
    return statistics.median(values) / unit, [min(values) / unit, max(values) / unit]


def reset_peak_memory() -> None:
    """Free what earlier rows left, and reset the peak memory of the GPU."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_gib() -> dict[str, float | None]:
    """The peak of the memory in use and of the memory reserved since `reset_peak_memory`."""
    if not torch.cuda.is_available():
        return {"peak_gib": None, "peak_reserved_gib": None}
    return {
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
        "peak_reserved_gib": torch.cuda.max_memory_reserved() / 2**30,
    }


def forward_flop(network: str, image_size: int | None = None, channels: int = 3) -> int:
    """Floating-point operations of a forward pass per image, counted by torch; a multiply-add counts as two."""
    from torch.utils.flop_counter import FlopCounterMode

    side = image_size or SIZES[network]
    net = models.build(network, classes=10, image_size=side, channels=channels).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        net(torch.zeros(1, channels, side, side))
    return int(counter.get_total_flops())


def matrix_rate(device: torch.device) -> float:
    """Operations per second of a large matrix product, bfloat16 on a GPU and float32 on a CPU."""
    size, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (1024, torch.float32)
    a = torch.randn(size, size, device=device, dtype=dtype)

    def products() -> None:
        for _ in range(10):
            a @ a

    products()
    return 10 * 2 * size**3 / seconds_of(products)
