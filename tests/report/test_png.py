import base64
import io

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from advbnn.report.png import data_uri, png


@given(channels=st.sampled_from([1, 3]), height=st.integers(1, 9), width=st.integers(1, 9), seed=st.integers(0, 99))
def test_another_reader_sees_the_same_pixels(channels: int, height: int, width: int, seed: int) -> None:
    levels = torch.randint(0, 256, (channels, height, width), generator=torch.Generator().manual_seed(seed))
    with Image.open(io.BytesIO(png(levels / 255))) as image:
        assert image.size == (width, height)
        read = np.asarray(image).reshape(height, width, channels)
    assert (read.transpose(2, 0, 1) == levels.numpy()).all()


def test_values_beyond_the_range_are_black_and_white() -> None:
    with Image.open(io.BytesIO(png(torch.tensor([[[-1.0, 2.0]]])))) as image:
        assert np.asarray(image).tolist() == [[0, 255]]


def test_address_holds_the_file() -> None:
    pixels = torch.rand(3, 2, 2)
    kind, _, content = data_uri(pixels).partition(",")
    assert kind == "data:image/png;base64"
    assert base64.b64decode(content) == png(pixels)


@pytest.mark.parametrize("shape", [(8, 8), (2, 8, 8), (1, 0, 8), (1, 1, 8, 8)])
def test_refuses_what_is_no_image(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="pixels must be an image"):
        png(torch.zeros(shape))
