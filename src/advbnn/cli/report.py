"""advbnn report: an HTML page from records."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from advbnn.cli.options import Device, Root, checked, folder_to_write
from advbnn.errors import ArgumentError

if TYPE_CHECKING:
    from advbnn.attacks.threat import Threat
    from advbnn.evaluation.records import Records
    from advbnn.report import AttackedImage

_ATTACK = "PGD-20, 10 EOT samples"
_TWICE = "{} holds it too: leave one of the two out of the report, or measure both with the same settings"


def report(
    sources: Annotated[list[Path], typer.Argument(help="Run folders with records, or files of records.")],
    out: Annotated[
        Path,
        typer.Option(callback=checked(folder_to_write), help="The folder for report.html, report.md and report.csv."),
    ] = Path("report"),
    images: Annotated[
        int, typer.Option(min=0, help="Test images shown under attack for each run folder; 0 for none.")
    ] = 3,
    root: Root = None,
    device: Device = None,
) -> None:
    """Write a page with tables and plots of everything that was measured."""
    from advbnn.report import write_report
    from advbnn.report.sections.headline import middle_threat
    from advbnn.report.select import labels_of
    from advbnn.training.run_folder import CONFIG, run_label

    records, defenses = collected(sources)
    threat = middle_threat(records)
    labels = labels_of(records)
    runs = [source for source in sources if (source / CONFIG).is_file() and run_label(source) in labels]
    shown = _attacked(runs, threat, images, root, device) if threat is not None and images else []
    typer.echo(f"{write_report(records, out, shown, defenses=defenses)}: {len(records)} records")


def collected(sources: Sequence[Path]) -> "tuple[Records, dict[str, str]]":
    """The records of all sources, of one data set and without contradictions, and the defences by label."""
    from advbnn.evaluation.records import Records, check_same_settings
    from advbnn.report.select import check_one_data_set, labels_of
    from advbnn.report.style import defenses_in

    found = {source: read_records(source) for source in sources}
    check_one_network_per_label(found)
    records = Records()
    defenses: dict[str, str] = {}
    origin: dict[tuple[object, ...], Path] = {}
    for source, some in found.items():
        for record in some:
            before = origin.setdefault(record.key, source)
            check_same_settings(records.find(record), record, str(before), _TWICE.format(source))
        records += some
        known = defenses_in(source if source.is_dir() else source.parent)
        defenses |= {label: known[label] for label in labels_of(some) if label in known}
    check_one_data_set(records)
    return records, defenses


def read_records(source: Path) -> "Records":
    """The records of a run folder or of a file."""
    from advbnn.cli.common import RECORDS
    from advbnn.evaluation.records import Records
    from advbnn.paper.experiment import FILE
    from advbnn.training.run_folder import CONFIG

    if source.is_file():
        return Records.load(source)
    if (source / RECORDS).is_file():
        return Records.load(source / RECORDS)
    if (source / CONFIG).is_file():
        raise ArgumentError(f"{source} is a run without records; `advbnn evaluate {source}` makes them")
    if (source / FILE).is_file():
        raise ArgumentError(
            f"{source} is a reproduction, with a report by `advbnn reproduce`; give files of its records"
        )
    what = "is neither a run folder nor a file of records" if source.exists() else "does not exist"
    raise ArgumentError(f"{source} {what}; expected the folder of a run, or a file such as runs/adv_bnn/{RECORDS}")


def check_one_network_per_label(found: Mapping[Path, "Records"]) -> None:
    """Refuses two networks with one label, except in one reproduction, where those with different alphas share it."""
    from advbnn.paper.experiment import FILE

    first: dict[tuple[str, ...], tuple[str, Path]] = {}
    for source, records in found.items():
        home = source.resolve().parent.parent
        for record in records:
            # digests of the same weights differ between dtypes, and between versions that describe layers differently
            made_by = (record.versions.get(name, "").partition("+")[0] for name in ("torch", "advbnn"))
            comparable = (record.model.label, record.precision.partition(",")[0], *made_by)
            sha256, before = first.setdefault(comparable, (record.model.sha256, source))
            together = (home / FILE).is_file() and before.resolve().parent.parent == home
            if sha256 == record.model.sha256 or together:
                continue
            where = " and ".join(dict.fromkeys((str(before), str(source))))
            raise ArgumentError(
                f"label {record.model.label!r} is used for two networks in {where} (sha256 {sha256[:8]} and "
                f"{record.model.sha256[:8]}); rename the folder of one and evaluate it again, or leave it out"
            )


def _attacked(
    runs: Sequence[Path], threat: "Threat", count: int, root: Path | None, device: str | None
) -> list["AttackedImage"]:
    """The first test images of each run, attacked with averaged gradients."""
    from advbnn.attacks import PGD
    from advbnn.cli.common import device_or_first_gpu
    from advbnn.report import attacked_images
    from advbnn.training.loading import load_trained
    from advbnn.training.run_folder import run_label

    shown, attack = [], PGD(threat, steps=20, eot=10)
    for run in runs:
        trained = load_trained(run, device=device_or_first_gpu(device))
        test = trained.load_data(root).test
        rows = range(min(count, len(test)))
        shown += attacked_images(trained.model, test, attack, rows, name=_ATTACK, label=run_label(run))
    return shown
