"""Several modes against one network of the same cost: trains the rows by name and judges them.

    python benchmarks/modes.py train modes5 one --root /data/cifar10 --runs runs/modes
    python benchmarks/modes.py judge modes5 one --root /data/cifar10 --runs runs/modes --results results/modes \\
        --images 2000 --eps 8/255 0.035 --quick 0.015 0.055 0.07
    python benchmarks/modes.py compare modes5 one --results results/modes

Every row is `configs/cifar10-modes5.toml` with the settings below, which `advbnn train --set` takes too: the same
optimizer, batch, attack and number of held-out images. Unless a row says otherwise it costs 200 epochs of VGG16.
Training and judging resume. `compare` prints the differences of the first row and every other one, and their intervals.
`<!-- table: modes/paired:one,wide,modes5@8/255,0.035 -->` in README.md shows them; `advbnn tables` fills the table, and
render_results.py draws its picture.
"""

import argparse
import itertools
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from judge import add_options, judge

import advbnn
from advbnn.display.progress import duration
from advbnn.evaluation.comparison import compare
from advbnn.evaluation.records import Records
from advbnn.training import load_config, load_trained
from advbnn.training.config import Config
from advbnn.training.loop import fit_config

CONFIG = Path(__file__).parents[1] / "configs" / "cifar10-modes5.toml"
ONE = ("modes=1", "schedule.epochs=200")
SHORT, SHORT_MODES = ("modes=1", "schedule.epochs=90"), ("modes=3", "schedule.epochs=30")
AT_12 = ("attack.threat.eps=12/255", "attack.step_size=6/255")
AT_16 = ("attack.threat.eps=16/255", "attack.step_size=8/255")
AWP = ("awp=0.005", "awp_start=4")


@dataclass(frozen=True)
class Row:
    """A network of the comparison; `settings` change the configuration, as `--set` does."""

    title: str
    settings: tuple[str, ...]


ROWS = {  # the most decisive ones first
    "one": Row("one network of 200 epochs", ONE),
    "modes5": Row("five modes of 40 epochs", ()),
    # what modes gain beyond the radius of training, a larger radius may gain too
    "one_12": Row("one network of 200 epochs, trained at 12/255", (*ONE, *AT_12)),
    "modes5_12": Row("five modes of 40 epochs, trained at 12/255", AT_12),
    # and so may AWP: 16 passes per update instead of 13, where an input gradient is two
    "one_awp": Row("one network of 162 epochs with AWP", ("modes=1", "schedule.epochs=162", *AWP)),
    "modes5_awp": Row("five modes of 32 epochs with AWP", ("schedule.epochs=32", *AWP)),
    # where one network gains nothing from more training, modes may: on the digits and with few images they do
    "long": Row("one network of 270 epochs", ("modes=1", "schedule.epochs=270")),
    "long_modes3": Row("three modes of 90 epochs", ("modes=3", "schedule.epochs=90")),
    "long_12": Row("one network of 270 epochs, trained at 12/255", ("modes=1", "schedule.epochs=270", *AT_12)),
    "long_modes3_12": Row("three modes of 90 epochs, trained at 12/255", ("modes=3", "schedule.epochs=90", *AT_12)),
    "long_16": Row("one network of 270 epochs, trained at 16/255", ("modes=1", "schedule.epochs=270", *AT_16)),
    # 2.25 times as wide: the operations of five networks of 54 epochs
    "long_wide_12": Row(
        "one wide network of 54 epochs, trained at 12/255",
        ("modes=1", "architecture=wide_vgg16", "schedule.epochs=54", *AT_12),
    ),
    # the same question for less: 90 epochs in all
    "short": Row("one network of 90 epochs", SHORT),
    "short_modes3": Row("three modes of 30 epochs", SHORT_MODES),
    "short_12": Row("one network of 90 epochs, trained at 12/255", (*SHORT, *AT_12)),
    "short_modes3_12": Row("three modes of 30 epochs, trained at 12/255", (*SHORT_MODES, *AT_12)),
    "short_16": Row("one network of 90 epochs, trained at 16/255", (*SHORT, *AT_16)),
    "short_modes3_16": Row("three modes of 30 epochs, trained at 16/255", (*SHORT_MODES, *AT_16)),
    # 5.05 times the operations and weights of VGG16, for training as for prediction: those of five modes of 40 epochs
    "wide": Row("one wide network of 40 epochs", ("modes=1", "architecture=wide_vgg16")),
    "modes10": Row("ten modes of 20 epochs", ("modes=10", "schedule.epochs=20")),
    "modes2": Row("two modes of 100 epochs", ("modes=2", "schedule.epochs=100")),
    "snapshots": Row("five snapshots of 40 epochs", ("modes.count=5", "modes.how=snapshots")),
    "one_last": Row("one network of 200 epochs, without EMA", (*ONE, "averaging=none")),
    "adam": Row("one network of 200 epochs, Adam", (*ONE, "optimizer.kind=adam", "optimizer.lr=0.01")),
    # weights after epoch 150, at a fifth of the rate or more, and as many samples as modes; it can have neither EMA nor
    # early stopping
    "swag": Row(
        "SWAG around one mode of 200 epochs",
        (
            *ONE,
            "averaging=none",
            "early_stopping=none",
            "schedule.final=0.2",
            "swag.start=150",
            "swag.samples=5",
        ),
    ),
    # as configs/cifar10-adv_bnn-full_kl.toml: Adam, since SGD of the authors' code is for networks without a posterior
    "adv_bnn5": Row(
        "five Adv-BNNs of 40 epochs",
        (
            "defense=adv_bnn",
            "norm_scales=uniform",
            "objective.kl_scope=all",
            "objective.alpha=0.0002",
            "optimizer.lr=0.01",
            "early_stopping.samples=10",
        ),
    ),
    "wide_long": Row("one wide network of 200 epochs (five times the training)", (*ONE, "architecture=wide_vgg16")),
}


