import torch
from torch import nn

from advbnn.defenses.wca import AlignedClassifier
from advbnn.randomness import seeded


def test_logits_have_the_covariance_of_the_learned_noise() -> None:
    with seeded(0):
        layer = AlignedClassifier(nn.Linear(5, 3), width=4)
    h = torch.rand(1, 5)
    with torch.no_grad(), seeded(1):
        draws = torch.cat([layer(h) for _ in range(4000)]).double()
    root = (layer.classify.weight @ layer.factor.tril()).detach().double()
    truth = root @ root.T
    # the standard error of a covariance is at most sqrt(2 / n) of the largest variance
    assert (torch.cov(draws.T) - truth).abs().max() < 5 * (2 / 4000) ** 0.5 * truth.diag().max()
    torch.testing.assert_close(layer.penalty().double(), -truth.trace().log())
