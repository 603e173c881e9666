import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from advbnn.data import DataError, ImageSet, Splits, cifar10, load, load_cifar10
from advbnn.data.archive import digest
from images import pack

Batches = dict[str, tuple[np.ndarray, np.ndarray]]


def check_contents(root: Path, batches: Batches, name: str = "cifar10-unverified", verify: bool = False) -> None:
    loaded = load_cifar10(root, verify=verify)
    train = [batches[f"data_batch_{i}"] for i in range(1, 6)]
    assert torch.equal(loaded.train.images, torch.from_numpy(np.concatenate([x for x, _ in train])))
    assert loaded.train.labels.tolist() == np.concatenate([y for _, y in train]).tolist()
    assert torch.equal(loaded.test.images, torch.from_numpy(batches["test_batch"][0]))
    assert loaded.test.labels.tolist() == batches["test_batch"][1].tolist()
    assert loaded.train.name == loaded.test.name == name
    assert loaded.train.classes[3] == "cat"


def test_the_published_files(published: Callable[[str], Splits[ImageSet]]) -> None:
    cifar10 = published("cifar10")
    assert (len(cifar10.train), len(cifar10.test)) == (50_000, 10_000)
    assert cifar10.train.labels.bincount().tolist() == [5000] * 10
    means = cifar10.train.images.double().mean((0, 2, 3)) / 255
    assert means.tolist() == pytest.approx([0.4914, 0.4822, 0.4465], abs=5e-5)


@pytest.mark.parametrize("protocol", [2, 5])
def test_reads_the_python_layout(cifar_pickled: Callable[[int], Path], cifar_batches: Batches, protocol: int) -> None:
    folder = cifar_pickled(protocol)
    check_contents(folder.parent, cifar_batches)
    # as Python 2 wrote them
    for name, (images, labels) in cifar_batches.items():
        (folder / name).write_bytes(python2_pickle(images.tobytes(), labels.tolist()))
    check_contents(folder, cifar_batches)


def python2_pickle(pixels: bytes, labels: list[int]) -> bytes:
    """The opcodes of the published files: byte strings throughout, and integers for the flags of the dtype."""

    def string(text: bytes) -> bytes:
        return b"T" + len(text).to_bytes(4, "little") + text

    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85" + string(b"b") + b"tR"
        b"(K\x01K\x03M\x00\x0c\x86cnumpy\ndtype\n(" + string(b"u1") + b"K\x00K\x01tR"
        b"(K\x03" + string(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89" + string(pixels) + b"tb"
    )
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(" + string(b"data") + array + string(b"labels") + numbers + b"u."


@pytest.mark.parametrize("layout", ["binary", "python"])
def test_reads_archives_without_unpacking_them(
    tmp_path: Path, cifar_binary: Path, cifar_pickled: Callable[[int], Path], cifar_batches: Batches, layout: str
) -> None:
    root = tmp_path / "archives"
    folder = cifar_binary if layout == "binary" else cifar_pickled(2)
    archive = pack(folder, root / f"cifar-10-{layout}.tar.gz")
    check_contents(root, cifar_batches)
    check_contents(archive, cifar_batches)
    assert os.listdir(root) == [archive.name]
    with pytest.raises(DataError, match="MD5 .*"):
        load_cifar10(root)
    archive.write_bytes(archive.read_bytes()[:-20_000])
    with pytest.raises(DataError, match=r"tar\.gz: .*download CIFAR-10"):
        load_cifar10(archive, verify=False)


def test_only_the_published_checksums_make_it_cifar10(
    cifar_binary: Path, cifar_batches: Batches, cifar_pickled: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match=r"data_batch_1\.bin: .*SHA1 .*aadd24"):
        load("cifar10", cifar_binary)
    with pytest.raises(DataError, match=r"data_batch_1: .*MD5 .*verify=False"):
        load("cifar10", cifar_pickled(2))
    sums = {file.name: f"sha1:{digest(file, 'sha1')}" for file in cifar_binary.iterdir()}
    monkeypatch.setattr(cifar10, "BINARIES", {name: sums[name] for name in cifar10.BINARIES})
    check_contents(cifar_binary, cifar_batches, name="cifar10", verify=True)


def test_missing_files(tmp_path: Path, cifar_binary: Path) -> None:
    (cifar_binary / "data_batch_3.bin").unlink()
    (tmp_path / "empty").mkdir()
    for root, message in (
        (cifar_binary, r"cifar-10-batches-bin: data_batch_3\.bin missing; download"),
        (tmp_path / "empty", r"empty: .*advbnn data download.* contains cifar-10-batches-bin"),
        (tmp_path / "nowhere", "nowhere: there is no such folder"),
    ):
        with pytest.raises(DataError, match=message):
            load_cifar10(root)


def test_a_damaged_file(cifar_binary: Path) -> None:
    file = cifar_binary / "data_batch_2.bin"
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    with pytest.raises(DataError, match=r"data_batch_2\.bin: "):
        load_cifar10(cifar_binary, verify=False)
    file.write_bytes(content[:3073] + b"\x0a" + content[3074:])
    with pytest.raises(ValueError, match="label 10 .*example 4"):
        load_cifar10(cifar_binary, verify=False)


class MakesFolder:
    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("protocol", [0, 5])
def test_a_pickle_cannot_run_anything(cifar_pickled: Callable[[int], Path], tmp_path: Path, protocol: int) -> None:
    folder = cifar_pickled(2)
    harm = tmp_path / "harm"
    (folder / "data_batch_1").write_bytes(pickle.dumps({b"data": MakesFolder(harm)}, protocol))
    with pytest.raises(DataError, match=r"data_batch_1: .*uses \w+\.mkdir"):
        load_cifar10(folder, verify=False)
    assert not harm.exists()


def test_a_pickle_that_is_no_batch(cifar_pickled: Callable[[int], Path]) -> None:
    folder, image = cifar_pickled(2), np.zeros((1, 3072), np.uint8)
    for batch in ([1, 2], {"labels": [1, 2], "data": image}, {"labels": [1], "data": image[:, 1:]}):
        (folder / "test_batch").write_bytes(pickle.dumps(batch))
        with pytest.raises(DataError, match="test_batch: "):
            load_cifar10(folder, verify=False)
