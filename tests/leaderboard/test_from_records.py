"""Entries from records: what is taken from where, and which records do not fit."""

from dataclasses import replace

import pytest
import torch

from advbnn.attacks.threat import Threat
from advbnn.data import load
from advbnn.defenses.registry import PUBLISHED
from advbnn.evaluation.accuracy import Evaluation
from advbnn.evaluation.outcomes import pack
from advbnn.evaluation.records import Record, Records
from advbnn.leaderboard.from_records import about_published, entry_of, lowered

THREAT = Threat("linf", 8 / 255)


def worst(label: str, right: float, level: str = "standard", n: int = 100) -> Record:
    """An invented audit in which the first images are right."""
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)).eval()
    plan = Evaluation(net, load("digits").test, samples=1, seeds=1, rows=range(n), label=label).plan
    outcomes = (torch.arange(n) < right * n).long()
    attack = {"name": "PGD-20", "role": "white box", "on": "all", "attack": {"name": "PGD", "threat": {}, "steps": 20}}
    attack |= {"n": [n], "correct": [round(right * n) + 2]}
    clean = {"name": "clean", "role": "clean", "on": "all", "attack": None, "n": [n], "correct": [90]}
    flag = {"name": "eot", "raised": True, "evidence": "seen", "numbers": {}}
    details = {"attacks": [clean, attack], "random": True, "certain": [10], "inconclusive": [5], "known_seed": [20]}
    settings = {"kind": "worst_case", "name": level, "threat": THREAT}
    return Record.of(
        replace(plan, **settings),
        correct=(int(outcomes.sum()),),
        outcomes=(pack(outcomes),),
        details={**details, "flags": [flag, {**flag, "name": "steps", "raised": False}]},
        command="advbnn audit",
    )


ABOUT = about_published(PUBLISHED["rpf"], "digits", "resnet18", baseline="digits-adv")


def test_every_number_comes_from_its_record() -> None:
    audit, base = worst("rpf", 0.4), worst("adv", 0.5)
    entry = entry_of(Records([audit]), ABOUT, baseline=base)
    assert (entry.id, entry.kind, entry.threat.eps) == ("digits-rpf", "trained", round(8 / 255, 6))
    assert entry.clean is not None and entry.clean.accuracy == 0.9
    assert entry.worst_case is not None and entry.worst_case.accuracy == 0.4
    assert (entry.worst_case.certain, entry.worst_case.inconclusive) == (0.1, 0.05)
    assert [(a.name, a.accuracy, a.settings) for a in entry.attacks] == [("PGD-20", 0.42, {"name": "PGD", "steps": 20})]
    assert entry.known_seed is not None and entry.known_seed.accuracy == 0.2
    assert [flag.name for flag in entry.flags] == ["eot"]
    # ten images differ, all for the baseline
    assert entry.difference is not None and entry.difference.difference == pytest.approx(-0.1)
    assert entry.difference.interval[1] < 0


def test_numbers_of_another_radius_are_left_out() -> None:
    audit = worst("rpf", 0.4)
    near = Threat("linf", 2 / 255)
    kinds = {
        "protocol": {"kind": "protocol"},
        "mean": {"kind": "attack", "model": replace(audit.model, label="rpf (mean weights)")},
    }
    others = [
        replace(audit, name=f"{name} {threat.eps:.3f}", threat=threat, details={}, correct=(k,), outcomes=(), **how)
        for name, how in kinds.items()
        for threat, k in ((near, 85), (THREAT, 55))
    ]
    entry = entry_of(Records([audit, *others]), ABOUT)
    assert entry.own_protocol is not None and entry.own_protocol.accuracy == 0.55
    assert entry.mean_weights is not None and entry.mean_weights.accuracy == 0.55