def config_of(name: str, seed: int, settings: list[str]) -> Config:
    """The configuration of a row."""
    return load_config(CONFIG, [*ROWS[name].settings, f"seed={seed}", *settings])


def place(name: str, seed: int) -> str:
    """The name of a row's run folder and of its file of records."""
    return name if seed == 0 else f"{name}-seed{seed}"


def title_of(name: str, seed: int) -> str:
    """How records call a row, or another run by the name of its folder."""
    title = ROWS[name].title if name in ROWS else name.replace("_", " ")
    return title if seed == 0 else f"{title}, seed {seed}"


def train(name: str, given: argparse.Namespace) -> None:
    """Train a row, or continue it."""
    root = [] if given.root is None else [f"root={given.root}"]
    config = config_of(name, given.seed, [*root, *given.settings])
    out, started = given.runs / place(name, given.seed), time.perf_counter()
    if name == "snapshots":
        begin_with_first_mode(given.runs / place("modes5", given.seed), out, config)
    fit_config(config, config.load_data(), out=out, resume=True, device=given.device)
    print(f"{name}: {ROWS[name].title}, {duration(time.perf_counter() - started)}", flush=True)


def begin_with_first_mode(modes: Path, out: Path, config: Config) -> None:
    """Copy the first of several modes, if it is finished: it is the first snapshot, of the same seed and settings."""
    first = Path("modes", "0")
    if out.exists() or not (modes / first / "model.safetensors").exists():
        return
    shutil.copytree(modes / first, out / first)
    shutil.copy(modes / "run.json", out)
    (out / "config.toml").write_text(config.to_toml())


def judge_row(name: str, given: argparse.Namespace) -> None:
    """Judge a row, or continue it."""
    folder = given.runs / place(name, given.seed)
    data = advbnn.data.load(given.data, root=given.root).test
    found = load_trained(folder, device=given.device)
    out = given.results / f"{place(name, given.seed)}.json"
    judge(found.model, data, given, title_of(name, given.seed), out)


def compare_rows(names: list[str], given: argparse.Namespace) -> None:
    """Print the difference of the first row and each other one, at every radius, by every judge."""
    files = [given.results / f"{place(name, given.seed)}.json" for name in names]
    first, *others = (Records.load(file) for file in files)
    for one in itertools.chain.from_iterable(compare(first, other) for other in others):
        print(one)


def add_places(parser: argparse.ArgumentParser, choices: Iterable[str] | None = None) -> None:
    """Adds the rows, the data, and where runs and records are."""
    parser.add_argument("rows", nargs="+", choices=choices, metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--root", default=None, help="folder of CIFAR-10")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--runs", type=Path, default=Path("runs/modes"))
    parser.add_argument("--results", type=Path, default=Path("results/modes"))
    parser.add_argument("--seed", type=int, default=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands: dict[str, Any] = {"train": train, "judge": judge_row, "compare": compare_rows}
    parser.add_argument("command", choices=commands)
    add_places(parser, ROWS)
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE", help="for training")
    add_options(parser)
    given = parser.parse_args()
    if given.command == "compare":
        compare_rows(given.rows, given)
        return
    for name in given.rows:
        commands[given.command](name, given)


if __name__ == "__main__":
    main()
