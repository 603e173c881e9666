import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from advbnn.defenses.registry import PUBLISHED
from advbnn.leaderboard.entry import (
    Claim,
    Difference,
    WorstCase,
    check_baselines,
    load,
    load_all,
    load_with_baseline,
    save,
    to_json,
)
from made_up_entries import board, claimed_entry, entry

BOARD = Path(__file__).parents[2] / "leaderboard"


@pytest.mark.parametrize("made", board(), ids=lambda made: made.id)
def test_an_entry_is_read_as_it_was_written(made: Any, tmp_path: Path) -> None:
    save(made, tmp_path / f"{made.id}.json")
    assert load(tmp_path / f"{made.id}.json") == made


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("clean", "accuracy"), 80.0, "clean.accuracy.*divide percent"),
        (("clean", "interval"), [0.9, 0.95], "clean.interval.*around"),
        (("clean", "interval"), [0.9], "clean.interval.*list of 2"),
        (("worst_case", "level"), "hard", "worst_case.level.*standard"),
        (("threat", "norm"), "l7", "threat.norm.*linf"),
        (("threat", "eps"), "8/255", "threat.eps: expected a number"),
        (("claims", 0, "accuracy"), None, r"claims\[0\].accuracy: expected a number, got None"),
        (("samples",), True, "samples: expected a whole number"),
        (("status",), "done", "status.*claimed"),
        (("status",), "claimed", "clean: status.*reproduced"),
        (("weights_sha256",), "abc", "weights_sha256.*64"),
        (("command",), "", "command.*measure"),
        (("code",), "javascript:alert(1)", "code.*https"),
        (("acuracy",), 1, "acuracy: no such field"),
        (("name",), " ", "name: expected text"),
        (("id",), "../x", "id: expected"),
        (("schema",), 2, "schema: expected 1"),
        (("attacks", 0, "interval"), [0.0, 0.2], "attacks"),
        (("clean",), {"accuracy": 0.1, "interval": [0.05, 0.15], "n": 1000}, "worst_case.interval.*clean"),
        (("samples",), -5, "samples.*positive"),
        (("rule",), "banana", "rule.*'probability'"),
        (("commit",), "banana", "commit.*git.*advbnn VERSION"),
        (("clean", "n"), 0, "clean.n .*positive"),
        (("clean", "accuracy"), float("nan"), "clean.accuracy"),
        (("threat", "eps"), 0, "threat.eps.*0.031373"),
        (("claims", 0, "eps"), -0.1, r"claims\[0\].eps"),
        (("claims", 0, "where"), "", r"claims\[0\].where: expected text"),
        (("worst_case", "certain"), 7, "worst_case.certain.*divide percent"),
        (("worst_case", "inconclusive"), -0.1, r"worst_case.inconclusive.*\[0, 1\]"),
        (("attacks", 0, "on"), "mars", r"attacks\[0\].on.*'survivors'"),
        (("plateau", 0, "eot"), -1, r"plateau\[0\].eot.*positive"),
        (("plateau", 1, "eot"), 0, r"plateau\[1\].eot.*positive"),
        (("cost",), {"epochs": -1}, "cost.epochs"),
        (("cost",), {"epochs": 1, "seconds": -1}, "cost.seconds"),
        (("difference",), {"difference": 0.004, "interval": [0.5, 0.6], "n": 1000}, "difference.interval.*around"),
        (("difference",), {"difference": 40, "interval": [0, 1], "n": 1000}, "difference.difference.*divide"),
        (("difference",), {"difference": 0.0, "interval": [-0.1, 0.1], "n": 900}, "difference.n.*1000.*same images"),
        (("known_seed",), {"accuracy": 0.95, "interval": [0.93, 0.97], "n": 1000}, "known_seed.interval.*clean"),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_field(
    place: tuple[Any, ...], value: Any, message: str, tmp_path: Path
) -> None:
    table = json.loads(to_json(entry(baseline="cifar10-adv")))
    inner = table
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    file = tmp_path / "cifar10-toy.json"
    file.write_text(json.dumps(table))
    with pytest.raises(ValueError, match=f"cifar10-toy.json: {message}"):
        load(file)


def test_a_missing_field_and_another_file_name_are_refused(tmp_path: Path) -> None:
    table = json.loads(to_json(entry()))
    (tmp_path / "other.json").write_text(json.dumps(table))
    with pytest.raises(ValueError, match="id: expected 'other'"):
        load(tmp_path / "other.json")
    del table["paper"]
    (tmp_path / "cifar10-toy.json").write_text(json.dumps(table))
    with pytest.raises(ValueError, match="paper: .*none.*add"):
        load(tmp_path / "cifar10-toy.json")
    with pytest.raises(ValueError, match=r"cifar10-toy\.json"):
        save(entry(), tmp_path / "elsewhere.json")
    with pytest.raises(ValueError, match="no entries"):
        load_all(tmp_path / "nowhere")


