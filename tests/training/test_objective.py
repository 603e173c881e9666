import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from advbnn.attacks import PGD
from advbnn.attacks.threat import Threat
from advbnn.bayes.kl import kl_divergence
from advbnn.bayes.likelihoods import Categorical, Gaussian
from advbnn.bayes.mean_field import Bayesian, bayesianize
from advbnn.bayes.priors import GaussianPrior
from advbnn.data import Splits, from_tensors
from advbnn.defenses.defense import Defense
from advbnn.defenses.networks import Variational
from advbnn.defenses.objective import RobustELBO
from advbnn.defenses.optimizers import AdamOptimizer
from advbnn.defenses.schedules import Cosine
from advbnn.randomness import seeded
from advbnn.training.loop import fit
from advbnn.training.objective import RobustLoss


def small_bnn() -> Bayesian:
    with seeded(0):
        return bayesianize(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), init_std=0.1)


X, Y = torch.rand(8, 4, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 3


@pytest.mark.parametrize("scope", ["all", "classifier"])
@pytest.mark.parametrize("samples", [1, 3])
def test_robust_elbo_is_equation_13(scope: str, samples: int) -> None:
    bnn, n, alpha = small_bnn(), 1000, 0.3
    objective = RobustELBO(alpha=alpha, kl_scope=scope, samples=samples)
    with seeded(5):
        loss = RobustLoss(bnn, objective, n)(X, X, Y, 0.5)
    with seeded(5):
        nll = torch.stack([functional.cross_entropy(bnn(X), Y) for _ in range(samples)]).mean()
    torch.testing.assert_close(loss.nll, nll)
    torch.testing.assert_close(loss.kl, kl_divergence(bnn, scope))
    torch.testing.assert_close(loss.total, nll + alpha / n * 0.5 * kl_divergence(bnn, scope))
    assert not loss.nll.requires_grad and not loss.kl.requires_grad


def test_without_random_weights_it_is_adversarial_training() -> None:
    net = nn.Linear(4, 3)
    loss = RobustLoss(net, RobustELBO(alpha=0.5), 10)(X, X + 0.1, Y)
    torch.testing.assert_close(loss.total, functional.cross_entropy(net(X + 0.1), Y))
    assert loss.kl == 0
    assert loss.score == (net(X + 0.1).argmax(1) == Y).sum()


@pytest.mark.parametrize("trades", [None, 6.0])
def test_consistency_adds_the_kl_from_the_teacher(trades: float | None) -> None:
    net, teacher = nn.Linear(4, 3), torch.randn(8, 3, generator=torch.Generator().manual_seed(2))
    loss = RobustLoss(net, RobustELBO(trades=trades), 10)
    log_p, log_q = teacher.log_softmax(1), net(X + 0.1).log_softmax(1)
    kl = (log_p.exp() * (log_p - log_q)).sum(1).mean()
    plain, more = loss(X, X + 0.1, Y), loss(X, X + 0.1, Y, 1.0, 1.0, teacher, 2.0)
    torch.testing.assert_close(more.total, plain.total + 2.0 * kl)


def test_prior_over_plain_weights_gives_the_most_probable_ones() -> None:
    net, n = nn.Linear(4, 3), 10
    loss = RobustLoss(net, RobustELBO(), n, GaussianPrior(std=0.5))(X, X, Y)
    squares = sum(p.square().sum() for p in net.parameters())
    torch.testing.assert_close(loss.total, functional.cross_entropy(net(X), Y) + squares / (2 * 0.25) / n)


def test_shards_weigh_by_their_size() -> None:
    """The mean over shards of unequal size is the loss of the whole."""
    net = nn.Linear(4, 3)
    loss = RobustLoss(net, RobustELBO(), 10)
    whole = loss(X, X, Y).total
    parts = [loss(X[rows], X[rows], Y[rows], share=len(X[rows]) * 2 / 8).total for rows in (slice(5), slice(5, 8))]
    torch.testing.assert_close(torch.stack(parts).mean(), whole)


def test_trades_is_its_definition() -> None:
    net, x_adv, beta = nn.Linear(4, 3), X + 0.2, 6.0
    loss = RobustLoss(net, RobustELBO(trades=beta), 10)(X, x_adv, Y)
    p, q = net(X).log_softmax(1), net(x_adv).log_softmax(1)
    expected = functional.cross_entropy(net(X), Y) + beta * functional.kl_div(
        q, p, log_target=True, reduction="batchmean"
    )
    torch.testing.assert_close(loss.total, expected)


def test_a_share_of_the_loss_is_on_clean_inputs() -> None:
    net, x_adv = nn.Linear(4, 3), X + 0.2
    loss = RobustLoss(net, RobustELBO(clean=0.25), 10)(X, x_adv, Y)
    halves = [functional.cross_entropy(net(inputs), Y) for inputs in (X, x_adv)]
    torch.testing.assert_close(loss.total, 0.25 * halves[0] + 0.75 * halves[1])
    assert loss.score == (net(x_adv).argmax(1) == Y).sum()


def test_trades_compares_under_the_same_weights() -> None:
    bnn = small_bnn()
    loss = RobustLoss(bnn, RobustELBO(trades=1e4), 10**9)(X, X.clone(), Y)
    assert 1e4 * Categorical().kl(bnn(X), bnn(X)).mean() > 10  # two weight samples disagree
    assert loss.total < 3  # the KL of x from itself is zero


def regression_problem(n: int = 120) -> tuple[Tensor, Tensor]:
    """Correlated inputs in [0, 1], so that the exact posterior is not factorised."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(n, 3, generator=generator)
    x[:, 1] = 0.6 * x[:, 0] + 0.4 * x[:, 1]
    y = x @ torch.tensor([1.0, -2.0, 0.5]) + 0.3 * torch.randn(n, generator=generator)
    return x, y[:, None]


def regress(defense: Defense, x: Tensor, y: Tensor) -> tuple[nn.Module, float | None]:
    examples = from_tensors(x, y)
    with seeded(0):
        net = nn.Linear(3, 1, bias=False)
    result = fit(net, Splits(examples, examples), defense, seed=0)
    return result.model, result.noise_std


REGRESSION = Defense(
    name="bnn",
    network=Variational(prior_std=0.7, init_std=0.2),
    objective=RobustELBO(likelihood=Gaussian(noise_std=0.3), samples=16),
    optimizer=AdamOptimizer(lr=0.1),
    schedule=Cosine(epochs=250),
    batch_size=120,
)


def test_mean_field_posterior_of_linear_regression() -> None:
    """Precision A = X'X / sigma^2 + I / sigma_0^2; the best factorised q has its mean, and variances 1 / diag(A)."""
    x, y = regression_problem()
    precision = x.T @ x / 0.3**2 + torch.eye(3) / 0.7**2
    mean = torch.linalg.solve(precision, x.T @ y / 0.3**2).T
    model, _ = regress(REGRESSION, x, y)
    assert isinstance(model, Bayesian)
    ((_, mu, log_std),) = model.posterior()
    std, marginal = precision.diagonal().rsqrt(), precision.inverse().diagonal().sqrt()
    assert (marginal / std).max() > 1.5  # the tolerance below tells one from the other
    assert ((mu - mean).abs() < 0.2 * std).all()
    torch.testing.assert_close(log_std.exp()[0], std, rtol=0.1, atol=0)


def test_learned_noise_explains_the_residuals() -> None:
    x, y = regression_problem()
    objective = RobustELBO(likelihood=Gaussian(noise_std=2.0, learned=True), samples=1)
    _, noise_std = regress(replace(REGRESSION, objective=objective, schedule=Cosine(epochs=300)), x, y)
    residual = (y - x @ torch.linalg.lstsq(x, y).solution).square().mean().sqrt()
    assert noise_std == pytest.approx(residual.item(), rel=0.1)


def test_adversarially_trained_regressor_resists() -> None:
    """Of a linear model the worst case is known: within eps in linf, an error |r| grows to |r| + eps |w|_1."""
    x, y = regression_problem()
    eps = 0.2

    def worst_case(model: nn.Module) -> float:
        assert isinstance(model, Bayesian)
        weight = model.net.get_parameter("weight").detach()
        return float(((y - x @ weight.T).abs() + eps * weight.abs().sum()).square().mean())

    attack = PGD(Threat("linf", eps, bounds=(-math.inf, math.inf)), loss="nll", steps=3, random_start=False)
    objective = replace(REGRESSION.objective, samples=1)
    plain = replace(REGRESSION, objective=objective, schedule=Cosine(epochs=150))
    clean, _ = regress(plain, x, y)
    robust, _ = regress(replace(plain, attack=attack), x, y)
    assert worst_case(robust) < 0.85 * worst_case(clean)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RobustELBO(alpha=1.5), "alpha .*1.5"),
        (lambda: RobustELBO(kl_scope="clasifier"), "did you mean 'classifier'"),
        (lambda: RobustELBO(kl_warmup="linar"), "did you mean 'linear'"),
        (lambda: RobustELBO(kl_warmup_epochs=0.0), "kl_warmup_epochs .*0.0"),
        (lambda: RobustELBO(samples=0), "samples must be a positive"),
        (lambda: RobustELBO(trades=-1.0), "trades .*beta"),
    ],
)
def test_bad_settings_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
