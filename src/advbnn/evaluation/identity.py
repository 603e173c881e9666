"""Identity of a measurement: weights, images, software, device and precision."""

import hashlib
import platform
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from inspect import isroutine
from numbers import Number
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from advbnn.attacks.identity import closed_over
from advbnn.bayes.modes import Modes
from advbnn.bayes.protocol import random_parts
from advbnn.data.imageset import Examples, row_numbers
from advbnn.defenses.rse import noise_levels
from advbnn.models.from_file import source_of
from advbnn.modules import dtype_of, tensor_bytes
from advbnn.randomness import resample

_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
"""Attributes of every module: internals of torch, and the mode."""


@dataclass(frozen=True, kw_only=True)
class ModelIdentity:
    """A network with its weights.

    Attributes:
        label: its name in tables and plots.
        kind: its class, and the class of the network inside.
        sha256: over its structure, all parameters and buffers, the numbers, strings, arrays, functions and their
            collections among the attributes of its modules, hooks with what they close over, parts in training mode,
            and the weight sample of an enclosing `frozen` block. Tensors that are plain attributes, and objects, are
            left out, as a pass may leave activations there: make constants buffers.
        source: the function and the SHA-256 of the files that it was made from; empty unless `load_model` made it.
    """

    label: str
    kind: str
    sha256: str
    source: str = ""

    @classmethod
    def of(cls, model: nn.Module, label: str | None = None) -> "ModelIdentity":
        """The identity of `model`; the label is its kind by default."""
        kind = _kind(model)
        return cls(label=label or kind, kind=kind, sha256=_digest(model), source=source_of(model))


@dataclass(frozen=True, kw_only=True)
class DataIdentity:
    """The images of a measurement.

    Attributes:
        sha256: the fingerprint of all its images.
        n: the number of images used.
        rows: which ones, such as "0-99,105"; empty for all of them.
    """

    name: str
    sha256: str
    n: int
    rows: str = ""

    @classmethod
    def of(cls, data: Examples, rows: Sequence[int] | Tensor | None = None) -> "DataIdentity":
        """The identity of the given rows of `data`, or of all of it."""
        if rows is None:
            return cls(name=data.name, sha256=data.fingerprint(), n=len(data))
        chosen = row_numbers(rows, len(data)).tolist()
        return cls(name=data.name, sha256=data.fingerprint(), n=len(chosen), rows=ranges(chosen))


def precision_of(model: nn.Module, device: torch.device, bf16: bool = False, rough_gradients: bool = False) -> str:
    """The dtype of the weights, autocast if it is on, and on CUDA whether float32 products use TF32.

    With `rough_gradients` those of attacks are in bfloat16, and all else is not.
    """
    dtype = str(dtype_of(model)).removeprefix("torch.")
    if bf16 or torch.is_autocast_enabled(device.type):
        half = torch.bfloat16 if bf16 else torch.get_autocast_dtype(device.type)
        dtype += f", autocast {str(half).removeprefix('torch.')}"
    if rough_gradients:
        dtype += ", gradients of attacks bfloat16"
    if device.type != "cuda":
        return dtype
    matmul = "off" if torch.get_float32_matmul_precision() == "highest" else "on"
    convolutions = "on" if torch.backends.cudnn.allow_tf32 else "off"
    return f"{dtype}, TF32 {matmul} in products, {convolutions} in convolutions"


def versions_on(device: torch.device) -> dict[str, str]:
    """The software and the device."""
    from advbnn import __version__

    versions = {"advbnn": __version__, "torch": torch.__version__, "python": platform.python_version()}
    if device.type == "cuda":
        return {**versions, "device": torch.cuda.get_device_name(device)}
    # both decide the order of additions, and so the last digits
    kernels = {"cpu_capability": torch.backends.cpu.get_cpu_capability(), "threads": str(torch.get_num_threads())}
    return {**versions, "device": f"cpu ({platform.machine()})", **kernels}


def ranges(rows: Sequence[int]) -> str:
    """Row numbers in their order, consecutive ones joined: [0, 1, 2, 5] is "0-2,5"."""
    runs: list[list[int]] = []
    for row in rows:
        if runs and row == runs[-1][1] + 1:
            runs[-1][1] = row
        else:
            runs.append([row, row])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _kind(model: nn.Module) -> str:
    kind, inner = type(model).__name__, getattr(model, "net", None)
    if isinstance(model, Modes):
        counts = Counter(_kind(component) for component in model.net)
        return f"{kind}({', '.join(f'{count} x {name}' for name, count in counts.items())})"
    return f"{kind}({type(inner).__name__})" if isinstance(inner, nn.Module) else kind


