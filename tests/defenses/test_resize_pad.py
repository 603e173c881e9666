import torch

from advbnn.defenses.resize_pad import RandomResizePad
from advbnn.randomness import seeded


def test_the_image_is_there_in_every_size_and_place() -> None:
    x, seen = torch.arange(1.0, 17).view(1, 1, 4, 4), set()
    with seeded(0):
        for _ in range(300):
            (placed,) = RandomResizePad(grow=2, room=3)(x)[0]
            rows, columns = (placed != 0.5).nonzero().unbind(1)  # grey around it
            size = (int(rows.max() - rows.min()) + 1, int(columns.max() - columns.min()) + 1)
            inside = placed[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
            flipped = bool(inside[0, 0] > inside[0, -1])
            expected = torch.nn.functional.interpolate(x, size)[0, 0]
            assert torch.equal(inside.flip(1) if flipped else inside, expected)
            seen.add((size[0], int(rows.min()), int(columns.min()), flipped))
            assert placed.shape == (7, 7)
    # size 5 has 3 x 3 places, size 6 has 2 x 2, each with and without a flip
    assert len(seen) == 2 * (9 + 4)
