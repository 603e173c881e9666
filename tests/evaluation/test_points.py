"""Files of adversarial images: what is written is read, what does not fit is refused, and they attack as they are."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from advbnn.attacks import PGD
from advbnn.attacks.identity import settings_of
from advbnn.attacks.threat import Threat
from advbnn.data import from_tensors, to_float
from advbnn.evaluation.accuracy import evaluate
from advbnn.evaluation.checks import check_attack
from advbnn.evaluation.identity import ModelIdentity
from advbnn.evaluation.points import PartialPointsWarning, Points, check_cover
from trained_nets import bnn, digits, net

THREAT = Threat("linf", 0.1)
X, Y = to_float(digits().images), digits().labels
ROWS = torch.tensor([5, 3, 70, 119])


def some(**changes: Any) -> Points:
    x = X[ROWS]
    sets = {"up": THREAT.project(x + 0.1, x), "worst": THREAT.project(x - 0.1, x)}
    return Points.made(sets, ROWS, digits(), THREAT, ModelIdentity.of(net(), "net"), **changes)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    made, file = some(command="advbnn audit"), tmp_path / "deep" / "points.safetensors"
    made.save(file)
    found = Points.load(file)
    assert found.threat == THREAT and found.notes == made.notes
    assert found.notes["data_sha256"] == digits().fingerprint() and found.notes["model"] == "net"
    assert torch.equal(found.rows, ROWS) and torch.equal(found.labels, Y[ROWS])
    assert all(torch.equal(found.sets[name], points) for name, points in made.sets.items())


def test_the_worst_points_are_used_or_else_all_and_other_images_stay(tmp_path: Path) -> None:
    some().save(tmp_path / "points.safetensors")
    found = Points.load(tmp_path / "points.safetensors")
    (worst,) = found.on(digits(), THREAT).values()
    check_attack("stored", worst)
    assert settings_of(worst)["sha256"] == found.sha256 != ""
    for dtype in (torch.float32, torch.float64):
        x = X.to(dtype)
        expected = x.clone()
        expected[ROWS] = THREAT.project(found.sets["worst"].to(dtype), x[ROWS])
        assert torch.equal(worst(net(), x, Y), expected)
        flipped = worst(net(), x.flip(0)[:60], Y.flip(0)[:60])  # other images in another order
        assert torch.equal(flipped, expected.flip(0)[:60])
    assert list(Points(sets={"a": X, "b": X}, rows=torch.arange(120)).on(digits(), THREAT)) == ["a", "b"]


def test_the_accuracy_on_stored_points_is_that_of_the_attack_that_made_them() -> None:
    attack = PGD(THREAT, steps=5)
    x_adv = attack(bnn(), X, Y, seed=0)
    points = Points(sets={"pgd": x_adv}, rows=torch.arange(120))
    (stored,) = points.on(digits(), THREAT).values()
    record = evaluate(bnn(), digits(), stored, samples=4, seeds=1)[0]
    exact = evaluate(bnn(), digits(), Stored(x_adv), samples=4, seeds=1)[0]
    assert record.right.tolist() == exact.right.tolist()


def test_equal_images_with_other_labels_have_points_of_their_own() -> None:
    x, y = X[:20].repeat(2, 1, 1, 1), torch.cat([Y[:20], (Y[:20] + 1) % 10])
    x_adv = THREAT.project(x + torch.linspace(-0.1, 0.1, 40).view(-1, 1, 1, 1), x)
    data = from_tensors(x, y, classes=10)
    (stored,) = Points(sets={"all": x_adv}, rows=torch.arange(40)).on(data, THREAT).values()
    assert torch.equal(stored(net(), x, y), x_adv)


class Stored:
    """The same points without a file."""

    threat, settings = THREAT, {"which": "all"}

    def __init__(self, x_adv: torch.Tensor) -> None:
        self.x_adv = x_adv

    def __call__(self, model: object, x: torch.Tensor, y: torch.Tensor, seed: int | None = None) -> torch.Tensor:
        return self.x_adv


def test_rounding_is_forgiven_and_more_is_not() -> None:
    row = 17
    for beyond, refused in ((1e-8, False), (0.02, True)):
        moved = X.clone()
        moved[row, 0, 0, 0] += 0.1 + beyond
        points = Points(sets={"mine": moved}, rows=torch.arange(120), name="file")
        if refused:
            with pytest.raises(ValueError, match="'mine' .*linf.*row 17 by 0.02.*project"):
                points.on(digits(), THREAT)
        else:
            found = points.on(digits(), THREAT)["mine"](net(), X, Y)
            assert THREAT.distance(found, X).max() <= THREAT.eps
    outside = X.clone()
    outside[row] = -0.05
    with pytest.raises(ValueError, match=r"\[0, 1\].*row 17 by 0.05"):
        Points(sets={"mine": outside}, rows=torch.arange(120)).on(digits(), Threat("linf", 2.0))
    for value in (torch.nan, torch.inf):
        points = Points(sets={"mine": X.index_fill(0, torch.tensor(row), value)}, rows=torch.arange(120), name="file")
        with pytest.raises(ValueError, match="'mine' .*finite.*row 17.*leave"):
            points.on(digits(), THREAT)


def test_points_for_some_of_the_images_are_said_to_be_so() -> None:
    first, last = (Points(sets={"mine": X[rows]}, rows=rows, name="file") for rows in torch.arange(120).chunk(2))
    check_cover([], torch.arange(120))
    check_cover([first, last], torch.arange(120))
    check_cover([first], torch.arange(10))
    with pytest.warns(PartialPointsWarning, match="file: .*20 of 80"):
        check_cover([last], torch.arange(80))
    with pytest.raises(ValueError, match="file .*rows"):
        check_cover([first, last], torch.arange(60))


def test_a_file_needs_only_points(tmp_path: Path) -> None:
    save_file({"mine": digits().images[:3]}, tmp_path / "points.safetensors")  # of bytes
    (stored,) = Points.load(tmp_path / "points.safetensors").on(digits(), THREAT).values()
    assert torch.equal(stored(net(), X, Y), X)


@pytest.mark.parametrize(
    ("tensors", "metadata", "message"),
    [
        ({"mine": X, "rows": ROWS}, {}, "same n"),
        ({"rows": ROWS}, {}, "sets of points"),
        ({"mine": X[ROWS], "rows": ROWS, "labels": (Y[ROWS] + 1) % 10}, {}, "label .* for row 5.*check the rows"),
        ({"mine": X[ROWS], "rows": torch.tensor([5, 3, 70, 120])}, {}, r"points.safetensors: rows .*0..119"),
        ({"mine": X[ROWS], "rows": torch.tensor([5, 3, 70, 5])}, {}, r"points.safetensors: rows .*once"),
        ({"mine": torch.cat([X, X[:1]])}, {}, r"points.safetensors: rows .*0..119"),  # one image too many
        ({"mine": X[:0]}, {}, r"points.safetensors: rows .*non-empty"),
        ({"mine": X[ROWS, :, :4], "rows": ROWS}, {}, "shape .*1, 4, 8.*1, 8, 8"),
        ({"mine": X}, {"data_sha256": "ab", "data": "others"}, "others.*digits.*SHA-256"),
        ({"mine": X}, {"format": "advbnn-points-9"}, "another format"),
        ({"mine": X}, {"norm": "linf", "eps": "far"}, "threat in its metadata"),
    ],
)
def test_refuses_files_that_do_not_fit(
    tmp_path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str], message: str
) -> None:
    save_file({name: t.contiguous() for name, t in tensors.items()}, tmp_path / "points.safetensors", metadata)
    with pytest.raises(ValueError, match=message):
        Points.load(tmp_path / "points.safetensors").on(digits(), THREAT)


def test_refuses_what_is_no_file_of_points(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="--save-points"):
        Points.load(tmp_path / "nothing")
    (tmp_path / "text").write_text("no tensors here, but enough text for a header")
    with pytest.raises(ValueError, match="safetensors"):
        Points.load(tmp_path / "text")
