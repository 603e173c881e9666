"""Which records are of the authors' attack."""

from dataclasses import replace

from advbnn.attacks import paper_pgd
from advbnn.attacks.identity import settings_of
from advbnn.evaluation.records import Records
from advbnn.report.audited import worst_cases
from advbnn.report.compose import compose
from advbnn.report.select import is_authors_attack
from made_up_records import attacked, audits, with_share


def test_the_authors_attack_may_have_any_step_size() -> None:
    scaled = replace(paper_pgd(0.15), step_size=0.0336)
    assert is_authors_attack(attacked("adv", 0.035))
    assert is_authors_attack(attacked("adv", 0.15, attack=settings_of(scaled)))
    for other in (replace(scaled, eot=10), replace(scaled, steps=30)):
        assert not is_authors_attack(attacked("adv", 0.15, attack=settings_of(other)))
    assert not is_authors_attack(attacked("adv", 0.035, kind="transfer"))


def test_where_the_papers_steps_are_too_short_the_scaled_attack_is_shown() -> None:
    """Twenty steps of 0.007, as in the audit, do not reach a radius of 0.15."""
    far = paper_pgd(0.15).threat
    audited = replace(worst_cases(audits()).where(label="adv")[0], threat=far)
    scaled = with_share(attacked("adv", 0.15, attack=settings_of(replace(paper_pgd(0.15), step_size=0.0336))), 0.25)
    cells = {row[1].text: row[-1].text for row in compose(Records([audited, scaled])).tables()["headline"].rows}
    assert cells["authors' attack"] == "25.0"
