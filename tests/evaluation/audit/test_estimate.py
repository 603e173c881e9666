"""The passes that an audit is estimated to need, against those that its attacks make."""

from dataclasses import replace

import pytest

from advbnn.attacks import APGD, PGD, Square, Threat, Transfer
from advbnn.data import to_float
from advbnn.display.progress import ProgressBar
from advbnn.evaluation.audit.attack_suite import LEVELS, SURVIVORS, WHITE_BOX, SuiteEntry
from advbnn.evaluation.audit.estimate import audit_passes, passes, shares
from advbnn.evaluation.audit.worst_case import audit
from trained_nets import bnn, digits, net

THREAT = Threat("linf", 0.01)
X, Y = to_float(digits().images[:4]), digits().labels[:4]


@pytest.mark.parametrize(
    "attack",
    [
        PGD(THREAT, steps=3, eot=4),
        PGD(THREAT, steps=3, eot=2, restarts=3),
        PGD(THREAT, steps=2, eot=2, pick="best", selection_samples=3),
        APGD(THREAT, steps=6, eot=2, selection_samples=3),
        APGD(THREAT, steps=6, eot=2, selection_samples=3, loss="dlr", targets=2),
        APGD(THREAT, steps=30, eot=2, selection_samples=3, compare="checkpoints"),
        Transfer(bnn(), PGD(THREAT, steps=3, eot=4)),
    ],
    ids=lambda attack: type(attack).__name__,
)
def test_counts_nearly_the_passes_that_an_attack_makes(attack) -> None:
    counted, made = sum(passes(attack, random=True)), attack.run(bnn(), X, Y, seed=0).queries.double().mean().item()
    assert 0.3 * made <= counted <= 1.2 * made


def test_queries_are_the_most_that_a_black_box_attack_makes() -> None:
    attack = Square(THREAT, queries=20, eot=2, selection_samples=2)
    assert passes(attack, random=False) == (0, 40 / 2)
    assert attack.run(net(), X, Y, seed=0).queries.max() <= 20


def test_survivors_count_half_and_every_radius_is_scored() -> None:
    level = LEVELS["quick"]
    entry = SuiteEntry("pgd", WHITE_BOX, PGD(THREAT, steps=10))
    late = SuiteEntry("late", WHITE_BOX, PGD(THREAT, steps=10), SURVIVORS)
    assert audit_passes([[entry, late]] * 2, level, samples=1, ensembles=1, random=False) == (30, 2 * (1 + 0.5 + 1))


def test_attacks_have_their_shares_of_an_audit_and_scoring_the_rest() -> None:
    entry = SuiteEntry("pgd", WHITE_BOX, PGD(THREAT, steps=10))
    late = SuiteEntry("late", WHITE_BOX, PGD(THREAT, steps=10), SURVIVORS)
    found = shares([[entry, late]] * 2, LEVELS["quick"], samples=1, ensembles=1, random=False)
    assert found == [[found[0][0], pytest.approx(found[0][0] / 2)]] * 2
    assert 0.9 < sum(map(sum, found)) < 1


def test_the_progress_of_an_audit_grows_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"square_queries": 20, "nes_queries": 20, "nes_directions": 2, "apgd_steps": 5, "steps": (2, 4)}
    monkeypatch.setitem(LEVELS, "quick", replace(LEVELS["quick"], **few))
    seen: list[float] = []
    monkeypatch.setattr(ProgressBar, "update", lambda self, done, *rest, **words: seen.append(done))
    audit(net(), digits(), [THREAT, Threat("linf", 0.02)], "quick", progress=True, seeds=2)
    assert seen == sorted(seen) and seen[-1] == 1
    assert seen[-2] > 0.8 and len({round(10 * done) for done in seen}) > 5


def test_says_how_long_it_takes_before_it_starts(monkeypatch, capsys, tmp_path) -> None:
    few = {"square_queries": 2, "nes_queries": 6, "nes_directions": 2, "apgd_steps": 1, "steps": (1,), "restarts": 1}
    monkeypatch.setitem(LEVELS, "quick", LEVELS["quick"].__class__(**{**vars(LEVELS["quick"]), **few}))
    options = {"progress": True, "out": tmp_path / "records.json"}
    audit(net(), digits(), THREAT, "quick", **options)
    assert "quick audit of 120 images: roughly" in capsys.readouterr().err
    audit(net(), digits(), THREAT, "quick", **options)
    assert "roughly" not in capsys.readouterr().err  # it is finished
