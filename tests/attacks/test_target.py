"""What an attack finds out about its target from a few passes."""

import pytest
import torch
from torch import nn

from advbnn.attacks.target import Target


class Noisy(nn.Module):
    """What `noise` makes of the logits and the batch."""

    def __init__(self, noise) -> None:
        super().__init__()
        self.net, self._noise = nn.Linear(6, 3), noise

    def forward(self, x):
        return self._noise(self.net(x), x)


SHARED = {
    "one noise for the batch": lambda y, x: y + torch.randn(3),
    "a noise on the input": lambda y, x: y + (x * torch.randn(6)).sum(1, keepdim=True),
    "none": lambda y, x: y,
}
OWN = {
    "one noise for each image": lambda y, x: y + torch.randn(len(x), 3),
    "one bit for each image": lambda y, x: y + torch.randint(2, (len(x), 1)),
    "a rare event": lambda y, x: y + (torch.rand(len(x), 1) < 0.02),
    "votes": lambda y, x: nn.functional.one_hot((y + torch.randn(y.shape)).argmax(1), 3).float(),
    "small beside the logits": lambda y, x: y + 1e3 + 1e-3 * torch.randn(len(x), 3),
    "on the pixels": lambda y, x: y + (x * torch.randn(x.shape)).sum(1, keepdim=True),
}


@pytest.mark.parametrize("first", [torch.zeros, torch.rand], ids=["black", "an image"])
@pytest.mark.parametrize("kind", [*SHARED, *OWN])
def test_whether_images_share_their_random_numbers(kind, first):
    target = Target(Noisy((SHARED | OWN)[kind]), torch.cat([first(1, 6), torch.rand(4, 6)]))
    assert target.shares_draws is (kind in SHARED)


@pytest.mark.parametrize(
    "noisy",
    [lambda x: (x.sum(1) > 4).any(), lambda x: bool(((255 * x) % 1 > 1e-3).any())],
    ids=["bright images", "images off the grid of 8 bits"],
)
def test_a_network_that_is_random_for_some_inputs_only_is_random(noisy):
    target = Noisy(lambda y, x: y + torch.randn(y.shape) if noisy(x) else y)
    x = torch.randint(64, (6, 6)) / 255
    if not noisy(x):
        assert Target(target, torch.cat([x, torch.ones(2, 6)])).is_random
        assert Target(target, x[:1]).is_random == noisy(0.999 * x[:1])
    assert not Target(Noisy(lambda y, x: y), x).is_random


def test_the_images_of_a_batch_share_random_weights(bnn, digits):
    state = torch.get_rng_state()
    assert Target(bnn, digits[0]).shares_draws
    assert torch.equal(torch.get_rng_state(), state)
