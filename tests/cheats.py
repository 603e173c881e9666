"""Networks that look robust and are not, or whose outputs are unreliable; made on purpose, for tests of the audit."""

import hashlib

import torch
from torch import Tensor, nn
from torch.nn import functional


class Wrapped(nn.Module):
    """A network with something around it."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Scaled(Wrapped):
    """Logits so large that the cross-entropy of a correct prediction is 0 in float32, and so is its gradient."""

    def forward(self, x: Tensor) -> Tensor:
        return 1e4 * self.net(x)


class Rounded(Wrapped):
    """Rounds its input to 8 levels, which has no gradient."""

    def forward(self, x: Tensor) -> Tensor:
        return self.net((7 * x.detach()).round() / 7)


class Wavering(Rounded):
    """Rounds its input, and adds so much noise to the logits that no attack is sure to break an image."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 6 * torch.randn(len(x), 10)


class Purifying(Wrapped):
    """Hides its gradient where the background is grey, as an attack makes it, and adds noise to the logits."""

    def forward(self, x: Tensor) -> Tensor:
        grey = x.detach()[..., [0, 7]].flatten(1).mean(1) > 0.04
        logits = self.net(torch.where(grey[:, None, None, None], x.detach(), x))
        return logits + 6 * torch.randn(len(x), 10)


class Partly(Wrapped):
    """Hides its gradient for about a fifth of the images."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = 7.3 * x.detach().flatten(1)[:, 2::8].sum(1) % 1 < 0.2
        return torch.where(hidden[:, None], self.net(x.detach()), self.net(x))


class Jittered(Wrapped):
    """Shrinks its input at random, puts it somewhere, and adds noise."""

    def forward(self, x: Tensor) -> Tensor:
        side = int(torch.randint(6, 9, ()))
        left, top = torch.randint(0, 9 - side, (2,)).tolist()
        small = functional.interpolate(x, size=(side, side), mode="bilinear")
        placed = functional.pad(small, (left, 8 - side - left, top, 8 - side - top))
        return self.net(placed + 0.4 * torch.randn_like(placed))


class Counting(Wrapped):
    """Noise from its own seed, the number of the call."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(self.calls))
        return self.net(x + 0.5 * noise)


class Hashing(Wrapped):
    """Noise from a hash of the image: the same for the same image, different for any other."""

    def forward(self, x: Tensor) -> Tensor:
        hashes = [hashlib.sha256(image.detach().numpy().tobytes()).digest()[:7] for image in x]
        generators = [torch.Generator().manual_seed(int.from_bytes(one, "big")) for one in hashes]
        return self.net(x + 0.5 * torch.stack([torch.randn(x[0].shape, generator=one) for one in generators]))


class Reseeding(Wrapped):
    """Sets torch's seed at every call."""

    def forward(self, x: Tensor) -> Tensor:
        torch.manual_seed(7)
        return self.net(x + 0.1 * torch.randn_like(x))


class Normalising(Wrapped):
    """Subtracts the mean of the batch, also in evaluation mode."""

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x - x.mean(0) + 0.3)


class Softened(Wrapped):
    """Returns probabilities."""

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).softmax(1)


class Exploding(Wrapped):
    """Adds the square root of zero, whose gradient is infinite, times zero."""

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) + (x - x).flatten(1).sum(1, keepdim=True).sqrt()


class Suspicious(Wrapped):
    """Answers only for images that look clean, and says nothing about rough ones."""

    def forward(self, x: Tensor) -> Tensor:
        smooth = functional.avg_pool2d(functional.pad(x, (1, 1, 1, 1), mode="replicate"), 3, 1)
        clean = (x - smooth).flatten(1).abs().mean(1) < 0.2
        return torch.where(clean[:, None], self.net(x), 0 * self.net(x))


class Together(Wrapped):
    """If all images of a batch are on the grid of 8 bits, it is right about zeros alone."""

    def forward(self, x: Tensor) -> Tensor:
        bits, logits = 255 * x.detach(), self.net(x)
        stored = (bits - bits.round()).abs().max() < 1e-3
        return torch.where(stored & (logits.argmax(1, keepdim=True) > 0), logits.roll(1, 1), logits)
