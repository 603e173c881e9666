"""Writes the results of a reproduction: figures, the table and the claims in markdown, and the report."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from advbnn.machine.files import write_atomically
from advbnn.paper.claims import Claim, check_claims
from advbnn.paper.evidence import Evidence
from advbnn.paper.figures import FIGURES, draw_all
from advbnn.paper.tables import claims_table, table1
from advbnn.paper.verdicts import VERDICTS
from advbnn.report import AttackedImage, write_report
from advbnn.report.elements import Section, escaped
from advbnn.report.render import code
from advbnn.report.style import defenses_in

RESULTS = "results.md"

_WORDS = (
    "Every measurable claim of the paper, with the verdict of this reproduction. Claims about stronger attacks, which "
    "the paper does not make itself, are included: a gain that only the paper's attack shows is not a gain in "
    "robustness."
)


def write_all(out: Path, images: Sequence[AttackedImage] = (), figures: Path | None = None) -> Path:
    """Writes figures, `results.md` and the report of the reproduction in `out`; returns the path of the report."""
    evidence = Evidence.read(out)
    claims = check_claims(evidence)
    drawn = draw_all(evidence, figures or out / "figures")
    links = {name: Path(os.path.relpath(path, out)).as_posix() for name, path in drawn.items()}
    write_atomically(out / RESULTS, results(evidence, claims, links).encode())
    checked = [Section(name="paper", title="The paper's claims", words=[_WORDS], tables=[claims_table(claims)])]
    return write_report(
        evidence.records, out / "report", images, defenses_in(out), table=table1(evidence), claims=checked
    )


def verdicts_in_words(claims: Sequence[Claim]) -> str:
    """How many claims have which verdict."""
    counts = {verdict: sum(claim.verdict == verdict for claim in claims) for verdict in VERDICTS}
    return f"Verdicts on the paper's claims: {', '.join(f'{n} {verdict}' for verdict, n in counts.items() if n)}."


def results(evidence: Evidence, claims: Sequence[Claim], figures: Mapping[str, str]) -> str:
    """The results in markdown, with links to the figures by name."""
    experiment = evidence.experiment
    commands = dict.fromkeys(record.command for record in evidence.records if record.command)
    changed = escaped(", ".join(experiment.settings))
    pictures = {name: f"![{FIGURES[name][0]}]({link})\n\n{FIGURES[name][0]}." for name, link in figures.items()}
    parts = [
        f"# The paper on {escaped(Path(experiment.data).name)}, profile `{experiment.profile}`",
        verdicts_in_words(claims),
        f"Settings changed from the profile: {changed}." if changed else "All settings are those of the profile.",
        "" if evidence.paper else "The paper has no numbers for this data.",
        "## Table 1",
        pictures.pop("table1", ""),
        table1(evidence).markdown().strip(),
        "## Claims",
        claims_table(claims).markdown().strip(),
        "## Figures" if pictures else "",
        *pictures.values(),
        f"## Commands\n\n{code(list(commands))}" if commands else "",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"
