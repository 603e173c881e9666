import torch
from torch import nn

from advbnn.defenses.wca import AlignedClassifier
from advbnn.randomness import seeded


def test_logits_have_the_covariance_of_the_learned_noise() -> None:
    with seeded(0):
        layer = AlignedClassifier(nn.Linear(5, 3), width=4, decay=0.0)
    h = torch.rand(1, 5)
    with torch.no_grad(), seeded(1):
        draws = torch.cat([layer(h) for _ in range(4000)]).double()
    root = (layer.classify.weight @ layer.factor.tril()).detach().double()
    truth = root @ root.T
    # the standard error of a covariance is at most sqrt(2 / n) of the largest variance
    assert (torch.cov(draws.T) - truth).abs().max() < 5 * (2 / 4000) ** 0.5 * truth.diag().max()
    torch.testing.assert_close(layer.penalty().double(), -truth.trace().log())


def test_the_noise_is_on_features_that_are_not_negative() -> None:
    with seeded(0):
        layer = AlignedClassifier(nn.Linear(5, 3), width=4)
    h, project, classify = torch.randn(6, 5), layer.project, layer.classify
    with torch.no_grad(), seeded(1):
        outputs = layer(h)
    with torch.no_grad(), seeded(1):
        noise = torch.randn(4) @ layer.factor.tril().T
        features = (h @ project.weight.T + project.bias).clamp_min(0) + noise
        torch.testing.assert_close(outputs, features @ classify.weight.T + classify.bias)


def test_the_noise_and_the_classifier_decay_and_nothing_else() -> None:
    with seeded(0):
        free, decayed = (AlignedClassifier(nn.Linear(5, 3), width=4, decay=decay) for decay in (0.0, 0.1))
    decayed.load_state_dict(free.state_dict())
    for layer in (free, decayed):
        layer.penalty().backward()
    # as Adam with weight decay adds it to the gradient
    for name in ("factor", "classify.weight", "classify.bias"):
        before, after = free.get_parameter(name).grad, decayed.get_parameter(name).grad
        added = 0.1 * decayed.get_parameter(name).detach()
        torch.testing.assert_close(after, added if before is None else before + added)
    assert decayed.project.weight.grad is None