def test_records_of_another_classifier_or_of_fewer_images_are_left_out() -> None:
    audit = worst("rpf", 0.4)

    def other(name: str, right: int, **how: object) -> Record:
        return replace(audit, name=name, details={}, correct=(right,), outcomes=(), **how)

    few = replace(audit.data, n=5, rows="0-4")
    for clean in (other("clean", 99, samples=20), other("clean", 4, data=few)):
        entry = entry_of(Records([audit, replace(clean, kind="clean", threat=None)]), ABOUT)
        assert entry.clean is not None and entry.clean.accuracy == 0.9  # that of the audit
    points = [("PGD-20", 1, 60, {}), ("PGD-20", 10, 50, {}), ("PGD-20", 20, 50, {})]
    points += [
        ("PGD-40", 1, 30, {}),
        ("PGD-40", 10, 30, {}),
        ("pgd", 1, 2, {"data": few}),
        ("x", 5, 70, {"samples": 7}),
    ]
    curves = [
        other(name, right, kind="attack", attack={"eot": eot}, curve="eot", at=float(eot), **how)
        for name, eot, right, how in points
    ]
    single = other("fgsm", 3, kind="attack", attack={"name": "FGSM"}, data=few)
    entry = entry_of(Records([audit, *curves, single]), ABOUT)
    assert [(point.eot, point.accuracy) for point in entry.plateau] == [(1, 0.6), (10, 0.5), (20, 0.5)]
    assert [attack.name for attack in entry.attacks] == ["PGD-20"]
    with pytest.raises(ValueError, match="plateau"):
        replace(entry, plateau=(*entry.plateau, entry.plateau[0]))


def test_a_baseline_at_another_level_and_several_audits_are_refused() -> None:
    audit = worst("rpf", 0.4)
    with pytest.raises(ValueError, match="level 'quick'"):
        entry_of(Records([audit]), ABOUT, baseline=worst("adv", 0.5, level="quick"))
    with pytest.raises(ValueError, match="baseline .*same"):
        entry_of(Records([audit]), ABOUT, baseline=audit)
    with pytest.raises(ValueError, match="one audit.*label"):
        entry_of(Records([audit, worst("adv", 0.5)]), ABOUT)
    with pytest.raises(ValueError, match="one audit"):
        entry_of(Records(), ABOUT)


def test_the_kind_is_what_the_audit_saw() -> None:
    audit = worst("rpf", 0.4)
    same = replace(audit, details={**audit.details, "random": False})
    with pytest.raises(ValueError, match="kind: .*'no randomness'.*'trained'"):
        entry_of(Records([same]), ABOUT)
    plain = replace(ABOUT, kind="no randomness", baseline="")
    assert entry_of(Records([same]), plain).kind == "no randomness"
    with pytest.raises(ValueError, match="kind: .*'trained'.*'no randomness'"):
        entry_of(Records([audit]), plain)


def test_points_only_lower() -> None:
    audit = worst("rpf", 0.4)
    entry = entry_of(Records([audit]), ABOUT, baseline=worst("adv", 0.5))

    def scored(right: float, n: int = 100) -> Record:
        given = {"kind": "points", "name": "points", "model": audit.model, "attack": {"files": ["ab" * 32]}}
        return replace(worst("rpf", right, n=n), **given)

    assert lowered(entry, scored(0.45)) is entry
    # less than one image of 100: another score of the same points
    assert entry.worst_case is not None
    luck = replace(entry, worst_case=replace(entry.worst_case, accuracy=0.409))
    assert lowered(luck, scored(0.4)) is luck
    one_image = replace(entry, worst_case=replace(entry.worst_case, accuracy=0.41))
    assert lowered(one_image, scored(0.4)) is not one_image
    after = lowered(entry, scored(0.3))
    assert after.worst_case is not None and after.worst_case.accuracy == 0.3
    assert after.difference is None and "abababab" in after.notes[-1]
    with pytest.raises(ValueError, match="bfloat16.*precision"):
        lowered(entry, replace(scored(0.3), precision="float32, autocast bfloat16"))
    assert lowered(entry, replace(scored(0.3), precision="bfloat16")) is not entry  # of its weights
    with pytest.raises(ValueError, match="1 passes.* 3.*exact"):
        lowered(replace(entry, samples=3), scored(0.3))
    with pytest.raises(ValueError, match="digits.*give"):
        lowered(replace(entry, data_sha256="0" * 64), scored(0.3))
    larger = entry_of(Records([worst("rpf", 0.4, n=120)]), ABOUT)
    with pytest.raises(ValueError, match="linf 0.0313"):
        lowered(entry, replace(scored(0.3), threat=Threat("l2", 8 / 255)))
    with pytest.raises(ValueError, match="as many"):
        lowered(replace(larger, weights_sha256=audit.model.sha256), scored(0.1))


def test_a_claim_of_others_makes_no_entry() -> None:
    assert all(claim.quoted for claim in PUBLISHED["wca"].claims)
    assert about_published(PUBLISHED["wca"], "cifar10", "resnet18").claims == ()
    assert about_published(PUBLISHED["ctrw"], "cifar10", "resnet18").claims[0].accuracy == 0.687