def test_the_worst_case_must_fit_its_attacks() -> None:
    made = entry(worst=0.4)
    stronger = replace(made.attacks[0], accuracy=0.2, interval=(0.17, 0.23))
    with pytest.raises(ValueError, match="worst_case.interval.*PGD-20.*audit again"):
        replace(made, attacks=(stronger,))
    replace(made, attacks=(replace(stronger, on="survivors"),))  # which are other images


def test_the_worst_case_of_a_network_without_randomness_is_a_minimum() -> None:
    made = entry(worst=0.4, kind="no randomness")
    clean, attack = made.clean, made.attacks[0]
    assert clean is not None
    for share, refused in ((0.399, False), (0.398, True)):  # one image of 1,000 may be rounding
        lower = {"accuracy": share, "interval": (0.37, 0.43)}
        for changed in ({"attacks": (replace(attack, **lower),)}, {"clean": replace(clean, **lower)}):
            if refused:
                with pytest.raises(ValueError, match="worst_case.accuracy.*audit again"):
                    replace(made, **changed)
            else:
                replace(made, **changed)
    replace(made, kind="trained", attacks=(replace(attack, accuracy=0.38, interval=(0.35, 0.41)),))  # of one draw
    fewer = replace(attack, accuracy=0.38, interval=(0.3, 0.46), n=100)  # other images
    replace(made, attacks=(fewer,))


def test_ranges_hold_for_entries_that_are_made_not_read() -> None:
    with pytest.raises(ValueError, match="certain"):
        WorstCase(accuracy=0.4, interval=(0.3, 0.5), n=100, level="quick", certain=7.0)


def test_a_baseline_must_be_there_and_comparable() -> None:
    with pytest.raises(ValueError, match="baseline: .*'cifar10-none'.*add"):
        check_baselines([entry("cifar10-nine", baseline="cifar10-none")], "board")  # which does not mean itself
    near = entry("cifar10-none", kind="no randomness")
    with pytest.raises(ValueError, match="'cifar10-nome'.*'cifar10-none'"):
        check_baselines([entry(baseline="cifar10-nome"), near], "board")
    other = entry("digits-adv", dataset="digits", kind="no randomness")
    with pytest.raises(ValueError, match="other data"):
        check_baselines([entry(baseline="digits-adv"), other], "board")
    with pytest.raises(ValueError, match="baseline.*'no randomness'"):
        check_baselines([entry(baseline="cifar10-rpf"), entry("cifar10-rpf")], "board")


def test_a_difference_is_that_of_the_two_worst_cases() -> None:
    base = entry("cifar10-adv", kind="no randomness")
    assert base.worst_case is not None
    lower = replace(base.worst_case, accuracy=base.worst_case.accuracy - 0.01, interval=(0.0, 1.0))
    made = entry("cifar10-x", baseline=base.id, difference=Difference(difference=0.0, interval=(-0.1, 0.1), n=1000))
    check_baselines([made, base], "board")
    with pytest.raises(ValueError, match=r"cifar10-x: difference: .*\+0.01.*again"):
        check_baselines([made, replace(base, worst_case=lower)], "board")
    with pytest.raises(ValueError, match="difference.*level.*again"):
        check_baselines([made, replace(base, worst_case=replace(base.worst_case, level="quick"))], "board")


def test_a_file_is_checked_with_the_baseline_beside_it(tmp_path: Path) -> None:
    base, made = entry("cifar10-adv", kind="no randomness"), entry("cifar10-x", baseline="cifar10-adv")
    save(made, tmp_path / "cifar10-x.json")
    with pytest.raises(ValueError, match=r"baseline.*cifar10-adv.json"):
        load_with_baseline(tmp_path / "cifar10-x.json")
    save(base, tmp_path / "cifar10-adv.json")
    assert load_with_baseline(tmp_path / "cifar10-x.json") == made


def test_records_are_no_entry(tmp_path: Path) -> None:
    (tmp_path / "plain.json").write_text('{"records": []}')
    with pytest.raises(ValueError, match="plain.json holds records.*leaderboard entry"):
        load_all(tmp_path)


def test_the_claim_that_is_shown_is_the_first_at_the_threat() -> None:
    claims = [
        Claim(attack="weak", accuracy=0.9, where="README", eps=0.01),
        Claim(attack="C&W", accuracy=0.95, where="README", norm="l2"),
        Claim(attack="PGD", accuracy=0.6, where="README", eps=0.03),
        Claim(attack="AutoAttack", accuracy=0.65, where="README", eps=8 / 255),
    ]
    assert entry(worst=None, claims=tuple(claims)).claimed == claims[2]
    assert entry(worst=None, claims=tuple(claims[:2])).claimed is None


def test_the_board_of_the_repository() -> None:
    entries = {made.id: made for made in load_all(BOARD)}
    for published in PUBLISHED.values():
        if any(not claim.quoted for claim in published.claims):
            made, stated = entries[f"cifar10-{published.name}"], claimed_entry(published)
            assert made.claims == stated.claims and made.paper == stated.paper
            assert made == stated or made.status != "claimed"
