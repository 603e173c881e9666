"""advbnn leaderboard: check, make and lower entries, measure a defence, and build the page."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from advbnn.cli import options
from advbnn.cli.audit import AuditMeasurement
from advbnn.cli.entries import Description, save_entry, write_entry, write_locked
from advbnn.cli.groups import Subject
from advbnn.errors import ArgumentError, one_of
from advbnn.names import AUDIT_LEVELS, LEADERBOARD_STEPS, RULES

if TYPE_CHECKING:
    from advbnn.attacks.threat import Threat
    from advbnn.cli.common import Opened
    from advbnn.data.imageset import Examples
    from advbnn.defenses.published import Published
    from advbnn.evaluation.records import Record, Records
    from advbnn.leaderboard.entry import Cost
    from advbnn.leaderboard.from_records import About

FOLDER = Path("leaderboard")
_OF_ENTRY = "The classifier is that of the entry; leave this out."
Level = Annotated[str, options.named(AUDIT_LEVELS, "The level of the audit: {names}.")]


@dataclass(frozen=True, kw_only=True)
class Rescoring(AuditMeasurement):
    """As for audits, by the classifier of an entry, which options may repeat but not change."""

    samples: Annotated[int | None, options.count(_OF_ENTRY)] = None  # type: ignore[assignment]
    exact: Annotated[bool | None, typer.Option("--exact/--no-exact", help=_OF_ENTRY)] = None  # type: ignore[assignment]
    rule: Annotated[str | None, options.named(RULES, _OF_ENTRY)] = None  # type: ignore[assignment]


def check(entries: Annotated[list[Path], typer.Argument(help="Entries (JSON), or a folder of them.")]) -> None:
    """Check entries of the leaderboard: every field, and that their numbers agree with each other."""
    from advbnn.leaderboard.entry import load_all, load_with_baseline

    for path in entries:
        found = load_all(path) if path.is_dir() else [load_with_baseline(path)]
        for entry in found:
            worst = "" if entry.worst_case is None else f", worst case {100 * entry.worst_case.accuracy:.1f} %"
            typer.echo(f"{entry.id}: valid, {entry.status}{worst}")


def build(
    folder: Annotated[Path, typer.Argument(help="The folder of the entries.")] = FOLDER,
    out: Annotated[
        Path,
        typer.Option(
            callback=options.checked(options.folder_to_write), help="The folder for index.html and the other files."
        ),
    ] = Path("leaderboard-page"),
    docs: Annotated[
        str, typer.Option(metavar="URL", help="Where the documentation is, for links to it; without it there are none.")
    ] = "",
) -> None:
    """Build the page of the leaderboard, with Markdown, CSV and the figure beside it."""
    from advbnn.leaderboard.entry import load_all
    from advbnn.leaderboard.page import write_board

    entries = load_all(folder)
    typer.echo(f"{write_board(entries, out, docs)}: {len(entries)} entries")


def entry(
    records: Annotated[Path, typer.Argument(help="The records of an audit, or a run folder with them.")],
    about: Annotated[Path, options.ABOUT],
    baseline: options.Baseline = None,
    eps: Annotated[float | None, options.numeric("RADIUS", "The radius, if there are audits at several.")] = None,
    label: Annotated[str | None, typer.Option(help="The model, if the records are of several.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            callback=options.checked(options.folder_to_write),
            help="The folder for the entry; the current one by default.",
        ),
    ] = None,
) -> None:
    """Make the entry of a model from the records of its audit."""
    write_entry(records, Description.read(about, baseline, eps), out or Path(), label=label, eps=eps)


def rescore(
    *,
    path: Annotated[Path, typer.Argument(metavar="ENTRY", help="The entry to lower.")],
    subject: Subject,
    adversarial: Annotated[
        list[Path], typer.Option(help="A safetensors file of adversarial images of this network. May be repeated.")
    ],
    how: Rescoring,
) -> None:
    """Score adversarial images of anyone's on fresh random numbers; the entry is changed only if they lower it."""
    from advbnn.attacks.threat import Threat
    from advbnn.cli.common import open_run
    from advbnn.evaluation.identity import DataIdentity, ModelIdentity
    from advbnn.evaluation.rescoring import rescore as rescore_points
    from advbnn.leaderboard.entry import load
    from advbnn.leaderboard.from_records import check_subject, lowered
    from advbnn.machine.files import locked_file

    found = load(path)
    if found.worst_case is None:
        raise ArgumentError(f"{path}: status {found.status!r} has no worst case to lower; audit its network first")
    for name, value in found.classifier.items():
        if getattr(how, name) not in (None, value):
            raise ArgumentError(f"--{name}: the classifier is that of the entry, {name}={value}; leave the option out")
    with open_run(subject, how) as (opened, test, shared, leads):
        check_subject(found, ModelIdentity.of(opened.model), DataIdentity.of(test))
        threat = Threat(found.threat.norm, _exact_radius(found.threat.eps))
        if shared["rows"] is None and found.worst_case.n < len(test):
            shared["rows"] = range(found.worst_case.n)
        shared["out"] = how.out  # other points would be another measurement of the same name
        record = rescore_points(opened.model, test, threat, adversarial, **shared | found.classifier)
        if not leads:
            return
        with locked_file(path):
            found = load(path)  # another process may have lowered it meanwhile
            after = lowered(found, record)
            worst = "" if found.worst_case is None else f"worst case {100 * found.worst_case.accuracy:.1f} %, "
            before = f"{found.id}: {worst}with these points {100 * record.accuracy:.1f} %"
            if after is found:
                typer.echo(f"{before}; not lower by one image, the entry stays as it is")
            else:
                typer.echo(f"{before}; lowered")
                write_locked(after, path.parent)


