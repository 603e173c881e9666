"""Results in the order of the data, resumed after an interruption from batches and parts on disk."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from advbnn.data import from_tensors
from advbnn.evaluation.batchwise import Batch, batchwise

DATA = from_tensors(torch.arange(20, dtype=torch.float32).reshape(10, 2), torch.arange(10) % 3)


def work(x: Tensor, y: Tensor, batch: Batch) -> dict[str, Tensor]:
    return {"sum": x.sum(1), "pair": torch.stack([y, torch.full_like(y, batch.number)], 1)}


def test_results_are_in_the_order_of_the_data() -> None:
    tensors, seconds = batchwise(work, DATA, batch_size=4)
    assert tensors["sum"].tolist() == DATA.inputs.sum(1).tolist()
    assert tensors["pair"][:, 0].tolist() == DATA.targets.tolist()
    assert tensors["pair"][:, 1].tolist() == [0] * 4 + [1] * 4 + [2] * 2
    assert seconds > 0


def test_rows_are_taken_in_their_order_and_images_come_in_zero_to_one() -> None:
    tensors = batchwise(work, DATA, batch_size=2, rows=[7, 3, 3]).tensors
    assert tensors["sum"].tolist() == DATA.inputs.sum(1)[[7, 3, 3]].tolist()
    images = from_tensors(torch.full((3, 1, 2, 2), 255, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64))
    tensors = batchwise(lambda x, y, batch: {"largest": x.amax((1, 2, 3))}, images, batch_size=2).tensors
    assert tensors["largest"].tolist() == [1.0, 1.0, 1.0]


def test_finished_batches_are_read_back_with_their_time(tmp_path: Path) -> None:
    done: list[int] = []

    def counted(x: Tensor, y: Tensor, batch: Batch) -> dict[str, Tensor]:
        done.append(batch.number)
        if done == [0, 1, 2]:
            raise KeyboardInterrupt
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


def test_finished_parts_of_a_batch_are_kept_until_it_is_done(tmp_path: Path) -> None:
    store, made = tmp_path / "store", []

    def in_parts(x: Tensor, y: Tensor, batch: Batch) -> dict[str, Tensor]:
        def make(factor: int) -> Tensor:
            made.append((batch.number, factor))
            if made == [(0, 2), (0, 3), (1, 2), (1, 3)]:
                raise KeyboardInterrupt
            return factor * x

        return {"product": batch.part("twice", x, lambda: make(2)) * batch.part("thrice", x, lambda: make(3))}

    with pytest.raises(KeyboardInterrupt):
        batchwise(in_parts, DATA, batch_size=5, store=store)
    assert sorted(file.name for file in store.iterdir()) == ["batch-000000.safetensors", "batch-000001"]
    resumed = batchwise(in_parts, DATA, batch_size=5, store=store).tensors
    assert made == [(0, 2), (0, 3), (1, 2), (1, 3), (1, 3)]
    assert torch.equal(resumed["product"], 6 * DATA.inputs**2)
    assert sorted(file.name for file in store.iterdir()) == ["batch-000000.safetensors", "batch-000001.safetensors"]


def test_a_part_with_other_inputs_is_computed_again(tmp_path: Path) -> None:
    x = torch.arange(4.0)
    assert torch.equal(Batch(0, tmp_path).part("twice", x, lambda: 2 * x), 2 * x)
    batch = Batch(0, tmp_path)
    assert torch.equal(batch.part("twice", x, lambda: 3 * x), 2 * x)
    assert torch.equal(batch.part("twice", x + 1, lambda: 3 * x), 3 * x)
    assert torch.equal(batch.part("thrice", x, lambda: 3 * x), 3 * x)
    assert batch.earlier > 0


def test_progress_shows_the_part_under_way(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("advbnn.display.progress.SECONDS_BETWEEN_LINES", 0.0)
    doubling = lambda x, y, batch: {"twice": batch.part("the doubling", x, lambda: 2 * x)}  # noqa: E731
    batchwise(doubling, DATA, batch_size=5, description="sums")
    assert "sums: 0 of 2 batches, the doubling\n" in capsys.readouterr().err


def test_the_time_left_counts_what_a_batch_has_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("advbnn.display.progress.SECONDS_BETWEEN_LINES", 0.0)
    clock = iter(range(0, 10_000, 6))
    monkeypatch.setattr("advbnn.display.progress.time.monotonic", lambda: next(clock))

    def work(x: torch.Tensor, y: torch.Tensor, batch: Batch) -> dict[str, torch.Tensor]:
        batch.part("first", x, lambda: x, share=0.25)
        return {"same": batch.part("second", x, lambda: batch.attacked(0.5, seed=0) or x, share=0.75)}

    batchwise(work, DATA, batch_size=10, description="sums")
    lines = [line for line in capsys.readouterr().err.splitlines() if "batches" in line]
    # 6 s from line to line; a quarter of the work is done when the second part begins, then 5/8 of it
    assert lines[1:4] == [
        "sums: 0 of 1 batches, first",
        "sums: 0 of 1 batches, 0:00:54 left, second",
        "sums: 0 of 1 batches, 0:00:14 left, second, 50%",
    ]
