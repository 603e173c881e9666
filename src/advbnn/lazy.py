"""Imports at first use: submodules as attributes (`advbnn.evaluation.uncertainty`), and what a pickled call needs."""

import pickle
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any


def submodules(package: str) -> Callable[[str], ModuleType]:
    """The `__getattr__` of a package (PEP 562) that imports its submodules when they are first used."""

    def find(name: str) -> ModuleType:
        if name.startswith("_") or find_spec(f"{package}.{name}") is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return import_module(f"{package}.{name}")

    return find


def call(pickled: bytes) -> Any:
    """Calls a pickled function without arguments.

    Its modules, and torch, are imported where it is called, and not by what only passes it on: a Dask scheduler would
    be silent meanwhile.
    """
    return pickle.loads(pickled)()
