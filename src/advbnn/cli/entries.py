"""Entries of the leaderboard as files, for `advbnn audit --about` and the commands of `advbnn leaderboard`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from advbnn.errors import ArgumentError
from advbnn.names import AUDIT_LEVELS

if TYPE_CHECKING:
    from advbnn.attacks.threat import Threat
    from advbnn.evaluation.records import Record, Records
    from advbnn.leaderboard.entry import Entry
    from advbnn.leaderboard.from_records import About

IMAGES, LEVEL = 1000, "standard"
"""What the audits of the board's own entries have at least."""


@dataclass(frozen=True, kw_only=True)
class Description:
    """What an entry has besides the records of its audit: what its author says, and the audit of its baseline."""

    about: "About"
    baseline: "Record | None"
    source: Path

    @classmethod
    def read(
        cls,
        about: Path,
        baseline: Path | None,
        eps: float | None,
        of: "tuple[Threat, str] | None" = None,
        n: int | None = None,
    ) -> "Description":
        """`of` is the threat and the level of the audit of the entry, if there may be others, and `n` its images."""
        from advbnn.leaderboard.from_records import audit_in, read_about

        said = read_about(about)
        if baseline is not None and not said.baseline:
            raise ArgumentError(f"{about}: baseline: expected the id of the entry of --baseline, got none; add it")
        audited = None
        if baseline is not None:
            where = str(baseline) if of is None else f"{baseline}, at level {of[1]} in {of[0].norm},"
            audited = audit_in(_records(baseline, of), None, eps, where)
            if n not in (None, audited.n):
                images = f"{audited.n:,} images, and this audit is on {n:,}"
                raise ArgumentError(f"--baseline {baseline} was audited on {images}; audit both on as many (--limit)")
        return cls(about=said, baseline=audited, source=about)


def _records(path: Path, of: "tuple[Threat, str] | None") -> "Records":
    from advbnn.cli.report import read_records
    from advbnn.leaderboard.from_records import with_one_audit

    found = read_records(path)
    return found if of is None else with_one_audit(found, *of)


def write_entry(
    records: Path,
    description: Description,
    folder: Path,
    *,
    label: str | None,
    eps: float | None,
    of: "tuple[Threat, str] | None" = None,
) -> None:
    """Make the entry of a model from the records of its audit; see `Description.read`."""
    from advbnn.leaderboard.from_records import entry_of

    said, baseline = description.about, description.baseline
    if said.baseline and baseline is None:
        names = f"{description.source} names the baseline {said.baseline}"
        typer.echo(f"warning: {names}; without --baseline, there is no difference to it", err=True)
    save_entry(entry_of(_records(records, of), said, label=label, baseline=baseline, eps=eps), folder)


def save_entry(made: "Entry", folder: Path) -> None:
    """Write a new entry, and say where its audit is smaller than those of the board."""
    from advbnn.machine.files import locked_file

    worst = made.worst_case
    if worst is not None and (worst.n < IMAGES or worst.level in AUDIT_LEVELS[: AUDIT_LEVELS.index(LEVEL)]):
        audited = f"audited on {worst.n:,} images at level {worst.level}"
        typer.echo(f"warning: {made.id} is {audited}; the board's entries have {IMAGES:,} at {LEVEL}", err=True)
    folder.mkdir(parents=True, exist_ok=True)
    with locked_file(folder / f"{made.id}.json"):
        write_locked(made, folder)


def write_locked(made: "Entry", folder: Path) -> None:
    """Write an entry whose file this process has locked."""
    from advbnn.leaderboard.entry import save

    path = folder / f"{made.id}.json"
    save(made, path)
    worst = made.worst_case
    number = "" if worst is None else f", worst case {100 * worst.accuracy:.1f} % at level {worst.level}"
    typer.echo(f"{path}: {made.name}, {made.status}{number}")
