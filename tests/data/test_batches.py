import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from advbnn.data import Batches, HorizontalFlip, ImageSet, RandomCrop, from_tensors, to_float
from advbnn.randomness import seeded

AUGMENTATIONS = (RandomCrop(padding=1), HorizontalFlip())


def numbered(count: int) -> ImageSet:
    """Image i carries i in its label, as the last of `count` classes."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 1, 4, 4), dtype=torch.uint8, generator=generator)
    return ImageSet(pixels, torch.arange(count), tuple(map(str, range(count))), "numbered")


def equal(first: tuple[torch.Tensor, ...], second: tuple[torch.Tensor, ...]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@given(st.integers(1, 40), st.integers(1, 12), st.booleans())
@settings(max_examples=40, deadline=None)
def test_an_epoch_delivers_every_example_once(count: int, batch_size: int, shuffle: bool) -> None:
    batches = Batches(numbered(count), batch_size, shuffle=shuffle)
    delivered = list(batches.epoch(0))
    assert len(delivered) == len(batches)
    assert [len(y) for _, y in delivered] == [batches.size(step) for step in range(len(batches))]
    labels = torch.cat([y for _, y in delivered]).tolist()
    assert sorted(labels) == list(range(count))
    assert shuffle or labels == list(range(count))
    if count >= batch_size:
        whole = list(Batches(numbered(count), batch_size, drop_last=True).epoch(0))
        assert [len(y) for _, y in whole] == [batch_size] * (count // batch_size)


def test_images_are_in_the_unit_interval_and_other_inputs_unchanged() -> None:
    examples = numbered(20)
    for x, y in Batches(examples, 8, seed=1).epoch(3):
        assert x.dtype == torch.float32
        assert torch.equal(x, to_float(examples.images[y]))
    inputs = torch.linspace(-5, 5, 12, dtype=torch.float64).reshape(6, 2)
    x, y = next(Batches(from_tensors(inputs, inputs.sum(1)), 6, shuffle=False).epoch(0))
    assert torch.equal(x, inputs) and torch.equal(y, inputs.sum(1))


def test_seed_and_epoch_decide_everything() -> None:
    examples = numbered(30)

    def first(seed: int, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        return next(Batches(examples, 30, seed=seed, augmentations=AUGMENTATIONS).epoch(epoch))

    orders = {tuple(first(seed, epoch)[1].tolist()) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9
    with seeded(1):  # the default generator is neither used nor changed
        before = torch.get_rng_state()
        one = first(0, 1)
        assert torch.equal(torch.get_rng_state(), before)
    assert equal(one, first(0, 1))


def test_resumes_at_any_step_exactly() -> None:
    batches = Batches(numbered(23), 5, seed=9, augmentations=AUGMENTATIONS)
    whole = list(batches.epoch(4))
    for step in range(len(batches) + 1):
        rest = list(batches.epoch(4, start_step=step))
        assert len(rest) == len(whole) - step
        assert all(map(equal, rest, whole[step:]))


@pytest.mark.parametrize(("count", "world"), [(30, 2), (34, 3), (35, 6)])
def test_the_shards_of_all_ranks_are_the_batch_of_one_process(count: int, world: int) -> None:
    examples = numbered(count)
    drop_last = 0 < count % 6 < world
    alone, *ranks = (
        Batches(examples, 6, 2, AUGMENTATIONS, drop_last=drop_last, rank=rank, world=of)
        for rank, of in [(0, 1), *((rank, world) for rank in range(world))]
    )
    for whole, *shards in zip(alone.epoch(1), *(rank.epoch(1) for rank in ranks), strict=True):
        for part in (0, 1):
            interleaved = [shard[part][i] for i, shard in itertools.product(range(6), shards) if i < len(shard[part])]
            assert torch.equal(torch.stack(interleaved), whole[part])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be"),
        ({"batch_size": 4, "rank": 2, "world": 2}, r"rank must lie in 0\.\.world-1"),
        ({"batch_size": 4, "world": 3}, "multiple of world=3"),
        ({"batch_size": 9, "world": 3}, "last batch .* 1 examples for 3 processes; set drop_last"),
        ({"batch_size": 11, "drop_last": True}, "leaves no batch"),
        ({"examples": from_tensors(torch.zeros(4, 2), torch.zeros(4)), "augmentations": AUGMENTATIONS}, "need images"),
    ],
)
def test_refuses_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Batches(**{"examples": numbered(10), "batch_size": 2, **options})


@pytest.mark.parametrize("start_step", [-1, 4])
def test_refuses_steps_beyond_the_epoch(start_step: int) -> None:
    with pytest.raises(ValueError, match=r"start_step .*0\.\.3"):
        Batches(numbered(12), 4).epoch(0, start_step=start_step)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_gpu_gets_the_same_batches() -> None:
    examples = numbered(40)
    here = Batches(examples, 8, augmentations=AUGMENTATIONS)
    there = Batches(examples.to("cuda"), 8, augmentations=AUGMENTATIONS)
    for (x, y), (u, v) in zip(here.epoch(1), there.epoch(1), strict=True):
        assert u.is_cuda and v.is_cuda
        assert torch.equal(x, u.cpu()) and torch.equal(y, v.cpu())
