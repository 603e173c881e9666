"""Adversarial images in a file: safetensors, one row per image, checked against data, ball and box when they are used.

| tensor | shape | meaning |
|---|---|---|
| `rows` | [n], int64 | the row of each image in the data set, each once; the first n rows if left out |
| `labels` | [n], int64 | the true labels; may be left out |
| any other | [n, ...], float in the box, or uint8 | a set of points, one for each row |

An audit writes the set `worst`, and `attack/NAME` for each attack, with the clean image where an attack did not run;
with several seeds, one for each seed. Sets whose name begins with `worst` are used, or all if there are none.

The metadata, all of them text and optional: `format` (`advbnn-points-1`), `norm`, `eps` and `bounds` of the threat,
`data` and `model` with their `data_sha256` and `model_sha256`, and `command`.
"""

import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from advbnn.attacks.threat import Threat
from advbnn.data.augment import to_float
from advbnn.data.imageset import Examples, row_numbers
from advbnn.errors import ArgumentError, FileError
from advbnn.evaluation.checks import check_rows
from advbnn.evaluation.identity import DataIdentity, ModelIdentity
from advbnn.machine.files import explain_file_errors, file_digest, write_atomically
from advbnn.modules import tensor_bytes

FORMAT = "advbnn-points-1"
WORST = "worst"
_ABOUT = ("rows", "labels")

_ROUNDING = 1e-5
"""How much further than the radius, relative to it, and how far outside the box a point may lie because of rounding."""


class PartialPointsWarning(UserWarning):
    """There are points for some of the images only."""


@dataclass(frozen=True, kw_only=True)
class Points:
    """Adversarial images.

    Attributes:
        sets: sets of points by name, each [n, ...].
        rows: the rows of the n images in their data set, with their `labels`, if known.
        threat: what they were made for; None if not known.
        notes: further metadata, such as `data_sha256`, `model` and `model_sha256`.
        name: the file, for messages, and its `file_sha256`; empty if they were not read from one.
    """

    sets: Mapping[str, Tensor]
    rows: Tensor
    labels: Tensor | None = None
    threat: Threat | None = None
    notes: Mapping[str, str] = field(default_factory=dict)
    name: str = "points"
    file_sha256: str = ""

    @cached_property
    def sha256(self) -> str:
        """What identifies the points: the digest of their file, or of their names, rows and values."""
        if self.file_sha256:
            return self.file_sha256
        digest = hashlib.sha256(tensor_bytes(self.rows))
        for name, points in sorted(self.sets.items()):
            digest.update(f"{name} {points.dtype} {tuple(points.shape)}".encode())
            digest.update(tensor_bytes(points))
        return digest.hexdigest()

    @classmethod
    def made(
        cls,
        sets: Mapping[str, Tensor],
        rows: Tensor,
        data: Examples,
        threat: Threat,
        model: ModelIdentity,
        command: str = "",
    ) -> "Points":
        """Points that attacks on `model` have found."""
        about = DataIdentity.of(data)
        notes = {"data": about.name, "data_sha256": about.sha256, "model": model.label, "model_sha256": model.sha256}
        notes |= {key: value for key, value in (("model_source", model.source), ("command", command)) if value}
        labels = data.targets[rows.to(data.device)]
        return cls(sets=sets, rows=rows, labels=labels, threat=threat, notes=notes)

    def save(self, path: Path | str) -> None:
        """Write the file, whole or not at all."""
        tensors = {**self.sets, "rows": self.rows} | ({} if self.labels is None else {"labels": self.labels})
        metadata = {"format": FORMAT, **self.notes}
        if self.threat is not None:
            bounds = json.dumps(list(self.threat.bounds))
            metadata |= {"norm": self.threat.norm, "eps": repr(self.threat.eps), "bounds": bounds}
        contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        write_atomically(Path(path), save(contiguous, metadata))

    @classmethod
    def load(cls, path: Path | str) -> "Points":
        """Read a file; what it says about itself is checked by `on`."""
        path = Path(path)
        if not path.is_file():
            raise FileError(f"there is no file of points {path}; write one with advbnn audit --save-points")
        try:
            with explain_file_errors(path, "cannot be read", "check its permissions"), safe_open(path, "pt") as opened:
                notes = dict(opened.metadata() or {})
                tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a dict)
        except SafetensorError as error:
            raise ArgumentError(f"{path} is not a safetensors file, or is damaged ({error}); write it again") from error
        if notes.pop("format", FORMAT) != FORMAT:
            raise ArgumentError(f"{path} has another format than {FORMAT}; read it with the version that wrote it")
        sets = {name: tensor for name, tensor in tensors.items() if name not in _ABOUT}
        sizes = {name: len(tensor) if tensor.ndim else 0 for name, tensor in tensors.items()}
        if not sets or len(set(sizes.values())) != 1:
            expected = "sets of points, [n, ...], and rows and labels of the same n"
            raise ArgumentError(f"{path} must hold {expected}, but has {sizes or 'nothing'}")
        digest = file_digest(path)
        rows = tensors.get("rows", torch.arange(next(iter(sizes.values()))))
        threat = _threat(notes, path)
        labels = tensors.get("labels")
        return cls(sets=sets, rows=rows, labels=labels, threat=threat, notes=notes, name=str(path), file_sha256=digest)

    def on(self, data: Examples, threat: Threat) -> "dict[str, StoredPoints]":
        """The points as attacks on `data`, by name: the sets whose name begins with `worst`, or all if there are none.

        Points for other images, or outside ball and box by more than rounding, are refused: the message says which
        image, and by how much.
        """
        made_for = self.notes.get("data_sha256", "")
        if made_for and made_for != data.fingerprint():
            raise ArgumentError(
                f"{self.name} holds points for {self.notes.get('data', 'other images')}, not for {data.name}: their "
                "SHA-256 differ; use the data that they were made on"
            )
        check_rows(self.rows, len(data), f"{self.name}: rows")
        rows = row_numbers(self.rows, len(data))
        stored, labels = next(data.gather([rows]))
        if self.labels is not None and not torch.equal(self.labels.cpu(), labels.cpu()):
            wrong = int((self.labels.cpu() != labels.cpu()).nonzero()[0])
            row, said, true = int(rows[wrong]), int(self.labels[wrong]), int(labels[wrong])
            raise ArgumentError(f"{self.name} has label {said} for row {row}, {data.name} has {true}; check the rows")
        clean = to_float(stored).cpu()
        worst = {name: points for name, points in self.sets.items() if name.startswith(WORST)}
        return {
            name: StoredPoints(threat, self.sha256, name, clean, labels, self._inside(name, points, clean, threat))
            for name, points in (worst or self.sets).items()
        }

    def _inside(self, name: str, points: Tensor, clean: Tensor, threat: Threat) -> Tensor:
        """The points in the dtype of the images, in ball and box exactly."""
        points = to_float(points).to(clean.dtype)
        if points.shape != clean.shape:
            came, expected = list(points.shape[1:]), list(clean.shape[1:])
            raise ArgumentError(f"{self.name}: {name!r} has images of shape {came}, the data has {expected}")
        if wrong := (~points.isfinite()).flatten(1).any(1).nonzero().flatten().tolist():
            rows = f"row {int(self.rows[wrong[0]])}{_more(wrong)}"
            raise ArgumentError(f"{self.name}: {name!r} is not finite in the image of {rows}; leave such rows out")
        low, high = threat.bounds
        too_far = threat.distance(points, clean) - threat.eps * (1 + _ROUNDING)
        outside = torch.maximum(points - high, low - points).flatten(1).amax(1).double() - _ROUNDING
        ball, box = f"the {threat.norm} ball of radius {threat.eps:.6g}", f"the box [{low:g}, {high:g}]"
        for excess, place in ((too_far, ball), (outside, box)):
            if bad := (excess > 0).nonzero().flatten().tolist():
                first = bad[0]
                raise ArgumentError(
                    f"{self.name}: {name!r} leaves {place}: the image of row {int(self.rows[first])} by "
                    f"{excess[first].item():.3g}{_more(bad)}; project the points, or give the radius they were made for"
                )
        return threat.project(points, clean)


