"""How the models of a report look: name, order, and the colour and marker of each on every plot."""

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from advbnn.training.run_folder import CONFIG, FACTS, run_label

TITLES = {"none": "No defence", "rse": "RSE", "adv": "Adv. training", "bnn": "BNN", "adv_bnn": "Adv-BNN"}
"""The paper's five defences in its order; other models are named by their label."""

# For light and dark mode. The first five, of the defences above, can be told apart by colour-blind readers, and all
# have enough contrast for text.
_COLOURS = (
    ("#6a6f76", "#94989f"),
    ("#925aa6", "#d9a9e6"),
    ("#1442a0", "#5a9bff"),
    ("#2c8254", "#4fd394"),
    ("#bf5504", "#ee8a45"),
    ("#6f2a0a", "#ece27a"),
    ("#0f7484", "#66d0de"),
    ("#33302b", "#d8d4ca"),
)
_MARKERS = "oDs^vPX*"

_LAST = " (last)"  # the suffix of a label when the last epoch was evaluated, not the best


@dataclass(frozen=True)
class Look:
    """The look of one model: its label in records, its title, its CSS variable, colours and matplotlib marker."""

    label: str
    title: str
    variable: str
    light: str
    dark: str
    marker: str

    @property
    def css(self) -> str:
        """The colour in CSS, which follows light and dark mode."""
        return f"var({self.variable}, {self.light})"


def looks(labels: Iterable[str], defenses: Mapping[str, str] | None = None) -> dict[str, Look]:
    """The look of every label: the paper's defences first, each in its own colour, then the others in order.

    `defenses` holds the defences of models by label, where known; see `defenses_in`.
    """
    distinct = list(dict.fromkeys(labels))
    known = [label for label in TITLES if label in distinct]
    others = [label for label in distinct if label not in TITLES]
    taken = [list(TITLES).index(label) for label in known]
    free = [index for index in range(len(_COLOURS)) if index not in taken]
    # colours that no defence of this report uses, those reserved for defences last
    free.sort(key=lambda index: index < len(TITLES))
    indices = [*taken, *(free[i % len(free)] for i in range(len(others)))]
    titles = {label: _title(label, (defenses or {}).get(label)) for label in distinct}
    often = Counter(titles.values())
    found = {}
    for label, index in zip([*known, *others], indices, strict=True):
        title = titles[label] if often[titles[label]] == 1 else label
        light, dark = _COLOURS[index]
        found[label] = Look(label, title, f"--model-{index}", light, dark, _MARKERS[index])
    return found


def defenses_in(folder: Path) -> dict[str, str]:
    """The defence of a run folder and of those in its folder `runs`, by label; of several modes, with their number."""
    found: dict[str, str] = {}
    for run in (folder.resolve(), *sorted((folder / "runs").glob("*"))):
        if (run / CONFIG).is_file() and (run / FACTS).is_file():
            # without a readable config the label is enough
            with suppress(UnicodeDecodeError, tomllib.TOMLDecodeError, KeyError):
                settings = tomllib.loads((run / CONFIG).read_text(encoding="utf-8"))
                defense = str(settings["defense"])
                if isinstance(modes := settings.get("modes"), dict) and modes.get("count", 1) != 1:
                    defense = f"{modes['count']} modes of {TITLES.get(defense, defense)}"
                found |= {(label := run_label(run)): defense, f"{label}{_LAST}": defense}
    return found


def _title(label: str, defense: str | None) -> str:
    if defense is None or defense == label:
        return TITLES.get(label, label)
    if label.startswith(f"{defense} "):  # with a suffix
        return TITLES.get(defense, defense) + label.removeprefix(defense)
    folder = label.removesuffix(_LAST)
    return f"{TITLES.get(defense, defense)} ({folder}{', last' if label.endswith(_LAST) else ''})"
