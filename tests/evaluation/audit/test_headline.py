"""The words of an audit, and the stored audits by the old rule."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

import made_up_records as made_up
from advbnn.evaluation.audit.headline import TAKEN_OFF, Band, band, by_old_rule, headline, near_chance, next_level
from advbnn.evaluation.audit.worst_case import Audit
from advbnn.evaluation.records import Record, Records
from advbnn.names import AUDIT_LEVELS

RESULTS = Path(__file__).parents[3] / "results"


def audited() -> Record:
    return made_up.audits().only(label="adv_bnn", eps=0.035)


def old(record: Record) -> Record:
    return replace(record, details={name: value for name, value in record.details.items() if name != "certain"})


def test_the_line_has_the_level_the_number_its_interval_and_the_band() -> None:
    record = audited()
    words = [
        f"linf 0.035, quick: worst-case accuracy {100 * record.accuracy:.1f} %",
        "95 % interval",
        str(band(record)),
    ]
    assert all(part in headline(record) for part in words)
    assert "infinite ensemble)" not in headline(record)
    assert "certain for the infinite ensemble" in headline(old(record))


def test_the_band_is_in_shares_of_images_and_seeds() -> None:
    record = replace(audited(), details={**audited().details, "certain": [100, 120, 140], "inconclusive": [6, 0, 6]})
    assert band(record) == Band(360 / 1200, 12 / 1200)
    assert band(old(record)) == Band(record.accuracy, 12 / 1200)


def test_an_exact_mean_has_no_band() -> None:
    record = replace(audited(), exact=True)
    assert record.exact and band(record) is None and "infinite ensemble" not in headline(record)


def test_a_deterministic_network_has_no_band_and_one_rule() -> None:
    record = replace(audited(), details={**audited().details, "random": False})
    assert band(record) is None and band(old(record)) is None
    assert by_old_rule(old(audited())) and not by_old_rule(old(record))


def test_an_audit_of_a_network_near_chance_begins_with_a_warning() -> None:
    record = audited()
    others = [attack for attack in record.details["attacks"] if attack["role"] != "clean"]
    clean = {"name": "clean", "role": "clean", "on": "all", "attack": None, "n": [400], "correct": [48]}

    def with_clean(**details: object) -> Record:
        return replace(record, details={**record.details, "attacks": [clean, *others], **details})

    assert near_chance(with_clean()) is None  # an older record, which does not say what chance is
    note = near_chance(with_clean(chance=0.1))
    assert note is not None and "12.0 %" in note
    assert str(Audit(Records([with_clean(chance=0.1)]))).startswith(note)
    assert near_chance(with_clean(chance=0.01)) is None


def test_every_stored_audit_is_readable_and_its_rule_known() -> None:
    audits = [r for file in sorted(RESULTS.glob("*/records/audit-*.json")) for r in Records.load(file)]
    assert len(audits) > 50
    for record in audits:
        random = record.details["random"]
        if record.ensembles > 1 or not random:
            assert not by_old_rule(record)
        found = band(record)
        assert (found is not None) == random
        assert found is None or 0 <= found.certain + found.inconclusive <= 1
        assert 0 <= record.interval[0] <= record.accuracy <= record.interval[1] <= 1


def test_what_the_next_level_takes_off_is_what_the_records_say() -> None:
    files = [file for folder in ("levels", "digits-modes") for file in sorted((RESULTS / folder).glob("*.json"))]
    records = [r for file in files for r in Records.load(file)]
    of = {(r.model, r.data, r.threat, r.name): 100 * r.accuracy for r in records}
    for level, following in pairwise(AUDIT_LEVELS):
        drops = [
            value - of[*place, following]
            for (*place, name), value in of.items()
            if name == level and (*place, following) in of
        ]
        if level not in TAKEN_OFF:
            assert not drops
            continue
        assert TAKEN_OFF[level] == pytest.approx(max(drops), abs=0.05)
        assert f"{TAKEN_OFF[level]:.1f}" in next_level(level)
    assert next_level(AUDIT_LEVELS[-1]).startswith(f"Level {AUDIT_LEVELS[-1]}:")