def row_list(data: DataIdentity) -> list[int]:
    """The rows of a measurement, in their order: the inverse of `ranges`."""
    if not data.rows:
        return list(range(data.n))
    ends = [[int(end) for end in part.split("-")] for part in data.rows.split(",")]
    return [row for end in ends for row in range(end[0], end[-1] + 1)]


def _digest(model: nn.Module) -> str:
    resample(model, 0)  # a random state that is drawn anew at every pass is no part of the identity
    # the noise of RSE is a hook, visible in neither the structure nor the weights
    digest = hashlib.sha256(f"{model!r} {noise_levels(model)}".encode())
    for name, value in {**model.state_dict(), **_unsaved(model)}.items():
        if isinstance(value, Tensor):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(tensor_bytes(value))
        else:  # a module's extra state, or a plain attribute
            digest.update(f"{name} {value!r}".encode())
    return digest.hexdigest()


def _unsaved(model: nn.Module) -> dict[str, Any]:
    """What a network computes with beyond its state dict: unsaved buffers, plain attributes, a frozen weight sample."""
    found: dict[str, Any] = {}
    for path, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name in module._non_persistent_buffers_set:
                found[f"unsaved {path}.{name}"] = buffer
        attributes = {name: value for name, value in vars(module).items() if name not in _OF_EVERY_MODULE}
        # the repr, which is hashed already, of layers of torch and advbnn names all attributes
        if not _ours(module) or type(module).extra_repr is nn.Module.extra_repr:
            found |= {f"attribute {path}.{name}": value for name, value in attributes.items() if _is_plain(value)}
        if not _ours(module):
            others = {name: value for name, value in attributes.items() if not _is_plain(value) and value is not None}
            described = {name: _described(value) for name, value in others.items()}
            found |= {f"attribute {path}.{name}": text for name, text in described.items() if text}
        hooks = (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
        named = {number: _described(hook) or _named(hook) for number, hook in enumerate(hooks) if not _ours(hook)}
        found |= {f"hook {path} {number}": text for number, text in named.items()}
        if module.training and not model.training:  # else all are evaluated in evaluation mode
            found[f"training {path}"] = True
    for path, part in random_parts(model):
        found |= {f"frozen {path}.{name}": weight for name, weight in (part.frozen_sample or {}).items()}
    return found


def _ours(thing: object) -> bool:
    """Whether a module or a function is torch's or this library's."""
    return str(getattr(thing, "__module__", "")).partition(".")[0] in ("torch", "advbnn")


def _described(value: object, depth: int = 5) -> str:
    """An attribute that is no number or string, in words, with what it holds; empty for what is not told apart.

    Tensors are left out, as a pass may leave activations there, and objects that may change from pass to pass, too.
    """
    if depth == 0 or isinstance(value, Tensor | nn.Module):
        return ""
    if _is_plain(value) or value is None:
        return repr(value)
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, set | frozenset):
        return " ".join(sorted(_described(one, depth - 1) for one in value))
    if isinstance(value, tuple | list):
        return " ".join(filter(None, (_described(one, depth - 1) for one in value)))
    if isinstance(value, dict):
        found = {name: _described(one, depth - 1) for name, one in value.items()}
        return " ".join(f"{name!r}: {text}" for name, text in found.items() if text)
    if isinstance(value, partial):
        return _described([value.func, value.args, value.keywords], depth)
    if isroutine(value):
        return _named(value, depth)
    if is_dataclass(value) and not isinstance(value, type):
        held = {field.name: getattr(value, field.name, None) for field in fields(value)}
        return f"{type(value).__qualname__} {_described(held, depth - 1)}"
    return ""


def _named(function: Any, depth: int = 5) -> str:
    """A function by its module and name, its defaults and what it closes over; a lambda also by what it uses."""
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__qualname__)}"
    code = getattr(function, "__code__", None)
    if code is None:
        return name if isroutine(function) else f"{name} {_described(getattr(function, '__dict__', {}), depth)}"
    if _ours(function):
        return name
    held = [function.__defaults__ or (), function.__kwdefaults__ or {}, closed_over(function)]
    used = f" {code.co_names} {[one for one in code.co_consts if _is_plain(one)]}" if "<" in name else ""
    return f"{name}{used} {_described(held, depth - 1)}".rstrip()


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return isinstance(value, Number | str | bytes | torch.dtype)
