"""What a reproduction has found, written down: figures, the table and the claims in markdown, and the report."""

from collections.abc import Sequence
from pathlib import Path

from advbnn.files import write_atomically
from advbnn.paper.claims import Claim, judged
from advbnn.paper.evidence import Evidence
from advbnn.paper.figures import draw_all
from advbnn.paper.tables import claims_table, table1
from advbnn.paper.verdicts import NOT, PARTLY, REPRODUCED, UNDECIDED, UNMEASURED
from advbnn.report import AttackedImage, write_report
from advbnn.report.section import Section
from advbnn.report.style import defenses_in

RESULTS, FIGURES = "results.md", "figures"

_WORDS = (
    "Every claim of the paper that can be measured, and what the records of this reproduction say of it. Claims that "
    "the paper does not make itself, about stronger attacks, stand beside its own: a gain that only the paper's "
    "attack sees is none."
)

_CAPTIONS = {
    "table1": "Adversarial training and Adv-BNN: the paper's attack, averaged gradients, and the worst case",
    "fig2": "Figure 2: accuracy against the radius of the attack",
    "fig3": "Figure 3: how well attacks on one network work on another",
    "fig4": "Figure 4: the size of the ensemble, and the steps of the attack",
    "lipschitz": "Section 3: the local Lipschitz value on training and test images",
    "alpha": "Table 1, caption: what a smaller alpha does",
}


def write_all(out: Path, images: Sequence[AttackedImage] = ()) -> Path:
    """Writes all that can be said from the records in a folder; returns the path of the report.

    Args:
        out: the folder of a reproduction.
        images: single images to show in the report.
    """
    evidence = Evidence.read(out)
    claims = judged(evidence)
    drawn = draw_all(evidence, out / FIGURES)
    write_atomically(out / RESULTS, results(evidence, claims, drawn).encode())
    first = [section(evidence, claims)]
    return write_report(evidence.records, out / "report", images, first=first, defenses=defenses_in(out))


def section(evidence: Evidence, claims: Sequence[Claim]) -> Section:
    """The paper's table and claims as the first part of the report."""
    return Section(
        name="paper",
        title="The paper's claims",
        words=[_WORDS],
        tables=[claims_table(claims), table1(evidence)],
    )


def results(evidence: Evidence, claims: Sequence[Claim], drawn: dict[str, Path]) -> str:
    """The whole in markdown.

    Args:
        evidence: what was measured.
        claims: the verdicts on it.
        drawn: the figures by name.
    """
    experiment = evidence.experiment
    changed = ", ".join(experiment.settings)
    counts = [(verdict, sum(claim.verdict == verdict for claim in claims)) for verdict in _order(claims)]
    parts = [
        f"# The paper on {Path(experiment.data).name}, by the numbers of `{experiment.profile}`",
        f"Verdicts: {', '.join(f'{count} {verdict}' for verdict, count in counts)}.",
        f"Trainings changed from the profile: {changed}." if changed else "Trainings as the profile has them.",
        "" if evidence.paper else "The paper has no numbers for this data; none are shown beside ours.",
        "## Table 1",
        table1(evidence).markdown().strip(),
        "## Claims",
        claims_table(claims).markdown().strip(),
        "## Figures",
        *(f"![{_CAPTIONS[name]}]({FIGURES}/{path.name})\n\n{_CAPTIONS[name]}." for name, path in drawn.items()),
        *_made_by(evidence),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _order(claims: Sequence[Claim]) -> list[str]:
    """The verdicts that occur, from the best to those that say nothing."""
    found = dict.fromkeys(claim.verdict for claim in claims)
    return sorted(found, key=(REPRODUCED, PARTLY, NOT, UNDECIDED, UNMEASURED).index)


def _made_by(evidence: Evidence) -> list[str]:
    commands = dict.fromkeys(record.command for record in evidence.records if record.command)
    return ["## Made by", "```sh\n" + "\n".join(commands) + "\n```"] if commands else []
