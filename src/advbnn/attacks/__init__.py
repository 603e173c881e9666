"""Attacks on networks whose weights may be random: `attack(model, x, y, seed)` returns `x_adv` inside a `Threat`.

One file per family. Each attack is a frozen dataclass of its settings, and `registry` knows it by name. The names in
`__init__.pyi` are imported on first use (PEP 562), so that the command line can list attacks without importing torch.
"""

from advbnn.lazy import names_in_stub

__all__, __getattr__ = names_in_stub(__name__, __file__)
