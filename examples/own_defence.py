"""A defence with a random state of its own, audited: it says how its state is drawn, and the audit averages over it."""

import os

import torch
from torch import Tensor, nn

import advbnn
from advbnn.evaluation.audit import Audit
from advbnn.evaluation.comparison import compare

SHORT = bool(os.environ.get("ADVBNN_EXAMPLE"))
ROWS = range(10 if SHORT else 200)  # the test images that are used


class RandomMask(nn.Module):
    """Hides a few pixels, the same ones for all images until a new mask is drawn."""

    def __init__(self, share: float, size: int) -> None:
        super().__init__()
        self.share, self.size = share, size
        self.mask = torch.ones(size, size)

    def resample(self, seed: int) -> None:
        """The library calls this before every pass, so that attacks and scores use independent masks."""
        generator = torch.Generator().manual_seed(seed)
        self.mask = (torch.rand(self.size, self.size, generator=generator) > self.share).float()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.mask.to(x)


data = advbnn.data.load("digits")
net = advbnn.models.build("mlp", classes=10, image_size=8, channels=1)
how = advbnn.defense("adv", "digits", schedule={"epochs": 1 if SHORT else 10})
trained = advbnn.fit(net, data, how, seed=0).model


def audited(net: nn.Module, label: str) -> Audit:
    return advbnn.audit(net, data.test, advbnn.Threat("linf", 0.1), "quick", rows=ROWS, samples=5, label=label)


found = audited(nn.Sequential(RandomMask(0.2, 8), trained), "random mask")
print(found)
for comparison in compare(found.records, audited(trained, "no mask").records):  # the same images
    print(comparison)
for flag in found.raised:
    print(f"{flag.title}: {flag.evidence}")