def measure(
    *,
    name: Annotated[str, typer.Argument(help="A published defence, such as rpf; see advbnn.defenses.registry.")],
    subject: Subject,
    baseline: Annotated[
        Path | None,
        typer.Option(
            help="The run of the same training without randomness; post hoc: RUN by default. It is audited once: its "
            "records are kept in its folder."
        ),
    ] = None,
    level: Level = "standard",
    eps: Annotated[float | None, options.numeric("RADIUS", "Such as 8/255; the radius of training by default.")] = None,
    norm: options.Norm = "linf",
    steps: Annotated[int, options.count("Steps of PGD over EOT samples.")] = 20,
    only: Annotated[
        list[str] | None,
        options.named(LEADERBOARD_STEPS, "Measure this part alone, may be repeated: {names}; all by default."),
    ] = None,
    samples: Annotated[int | None, options.count("Passes of the classifier; those of the source by default.")] = None,
    seeds: Annotated[int, options.count("Repetitions with independent randomness.")] = 1,
    limit: options.Limit = 1000,
    batch_size: options.BatchSize = 250,
    out: options.Out = None,
    entries: options.Entries = None,
    device: options.Device = None,
    engine: options.Engine = "auto",
    precision: options.Precision = "full",
    gradients: options.Gradients = None,
) -> None:
    """Measure a defence for the leaderboard, and write its entry. An interrupted measurement resumes."""
    from advbnn.attacks.threat import Threat
    from advbnn.cli.common import open_run
    from advbnn.cli.groups import Measurement
    from advbnn.defenses.registry import PUBLISHED
    from advbnn.leaderboard.from_records import entry_of
    from advbnn.leaderboard.measure import measure as measure_defence
    from advbnn.machine.processes import world
    from advbnn.report.audited import worst_cases

    one_of("name", name, PUBLISHED)
    published = PUBLISHED[name]
    post_hoc = published.network is not None and not published.trained
    plain = Subject(run=baseline, root=subject.root) if baseline is not None else subject if post_hoc else None
    how = Measurement(
        samples=(passes := samples or published.samples),
        exact=passes > 1,  # a random choice of one network is another classifier than their mean
        seeds=seeds,
        limit=limit,
        batch_size=batch_size,
        out=out,
        device=device,
        engine=engine,
        precision=precision,
        gradients=gradients,
    )
    with open_run(subject, how) as (opened, test, shared, leads):
        threat = Threat(norm, eps if eps is not None else opened.radius(norm))
        shared["label"] = f"{name} on {shared['label']}" if post_hoc else shared["label"]
        parts = only or LEADERBOARD_STEPS
        measure_defence(published, opened.model, test, threat, level=level, steps=steps, only=parts, **shared)
        world().any(False)  # until the first process has written the records
        found = _records_in(shared["out"])
        if not worst_cases(found.where(label=shared["label"])):
            if leads:
                typer.echo(f"{shared['out']}: kept; the entry is written once the audit is done")
            return
        worst = None if plain is None else _baseline(plain, opened, test, threat, level, shared)
        if leads:
            said = _about(published, subject, plain, opened, test.name)
            made = entry_of(found, said, label=shared["label"], baseline=worst, eps=threat.eps)
            save_entry(made, entries or subject.run or Path())


