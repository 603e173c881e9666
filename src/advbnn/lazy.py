"""Submodules as attributes without an import statement: `import advbnn; advbnn.evaluation.uncertainty`."""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType


def submodules(package: str) -> Callable[[str], ModuleType]:
    """The `__getattr__` of a package (PEP 562) that imports its submodules when they are first used."""

    def find(name: str) -> ModuleType:
        if name.startswith("_") or find_spec(f"{package}.{name}") is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return import_module(f"{package}.{name}")

    return find
