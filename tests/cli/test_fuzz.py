"""Wrong values for every option of every command and for every key of a configuration.

Each gives one clear line or a run, never a traceback or a hang. A hundred are tried here, all of them by `make fuzz`.
"""

import json
import shutil
import traceback
import typing
import urllib.request
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from advbnn.cli.app import app
from advbnn.defenses import config_io
from advbnn.defenses.defense import Defense
from advbnn.evaluation.audit.attack_suite import LEVELS, Level
from advbnn.training.config import Config
from fuzzing import WRONG, bad_outcomes, printable, some
from images import save

pytestmark = pytest.mark.filterwarnings("ignore")  # few images, and attacks without gradients

_SMALL = "--limit 3 --samples 1 --seeds 1 --device cpu --out records.json"
COMMANDS = {
    "evaluate": f"robust --attack pgd --steps 1 --eps 0.05 {_SMALL}",
    "audit": f"robust --level quick --eps 0.05 {_SMALL}",
    "curve": f"robust steps --at 1 --attack pgd --eps 0.05 {_SMALL}",
    "compare": f"plain robust --attack pgd --steps 1 --eps 0.05 {_SMALL}",
    "transfer": f"plain robust --attack pgd --steps 1 --eps 0.05 {_SMALL}",
    "uncertainty": f"robust --attack pgd --steps 1 --eps 0.05 {_SMALL}",
    "predict": "robust image.png --samples 1 --device cpu",
    "play": "robust --no-browser --device cpu",
    "report": "measured --images 0 --device cpu --out report",
    "table": "measured --format csv --figure picture.svg",
    "tables": "document.md --results results --check",
    "train": "small.toml --device cpu --out run",
    "reproduce": "table1 --data digits --no-estimate --dry-run --device cpu --jobs 1 --out reproduced",
    "data download": "cifar10 --root data",
    "leaderboard check": "board",
    "leaderboard build": "board --out page",
    "leaderboard entry": "audited.json --about about.toml --out board",
    "leaderboard rescore": f"board/digits-robust.json robust --adversarial points.safetensors {_SMALL}",
    "leaderboard measure": f"adv_bnn robust --level quick --eps 0.05 --steps 1 --only eot --entries made {_SMALL}",
}
"""The arguments of a small, valid call of every command, in the folder `place`."""

SMALL = """
data = "pictures"
like = "digits"
defense = "adv_bnn"
architecture = "mlp"
batch_size = 4
schedule = {kind = "constant", epochs = 1}
attack = {steps = 1}
"""

ABOUT = """
id = "digits-robust"
name = "Robust"
paper = "none"
kind = "trained"
architecture = "mlp"
random = "all weights"
redrawn = "every forward pass"
"""


