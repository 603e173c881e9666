from pathlib import Path

import pytest
import torch
from torch import Tensor

from advbnn.batchwise import batchwise
from advbnn.data import from_tensors

DATA = from_tensors(torch.arange(20, dtype=torch.float32).reshape(10, 2), torch.arange(10) % 3)


def work(x: Tensor, y: Tensor, batch: int) -> dict[str, Tensor]:
    return {"sum": x.sum(1), "pair": torch.stack([y, torch.full_like(y, batch)], 1)}


def test_results_are_in_the_order_of_the_data() -> None:
    tensors, seconds = batchwise(work, DATA, batch_size=4)
    assert tensors["sum"].tolist() == DATA.inputs.sum(1).tolist()
    assert tensors["pair"][:, 0].tolist() == DATA.targets.tolist()
    assert tensors["pair"][:, 1].tolist() == [0] * 4 + [1] * 4 + [2] * 2
    assert seconds > 0


def test_rows_are_taken_in_their_order() -> None:
    tensors = batchwise(work, DATA, batch_size=2, rows=[7, 3, 3]).tensors
    assert tensors["sum"].tolist() == DATA.inputs.sum(1)[[7, 3, 3]].tolist()


def test_images_come_in_zero_to_one() -> None:
    images = from_tensors(torch.full((3, 1, 2, 2), 255, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64))
    tensors = batchwise(lambda x, y, batch: {"largest": x.amax((1, 2, 3))}, images, batch_size=2).tensors
    assert tensors["largest"].tolist() == [1.0, 1.0, 1.0]


def test_finished_batches_are_read_back_with_their_time(tmp_path: Path) -> None:
    done: list[int] = []

    def counted(x: Tensor, y: Tensor, batch: int) -> dict[str, Tensor]:
        if batch == 2 and len(done) < 3:
            done.append(batch)
            raise KeyboardInterrupt
        done.append(batch)
        return work(x, y, batch)

    with pytest.raises(KeyboardInterrupt):
        batchwise(counted, DATA, batch_size=4, store=tmp_path / "store")
    tensors, seconds = batchwise(counted, DATA, batch_size=4, store=tmp_path / "store")
    assert done == [0, 1, 2, 2]
    whole = batchwise(work, DATA, batch_size=4).tensors
    assert all(torch.equal(tensors[name], whole[name]) for name in whole)
    again = batchwise(counted, DATA, batch_size=4, store=tmp_path / "store")
    assert len(done) == 4
    assert again.seconds == seconds
