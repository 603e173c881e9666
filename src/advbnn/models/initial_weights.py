"""Weights of a checkpoint from elsewhere as the start of a training."""

import hashlib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from advbnn.errors import ArgumentError, ArgumentTypeError, FileError, first_few, one_of, shown
from advbnn.machine.files import explain_file_errors, file_digest
from advbnn.modules import tensor_bytes

InitialWeights = Path | str | Mapping[str, Tensor]
"""A safetensors file, or a state dict."""

CLASSIFIERS = ("kept", "fresh")
CONVERT = (
    "convert a checkpoint that you trust: "
    "safetensors.torch.save_file(torch.load(file, weights_only=True), 'weights.safetensors')"
)
"""The remedy for a pickle where safetensors are expected."""

_PREFIXES = ("module.", "_orig_mod.", "net.", "model.", "backbone.")
"""What wrappers put before the names of a network's tensors."""


def weights_digest(weights: InitialWeights) -> str:
    """The SHA-256 of a file, or of the names and values of a state dict."""
    if isinstance(weights, str | Path):
        return file_digest(Path(weights))
    digest = hashlib.sha256()
    for name, value in weights.items():
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(tensor_bytes(value))
    return digest.hexdigest()


def load_initial(net: nn.Module, weights: InitialWeights, classifier: str = "kept") -> None:
    """Load the weights of a checkpoint into a plain network; every name and shape must fit.

    Args:
        net: the network, before it is made noisy or Bayesian.
        weights: a safetensors file, or a state dict. Pickled checkpoints are not read: load them yourself, with
            `torch.load(file, weights_only=True)`, and pass the state dict.
        classifier: `"kept"`, or `"fresh"`: the last linear layer keeps its own initial weights, so that the checkpoint
            may have another number of classes.
    """
    one_of("init_classifier", classifier, CLASSIFIERS)
    where, given = _read(weights)
    own = net.state_dict()
    linear = [name for name, part in net.named_modules() if isinstance(part, nn.Linear)]
    if classifier == "fresh" and not linear:
        raise ArgumentError("init_classifier='fresh' needs a linear layer as the classifier, and net has none")
    skipped = {name for name in own if classifier == "fresh" and name.rpartition(".")[0] == linear[-1]}
    tied = _tied(own, given)
    # torch counts batches only to average over all of them, and many checkpoints leave the count out
    missing = [n for n in own if n not in {*given, *skipped, *tied} and not n.endswith("num_batches_tracked")]
    unexpected = [n for n in given if n not in own]
    shapes = [
        f"{n} of {list(given[n].shape)} instead of {list(own[n].shape)}"
        for n in own
        if n in given and n not in skipped and given[n].shape != own[n].shape
    ]
    problems = (("lacks", missing), ("has", unexpected), ("has", shapes))
    if found := [f"{what} {first_few(names)}" for what, names in problems if names]:
        hint = _hint(linear, own, given)
        raise ArgumentError(f"init: {where} does not fit the network: it {'; it '.join(found)}{hint}")
    net.load_state_dict({n: value for n, value in given.items() if n not in skipped}, strict=False)


def check_kind(weights: object) -> None:
    """Refuse what is neither the path of a file nor tensors by name."""
    if not isinstance(weights, str | Path | Mapping):
        expected = "a safetensors file or a state dict, such as net.state_dict()"
        raise ArgumentTypeError(f"init must be {expected}, got {type(weights).__name__}")
    if isinstance(weights, Mapping) and not all(isinstance(value, Tensor) for value in weights.values()):
        nested = ", ".join(map(repr, list(weights)[:5]))
        raise ArgumentTypeError(f"init must hold tensors by name, such as net.state_dict(); this holds {nested}")


def _read(weights: InitialWeights) -> tuple[str, Mapping[str, Tensor]]:
    check_kind(weights)
    if isinstance(weights, Mapping):
        return "the state dict", weights
    file = Path(weights)
    with explain_file_errors(f"init: {shown(str(file))}", "cannot be read", "give the path of a safetensors file"):
        exists = file.is_file()
    if not exists:
        raise FileError(f"init: there is no file {file}; give its path from the current folder, {Path.cwd()}")
    try:
        with explain_file_errors(file, "cannot be read", "check its permissions"):
            found: dict[str, Tensor] = load_file(file)
            return str(file), found
    except SafetensorError as error:
        raise ArgumentError(f"init: {file} is not a safetensors file, or is damaged ({error}); {CONVERT}") from error


def _tied(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> set[str]:
    """Further names of tensors that are loaded under another name."""
    loaded = {value.data_ptr() for name, value in own.items() if name in given and value.numel()}
    return {name for name, value in own.items() if value.numel() and value.data_ptr() in loaded}


def prefix_hint(own: Collection[str], given: Iterable[str]) -> str:
    """What to do about a prefix that a wrapper has put before the names; empty if there is none."""
    for prefix in _PREFIXES:
        if any(name.startswith(prefix) and name.removeprefix(prefix) in own for name in given):
            return f"; remove the prefix {prefix!r} of its names, which a wrapper has added"
    return ""


def _hint(linear: list[str], own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> str:
    if hint := prefix_hint(own, given):
        return hint
    differing = [n for n in own if n in given and given[n].shape != own[n].shape]
    if linear and differing and {n.rpartition(".")[0] for n in differing} == {linear[-1]}:
        return "; its classifier has another number of classes: init_classifier = 'fresh' leaves it out"
    return "; build the network that the checkpoint is of"
