"""The public names of the package are imported when they are first used."""

import importlib
import pkgutil
import subprocess
import sys
from types import ModuleType

import advbnn


def test_import_and_dir_do_not_import_torch() -> None:
    code = "import sys, advbnn; assert {'fit', 'data'} <= {*dir(advbnn)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_every_public_name_resolves() -> None:
    for name in advbnn.__all__:
        assert getattr(advbnn, name) is not None
    assert advbnn.layers is importlib.import_module("advbnn.bayes.layers")
    assert not hasattr(advbnn, "nonsense")


def test_submodules_are_attributes_without_an_import() -> None:
    code = "import advbnn; advbnn.evaluation.uncertainty.uncertainty; advbnn.attacks.adapters; advbnn.data.streams"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    for room in (advbnn.attacks, advbnn.evaluation):
        assert not hasattr(room, "nonsense")


def test_no_function_shadows_a_module() -> None:
    for package in pkgutil.walk_packages(advbnn.__path__, "advbnn."):
        if package.ispkg:
            room = importlib.import_module(package.name)
            for module in pkgutil.iter_modules(room.__path__):
                found = vars(room).get(module.name)
                assert found is None or isinstance(found, ModuleType), f"{package.name}.{module.name}"
