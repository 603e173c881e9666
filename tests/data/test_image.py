import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from advbnn.data import DataError, load
from advbnn.data.image import decode, image_files, read_inputs
from images import save

Image = pytest.importorskip("PIL.Image")


def test_grey_palette_transparent_and_cmyk_images_become_rgb(tmp_path: Path) -> None:
    grey = Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8))
    for mode in ("L", "P", "RGBA", "CMYK"):
        path = tmp_path / f"{mode}.{'tif' if mode == 'CMYK' else 'png'}"
        grey.convert(mode).save(path)
        assert np.array_equal(decode(path), np.stack([np.asarray(grey)] * 3))


@pytest.mark.parametrize(("mode", "kind"), [("I;16", np.uint16), ("I", np.int32), ("F", np.float32)])
def test_refuses_pixels_that_would_be_clipped_to_white(tmp_path: Path, mode: str, kind: type) -> None:
    save(tmp_path / "deep.tif", np.full((4, 4), 300, kind))
    with pytest.raises(DataError, match=rf"deep\.tif: .*8 bits .*{mode}.*save"):
        decode(tmp_path / "deep.tif")


def test_only_pictures_are_opened_whatever_the_name(tmp_path: Path) -> None:
    """Pillow would give PostScript to Ghostscript, an interpreter of programs."""
    for name, kind in (("eps.png", "EPS"), ("pdf.jpg", "PDF"), ("icon.png", "ICO")):
        Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(tmp_path / name, kind)
        with pytest.raises(DataError, match=f"{name}: .*readable"):
            decode(tmp_path / name)
    for kind in ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP"):
        Image.fromarray(np.full((8, 8, 3), 200, np.uint8)).save(tmp_path / "x.png", kind)
        assert np.abs(decode(tmp_path / "x.png").astype(int) - 200).max() <= 3  # some of them lose


def test_takes_the_centred_square(tmp_path: Path) -> None:
    wide = np.zeros((4, 10, 3), np.uint8)
    wide[:, 3:7] = 200
    save(tmp_path / "wide.png", wide)
    save(tmp_path / "tall.png", wide.transpose(1, 0, 2))
    for name in ("wide.png", "tall.png"):
        assert (decode(tmp_path / name, 2) == 200).all()


def test_resizing_agrees_with_antialiased_bilinear(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)
    save(tmp_path / "x.png", pixels)
    for size in (16, 64):
        batch = torch.from_numpy(pixels).permute(2, 0, 1)[None].double()
        expected = torch.nn.functional.interpolate(batch, (size, size), mode="bilinear", antialias=True)
        assert np.abs(decode(tmp_path / "x.png", size) - expected[0].numpy()).max() <= 1


def test_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"advbnn\[data\]"):
        decode(tmp_path / "x.png")


def test_inputs_have_the_shape_of_the_model(tmp_path: Path) -> None:
    digit = load("digits").test.images[0]
    grey = Image.fromarray(digit[0].numpy())
    grey.save(tmp_path / "grey.png")
    grey.convert("RGB").resize((64, 64)).save(tmp_path / "large.png")
    paths = [tmp_path / "grey.png", tmp_path / "large.png"]
    inputs = read_inputs(paths, (1, 8, 8))
    torch.testing.assert_close(inputs[0], digit / 255)
    assert (inputs[1] - inputs[0]).abs().mean() < 0.1
    assert read_inputs(paths, (3, 16, 16)).shape == (2, 3, 16, 16)
    with pytest.raises(ValueError, match="grey .*colour"):
        read_inputs(paths, (3, 8, 16))


def test_hidden_files_of_a_folder_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    for name in ("b.png", "._b.png", "below/a.JPG", "notes.txt"):
        (tmp_path / name).touch()
    assert image_files([tmp_path]) == [tmp_path / "b.png", tmp_path / "below" / "a.JPG"]
    assert image_files([tmp_path / "._b.png"]) == [tmp_path / "._b.png"]
