"""Priors over weights, and the KL of a Gaussian posterior (eq. 5 and 6).

A prior is anything with `kl(name, mu, log_std) -> scalar`: the KL between the factorised Gaussian with means `mu`
and standard deviations `exp(log_std)` and the prior, summed over one parameter tensor.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from advbnn.errors import ArgumentError, did_you_mean, positive_whole, within

PerParameter = float | Mapping[str, float | Tensor] | Callable[[str, Tensor], float | Tensor]
"""A number for all parameters; a mapping from their names (`"*"` for the rest) to numbers or tensors of their shapes,
such as a state dict; or a function of name and parameter."""


@runtime_checkable
class Prior(Protocol):
    """What `Bayesian` needs of a prior."""

    def kl(self, name: str, mu: Tensor, log_std: Tensor) -> Tensor:
        """KL(N(mu, exp(log_std)^2) || prior), summed over the tensor."""


class _Checked:
    """Checks the fields of a prior by their names."""

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            name, value = field.name, getattr(self, field.name)
            if name.endswith("weight"):
                within(name, value, "(0, 1)", "or use GaussianPrior")
            elif name == "samples":
                positive_whole(name, value)
            for number in value.values() if isinstance(value, Mapping) else () if callable(value) else (value,):
                if isinstance(number, Tensor):  # checked with its parameter
                    continue
                if name.endswith("std"):
                    remedy = "to keep a parameter deterministic leave it out with `where`"
                    within(name, number, "(0, 1e30]", remedy)
                else:
                    within(name, number, "[-1e30, 1e30]")

    def __repr__(self) -> str:
        """The fields; a function by its name, as its address differs in every process."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        named = {name: getattr(value, "__qualname__", value) for name, value in values.items()}
        return f"{type(self).__qualname__}({', '.join(f'{name}={value!r}' for name, value in named.items())})"

    def __str__(self) -> str:
        """For captions: of a mapping, how many parameters it names."""
        values = {name: value for name, value in vars(self).items() if value != {}}
        shown = (f"{n}={f'given for {len(v)} parameters' if isinstance(v, Mapping) else v}" for n, v in values.items())
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass(frozen=True, repr=False)
class GaussianPrior(_Checked):
    """p(w) = N(w; mean, std^2), the paper's choice with mean 0 and std sigma_0.

    A state dict as the mean centres the prior on pretrained weights: `GaussianPrior(0.05, mean=net.state_dict())`.
    """

    std: PerParameter = 0.05
    mean: PerParameter = 0.0

    def kl(self, name: str, mu: Tensor, log_std: Tensor) -> Tensor:
        """Closed form (eq. 6): log(sigma_0 / sigma) + (sigma^2 + (mu - m)^2) / (2 sigma_0^2) - 1/2."""
        std, mean = std_for("prior std", self.std, name, mu), choose(self.mean, name, mu, default=0.0)
        mu, log_std = at_least_float32(mu), at_least_float32(log_std)
        return (_log(std) - log_std + ((2 * log_std).exp() + (mu - mean) ** 2) / (2 * std**2) - 0.5).sum()


@dataclass(frozen=True, repr=False)
class ScaleMixturePrior(_Checked):
    """p(w) = weight * N(mean, std^2) + (1 - weight) * N(mean, narrow_std^2), after Blundell et al. (2015).

    The KL has no closed form. The entropy of the posterior is exact and E[log p(w)] is estimated from `samples`
    weight samples, so the estimate is unbiased and its variance is proportional to 1 / samples.
    """

    std: PerParameter = 1.0
    narrow_std: PerParameter = 0.0025
    weight: float = 0.5
    mean: PerParameter = 0.0
    samples: int = 1

    def kl(self, name: str, mu: Tensor, log_std: Tensor) -> Tensor:
        """Monte Carlo estimate of E_q[log q(w) - log p(w)] from `samples` weight samples."""
        scales = [std_for("prior std", std, name, mu) for std in (self.std, self.narrow_std)]
        mean = choose(self.mean, name, mu, default=0.0)
        mu, log_std = at_least_float32(mu), at_least_float32(log_std)
        expected_log_prior = mu.new_zeros(())
        for _ in range(self.samples):
            deviation = mu + log_std.exp() * torch.randn_like(mu) - mean
            wide, narrow = (_log_normal(deviation, scale) for scale in scales)
            log_prior = torch.logaddexp(wide + math.log(self.weight), narrow + math.log1p(-self.weight))
            expected_log_prior = expected_log_prior + log_prior.sum() / self.samples
        return -(log_std + 0.5 * math.log(2 * math.pi * math.e)).sum() - expected_log_prior


