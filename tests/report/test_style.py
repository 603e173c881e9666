"""Names and colours of models."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from advbnn.report.style import TITLES, defenses_in, looks

GROUND = {"light": "#fdfcfa", "dark": "#15171a"}

# Machado, Oliveira and Fernandes (2009), full severity, for linear RGB
BLINDNESS = {
    "none": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def linear(colour: str) -> np.ndarray:
    values = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """That of WCAG 2."""
    dark, light = sorted(linear(colour) @ [0.2126, 0.7152, 0.0722] for colour in (one, other))
    return (light + 0.05) / (dark + 0.05)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIELAB, in which distances are about as large as they look."""
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ rgb
    t = xyz / [0.9505, 1, 1.089]
    f = np.where(t > 0.008856, np.cbrt(t), 7.787 * t + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("theme", GROUND)
def test_all_colours_can_be_read_as_text(theme: str) -> None:
    for look in looks([*TITLES, "a", "b", "c"]).values():
        assert contrast(getattr(look, theme), GROUND[theme]) >= 4.5


@pytest.mark.parametrize("theme", GROUND)
@pytest.mark.parametrize("blindness", BLINDNESS)
def test_the_defences_can_be_told_apart(theme: str, blindness: str) -> None:
    seen = [np.clip(BLINDNESS[blindness] @ linear(getattr(look, theme)), 0, 1) for look in looks(TITLES).values()]
    for one, other in itertools.combinations(map(lab, seen), 2):
        assert np.linalg.norm(one - other) > 15


def test_defences_come_first_in_the_papers_order_with_their_own_colours() -> None:
    found = looks(["mine", "adv_bnn", "yours", "none", "mine"])
    assert list(found) == ["none", "adv_bnn", "mine", "yours"]
    assert [look.title for look in found.values()] == ["No defence", "Adv-BNN", "mine", "yours"]
    assert len({look.variable for look in found.values()}) == 4
    assert found["adv_bnn"] == looks(["adv_bnn"])["adv_bnn"]


def test_there_may_be_more_models_than_colours() -> None:
    assert len({look.light for look in looks(f"model {number}" for number in range(20)).values()}) == 8


def test_a_run_is_named_by_its_defence_and_its_folder() -> None:
    defenses = {"adv": "adv", "adv_adam": "adv", "run3": "own", "rse": "bnn", "bnn (last)": "bnn", "run4 (last)": "rse"}
    defenses |= {"x (last) 2": "adv"}
    found = looks([*defenses, "mine"], defenses)
    titles = ["BNN (rse)", "Adv. training", "Adv. training (adv_adam)", "own (run3)", "BNN (last)"]
    titles += ["RSE (run4, last)", "Adv. training (x (last) 2)", "mine"]
    assert sorted(look.title for look in found.values()) == sorted(titles)


def test_names_are_unique() -> None:
    found = looks(["adv_bnn", "Adv-BNN", "x", "Adv. training (x)"], {"x": "adv"})
    assert len({look.title for look in found.values()}) == 4


def test_the_defence_of_a_run_is_in_its_config(tmp_path: Path) -> None:
    configs = {"runs/a": 'defense = "adv"', "runs/b": "no TOML", "runs/c": "seed = 1", ".": 'defense = "bnn"'}
    configs["runs/several"] = 'defense = "adv"\nmodes.count = 3'
    for name, text in {**configs, "runs/d": 'defense = "b\u00fcn"'}.items():
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "config.toml").write_text(text, encoding="latin-1")
        (tmp_path / name / "run.json").write_text("{}")
    (tmp_path / "runs" / "empty").mkdir()
    here = tmp_path.name
    several = "3 modes of Adv. training"
    runs = {"a": "adv", "a (last)": "adv", "several": several, "several (last)": several}
    assert looks(["several"], runs)["several"].title == "3 modes of Adv. training (several)"
    assert defenses_in(tmp_path) == {here: "bnn", f"{here} (last)": "bnn", **runs}
    (tmp_path / "run.json").unlink()
    assert defenses_in(tmp_path) == runs
    assert defenses_in(tmp_path / "nowhere") == {}
