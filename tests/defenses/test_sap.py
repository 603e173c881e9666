import torch

from advbnn.defenses.sap import PruneActivations
from advbnn.randomness import seeded


def test_activations_are_kept_by_size_and_keep_their_mean() -> None:
    h = torch.tensor([[0.0, 1.0, 2.0, 7.0]])
    with seeded(0):
        draws = torch.cat([PruneActivations()(h) for _ in range(4000)])
    p = torch.tensor([0.0, 0.1, 0.2, 0.7])
    keep = 1 - (1 - p) ** 4
    kept = (draws != 0).double().mean(0)
    assert (kept - keep).abs().max() < 5 * (0.25 / 4000) ** 0.5
    torch.testing.assert_close(draws[:, 3].max(), (7 / keep[3]).float())
    assert (draws.mean(0)[1:] / h[0, 1:] - 1).abs().max() < 5 * ((1 - keep[1]) / keep[1] / 4000).sqrt()


def test_the_gradient_takes_the_mask_as_a_constant() -> None:
    h = torch.rand(1, 8, requires_grad=True)
    with seeded(0):
        out = PruneActivations()(h)
    out.sum().backward()
    torch.testing.assert_close(h.grad, (out / h).detach())


def test_nothing_active_stays_so() -> None:
    assert torch.equal(PruneActivations()(torch.zeros(2, 5)), torch.zeros(2, 5))
