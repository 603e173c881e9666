"""The paper's numbers, as printed there."""

import pytest

from advbnn.defenses.profiles import DATASETS
from advbnn.paper import published as paper
from advbnn.paper.protocol import PROTOCOLS


def test_table_1_has_three_data_sets_two_defences_and_five_columns() -> None:
    assert set(paper.TABLE1) == {"cifar10", "stl10", "imagenet143"} == set(DATASETS) - {"digits"}
    for data, rows in paper.TABLE1.items():
        assert set(rows) == {"adv", "adv_bnn"}
        assert {len(row) for row in rows.values()} == {1 + len(paper.RADII[data])}


def test_the_sums_of_table_1_are_those_of_the_printed_one() -> None:
    sums = {data: {name: round(sum(row), 1) for name, row in rows.items()} for data, rows in paper.TABLE1.items()}
    assert sums == {
        "cifar10": {"adv": 195.5, "adv_bnn": 239.3},
        "stl10": {"adv": 157.1, "adv_bnn": 197.6},
        "imagenet143": {"adv": 129.2, "adv_bnn": 185.2},
    }


def test_adv_bnn_is_the_better_one_everywhere_but_without_attack() -> None:
    for rows in paper.TABLE1.values():
        better = [ours > theirs for ours, theirs in zip(rows["adv_bnn"], rows["adv"], strict=True)]
        assert better == [False, True, True, True, True]


def test_numbers_are_for_the_papers_own_data_alone() -> None:
    assert paper.table1("cifar10", 10_000)["adv"][0] == 80.3
    assert paper.table1("stl10", 1_000) == {}  # another split than the paper's
    assert paper.table1("digits", 500) == {}
    assert paper.table1("/somewhere/cifar10", 10_000) == {}


@pytest.mark.parametrize("data", DATASETS)
def test_the_radii_of_the_table_are_among_those_of_the_figure(data: str) -> None:
    protocol = PROTOCOLS[data]
    assert set(protocol.table_radii) < set(protocol.radii)
    assert protocol.radii[0] == 0
    assert set(protocol.audit_radii) <= set(protocol.table_radii)
    if data in paper.RADII:
        assert protocol.table_radii == paper.RADII[data]
        assert protocol.step_size == 0.007
        assert max(protocol.steps) == 1000


@pytest.mark.parametrize("data", DATASETS)
def test_twenty_steps_of_the_attack_cover_every_radius(data: str) -> None:
    protocol = PROTOCOLS[data]
    assert 20 * protocol.step_size > max(protocol.radii)


def test_a_limit_holds_for_everything() -> None:
    limited = PROTOCOLS["cifar10"].limited(500)
    assert (limited.images, limited.averaged_images) == (500, 500)
    assert (limited.study_images, limited.audit_images) == (500, 500)
    assert PROTOCOLS["digits"].limited(5000) == PROTOCOLS["digits"]
    assert PROTOCOLS["cifar10"].limited(5000).audit_images == 1000