@pytest.fixture(scope="module")
def place(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that `COMMANDS` names."""
    folder = tmp_path_factory.mktemp("fuzz")
    for run in trained.iterdir():
        shutil.copytree(run, folder / run.name)
    pixels = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3), np.uint8)
    for number, picture in enumerate(pixels):
        for split in ("train", "test"):
            save(folder / "pictures" / split / "ab"[number % 2] / f"{number}.png", picture)
    save(folder / "image.png", 100, size=8)
    (folder / "small.toml").write_text(SMALL)
    (folder / "document.md").write_text("<!-- table: nothing/summary -->\n\n<!-- end -->\n")
    (folder / "results").mkdir()
    shutil.copytree(folder / "robust", folder / "measured")
    arguments = COMMANDS["evaluate"].replace("robust", "measured").replace("records.json", "measured/records.json")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert CliRunner().invoke(app, ["evaluate", *arguments.split()]).exit_code == 0
        for name, level in LEVELS.items():
            small = {one.name: _few(level, one.name) for one in fields(level)}
            patch.setitem(LEVELS, name, replace(level, **small))
        (folder / "about.toml").write_text(ABOUT)
        audit = COMMANDS["audit"].replace("records.json", "audited.json --save-points points.safetensors")
        for call in (f"audit {audit}", f"leaderboard entry {COMMANDS['leaderboard entry']}"):
            assert CliRunner().invoke(app, call.split()).exit_code == 0
    return folder


@pytest.fixture(autouse=True)
def working_in(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A working folder, tiny audits, and no network."""

    def unreachable(*_: object, **__: object) -> None:
        raise OSError("no network in tests")

    for name, level in LEVELS.items():
        monkeypatch.setitem(LEVELS, name, replace(level, **{one.name: _few(level, one.name) for one in fields(level)}))
    monkeypatch.setattr(urllib.request, "urlopen", unreachable)
    monkeypatch.setattr("advbnn.data.download.time.sleep", lambda _: None)
    for name in ("page.check_gradio", "page.build", "server.serve"):
        monkeypatch.setattr(f"advbnn.play.{name}", lambda *_, **__: None)
    monkeypatch.chdir(place)
    yield


def _few(level: Level, name: str) -> Any:
    """A setting of an audit so small that its numbers mean little."""
    value = getattr(level, name)
    if isinstance(value, tuple):
        return tuple(min(one, rank) for rank, one in enumerate(value, 1))
    return min(value, 2 if name == "nes_directions" else 12) if isinstance(value, int) else value


def outcome(arguments: list[str], named: tuple[str, ...]) -> tuple[str, str]:
    """What becomes of a command; a refusal is one line that has one of the names."""
    before = set(Path.cwd().iterdir())
    result = CliRunner().invoke(app, arguments)
    for path in set(Path.cwd().iterdir()) - before:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        return "traceback", "".join(traceback.format_exception(result.exception))
    if result.exit_code == 0:
        return "ran", ""
    lines = [line for line in result.output.splitlines() if line.startswith("error: ")]
    clear = len(lines) == 1 and any(name in lines[0] for name in named) and result.exit_code in (1, 2)
    return ("refused" if clear else "unclear"), result.output


def every_command() -> dict[str, Any]:
    commands: dict[str, Any] = dict(get_command(app).commands)  # type: ignore[attr-defined]
    for group in ("data", "leaderboard"):
        commands |= {f"{group} {name}": command for name, command in commands.pop(group).commands.items()}
    return commands


def option_cases() -> list[tuple[list[str], tuple[str, ...]]]:
    """Every option and argument of every command with every wrong value, and the names that a refusal may use."""
    cases = []
    for name, command in every_command().items():
        call, place_of = [*name.split(), *COMMANDS[name].split()], len(name.split())
        for parameter in command.params:
            for value in WRONG:
                if parameter.param_type_name == "option":
                    arguments = [*call, f"{parameter.opts[0]}={value}"]
                else:
                    arguments = [*call[:place_of], value, *call[place_of + 1 :]]
                # a value of an argument that begins with a dash is an option, one of --set begins with a key
                named = (
                    parameter.opts[0],
                    parameter.name,
                    parameter.metavar or parameter.name,
                    value[:10] or ".",
                    printable(value),
                    "No such option",
                    "key=",
                    *(["no records of 'nothing'"] if name == "tables" else []),  # as its small call is refused
                )
                cases.append((arguments, named))
            place_of += parameter.param_type_name == "argument"
    return cases


def key_cases() -> list[tuple[list[str], tuple[str, ...]]]:
    """Every key of a configuration with every wrong value."""
    keys = [(key, []) for key in ("defense", *config_io.field_names(Config)) if key != "name"] + list(_keys(Defense))
    call = ["train", *COMMANDS["train"].split()]
    return [
        ([*call, *(word for one in kinds for word in ("--set", one)), "--set", f"{key}={value}"], names_of(key))
        for key, kinds in keys
        for value in WRONG
    ]


def names_of(key: str) -> tuple[str, ...]:
    return (*key.split("."), "defence" if key == "defense" else key)


_WITH = {
    "noisy": ["architecture=small_cnn"],
    "langevin": ["network.kind=plain"],
    "stages": ["schedule.epochs=[1]"],
    "cosine": ["schedule.epochs=1"],
    "one_cycle": ["schedule.epochs=1"],
}
"""What a kind needs besides, for a short run."""


def _keys(cls: Any, path: str = "", kinds: tuple[str, ...] = ()) -> Iterator[tuple[str, list[str]]]:
    """Every key of a dataclass, with the settings that choose its kind."""
    hints = typing.get_type_hints(cls)
    for name in config_io.field_names(cls):
        key = f"{path}{name}"
        yield key, list(kinds)
        options = typing.get_args(hints[name]) or (hints[name],)
        for option in options:
            if is_dataclass(option):
                chosen = (f"{key}.kind={config_io.kind_of(option)}",) if len(options) > 1 else ()
                yield from _keys(option, f"{key}.", (*kinds, *chosen, *_WITH.get(config_io.kind_of(option), ())))


def test_small_calls_are_valid(place: Path) -> None:
    for name, arguments in COMMANDS.items():
        if name not in ("tables", "data download"):
            assert outcome([*name.split(), *arguments.split()], ("",)) == ("ran", ""), name
    assert set(COMMANDS) == set(every_command())
    assert json.loads((place / "measured" / "records.json").read_text())


def test_options() -> None:
    assert bad_outcomes("options of the command line", some(option_cases(), 100), lambda case: outcome(*case)) == []


def test_keys() -> None:
    assert bad_outcomes("keys of a configuration", some(key_cases(), 100), lambda case: outcome(*case)) == []
