"""Imports at first use: public names and submodules of a package (PEP 562), and what a pickled call needs."""

import ast
import pickle
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any


def submodules(package: str) -> Callable[[str], ModuleType]:
    """The `__getattr__` of a package that imports its submodules, such as `advbnn.attacks.pgd`, when first used."""

    def find(name: str) -> ModuleType:
        if name.startswith("_") or find_spec(f"{package}.{name}") is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return import_module(f"{package}.{name}")

    return find


def names_in_stub(package: str, file: str) -> tuple[list[str], Callable[[str], Any]]:
    """The `__all__` and the `__getattr__` of a package that imports the names in its `__init__.pyi` when first used."""
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [statement for statement in stub.body if isinstance(statement, ast.ImportFrom)]
    module_of = {alias.name: str(statement.module) for statement in imports for alias in statement.names}
    submodule = submodules(package)

    def find(name: str) -> Any:
        if module_of.get(name, package) == package:
            return submodule(name)
        value = getattr(import_module(module_of[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return list(module_of), find


def call(pickled: bytes) -> Any:
    """Calls a pickled function without arguments.

    Its modules, and torch, are imported where it is called, and not by what only passes it on: a Dask scheduler would
    be silent meanwhile.
    """
    return pickle.loads(pickled)()
