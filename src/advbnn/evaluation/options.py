"""The keyword arguments that every evaluation takes, with their defaults."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

from torch import Tensor

from advbnn.errors import MOST_EXAMPLES, ArgumentError, ArgumentTypeError, one_of, positive_whole, shown, unknown
from advbnn.names import RULES
from advbnn.randomness import check_seed


class Options(TypedDict, total=False):
    """The keyword arguments of every evaluation.

    Attributes:
        samples: S, the number of weight samples of the classifier (eq. 18); 20 by default. A network with finite
            support, and not too many members, is not sampled: `samples` in its records is the number of members, and
            so is `members` in their details.
        exact: False for a classifier that picks S members of a finite support at random instead of averaging all.
        seeds: evaluation seeds, or how many: 0, 1, ...; 3 by default. Each crafts the attack again and scores it with
            its own S weight samples, the same for every batch and attack: each seed is one fixed ensemble.
        rule: how the outputs of the weight samples become a label, see `predict`; `"probability"` by default.
        batch_size: examples attacked at a time; 250 by default.
        rows: the examples to use, each of them once; all by default.
        label: the name of the model in records; its class by default.
        out: a file of records. Finished records are added to it and not measured again. Unfinished work is kept beside
            it, so that an interrupted evaluation resumes.
        progress: show progress and the remaining time.
        command: the command that makes these records again, to be stored in them.
        overwrite: replace records in `out` that have the same name and other settings; refused by default.
        engine: how the network runs, see `accelerate`. It is not a setting of a record, as all engines agree up to
            rounding, but is noted in its `versions`. Attacks from outside `advbnn.attacks` get the model itself, in
            evaluation mode and without gradients of its parameters.
        precision: `"full"`, or `"bf16"` for matrix products in bfloat16, which the records state; see `accelerate`.
        gradients: the precision of the gradients of attacks; as `precision` by default. `"bf16"` is faster on a GPU,
            and stated in the records. Attacks choose their points, and points are scored, in `precision` all the same.
    """

    samples: int
    exact: bool
    seeds: int | Sequence[int]
    rule: str
    batch_size: int
    rows: Sequence[int] | Tensor | None
    label: str | None
    out: str | Path | None
    progress: bool
    command: str
    overwrite: bool
    engine: str
    precision: str
    gradients: str | None


DEFAULTS: Options = {
    "samples": 20,
    "exact": True,
    "seeds": 3,
    "rule": "probability",
    "batch_size": 250,
    "rows": None,
    "label": None,
    "out": None,
    "progress": False,
    "command": "",
    "overwrite": False,
    "engine": "auto",
    "precision": "full",
    "gradients": None,
}


def with_defaults(options: Options) -> Options:
    """All options, checked; `accelerate` checks the engine and the precisions."""
    if extra := sorted(options.keys() - DEFAULTS.keys()):
        raise unknown("option", extra[0], DEFAULTS)
    given = DEFAULTS | options
    given["samples"] = positive_whole("samples", given["samples"])
    given["batch_size"] = positive_whole("batch_size", given["batch_size"], most=MOST_EXAMPLES)
    one_of("rule", given["rule"], RULES)
    flags = {name for name, usual in DEFAULTS.items() if isinstance(usual, bool)}
    for name, value in given.items():
        if name in flags and not isinstance(value, bool):
            raise ArgumentTypeError(f"{name} must be True or False, got {shown(value)}")
    return given


def seed_list(seeds: int | Sequence[int]) -> tuple[int, ...]:
    """The evaluation seeds: those given, or 0, 1, ... for a number of them."""
    one_count = not isinstance(seeds, Sequence) and getattr(seeds, "ndim", 0) == 0
    listed: Any = range(positive_whole("seeds", seeds)) if one_count else seeds
    found = tuple(check_seed(seed, "seeds") for seed in listed)
    if not found or len(set(found)) != len(found):
        raise ArgumentError(f"seeds must be a positive count or a list of distinct seeds, got {shown(seeds)}")
    return found
