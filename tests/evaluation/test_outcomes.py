"""Packing is inverted by unpacking, and the text is short."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from advbnn.evaluation.outcomes import pack, unpack


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_what_is_packed_is_unpacked(right: list[bool]) -> None:
    assert unpack(pack(torch.tensor(right)), len(right)).tolist() == right


@given(st.integers(1, 200), st.data())
def test_counts_of_several_ensembles_are_unpacked(most: int, drawn: st.DataObject) -> None:
    counts = drawn.draw(st.lists(st.integers(0, most), min_size=1, max_size=40))
    assert unpack(pack(torch.tensor(counts), most), len(counts), most).tolist() == counts


def test_the_text_is_base64_of_bits_and_short() -> None:
    assert pack(torch.tensor([True, False, True])) == "oA=="  # the byte 1010 0000
    assert pack(torch.tensor([5, 2]), 10) == "Ug=="  # the byte 0101 0010
    assert len(pack(torch.ones(10_000, dtype=torch.bool))) == 1668
    assert len(pack(torch.ones(10_000), 10)) == 4 * 1667


def test_refuses_text_of_another_length_or_kind() -> None:
    with pytest.raises(ValueError, match="outcomes .*9 images.*2 bytes"):
        unpack(pack(torch.ones(8, dtype=torch.bool)), 9)
    with pytest.raises(ValueError, match="outcomes .*base64"):
        unpack("?", 8)
