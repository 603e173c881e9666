"""The public names of the package are imported when they are first used."""

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from types import FunctionType, ModuleType

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


ROOMS = (
    "bayes",
    "attacks",
    "defenses",
    "data",
    "models",
    "training",
    "evaluation",
    "evaluation.audit",
    "report",
    "fast",
)


def public_names(room: ModuleType) -> dict[str, object]:
    """The names that a package offers: its `__all__`, else what it defines and what it imports `as` itself."""
    names = getattr(room, "__all__", None)
    if names is None:
        body = ast.parse(Path(str(room.__file__)).read_text(encoding="utf-8")).body
        names = [alias.asname for node in body if isinstance(node, ast.ImportFrom) for alias in node.names]
        names += [node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    found = {name: getattr(room, name) for name in names if name and not name.startswith("_")}
    return {name: value for name, value in found.items() if not isinstance(value, ModuleType)}


def test_the_reference_has_every_public_name_once() -> None:
    pages = (Path(__file__).parent.parent / "docs" / "api").glob("*.md")
    listed = [entry for page in pages for entry in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)]
    documented: list[object] = []
    for entry in listed:
        module, _, name = entry.rpartition(".")
        if not isinstance(found := getattr(importlib.import_module(module), name), ModuleType):
            documented.append(found)
    rooms = [advbnn, *(importlib.import_module(f"advbnn.{room}") for room in ROOMS)]
    for room in rooms:
        for name, value in public_names(room).items():
            entries = [found for found in documented if found is value]
            assert len(entries) == 1, f"{room.__name__}.{name} is {len(entries)} times in docs/api"
    assert len({*listed}) == len(listed)


def test_everything_in_the_reference_is_explained() -> None:
    for room in (importlib.import_module(f"advbnn.{room}") for room in ROOMS):
        for name, value in public_names(room).items():
            if isinstance(value, type | FunctionType):
                assert value.__doc__, f"{room.__name__}.{name}"
