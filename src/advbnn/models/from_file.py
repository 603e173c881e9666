"""A network of one's own from a Python file, `nets.py:build`, with weights from a safetensors file.

The file is executed: load only code that you trust. Weights are plain tensors and are never executed.
"""

import hashlib
import importlib.util
import inspect
import sys
import textwrap
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from weakref import WeakKeyDictionary

from safetensors import SafetensorError
from safetensors.torch import load_model as load_safetensors
from torch import nn

from advbnn.errors import ArgumentError, ArgumentTypeError, FileError, did_you_mean, first_few
from advbnn.machine.files import explain_file_errors
from advbnn.models.initial_weights import CONVERT, prefix_hint

_SOURCES: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()


def load_model(source: str, weights: Path | str | None = None) -> nn.Module:
    """The module that a function of a Python file returns, with the weights of a safetensors file.

    Args:
        source: `"FILE.py:FUNCTION"`. The function takes no arguments and returns a module, in the mode in which it is
            to be evaluated.
        weights: a safetensors file with all parameters and buffers of the module; left as built when None.
    """
    path, function = _parsed(source)
    code = _read(path)
    with _importing_from(path.parent):
        build = getattr(_executed(path), function, None)
        if build is None:
            defined = [name for name in vars(sys.modules[_name(path)]) if not name.startswith("_")]
            raise ArgumentError(
                f"{path} defines no {function!r}{did_you_mean(function, defined)}; give FILE.py:FUNCTION"
            )
        model = _built(path, function, build)
    identity = f"{function} sha256:{hashlib.sha256(code).hexdigest()}"
    if weights is not None:
        file = Path(weights)
        identity += f", weights sha256:{hashlib.sha256(_read(file)).hexdigest()}"
        load_weights(model, file)
    _SOURCES[model] = identity
    return model


def source_of(model: nn.Module) -> str:
    """The function, and the SHA-256 of the file and of the weights, of a module made by `load_model`; else empty."""
    return _SOURCES.get(model, "")


def load_weights(model: nn.Module, file: Path) -> None:
    """Load a safetensors file into `model`; names that do not fit are listed."""
    try:
        missing, unexpected = load_safetensors(model, str(file), strict=False)
    except SafetensorError as error:
        raise ArgumentError(f"weights: {file} is not a safetensors file, or is damaged ({error}); {CONVERT}") from error
    except RuntimeError as error:  # shapes that differ
        reason = textwrap.shorten(str(error), 300, placeholder=" ...")
        raise ArgumentError(
            f"weights {file} do not fit the model: {reason}; build the model as it was trained"
        ) from error
    differing = (("lack", sorted(missing)), ("have", sorted(unexpected)))
    problems = [f"{what} {first_few(names)}" for what, names in differing if names]
    if problems:
        raise ArgumentError(
            f"weights {file} do not fit the model: they {' and '.join(problems)}"
            f"{' that the model lacks' if unexpected else ''}"
            f"{prefix_hint(missing, unexpected) or '; build the model as it was trained'}"
        )


def _parsed(source: str) -> tuple[Path, str]:
    path, colon, function = source.rpartition(":")
    if not colon or not path.endswith(".py") or not function.isidentifier():
        raise ArgumentError(f"model must be FILE.py:FUNCTION, such as nets.py:build, got {source!r}")
    return Path(path), function


def _read(path: Path) -> bytes:
    if not path.exists():
        raise FileError(f"there is no file {path}; give its path from the current folder, {Path.cwd()}")
    with explain_file_errors(path, "cannot be read", "check its permissions"):
        return path.read_bytes()


def _name(path: Path) -> str:
    return f"advbnn_model_{path.stem}"


def _executed(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(_name(path), path)
    if spec is None or spec.loader is None:
        raise ArgumentError(f"{path} cannot be imported; give a Python file")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    with _explaining(path):
        spec.loader.exec_module(module)
    return module


def _built(path: Path, function: str, build: object) -> nn.Module:
    if isinstance(build, nn.Module):
        return build
    if not callable(build):
        raise ArgumentTypeError(f"{function!r} of {path} must be a function, got {type(build).__name__}")
    try:
        inspect.signature(build).bind()
    except TypeError as error:
        raise ArgumentTypeError(f"{function!r} of {path} must take no arguments, but {error}; give defaults") from None
    with _explaining(path):
        model = build()
    if not isinstance(model, nn.Module):
        came = type(model).__name__
        raise ArgumentTypeError(f"{function!r} of {path} must return a torch.nn.Module that returns logits, got {came}")
    return model


@contextmanager
def _explaining(path: Path) -> Iterator[None]:
    """An error of the user's code names its line."""
    try:
        yield
    except Exception as error:
        frames = [
            frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path.absolute()
        ]
        line = frames[-1].lineno if frames else getattr(error, "lineno", "?")
        raise ArgumentError(f"{path}, line {line}: {type(error).__name__}: {error}") from error


@contextmanager
def _importing_from(folder: Path) -> Iterator[None]:
    """Within the block, modules beside the file can be imported, as for a script."""
    place = str(folder.absolute())
    sys.path.insert(0, place)
    try:
        yield
    finally:
        sys.path.remove(place)
