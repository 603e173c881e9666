"""The paper's numbers, and the protocols that repeat its measurements."""

import pytest

from advbnn.defenses.profiles import DATASETS
from advbnn.paper import published as paper
from advbnn.paper.protocol import PROTOCOLS


def test_the_paper_has_numbers_for_its_own_data_only() -> None:
    assert paper.table1("cifar10", 10_000)["adv"][0] == 80.3
    for data, images in (("stl10", 1_000), ("digits", 500), ("/somewhere/cifar10", 10_000)):
        assert paper.table1(data, images) == {}


@pytest.mark.parametrize("data", DATASETS)
def test_protocols_are_consistent(data: str) -> None:
    protocol = PROTOCOLS[data]
    assert set(protocol.audit_radii) <= set(protocol.table_radii) < set(protocol.radii)
    assert protocol.radii[0] == 0
    assert 20 * protocol.step_size > max(protocol.radii)  # twenty steps reach every radius
    if data in paper.RADII:
        assert protocol.table_radii == paper.RADII[data]
        assert (protocol.step_size, max(protocol.steps)) == (0.007, 1000)


def test_a_limit_applies_to_everything() -> None:
    limited = PROTOCOLS["cifar10"].limited(500)
    assert {limited.images, limited.averaged_images, limited.study_images, limited.audit_images} == {500}
    assert PROTOCOLS["digits"].limited(5000) == PROTOCOLS["digits"]
    assert PROTOCOLS["cifar10"].limited(5000).audit_images == 1000
