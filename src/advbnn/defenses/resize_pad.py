"""Random resizing and padding (Xie et al., ICLR 2018): another size and place of the image in each pass."""

from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from advbnn.defenses.published import EVERY_PASS, PGD_20, AuthorsProtocol, Published
from advbnn.defenses.surgery import has_layer
from advbnn.errors import positive_whole


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
    """Enlarge by 1 to `grow` pixels (nearest), pad with zeros to `room` pixels more than before at a random place, flip
    with probability 1/2.

    Fresh in every pass, the same for the whole batch. The source enlarges 299 to 310-330 pixels within 331; for 32
    pixels the same share is 33-35 within 36.
    """

    def __init__(self, grow: int = 3, room: int = 4) -> None:
        super().__init__()
        self.grow, self.room = grow, max(grow, room)

    def forward(self, x: Tensor) -> Tensor:
        more = int(torch.randint(1, self.grow + 1, ()))
        free = self.room - more
        top, left = (int(n) for n in torch.randint(0, free + 1, (2,)))
        larger = functional.interpolate(x, (x.shape[2] + more, x.shape[3] + more))
        placed = functional.pad(larger, (left, free - left, top, free - top))
        return placed.flip(3) if bool(torch.rand(()) < 0.5) else placed


PUBLISHED = Published(
    name="resize_pad",
    title="Random resizing and padding",
    paper="Xie et al., Mitigating Adversarial Effects Through Randomization",
    venue="ICLR 2018",
    code="https://github.com/cihangxie/NIPS2017_adv_challenge_defense",
    network=ResizeAndPad(),
    random="size and place of the image",
    redrawn=EVERY_PASS,
    shared=True,
    trained=False,
    samples=30,
    protocol=AuthorsProtocol(PGD_20, passes=30),
    differences=(
        "sizes are scaled from 299 to 32 pixels; the source is for ImageNet and claims nothing for CIFAR-10",
        "the source's auxiliary head does not exist here",
    ),
)
