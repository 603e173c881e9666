"""Random resizing and padding (Xie et al., ICLR 2018): another size and place of the image in each pass."""

from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from advbnn.defenses.published import EVERY_PASS, PGD_20, AuthorsProtocol, Published
from advbnn.defenses.surgery import has_layer
from advbnn.errors import positive_whole

GREY = 0.5
"""The colour around the image."""


@dataclass(frozen=True, kw_only=True)
class ResizeAndPad:
    """The network behind a `RandomResizePad`. It must take images of any size, as ResNet-18 here does."""

    kind = "resize_pad"
    grow: int = 3
    room: int = 4

    def __post_init__(self) -> None:
        for name in ("grow", "room"):
            positive_whole(name, getattr(self, name))

    def wrap(self, net: nn.Module) -> nn.Module:
        if has_layer(net, RandomResizePad):
            return net
        transform = RandomResizePad(self.grow, self.room).train(net.training)
        return nn.Sequential(OrderedDict(transform=transform, net=net))


class RandomResizePad(nn.Module):
    """Enlarge by 1 to `grow` pixels (nearest), pad with grey to `room` pixels more than before at a random place, flip
    with probability 1/2.

    Fresh in every pass, the same for the whole batch. The source enlarges 299 to 310-330 pixels within 331; for 32
    pixels the same share is 33-35 within 36. It pads with 0 where pixels are in [-1, 1]: with 0.5 here.
    """

    def __init__(self, grow: int = 3, room: int = 4) -> None:
        super().__init__()
        self.grow, self.room = grow, max(grow, room)

    def forward(self, x: Tensor) -> Tensor:
        # by indices, so that the numbers stay on the device and a captured graph follows them
        more = torch.randint(1, self.grow + 1, (), device=x.device)
        chance = torch.rand(3, device=x.device)
        rows, columns = ((chance[:2] * (self.room - more + 1)).long()).unbind()
        x = _enlarged(_enlarged(x - GREY, 2, more, rows, self.room), 3, more, columns, self.room) + GREY
        return torch.where(chance[2] < 0.5, x.flip(3), x)


def _enlarged(x: Tensor, axis: int, more: Tensor, before: Tensor, room: int) -> Tensor:
    """`x` with `more` pixels along an axis (nearest), and zeros before and after these, `room` in all."""
    size = x.shape[axis]
    place = torch.arange(size + room, device=x.device) - before
    inside = (place >= 0) & (place < size + more)
    nearest = (place * size // (size + more)).clamp(0, size - 1)
    shape = [-1 if number == axis else 1 for number in range(x.dim())]
    return x.index_select(axis, nearest) * inside.to(x.dtype).view(shape)


PUBLISHED = Published(
    name="resize_pad",
    title="Random resizing and padding",
    paper="Xie et al., Mitigating Adversarial Effects Through Randomization",
    venue="ICLR 2018",
    code="https://github.com/cihangxie/NIPS2017_adv_challenge_defense",
    network=ResizeAndPad(),
    random="size and place of the image",
    redrawn=EVERY_PASS,
    trained=False,
    baseline="none",
    samples=30,
    protocol=AuthorsProtocol(PGD_20, passes=30),
    differences=(
        "sizes are scaled from 299 to 32 pixels; the source is for ImageNet and claims nothing for CIFAR-10",
        "the source's auxiliary head does not exist here",
        "the repository has no attack: the protocol is the usual one",
    ),
)
