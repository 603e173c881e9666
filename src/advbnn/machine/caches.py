"""Folders that keep Python's bytecode and torch's compiled code, so that a network is set up sooner the second time.

They lie in `advbnn` in the user's cache folder, `XDG_CACHE_HOME` or `~/.cache`. What the environment names is used
instead, and nothing changes where no folder can be made.
"""

import os
import sys
from importlib.util import find_spec
from pathlib import Path


def keep_compiled_code() -> None:
    """Torch's compiler keeps its code, of which the default folder is a temporary one; or `TORCHINDUCTOR_CACHE_DIR`.

    Torch writes its default into the environment, too: when an optimizer is made, for example.
    """
    given = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if given in (None, _temporary_folder()) and (folder := _folder("compiled")):
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder


def _temporary_folder() -> str | None:
    """Torch's default, if its compiler is loaded."""
    module = sys.modules.get("torch._inductor.runtime.cache_dir_utils")
    return module.default_cache_dir() if module else None


def keep_bytecode(package: str = "torch") -> None:
    """Python keeps the bytecode of packages that are read-only and installed without it; or `PYTHONPYCACHEPREFIX`.

    Otherwise every process compiles all sources of torch again. Child processes do the same.
    """
    if sys.pycache_prefix is None and not sys.dont_write_bytecode and _is_compiled_anew(package):
        sys.pycache_prefix = _folder("bytecode")
        if sys.pycache_prefix is not None:
            os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix


def _is_compiled_anew(package: str) -> bool:
    found = find_spec(package)
    if found is None or found.origin is None:
        return False
    place = Path(found.origin).parent
    return not (place / "__pycache__").exists() and not os.access(place, os.W_OK)


def _folder(name: str) -> str | None:
    try:
        given = Path(os.environ.get("XDG_CACHE_HOME", ""))
        place = (given if given.is_absolute() else Path.home() / ".cache") / "advbnn" / name
        place.mkdir(parents=True, exist_ok=True)
        return str(place) if os.access(place, os.W_OK) else None
    except (OSError, RuntimeError):  # no home folder
        return None
