from dataclasses import replace

import pytest
import torch
from torch import nn

from advbnn.attacks import APGD, NES, PGD, Square, Transfer, paper_pgd
from advbnn.attacks.threat import Threat
from advbnn.bayes.mean_field import bayesianize
from advbnn.evaluation.attackable import Attackable
from advbnn.evaluation.audit.attack_suite import LEVELS, Noise, SuiteEntry, attack_suite, even_change, pairs

THREAT = Threat("linf", 0.1)


def trials_of(
    level: str = "standard", *, bayesian: bool = True, threat: Threat = THREAT, **changes
) -> tuple[SuiteEntry, ...]:
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 10))
    model = Attackable(bayesianize(net) if bayesian else net)
    settings = {"classes": 10, "pixels": 4, "random": bayesian, "transfer_from": {}, "given": {}}
    return attack_suite(LEVELS[level], threat, model, **settings | changes)


def attacks_of(entries: tuple[SuiteEntry, ...], role: str) -> list:
    return [entry.attack for entry in entries if entry.role == role]


def test_standard_has_all_that_a_sceptic_asks_for() -> None:
    entries = trials_of(transfer_from={"adv": nn.Identity()})
    assert attacks_of(entries, "paper") == [paper_pgd(0.1)]
    grid = {(a.eot, a.steps) for a in attacks_of(entries, "white box") if isinstance(a, PGD) and a.random_start}
    assert grid == {(k, steps) for k in (1, 5, 20) for steps in (20, 100)}
    by_ce, by_dlr = (a for a in attacks_of(entries, "white box") if isinstance(a, APGD))
    assert (by_ce.loss, by_ce.eot, by_ce.selection_samples) == ("ce", 20, 20)
    assert (by_dlr.loss, by_dlr.targets, by_dlr.eot, by_dlr.selection_samples) == ("dlr", 9, 20, 20)
    assert [type(a) for a in attacks_of(entries, "black box")] == [Square, NES]
    assert all(a.eot == 10 for a in attacks_of(entries, "black box"))
    assert [entry.name for entry in entries if entry.role == "transfer"] == ["from its mean network", "from adv"]
    assert attacks_of(entries, "noise") == [Noise(THREAT)]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("bayesian", [True, False])
@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_every_battery_is_in_order(level: str, bayesian: bool, norm: str) -> None:
    threat = Threat(norm, 0.3)
    entries = trials_of(level, bayesian=bayesian, threat=threat)
    assert len({entry.name for entry in entries}) == len(entries)
    assert all(entry.attack.threat == threat for entry in entries)
    where = [entry.on for entry in entries]
    assert where == sorted(where)  # all, then survivors
    assert [entry.name for entry in entries if entry.on == "survivors"] == ["APGD-T-DLR", "NES"]
    assert ("paper" in {entry.role for entry in entries}) == (norm == "linf")
    assert ("transfer" in {entry.role for entry in entries}) == bayesian


def test_every_attack_keeps_the_box_that_is_asked_about() -> None:
    threat = Threat("linf", 0.3, (-2.0, 3.0))
    assert {entry.attack.threat for entry in trials_of(threat=threat)} == {threat}


def test_sources_are_averaged_over_their_draws_also_for_a_target_that_has_none() -> None:
    class Asked(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.times = getattr(self, "times", 0) + 1
            return super().forward(x)

    x, y = torch.rand(2, 4), torch.tensor([0, 1])
    counts = []
    for random in (True, False):
        asked = Asked(4, 10)
        source = bayesianize(asked) if random else asked
        (transfer,) = attacks_of(trials_of("quick", bayesian=False, transfer_from={"other": source}), "transfer")
        assert transfer.attack.eot == 8
        transfer(nn.Linear(4, 10), x, y, seed=0)
        counts.append(asked.times)
    averaged, once = counts
    assert averaged >= 30 * 8
    assert once < 2 * 30


def test_levels_try_ever_harder() -> None:
    for less, more in zip(LEVELS.values(), list(LEVELS.values())[1:], strict=False):
        for field in ("restarts", "apgd_steps", "apgd_draws", "targets", "square_queries", "most_draws"):
            assert getattr(less, field) <= getattr(more, field)
        assert max(less.draws) <= max(more.draws)
        assert max(less.steps) < max(more.steps)


def test_a_network_without_draws_is_not_averaged_but_asked_more() -> None:
    random, still = trials_of(), trials_of(bayesian=False)
    assert {a.eot for a in attacks_of(still, "white box") if isinstance(a, PGD)} == {1}
    assert pairs(still, "eot") == []
    assert attacks_of(still, "black box")[0].queries == 10 * attacks_of(random, "black box")[0].queries


def test_fewer_classes_than_the_targeted_loss_needs() -> None:
    assert attacks_of(trials_of(classes=4), "white box")[-1].targets == 3
    last = attacks_of(trials_of(classes=2), "white box")[-1]
    assert (last.loss, last.targets) == ("margin", None)


def test_given_attacks_are_tried_on_all_images() -> None:
    own = PGD(THREAT, steps=3)
    found = [entry for entry in trials_of(given={"mine": own}) if entry.role == "given"]
    assert found == [SuiteEntry("mine", "given", own)]


def test_the_mean_network_is_a_source_also_if_it_returns_probabilities() -> None:
    net = bayesianize(nn.Sequential(nn.Flatten(), nn.Linear(4, 10), nn.Softmax(1)))
    model = Attackable(net, returns_probabilities=True)
    entries = attack_suite(
        LEVELS["quick"], THREAT, model, classes=10, pixels=4, random=True, transfer_from={}, given={}
    )
    (transfer,) = attacks_of(entries, "transfer")
    assert isinstance(transfer, Transfer)
    assert transfer(model, torch.rand(2, 1, 2, 2), torch.tensor([0, 1]), seed=0).shape == (2, 1, 2, 2)


def test_pairs_differ_in_one_thing() -> None:
    one = PGD(THREAT, steps=5)
    attacks = [one, replace(one, eot=3), replace(one, eot=3, steps=9), replace(one, restarts=2), APGD(THREAT, eot=9)]
    entries = [SuiteEntry(str(number), "white box", attack) for number, attack in enumerate(attacks)]
    assert pairs(entries, "eot") == [(0, 1)]
    assert pairs(entries, "steps") == [(1, 2)]
    assert pairs(entries, "restarts") == [(0, 3)]


def test_random_networks_have_pairs_to_compare() -> None:
    entries = trials_of("quick")
    names = {(entries[a].name, entries[b].name) for a, b in pairs(entries, "eot")}
    assert ("authors' PGD-20", "authors' PGD-20, 8 draws") in names
    assert ("PGD-30, 1 draw", "PGD-30, 8 draws") in names
    assert pairs(entries, "steps")
    assert pairs(entries, "restarts")


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_an_even_change_uses_the_whole_radius(norm: str) -> None:
    threat, x = Threat(norm, 0.7), torch.zeros(1, 3, 2)
    assert threat.distance(x + even_change(threat, 6), x).item() == pytest.approx(0.7)


def test_noise_is_a_random_point_of_the_ball() -> None:
    net, x = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), torch.full((200, 4), 0.5)
    moved = Noise(THREAT)(net, x, torch.zeros(200, dtype=torch.int64), seed=0) - x
    assert moved.abs().max() <= 0.1
    assert moved.abs().mean().item() == pytest.approx(0.05, rel=0.1)