@dataclass(frozen=True)
class StoredPoints:
    """An attack that returns stored points, found again by image and label; other images stay as they are."""

    threat: Threat
    sha256: str
    name: str
    clean: Tensor = field(repr=False, compare=False)
    labels: Tensor = field(repr=False, compare=False)
    points: Tensor = field(repr=False, compare=False)
    _places: dict[torch.dtype, dict[bytes, int]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, seed: int | None = None) -> Tensor:
        """The stored points of these images; the model is not queried."""
        if x.dtype not in self._places:
            keys = _keys(self.clean.to(x.dtype), self.labels)
            self._places[x.dtype] = {key: number for number, key in enumerate(keys)}
        found = [self._places[x.dtype].get(key, -1) for key in _keys(x, y)]
        known = torch.tensor([number >= 0 for number in found], device=x.device)
        x_adv = x.clone()
        if known.any():
            chosen = self.points[[number for number in found if number >= 0]].to(x)
            x_adv[known] = self.threat.project(chosen, x[known])
        return x_adv


def check_cover(points: Sequence[Points], rows: Tensor) -> None:
    """Refuse points for none of the rows that are measured, and warn where some rows have none in any file."""
    wanted, covered = set(rows.tolist()), set[int]()
    for one in points:
        own = wanted.intersection(one.rows.tolist())
        if not own:
            raise ArgumentError(f"{one.name} holds no point for the images that are measured; choose its rows (rows=)")
        covered |= own
    if points and covered != wanted:
        names = ", ".join(one.name for one in points)
        words = f"points for {len(covered):,} of {len(wanted):,} images; the others count as clean"
        warnings.warn(f"{names}: {words}", PartialPointsWarning, stacklevel=3)


def _more(images: Sequence[int]) -> str:
    return f", and {len(images) - 1} more images" if len(images) > 1 else ""


def _keys(x: Tensor, y: Tensor) -> Iterator[bytes]:
    rows = x.detach().cpu().flatten(1).contiguous().view(torch.uint8)
    for row, label in zip(rows, y.tolist(), strict=True):
        yield hashlib.blake2b(row.numpy().data, digest_size=16).digest() + str(label).encode()


def _threat(notes: dict[str, Any], path: Path) -> Threat | None:
    given = [notes.pop(name, None) for name in ("norm", "eps", "bounds")]
    if given[0] is None or given[1] is None:
        return None
    try:
        low, high = json.loads(given[2] or "[0, 1]")
        return Threat(given[0], float(given[1]), (float(low), float(high)))
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"{path} has an unusable threat in its metadata ({error}); write norm, eps, bounds"
        ) from error
