"""advbnn audit: the worst case over a suite of attacks, and signs that gradients mislead them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from advbnn.cli import options
from advbnn.cli.groups import Measurement, Subject
from advbnn.names import AUDIT_LEVELS

if TYPE_CHECKING:
    from advbnn.evaluation.audit.worst_case import Audit

QUICK_IMAGES = 200


@dataclass(frozen=True, kw_only=True)
class AuditMeasurement(Measurement):
    """As for other measurements, with one seed."""

    samples: Annotated[int, options.count("Weight samples of the classifier.")] = 20
    seeds: Annotated[int, options.count("Repetitions of the whole audit.")] = 1
    limit: Annotated[
        int | None, options.count(f"Use only the first N test images; by default {QUICK_IMAGES} at quick, else all.")
    ] = None


def audit(
    *,
    subject: Subject,
    level: Annotated[
        str, options.named(AUDIT_LEVELS, "{names}: quick for a first look, thorough for a publication.")
    ] = "standard",
    eps: options.Radii = None,
    norm: options.Norm = "linf",
    transfer_from: Annotated[
        list[Path] | None, typer.Option(help="Another run whose adversarial examples are tested too. May be repeated.")
    ] = None,
    points: options.Points = None,
    save_points: Annotated[
        Path | None,
        typer.Option(
            callback=options.checked(options.file_to_write, "--save-points", "points.safetensors"),
            help="Keep all adversarial images in this file.",
        ),
    ] = None,
    about: Annotated[Path | None, options.ABOUT] = None,
    baseline: options.Baseline = None,
    entries: options.Entries = None,
    how: AuditMeasurement,
) -> None:
    """Attack a run, or a network of your own, in many ways, and measure its accuracy at the worst points.

    It also checks whether gradients mislead the attacks. Under torchrun it uses all of its processes. An interrupted
    audit resumes. With --about it also writes an entry of the leaderboard.
    """
    from advbnn.attacks.threat import Threat
    from advbnn.cli.common import first_rows, open_run
    from advbnn.cli.entries import Description, write_entry
    from advbnn.evaluation.audit.worst_case import audit as audit_model
    from advbnn.modules import device_of
    from advbnn.training.loading import load_trained
    from advbnn.training.run_folder import run_label

    options.refuse_larger_than_images(norm, eps or ())
    _refuse_without_about(about, baseline, entries, eps or ())
    how = replace(how, limit=QUICK_IMAGES if how.limit is None and level == "quick" else how.limit)
    with open_run(subject, how) as (opened, test, shared, leads):
        place, radii = device_of(opened.model, test.device), list(dict.fromkeys(eps or [opened.radius(norm)]))
        of = Threat(norm, radii[0]), level
        # what can be refused is refused before the audit, which may take hours
        images = len(first_rows(test, how.limit) or test)
        description = None if about is None else Description.read(about, baseline, radii[0], of, images)
        found = audit_model(
            opened.model,
            test,
            [Threat(norm, radius) for radius in radii],
            level,
            transfer_from={run_label(other): load_trained(other, device=place).model for other in transfer_from or ()},
            points=points or (),
            save_points=save_points,
            **shared,
        )
        if leads:
            show_audit(found)
        if leads and description is not None:
            folder = entries or subject.run or Path()
            write_entry(Path(shared["out"]), description, folder, label=opened.label, eps=radii[0], of=of)


def _refuse_without_about(
    about: Path | None, baseline: Path | None, entries: Path | None, radii: Sequence[float]
) -> None:
    """Refuses options of an entry without one, and an entry of several radii."""
    for option, value in {"--baseline": baseline, "--entries": entries}.items():
        if about is None and value is not None:
            raise typer.BadParameter(f"{option} goes with --about, which makes an entry of the leaderboard; give both")
    if about is not None and len(radii) > 1:
        problem = f"an entry has one radius, got {len(radii)}; give one --eps"
        raise typer.BadParameter(
            f"{problem}, or audit without --about and make each entry by advbnn leaderboard entry --eps",
            param_hint="'--about'",
        )


def show_audit(found: "Audit") -> None:
    from rich.table import Table

    from advbnn.cli.common import console
    from advbnn.evaluation.audit.attack_suite import ROLES

    output = console()
    for record in found.records:
        table = Table("attack", "kind", "still correct", box=None)
        for attack in record.details["attacks"]:
            n, correct = sum(attack["n"]), sum(attack["correct"])
            left = f"{100 * correct / n:.1f} %" if attack["on"] == "all" else f"{correct} of {n} survivors"
            left += f" ({sum(attack['left_out']):,} not tried)" if "left_out" in attack else ""
            table.add_row(attack["name"], ROLES.get(attack["role"], attack["role"]), left)
        output.print(table)
        if record.ensembles > 1:
            scored = f"single attacks by one ensemble, the worst case by {record.ensembles} others"
            output.print(f"scored {scored}; survivors are the images that earlier attacks left", highlight=False)
    output.print(str(found), markup=False, highlight=False)