@dataclass(frozen=True, repr=False)
class SpikeAndSlabPrior(_Checked):
    """p(w) = spike_weight * N(mean, spike_std^2) + (1 - spike_weight) * N(mean, std^2).

    The spike is a narrow Gaussian. A point mass would have no effect: a Gaussian posterior gives it probability
    zero, so it would add the constant -log(1 - spike_weight) and no gradient. Estimated as in `ScaleMixturePrior`.
    """

    std: PerParameter = 0.15
    spike_std: PerParameter = 0.005
    spike_weight: float = 0.5
    mean: PerParameter = 0.0
    samples: int = 1

    def kl(self, name: str, mu: Tensor, log_std: Tensor) -> Tensor:
        """Monte Carlo estimate of E_q[log q(w) - log p(w)] from `samples` weight samples."""
        mixture = ScaleMixturePrior(self.spike_std, self.std, self.spike_weight, self.mean, self.samples)
        return mixture.kl(name, mu, log_std)


def unit_norm_scales(net: nn.Module) -> dict[str, float]:
    """Prior means that centre every normalisation layer's scale on 1 and all else on 0.

    With mean 0 and sigma_0 = 0.05 the BatchNorm scales of VGG16, a small fraction of its weights, make up most of
    the initial KL, and training pulls them to zero. `GaussianPrior(mean=unit_norm_scales(net))` avoids that.
    """
    norms = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
    return {
        f"{path}.weight" if path else "weight": 1.0
        for path, module in net.named_modules()
        if isinstance(module, norms) and module.weight is not None
    }


def check_names(net: nn.Module, prior: Prior, init_std: PerParameter) -> None:
    """Refuse mappings with a name that is no parameter of `net`: a misspelt name would have no effect.

    Names of deterministic parameters and all names of a tied one are fine. Fields of custom priors are not checked.
    """
    given: dict[str, object] = {"init_std": init_std}
    if isinstance(prior, _Checked):
        given |= {f"prior.{name}": value for name, value in vars(prior).items()}
    names = {name for name, _ in net.named_parameters(remove_duplicate=False)}
    buffers = {name for name, _ in net.named_buffers(remove_duplicate=False)}  # a state dict has them too
    for argument, value in given.items():
        for name, entry in value.items() if isinstance(value, Mapping) else ():
            if name not in names and name != "*" and not (isinstance(entry, Tensor) and name in buffers):
                raise ArgumentError(f"{argument}: net has no parameter {name!r}{did_you_mean(name, names)}")


def choose(
    value: PerParameter, name: str, parameter: Tensor, default: float | None = None, argument: str = "mean"
) -> float | Tensor:
    """The number that `value` holds for this parameter; `default` if a mapping has no entry for it."""
    if callable(value):
        return value(name, parameter)
    if isinstance(value, Mapping):
        chosen = value.get(name, value.get("*", default))
        if chosen is None:
            raise ArgumentError(f"{argument} has no value for parameter {name!r}: name it there, or add a '*' entry")
        return chosen
    return value


class HeldMeans:
    """Prior means that differ from weight to weight, as buffers of a module, which are saved with the weights."""

    def __init__(self, tree: nn.Module) -> None:
        self.tree = tree

    def __call__(self, name: str, parameter: Tensor) -> Tensor:
        return self.tree.get_buffer(name)

    def __repr__(self) -> str:
        return "stored with the weights"


def tensor_means(prior: Prior, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The prior means of all parameters, copied, if any of them is a tensor; empty otherwise.

    A function is called once: later it would see the posterior mean that training has moved.
    """
    value = prior.mean if isinstance(prior, _Checked) and hasattr(prior, "mean") else 0.0
    means = {name: choose(value, name, parameter.detach(), default=0.0) for name, parameter in parameters.items()}
    if not any(isinstance(mean, Tensor) for mean in means.values()):
        return {}
    held = {}
    for name, parameter in parameters.items():
        mean = torch.as_tensor(means[name]).detach().to(parameter)
        if mean.numel() != 1 and mean.shape != parameter.shape:
            shapes = f"{list(parameter.shape)}, got {list(mean.shape)}"
            raise ArgumentError(f"prior.mean for parameter {name!r} must have its shape, {shapes}")
        if not bool(mean.isfinite().all()):
            raise ArgumentError(f"prior.mean for parameter {name!r} holds NaN or infinity; load another checkpoint")
        held[name] = mean.expand(parameter.shape).clone(memory_format=torch.contiguous_format)
    return held


def std_for(argument: str, value: PerParameter, name: str, parameter: Tensor) -> float | Tensor:
    """`choose`, with the result checked to be a standard deviation."""
    std = choose(value, name, parameter, argument=argument)
    # a captured step was checked when it warmed up, and must not wait for the device
    if not isinstance(std, Tensor):
        within(f"{argument} for parameter {name!r}", std, "(0, 1e30]")
    elif not (std.is_cuda and torch.cuda.is_current_stream_capturing()) and not bool(
        ((std > 0) & std.isfinite()).all()
    ):
        raise ArgumentError(f"{argument} for parameter {name!r} must be positive and finite, got {std}")
    return std


def _log_normal(deviation: Tensor, std: float | Tensor) -> Tensor:
    return -((deviation / std) ** 2) / 2 - _log(std) - 0.5 * math.log(2 * math.pi)


def _log(value: float | Tensor) -> float | Tensor:
    return value.log() if isinstance(value, Tensor) else math.log(value)


def at_least_float32(tensor: Tensor) -> Tensor:
    """A half-precision sum over millions of terms is useless."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