def _baseline(
    plain: Subject, opened: "Opened", test: "Examples", threat: "Threat", level: str, shared: dict[str, Any]
) -> "Record":
    """The worst case of the network without randomness, from its own records if it was audited before."""
    from advbnn.cli.common import RECORDS, open_subject
    from advbnn.evaluation.audit.worst_case import audit
    from advbnn.evaluation.identity import ModelIdentity
    from advbnn.machine.processes import world
    from advbnn.modules import device_of
    from advbnn.report.audited import worst_cases
    from advbnn.training.run_folder import CHECKPOINTS, MODEL, run_label

    out = shared["out"] if plain.run is None else plain.run / RECORDS

    def audited(label: str, sha256: str = "") -> "Record | None":
        audits = [r for r in worst_cases(_records_in(out).where(label=label)) if (r.name, r.threat) == (level, threat)]
        return next((r for r in audits if sha256 in ("", r.model.sha256)), None)

    # of a run whose weights were not kept, the records stand for the network
    weights = plain.run is None or any((plain.run / name).exists() for name in (MODEL, CHECKPOINTS))
    if plain.run is not None and not weights and (found := audited(run_label(plain.run))) is not None:
        return found
    other = open_subject(plain, device_of(opened.model, test.device), world().leads)
    label = opened.label if plain.run is None else other.label
    if (found := audited(label, ModelIdentity.of(other.model).sha256)) is not None:
        return found
    return audit(other.model, test, threat, level, **shared | {"label": label, "samples": 1, "out": out}).records[0]


def _records_in(path: Path) -> "Records":
    from advbnn.evaluation.records import Records

    return Records.load(path) if path.is_file() else Records()


def _about(published: "Published", subject: Subject, plain: Subject | None, opened: "Opened", dataset: str) -> "About":
    from advbnn.leaderboard.from_records import about_published, data_set

    data = data_set(dataset)
    fields = {} if plain is None else {"baseline": f"{data}-{_defence_of(plain)}"}
    architecture, cost = _trained(subject)
    # a network from a file has that of its baseline, which is the same training without randomness
    architecture = architecture or (_trained(plain)[0] if plain else "") or type(opened.model).__name__
    return about_published(published, data, architecture, cost=cost, **fields)


def _trained(subject: Subject) -> "tuple[str, Cost | None]":
    """The architecture of a run, and what its training took: of several modes or particles, that of all of them."""
    from advbnn.defenses.ig_bnn import ParticleEnsemble
    from advbnn.leaderboard.entry import Cost
    from advbnn.training.run_folder import MODES, read_facts, stored_config

    if subject.run is None:
        return "", None
    trainings = sorted(config.parent for config in (subject.run / MODES).glob("*/config.toml")) or [subject.run]
    schedules = [stored_config(folder).defense.schedule for folder in trainings]
    epochs = [schedule.total_epochs - schedule.first_epoch for schedule in schedules]
    seconds = [_seconds(folder, count) for folder, count in zip(trainings, epochs, strict=True)]
    total = None if None in seconds else round(sum(filter(None, seconds)), 1)
    defense = stored_config(subject.run).defense
    # epochs of one network: all particles are trained in each
    particles = defense.network.count if isinstance(defense.network, ParticleEnsemble) else 1
    cost = Cost(epochs=particles * sum(epochs), seconds=total, device=str(read_facts(trainings[0]).get("device", "")))
    return defense.architecture, cost


def _seconds(folder: Path, epochs: int) -> float | None:
    """The time of so many epochs at the speed of a training, without its set-up; None if that is not known."""
    from advbnn.training.run_folder import METRICS, read_facts, read_metrics

    lines = read_metrics(folder / METRICS) if (folder / METRICS).is_file() else []
    speeds = [line["examples_per_second"] for line in lines if line.get("examples_per_second")]
    examples: int = epochs * read_facts(folder).get("data", {}).get("examples", 0)
    return examples * sum(1 / speed for speed in speeds) / len(speeds) if speeds and examples else None


def _defence_of(subject: Subject) -> str:
    """The entry of a run: by the name of its folder, if that is one of the leaderboard, or by its defence."""
    from advbnn.defenses.registry import PUBLISHED
    from advbnn.training.run_folder import stored_config

    if subject.run is None:
        return "none"
    folder = subject.run.resolve().name
    return folder if folder in PUBLISHED else stored_config(subject.run).defense.name


def _exact_radius(eps: float) -> float:
    """The radius of an entry, which has six digits; a whole number of steps of 1/255 is taken for that."""
    steps = round(255 * eps)
    return steps / 255 if abs(steps / 255 - eps) < 1e-6 else eps


COMMANDS: Sequence[Any] = (check, build, entry, rescore, measure)
