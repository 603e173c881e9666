"""Drawings become inputs like those of the data set."""

import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image

from advbnn.errors import ArgumentError
from advbnn.play.drawing import drawn_input, ink_of


def png_uri(alpha: np.ndarray) -> str:
    pixels = np.dstack([np.full((*alpha.shape, 3), 255, np.uint8), alpha])
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def test_ink_is_the_opacity() -> None:
    alpha = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20
    torch.testing.assert_close(ink_of(png_uri(alpha)), torch.from_numpy(alpha) / 255)


@pytest.mark.parametrize("at", [(0, 0), (60, 90), (120, 30)])
def test_ink_fills_the_image_wherever_it_was_drawn(at: tuple[int, int]) -> None:
    ink = torch.zeros(240, 240)
    ink[at[0] : at[0] + 80, at[1] : at[1] + 20] = 1  # four times as high as wide
    image = drawn_input(ink, (1, 8, 8))
    assert image.shape == (1, 8, 8)
    expected = torch.zeros(8, 8)
    expected[:, 3:5] = 1
    torch.testing.assert_close(image[0], expected)
    torch.testing.assert_close(drawn_input(ink, (1, 8, 8), light_on_dark=False)[0], 1 - expected)


def test_pixels_are_means_over_their_area() -> None:
    ink = torch.ones(16, 16)
    ink[:4, :2] = 0.5
    image = drawn_input(ink, (1, 4, 4))[0]
    assert image[0, 0].item() == pytest.approx(0.75) and image[1, 1].item() == 1


def test_colour_images_keep_the_place_of_the_drawing() -> None:
    ink = torch.zeros(64, 64)
    ink[:32, :32] = 1
    image = drawn_input(ink, (3, 32, 32))
    assert image.shape == (3, 32, 32)
    assert image[:, :16, :16].min() == 1 and image[:, 16:].max() == image[:, :, 16:].max() == 0


def test_an_empty_drawing_is_refused() -> None:
    with pytest.raises(ArgumentError, match="drawing .*draw"):
        drawn_input(torch.zeros(20, 20), (1, 8, 8))
