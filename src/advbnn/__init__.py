"""Bayesian neural networks trained against adversarial examples, and honest evidence of whether they resist them.

The public names are the imports in `__init__.pyi`. Each is imported when it is first used (PEP 562).
"""

from advbnn.lazy import names_in_stub

__version__ = "0.2.0"

__all__, __getattr__ = names_in_stub(__name__, __file__)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
