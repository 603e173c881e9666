"""Trains defences of the leaderboard by their recipes and measures them: a row after the other, in one process.

    python benchmarks/leaderboard.py adv pni rpf --root /data/cifar10 --runs runs/board

A row is two commands, which are printed: `advbnn train` of its recipe, and `advbnn leaderboard measure` beside its
baseline, which is a row too, trained and measured before if its run has no records. One process imports torch and
starts the GPU once; several processes with the same command share the rows, as each takes the next free one. A row
that fails does not stop the others. Finished work is kept, and everything resumes: the same command again goes on with
what is missing. Of a finished row, configuration and records are copied to `--results`, and its entry is written to
`--entries`.
"""

import argparse
import os
import shlex
import shutil
import sys
import time
import traceback
from contextlib import AbstractContextManager
from pathlib import Path

from advbnn.cli.app import app
from advbnn.cli.common import RECORDS
from advbnn.defenses.registry import PUBLISHED
from advbnn.display.progress import duration
from advbnn.errors import InUseError
from advbnn.machine.files import locked_folder

ROOT = Path(__file__).parents[1]

CONFIGS = {name: ROOT / (published.recipe or f"configs/cifar10-{name}.toml") for name, published in PUBLISHED.items()}
"""How rows are trained; that of a post-hoc defence does not exist, as it is put onto the row `none`."""


def advbnn(*words: str) -> None:
    """Run a command in this process; records hold it."""
    started, sys.argv = time.perf_counter(), ["advbnn", *words]
    print(f"$ {shlex.join(sys.argv)}", flush=True)
    if code := app(words, standalone_mode=False):  # after an error, which it has shown
        raise SystemExit(code)
    print(f"  took {duration(time.perf_counter() - started)}", flush=True)


def train(name: str, given: argparse.Namespace) -> Path:
    """The run of a row; a post-hoc defence has that of the network without a defence."""
    if not PUBLISHED[name].trained and name != "none":
        return train("none", given)
    out: Path = given.runs / name
    settings = [word for setting in given.settings for word in ("--set", setting)]
    advbnn("train", str(CONFIGS[name]), "--out", str(out), "--resume", *settings)
    return out


def measure(name: str, given: argparse.Namespace) -> None:
    """The entry of a row, and the files that it was made from."""
    run = train(name, given)
    words = [name, str(run), "--entries", str(given.entries), *given.options]
    if PUBLISHED[name].baseline and run.name == name:
        words += ["--baseline", str(baseline(PUBLISHED[name].baseline, given))]
    advbnn("leaderboard", "measure", *words)
    kept = given.results / run.name
    kept.mkdir(parents=True, exist_ok=True)
    for file in ("config.toml", RECORDS):
        shutil.copy(run / file, kept)


def baseline(name: str, given: argparse.Namespace) -> Path:
    """The run of a baseline, after it was measured, by this process or another."""
    run: Path = given.runs / name
    with taken(name, given, wait=True):
        if not (run / RECORDS).is_file():
            measure(name, given)
    return run


def taken(name: str, given: argparse.Namespace, wait: bool = False) -> AbstractContextManager[None]:
    """Keeps a row for this process."""
    return locked_folder(given.runs / "rows" / name, wait)


def main() -> None:
    rows = [name for name in PUBLISHED if CONFIGS[name].suffix == ".toml"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="+", choices=rows, metavar="ROW", help=", ".join(rows))
    parser.add_argument("--root", help="folder of CIFAR-10")
    parser.add_argument("--runs", type=Path, default=Path("runs/board"))
    parser.add_argument("--results", type=Path, default=Path("results/leaderboard"))
    parser.add_argument("--entries", type=Path, default=Path("leaderboard"))
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE", help="for training")
    given, given.options = parser.parse_known_args()  # what is left is for `advbnn leaderboard measure`
    if given.root is not None:
        os.environ["ADVBNN_DATA"] = given.root
    failed = []
    for name in given.rows:
        try:
            with taken(name, given):
                measure(name, given)
        except InUseError:
            print(f"{name}: another process has it", flush=True)
        except SystemExit:  # of a command, which has said why
            failed.append(name)
        except Exception:
            traceback.print_exc()
            failed.append(name)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
