"""Regression with a random network: the mean over draws, how uncertain it is, and its error under attack."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from advbnn.bayes.likelihoods import Gaussian
from advbnn.bayes.prediction import all_finite, not_finite
from advbnn.data.imageset import Examples
from advbnn.errors import ArgumentError, ArgumentTypeError, positive_whole
from advbnn.evaluation.batchwise import Batch, batchwise
from advbnn.evaluation.checks import Perturbation, check_allowed, check_attack, check_model_and_examples
from advbnn.evaluation.intervals import mean_interval
from advbnn.modules import device_of, dtype_of, evaluating, explain_input_errors, without_parameter_gradients
from advbnn.randomness import crafting_seed, scoring_seed, seeded


@dataclass(frozen=True)
class Regression:
    """What an ensemble of draws predicts for each of n inputs, all in the shape of the network's output, [n, ...].

    Attributes:
        mean: the prediction, the mean over the draws.
        weights_std: the standard deviation between the draws: what is not known of the weights.
        noise_std: the standard deviation of the observations about the right function: what no training takes away.
        std: of an observation about `mean`: both together.
    """

    mean: Tensor
    weights_std: Tensor
    noise_std: Tensor
    std: Tensor


@dataclass(frozen=True)
class Mean:
    """A mean over examples.

    Attributes:
        value: the mean.
        interval: where the mean over all examples of their kind lies, with 95 % confidence; see `mean_interval`.
    """

    value: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class RegressionScore:
    """How well the ensemble predicts.

    Attributes:
        mse: the squared error of the mean prediction, averaged over an example's outputs.
        nll: the negative log-likelihood, summed over an example's outputs; None for predictions without noise.
        examples: how many were predicted.
    """

    mse: Mean
    nll: Mean | None
    examples: int


@torch.no_grad()
def regress(
    model: nn.Module, x: Tensor, samples: int = 20, seed: int | None = None, noise_std: float = 0.0
) -> Regression:
    """Predict real numbers for `x` by `samples` draws of the network.

    With y = f(x; w) + zeta and zeta ~ N(0, sigma^2) the law of total variance (Kendall and Gal, 2017) gives

        Var[y | x] = Var_w[f(x; w)] + E_w[sigma^2] ~ (1/m) sum_k f_k^2 - ((1/m) sum_k f_k)^2 + sigma^2.

    These are the moments of the m draws themselves; the variance of the posterior is m / (m - 1) times that between
    its draws, on average. The model runs in evaluation mode and is handed back in the mode it had.

    Args:
        model: any network that returns one row of numbers, [n, ...], an input; a deterministic one agrees with itself.
        x: a batch of inputs, finite ones.
        samples: the number of draws, m.
        seed: makes the prediction repeatable and leaves torch's random state as it was.
        noise_std: sigma, that of the `Gaussian` likelihood; a learned one is in `FitResult.noise_std`, and in
            `load_trained(...).noise_std`. With 0 the prediction is of the function, not of an observation.
    """
    _check_noise(noise_std)
    draws = _draws(model, x, positive_whole("samples", samples), seed)
    if not bool(all_finite(x)):
        raise not_finite(x)
    weights_std, mean = torch.std_mean(draws, 0, correction=0)
    noise = torch.full_like(mean, noise_std)
    return Regression(mean=mean, weights_std=weights_std, noise_std=noise, std=torch.hypot(weights_std, noise))


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
    """The error of the ensemble, without or under attack.

    The attack is given other draws than those that judge what it made. These are the same for every batch and attack,
    so that they are one ensemble; the intervals are for the luck of the examples, not for that of the draws. The
    likelihood is that of the ensemble, a mixture of Gaussians (eq. 18): p(y | x) = (1/m) sum_k N(y; f_k(x), sigma^2).

    Args:
        model: any network that returns outputs of the shape of the targets.
        data: examples with real numbers for targets, such as `advbnn.data.from_tensors(x, y)`.
        attack: perturbs the inputs, with `loss="nll"`; None for the inputs as they are.
        samples: the number of draws, m.
        seed: of the draws, of those that the attack sees and of those that judge it.
        noise_std: sigma, see `regress`; with 0 there is no likelihood.
        batch_size: examples attacked at a time.
    """
    _check_noise(noise_std)
    _check_model_and_data(model, data)
    _check_goal(attack)
    samples, device, dtype = positive_whole("samples", samples), device_of(model, data.device), dtype_of(model)
    likelihood = Gaussian(noise_std=noise_std or 1.0)

    def work(x: Tensor, y: Tensor, batch: Batch) -> dict[str, Tensor]:
        x, y = x.to(dtype), y.to(dtype)
        if attack is not None and attack.threat.eps > 0:
            x = _craft(attack, model, x, y, crafting_seed(seed, batch.number))
        with torch.no_grad():
            draws = _draws(model, x, samples, scoring_seed(seed))
            y = y.to(draws)
            log_likelihood = -torch.stack([likelihood.nll(draw, y) for draw in draws])
            nll = math.log(samples) - log_likelihood.logsumexp(0)
            return {"squared": likelihood.score(draws.mean(0), y), "nll": nll}

    batch_size = positive_whole("batch_size", batch_size)
    with explain_input_errors(model, "data", (min(len(data), batch_size), *data.shape), dtype):
        results, _ = batchwise(work, data, batch_size=batch_size, device=device)
    if not bool(results["squared"].isfinite().all()):
        raise ArgumentError("model returned NaN or infinite outputs; check its weights and its precision")
    low, high = mean_interval(results["squared"])
    return RegressionScore(
        mse=Mean(float(results["squared"].double().mean()), (max(low, 0.0), high)),
        nll=Mean(float(results["nll"].double().mean()), mean_interval(results["nll"])) if noise_std else None,
        examples=len(data),
    )


def _draws(model: nn.Module, x: Tensor, samples: int, seed: int | None) -> Tensor:
    """The outputs of `samples` draws, in float32 at least, [samples, n, ...]."""
    if not isinstance(x, Tensor):
        raise ArgumentTypeError(f"x must be a tensor, got {type(x).__name__}; torch.as_tensor makes one of an array")
    with evaluating(model), seeded(seed, x.device), explain_input_errors(model, "x", x.shape, x.dtype):
        outputs = [_numbers(model, x) for _ in range(samples)]
    draws = torch.stack(outputs)
    return draws.to(torch.promote_types(draws.dtype, torch.float32))


def _numbers(model: nn.Module, x: Tensor) -> Tensor:
    outputs: Any = model(x)
    if not isinstance(outputs, Tensor) or not outputs.is_floating_point() or outputs.shape[:1] != x.shape[:1]:
        is_tensor = isinstance(outputs, Tensor)
        came = f"{outputs.dtype} of shape {list(outputs.shape)}" if is_tensor else type(outputs).__name__
        raise ArgumentError(
            f"model must return one tensor of real numbers, a row for each of the {len(x)} inputs, got {came}; wrap it "
            "to return that"
        )
    return outputs


def _craft(attack: Perturbation, model: nn.Module, x: Tensor, y: Tensor, seed: int) -> Tensor:
    # on copies, as one that writes into its inputs would be checked against what it wrote
    with evaluating(model), without_parameter_gradients(model):
        x_adv = attack(model, x.clone(), y.clone(), seed=seed)
    check_allowed(attack, x_adv, x)
    return x_adv


def _check_noise(noise_std: float) -> None:
    if noise_std is None or not 0 <= noise_std < math.inf:
        raise ArgumentError(
            f"noise_std must be a standard deviation of 0 or more, got {noise_std}; it is that of the Gaussian "
            "likelihood, and if it was learned FitResult.noise_std or load_trained(...).noise_std"
        )


def _check_model_and_data(model: nn.Module, data: Examples) -> None:
    check_model_and_examples(model, data, "real numbers")
    if not data.targets.is_floating_point():
        raise ArgumentError(
            f"data must have real numbers for targets, and {data.name!r} has class labels; advbnn.evaluate judges "
            "classifiers"
        )


def _check_goal(attack: Perturbation | None) -> None:
    if attack is None:
        return
    check_attack(type(attack).__name__, attack)
    loss = getattr(getattr(attack, "attack", attack), "loss", "nll")
    if loss != "nll":
        raise ArgumentError(
            f"attack must maximise the squared error, got loss={loss!r}, for classifiers; use loss='nll'"
        )
