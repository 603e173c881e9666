"""`advbnn demo`: a plain network and an Adv-BNN on handwritten digits, before and after an attack."""

import torch
from torch import nn

from advbnn import data
from advbnn.attacks import PGD, Attack
from advbnn.evaluate import evaluate
from advbnn.profiles import defense
from advbnn.records import Record, Records
from advbnn.threat import Threat
from advbnn.train import fit

EPS = 0.15
SEED = 0
NAMES = {"none": "no defence", "adv_bnn": "Adv-BNN"}
ATTACKS: dict[str, Attack | None] = {
    "clean": None,
    "PGD-20": PGD(Threat("linf", EPS), steps=20, step_size=EPS / 10, random_start=False),
    "PGD-20, averaged": PGD(Threat("linf", EPS), steps=20, step_size=EPS / 10, eot=10),
}


def demo() -> None:
    """Train a plain network and an Adv-BNN on handwritten digits, attack both, and show what is left."""
    from rich.console import Console

    console = Console()
    # a network this small gains nothing from threads, and loses much where the cores are busy
    torch.set_num_threads(1)
    digits = data.load("digits")
    console.print(
        f"Digits: {len(digits.train):,} images to train on, {len(digits.test)} to test. An attack may change every "
        f"pixel by {EPS:.0%} of its range."
    )
    records: list[Records] = []
    for name, title in NAMES.items():
        console.print(f"\nTraining: {title}")
        how = defense(name, "digits")
        model = fit(how.build(classes=10, shape=(1, 8, 8), seed=SEED), digits, how, seed=SEED, progress=True).model
        console.print(f"Attacking: {title}")
        records.append(_evaluated(model, digits.test, title))
    console.print()
    console.print(_table(records))
    console.print(
        "In brackets 95 % intervals. PGD-20 is the paper's attack: one draw of the weights at every step. The averaged "
        "one takes each step along the mean gradient of ten draws. Both are scored by 20 fresh draws that the attack "
        "never saw."
    )


def _evaluated(model: nn.Module, test: data.ImageSet, label: str) -> Records:
    return evaluate(model, test, ATTACKS, samples=20, seeds=1, label=label, progress=True)


def _table(records: list[Records]) -> object:
    from rich.table import Table

    table = Table(title=f"Accuracy in % on {records[0][0].n} test images")
    table.add_column("")
    for name in ATTACKS:
        table.add_column(name, justify="right")
    for of_model in records:
        cells = [_percent(of_model.only(name=name)) for name in ATTACKS]
        table.add_row(of_model[0].model.label, *cells)
    return table


def _percent(record: Record) -> str:
    low, high = record.interval
    return f"{100 * record.accuracy:.1f} [{100 * low:.0f}-{100 * high:.0f}]"
