"""Bayesian neural networks trained against adversarial examples, and honest evidence of whether they resist them.

The public names are the imports in `__init__.pyi`. Each is imported when it is first used (PEP 562).
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

from advbnn.lazy import submodules

__version__ = "0.2.0"

_MODULE_OF = {
    alias.name: str(statement.module)
    for statement in ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
    if isinstance(statement, ast.ImportFrom)
    for alias in statement.names
}

__all__ = list(_MODULE_OF)


_submodule = submodules(__name__)


def __getattr__(name: str) -> Any:
    if _MODULE_OF.get(name, "advbnn") == "advbnn":
        return _submodule(name)
    value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
