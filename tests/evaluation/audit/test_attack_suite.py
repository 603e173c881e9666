from dataclasses import replace

import pytest
import torch
from torch import nn

from advbnn.attacks import APGD, ARC, NES, PGD, HopSkipJump, Square, Transfer, paper_pgd
from advbnn.attacks.identity import settings_of
from advbnn.attacks.threat import Threat
from advbnn.bayes.mean_field import bayesianize
from advbnn.bayes.modes import Modes
from advbnn.evaluation.attackable import Attackable
from advbnn.evaluation.audit.attack_suite import (
    LEVELS,
    Noise,
    SuiteEntry,
    attack_suite,
    even_change,
    fixed_step_title,
    pairs,
)

THREAT = Threat("linf", 0.1)


def suite(level="standard", *, bayesian=True, threat=THREAT, probabilities=False, **changes) -> tuple[SuiteEntry, ...]:
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 10))
    settings = {"classes": 10, "pixels": 4, "random": bayesian, "samples": 20, "transfer_from": {}, "given": {}}
    model = Attackable(bayesianize(net) if bayesian else net, probabilities)
    return attack_suite(LEVELS[level], threat, model, **settings | changes)


def attacks_of(entries: tuple[SuiteEntry, ...], role: str) -> list:
    return [entry.attack for entry in entries if entry.role == role]


def test_the_attacks_of_the_standard_level() -> None:
    own, other = PGD(THREAT, steps=3), PGD(Threat("linf", 0.2))
    entries = suite(transfer_from={"adv": nn.Identity()}, given={"mine": own, "at another radius": other})
    assert attacks_of(entries, "noise") == [Noise(THREAT)]
    assert attacks_of(entries, "paper") == [paper_pgd(0.1)]
    grid = {(a.eot, a.steps) for a in attacks_of(entries, "white box") if isinstance(a, PGD) and a.random_start}
    assert grid == {(eot, steps) for eot in (1, 5, 20) for steps in (20, 100)}
    by_ce, by_dlr = (a for a in attacks_of(entries, "white box") if isinstance(a, APGD))
    assert (by_ce.loss, by_ce.eot, by_ce.selection_samples) == ("ce", 20, 20)
    assert (by_dlr.loss, by_dlr.targets, by_dlr.eot, by_dlr.selection_samples) == ("dlr", 3, 20, 20)
    black_box = [(type(a), a.eot) for a in attacks_of(entries, "black box")]
    assert black_box == [(Square, 10), (NES, 10), (HopSkipJump, 1)]
    assert [entry.name for entry in entries if entry.role == "transfer"] == ["from its mean network", "from adv"]
    assert attacks_of(entries, "given") == [own]


def test_logits_of_an_unusual_size_are_attacked_at_a_usual_one_too() -> None:
    for lead, named in ((1e-4, True), (1.0, False), (1e4, True)):
        model = Attackable(nn.Sequential(nn.Flatten(), nn.Linear(4, 10)))
        model.lead = lead
        settings = {"classes": 10, "pixels": 4, "random": False, "samples": 1, "transfer_from": {}, "given": {}}
        found = [entry.attack for entry in attack_suite(LEVELS["quick"], THREAT, model, **settings)]
        scales = [attack.source.scale for attack in found if isinstance(attack, Transfer)]
        assert scales == ([pytest.approx(5 / lead)] if named else [])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("bayesian", [True, False])
@pytest.mark.parametrize("threat", [Threat("linf", 0.3, (-2.0, 3.0)), Threat("l1", 0.3)])
def test_every_suite_is_in_order(level: str, bayesian: bool, threat: Threat) -> None:
    entries = suite(level, bayesian=bayesian, threat=threat)
    assert len({entry.name for entry in entries}) == len(entries)
    assert {entry.attack.threat for entry in entries} == {threat}
    last = ["APGD-T-DLR", "FAB", "ARC", "Square", "NES", "HopSkipJump"]
    if level == "quick":
        last = ["APGD-T-DLR", "Square", "NES"]
    elif threat.norm == "l1":
        last = ["APGD-T-DLR", "FAB", "Square", "NES"]
    elif not bayesian:
        last.remove("ARC")
    assert [entry.on for entry in entries] == ["all"] * (len(entries) - len(last)) + ["survivors"] * len(last)
    assert [entry.name for entry in entries[-len(last) :]] == last
    assert all((entry.first < 1) == (entry.role == "black box" and level != "thorough") for entry in entries)
    assert bool(attacks_of(entries, "paper")) == (threat.norm == "linf")
    assert bool(attacks_of(entries, "transfer")) == bayesian


def test_a_deterministic_network_gets_more_queries_instead_of_eot_but_its_sources_get_eot() -> None:
    random, deterministic = suite(), suite(bayesian=False, transfer_from={"other": nn.Identity()})
    assert {a.eot for a in attacks_of(deterministic, "white box") if isinstance(a, PGD)} == {1}
    assert pairs(deterministic, "eot") == []
    assert attacks_of(deterministic, "black box")[0].queries == 10 * attacks_of(random, "black box")[0].queries
    (transfer,) = attacks_of(deterministic, "transfer")
    assert (transfer.attack.eot, transfer.attack.steps) == (20, 100)


