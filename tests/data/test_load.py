from pathlib import Path

import pytest

from advbnn.data import load


def test_refuses_unknown_names_and_options_that_do_not_apply() -> None:
    with pytest.raises(ValueError, match=r"'cifar-10' .*'cifar10'.*there is no"):
        load("cifar-10")
    with pytest.raises(ValueError, match="not to 'digits'"):
        load("digits", size=16)


def test_a_folder_by_its_path(image_folder: Path) -> None:
    assert load(image_folder).train.name == load(str(image_folder)).train.name == "pets"
    assert load(image_folder, size=4).train.shape == (3, 4, 4)


def test_root_from_the_environment(stl_folder: tuple[Path, object, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ADVBNN_DATA", raising=False)
    with pytest.raises(ValueError, match=r"root .*'stl10'.*ADVBNN_DATA"):
        load("stl10")
    monkeypatch.setenv("ADVBNN_DATA", str(stl_folder[0].parent))
    assert len(load("stl10").train) == 4
