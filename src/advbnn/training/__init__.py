"""Training: `fit(net, data, defense)` runs Algorithm 1 and returns the trained network.

The call chain is `loop.fit -> state.TrainingState.advance -> step.EagerStep` (or its fast form, chosen by `engine`).
`config` has the settings of a run, `run_folder` and `checkpoint` its files, and `loading` reads the result back.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from advbnn.training.config import Config as Config
    from advbnn.training.config import load_config as load_config
    from advbnn.training.interrupts import Interrupted as Interrupted
    from advbnn.training.loading import Trained as Trained
    from advbnn.training.loading import load_trained as load_trained
    from advbnn.training.loop import FitResult as FitResult
    from advbnn.training.loop import fit as fit
    from advbnn.training.loop import fit_config as fit_config

_MODULES = {
    "config": ("Config", "load_config"),
    "interrupts": ("Interrupted",),
    "loading": ("Trained", "load_trained"),
    "loop": ("FitResult", "fit", "fit_config"),
}
__all__ = [name for names in _MODULES.values() for name in names]


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"advbnn.training.{module}"), name)
    raise AttributeError(f"module 'advbnn.training' has no attribute {name!r}")