@pytest.mark.parametrize(("first", "survivors", "count"), [(0.1, 700, 100), (0.001, 700, 32), (0.1, 20, 20), (1, 9, 9)])
def test_a_sample_of_the_survivors_is_attacked_first(first: float, survivors: int, count: int) -> None:
    entry, rows = SuiteEntry("Square", "black box", Square(THREAT), "survivors", first), 3 * torch.arange(survivors)
    tried, others = entry.sample(rows, 1000, seed=0)
    assert len(tried) == count
    assert torch.equal(torch.cat([tried, others]).sort().values, rows)
    assert torch.equal(tried, tried.sort().values) and torch.equal(tried, entry.sample(rows, 1000, seed=0)[0])
    if len(others):  # not those that come first in the data, which may be sorted
        assert tried.max() > 3 * count and not torch.equal(tried, entry.sample(rows, 1000, seed=1)[0])


def test_fewer_classes_than_the_targeted_loss_needs() -> None:
    (by_targets,) = (a for a in attacks_of(suite(classes=4), "white box") if getattr(a, "loss", "") == "dlr")
    assert by_targets.targets == 3
    last = [a for a in attacks_of(suite(classes=2), "white box") if isinstance(a, APGD)][-1]
    assert (last.loss, last.targets) == ("margin", None)


def effort(entries: tuple[SuiteEntry, ...]) -> dict[str, tuple[int, ...]]:
    """Steps, targets, restarts and queries of the attacks that a deterministic network meets too."""
    names = ("APGD-CE", "APGD-T-DLR", "FAB", "Square", "NES", "HopSkipJump")
    counted = ("steps", "targets", "restarts", "queries")
    return {e.name: tuple(getattr(e.attack, name, None) for name in counted) for e in entries if e.name in names}


def test_a_mixture_of_a_few_networks_is_attacked_by_exact_means_and_member_by_member() -> None:
    nets = [nn.Sequential(nn.Flatten(), nn.Linear(4, 10)) for _ in range(3)]
    model = Attackable(Modes(nets))
    for level in LEVELS:
        settings = {"classes": 10, "pixels": 4, "random": True, "samples": 20, "transfer_from": {}, "given": {}}
        entries = attack_suite(LEVELS[level], THREAT, model, **settings)
        grid = {a.eot for a in attacks_of(entries, "white box") if isinstance(a, PGD) and a.random_start}
        assert len(grid) == 2 and 1 in grid  # one sample per step, and the exact mean
        assert any(isinstance(a, ARC) for a in attacks_of(entries, "white box"))
        assert effort(entries) == effort(suite(level, bayesian=False))
    many = Attackable(Modes(nets * 3))
    assert not any(isinstance(e.attack, ARC) for e in attack_suite(LEVELS["quick"], THREAT, many, **settings))


def test_the_mean_network_is_a_source_also_if_it_returns_probabilities() -> None:
    (transfer,) = attacks_of(suite(probabilities=True), "transfer")
    assert transfer.source.returns_probabilities


@pytest.mark.parametrize(
    ("bayesian", "samples", "average"), [(True, 20, "probability"), (True, 1, "loss"), (False, 1, "probability")]
)
def test_targeted_attacks_aim_at_the_classifier(bayesian: bool, samples: int, average: str) -> None:
    entries = suite(bayesian=bayesian, samples=samples)
    assert [e.attack.average for e in entries if e.name == "APGD-T-DLR"] == [average]


def test_pairs_differ_in_one_thing() -> None:
    one = PGD(THREAT, steps=5)
    attacks = [one, replace(one, eot=3), replace(one, eot=3, steps=9), replace(one, restarts=2), APGD(THREAT, eot=9)]
    entries = [SuiteEntry(str(number), "white box", attack) for number, attack in enumerate(attacks)]
    assert [pairs(entries, field) for field in ("eot", "steps", "restarts")] == [[(0, 1)], [(1, 2)], [(0, 3)]]
    entries = suite("quick")
    names = {(entries[a].name, entries[b].name) for field in ("eot", "restarts") for a, b in pairs(entries, field)}
    assert ("PGD-20, step 0.007", "PGD-20, step 0.007, 8 EOT samples") in names
    assert ("PGD-10 (EOT 1)", "PGD-10 (EOT 1, 3 restarts)") in names


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_an_even_change_uses_the_whole_radius(norm: str) -> None:
    threat, x = Threat(norm, 0.7), torch.zeros(1, 3, 2)
    assert threat.distance(x + even_change(threat, 6), x).item() == pytest.approx(0.7)


def test_noise_is_a_random_point_of_the_ball() -> None:
    net, x = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), torch.full((200, 4), 0.5)
    moved = Noise(THREAT)(net, x, torch.zeros(200, dtype=torch.int64), seed=0) - x
    assert moved.abs().max() <= 0.1
    assert moved.abs().mean().item() == pytest.approx(0.05, rel=0.1)


@pytest.mark.parametrize("eps", [0.01, 0.14, 0.15, 1.0])
def test_the_steps_of_every_attack_with_a_fixed_step_reach_the_radius(eps: float) -> None:
    entries = suite("quick", threat=Threat("linf", eps))
    fixed = [entry for entry in entries if fixed_step_title(settings_of(entry.attack))]
    assert fixed
    for entry in fixed:
        assert entry.attack.steps * entry.attack.step_size >= eps
        assert entry.name == fixed_step_title(settings_of(entry.attack))
    # the authors' own wherever it reaches
    assert (fixed[0].attack == paper_pgd(eps)) == (eps <= 0.14)
