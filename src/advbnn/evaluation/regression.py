"""Regression with a random network: predictive mean and variance, and the error under attack."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from advbnn import modules
from advbnn.bayes.likelihoods import Gaussian
from advbnn.bayes.outputs import check_same_outputs, sampled_outputs
from advbnn.data.imageset import Examples
from advbnn.errors import ArgumentError, positive_whole, within
from advbnn.evaluation.batchwise import Batch, batchwise
from advbnn.evaluation.checks import Perturbation, check_attack, check_model_and_examples
from advbnn.evaluation.crafting import craft
from advbnn.evaluation.intervals import mean_interval
from advbnn.randomness import crafting_seed, scoring_seed


@dataclass(frozen=True)
class Regression:
    """The prediction of an ensemble for n inputs; all fields have the shape of the network's output, [n, ...].

    Attributes:
        mean: the mean over weight samples.
        weights_std: the standard deviation over weight samples: epistemic uncertainty.
        noise_std: the standard deviation of the observation noise: aleatoric uncertainty.
        std: the standard deviation of an observation: both together.
    """

    mean: Tensor
    weights_std: Tensor
    noise_std: Tensor
    std: Tensor


@dataclass(frozen=True)
class Mean:
    """A mean over examples, and its 95 % confidence interval; see `mean_interval`."""

    value: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class RegressionScore:
    """The error of the ensemble.

    Attributes:
        mse: the squared error of the mean prediction, averaged over an example's outputs.
        nll: the negative log-likelihood, summed over an example's outputs; None without noise.
        examples: the number of examples.
    """

    mse: Mean
    nll: Mean | None
    examples: int


@torch.no_grad()
def regress(
    model: nn.Module, x: Tensor, samples: int = 20, seed: int | None = None, noise_std: float = 0.0
) -> Regression:
    """Predict real numbers for `x` with `samples` weight samples, or all members of a posterior with few (`predict`).

    With y = f(x; w) + zeta and zeta ~ N(0, sigma^2) the law of total variance (Kendall and Gal, 2017) gives

        Var[y | x] = Var_w[f(x; w)] + E_w[sigma^2] ~ (1/m) sum_k f_k^2 - ((1/m) sum_k f_k)^2 + sigma^2.

    These are the moments of the m samples; an unbiased estimate of the posterior variance is m / (m - 1) times
    as large. The model runs in evaluation mode, and its mode is restored.

    Args:
        model: any network that returns one row of numbers, [n, ...], per input.
        seed: makes the prediction reproducible and leaves torch's random state unchanged.
        noise_std: sigma of the `Gaussian` likelihood; a learned one is `FitResult.noise_std` or
            `load_trained(...).noise_std`. With 0 the prediction is of the function, not of an observation.
    """
    _check_noise(noise_std)
    outputs, shares = _outputs(model, x, positive_whole("samples", samples), seed)
    if not bool(x.isfinite().all()):
        raise modules.not_finite_error(x)
    mean = _mean(outputs, shares)
    weights_std = torch.tensordot(shares, (outputs - mean).square(), 1).sqrt()
    noise = torch.full_like(mean, float(noise_std))
    return Regression(mean, weights_std, noise, std=torch.hypot(weights_std, noise))


def score_regression(
    model: nn.Module,
    data: Examples,
    attack: Perturbation | None = None,
    *,
    samples: int = 20,
    seed: int = 0,
    noise_std: float = 0.0,
    batch_size: int = 250,
) -> RegressionScore:
    """The error of the ensemble, on clean or attacked inputs.

    The attack uses other weight samples than the evaluation. The latter are the same for every batch and attack, so
    that they form one ensemble; the intervals cover the choice of examples, not of weight samples. The likelihood of
    the ensemble is a mixture of Gaussians (eq. 18): p(y | x) = (1/m) sum_k N(y; f_k(x), sigma^2).

    Args:
        model: any network whose outputs have the shape of the targets.
        data: examples with real targets, such as `advbnn.data.from_tensors(x, y)`.
        attack: perturbs the inputs, with `loss="nll"`; None for clean inputs.
        noise_std: sigma, see `regress`; with 0 there is no likelihood.
    """
    _check_noise(noise_std)
    check_model_and_examples(model, data, "real numbers")
    if not data.targets.is_floating_point():
        raise ArgumentError(f"data must have real targets, {data.name!r} has class labels; use advbnn.evaluate")
    if attack is not None:
        check_attack(type(attack).__name__, attack)
        loss = getattr(getattr(attack, "attack", attack), "loss", "nll")
        if loss != "nll":
            raise ArgumentError(f"attack must maximise the squared error, got loss={loss!r}; use loss='nll'")
    samples = positive_whole("samples", samples)
    device, dtype = modules.device_of(model, data.device), modules.dtype_of(model)
    likelihood = Gaussian(noise_std=noise_std or 1.0)

    def work(x: Tensor, y: Tensor, batch: Batch) -> dict[str, Tensor]:
        x, y = x.to(dtype), y.to(dtype)
        if attack is not None and attack.threat.eps > 0:
            x = craft(attack, model, x, y, crafting_seed(seed, batch.number))
        with torch.no_grad():
            outputs, shares = _outputs(model, x, samples, scoring_seed(seed))
            y = y.to(outputs)
            log_likelihood = -torch.stack([likelihood.nll(output, y) for output in outputs])
            nll = -(log_likelihood + shares.log()[:, None]).logsumexp(0)
            return {"squared": likelihood.score(_mean(outputs, shares), y), "nll": nll}

    with modules.explain_input_errors(model, "data", (min(len(data), batch_size), *data.shape), dtype):
        results, _ = batchwise(work, data, batch_size=batch_size, device=device)
    if not bool(results["squared"].isfinite().all()):
        raise ArgumentError("model returned NaN or infinite outputs; check its weights and its precision")
    mse, nll = (Mean(float(results[name].double().mean()), mean_interval(results[name])) for name in ("squared", "nll"))
    mse = Mean(mse.value, (max(mse.interval[0], 0.0), mse.interval[1]))
    return RegressionScore(mse, nll if noise_std else None, len(data))


def _outputs(model: nn.Module, x: Tensor, samples: int, seed: int | None) -> tuple[Tensor, Tensor]:
    """The outputs under m weight samples, in float32 at least, [m, n, ...], and the share of each in the mean, [m]."""
    outputs, weights = sampled_outputs(model, x, samples, seed)
    first = outputs[0]
    if not isinstance(first, Tensor) or not first.is_floating_point() or first.shape[:1] != x.shape[:1]:
        came = f"{first.dtype} {list(first.shape)}" if isinstance(first, Tensor) else type(first).__name__
        raise ArgumentError(f"model must return one tensor of real numbers with {len(x)} rows, got {came}")
    check_same_outputs(*(output.shape for output in outputs))
    stacked = torch.stack(outputs).to(torch.promote_types(first.dtype, torch.float32))
    shares = torch.tensor(weights or [1 / len(outputs)] * len(outputs), dtype=torch.float64)
    return stacked, shares.to(stacked)


def _mean(outputs: Tensor, shares: Tensor) -> Tensor:
    # relative to one of them, so that equal outputs have exactly this mean
    mean: Tensor = outputs[0] + torch.tensordot(shares, outputs - outputs[0], 1)
    return mean


def _check_noise(noise_std: float) -> None:
    within("noise_std", noise_std, "[0, 1e30]", "a learned one is FitResult.noise_std")
