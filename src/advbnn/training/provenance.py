"""Where a run comes from: versions, machine, command, and the commit of the working directory."""

import platform
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import nn

from advbnn.data import Examples
from advbnn.defenses.defense import structure_of
from advbnn.models.initial_weights import InitialWeights, weights_digest


def provenance(seed: int, device: torch.device, **further: Any) -> dict[str, Any]:
    """Versions, machine, command and commit.

    `device`, `threads` and `cpu_capability` decide the order of additions: with others, the same seed gives weights
    that differ by rounding, and after many steps by more.
    """
    from advbnn import __version__

    packages = {"advbnn": __version__, "torch": torch.__version__, "numpy": numpy.__version__}
    return {
        "seed": seed,
        **further,
        "versions": {"python": platform.python_version(), **packages},
        "machine": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cuda": torch.version.cuda,
        "command": sys.argv,
        "git": git_state(Path.cwd()),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def run_facts(
    model: nn.Module, train: Examples, seed: int, processes: int, init: Sequence[InitialWeights] = ()
) -> dict[str, Any]:
    """The contents of run.json: the provenance of a run, its data, its network and the weights that it starts from."""
    data = {"name": train.name, "examples": len(train), "classes": len(train.classes), "shape": list(train.shape)}
    data |= {"class_names": list(train.classes), "sha256": train.fingerprint()}
    size = sum(p.numel() for p in model.parameters())
    network = {"kind": type(model).__name__, "parameters": size, "structure": structure_of(model)}
    start = [["" if isinstance(one, Mapping) else str(one), weights_digest(one)] for one in init]
    more: dict[str, Any] = {"data": data, "model": network, "processes": processes, "init": start}
    return provenance(seed, train.device, **more)


def other_arithmetic(before: dict[str, Any], now: dict[str, Any]) -> str | None:
    """A note if a run resumes with another order of additions than it began with."""
    names = ("device", "threads", "cpu_capability") if now["device"] == "cpu" else ("device",)
    differing = [name for name in names if name in before and before[name] != now[name]]
    if not differing:
        return None
    listed = ", ".join(f"{name} {before[name]} before, {now[name]} now" for name in differing)
    return f"resumed elsewhere ({listed}): the result may differ from that of an uninterrupted run by rounding"


def git_state(place: Path) -> dict[str, str] | None:
    """The commit that is checked out; None outside a repository.

    Read from the files of git, as its commands run programs that a repository's own configuration names.
    """
    try:
        top = next(folder for folder in (place, *place.parents) if (folder / ".git").exists())
        git = top / ".git"
        if git.is_file():  # a worktree, or a submodule
            git = top / git.read_text(encoding="utf-8").removeprefix("gitdir:").strip()
        head = (git / "HEAD").read_text(encoding="utf-8").strip()
        if not head.startswith("ref:"):
            return {"commit": head}
        name = head.removeprefix("ref:").strip()
        common = git / "commondir"  # a worktree keeps its branches with those of the others
        shared = git / common.read_text(encoding="utf-8").strip() if common.exists() else git
        for folder in (git, shared):
            if (folder / name).is_file():
                return {"commit": (folder / name).read_text(encoding="utf-8").strip()}
        packed = (line.split() for line in (shared / "packed-refs").read_text(encoding="utf-8").splitlines())
        return {"commit": next(words[0] for words in packed if words[1:] == [name])}
    except (StopIteration, OSError, UnicodeDecodeError):
        return None
