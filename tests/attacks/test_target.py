"""What an attack finds out about its target from a few passes."""

import pytest
import torch
from torch import nn

from advbnn.attacks.target import Target


class Noisy(nn.Module):
    """Adds what `noise` draws for a batch to its logits."""

    def __init__(self, noise) -> None:
        super().__init__()
        self.net, self._noise = nn.Linear(6, 3), noise

    def forward(self, x):
        return self.net(x) + self._noise(x)


@pytest.mark.parametrize(
    ("noise", "shared"),
    [
        (lambda x: torch.randn(3), True),
        (lambda x: torch.randn(len(x), 3), False),
        (lambda x: torch.randint(2, (len(x), 1)).float(), False),  # of two values, on which copies agree by chance
        (lambda x: torch.zeros(3), True),
    ],
    ids=["one for the batch", "one for each image", "one bit for each image", "none"],
)
def test_whether_images_share_their_random_numbers(noise, shared):
    target = Target(Noisy(noise), torch.rand(5, 6))
    assert target.shares_draws is shared


def test_the_images_of_a_batch_share_random_weights(bnn, digits):
    state = torch.get_rng_state()
    assert Target(bnn, digits[0]).shares_draws
    assert torch.equal(torch.get_rng_state(), state)
