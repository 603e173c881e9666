"""A Bayesian network is a plain network and a vector of noise (eq. 5): w = mu + exp(s) * eps.

The network's own parameters are the means `mu`; a mirrored tree of parameters holds `s`, the logarithms of the
standard deviations; and the only randomness is `eps`. The network itself is never changed: a forward pass runs
it with the drawn weights in place of its own.
"""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from advbnn.bayes.functional import call_with, module_tree, parameter_paths
from advbnn.bayes.priors import GaussianPrior, PerParameter, Prior, check_names, std_for
from advbnn.bayes.rand_layer import Workspace, draw_all, split_like
from advbnn.errors import ArgumentError, ArgumentTypeError
from advbnn.models.conv_bn import hidden_biases

Choice = Callable[[str, nn.Parameter], bool]
"""A predicate that chooses parameters by name and value."""

_RANDOM_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def bayesianize(
    net: nn.Module,
    *,
    prior: Prior = GaussianPrior(std=0.05),
    init_std: PerParameter = 0.05,
    where: Choice | None = None,
) -> "Bayesian":
    """Turn any module into a Bayesian network with a factorised Gaussian posterior (eq. 5).

    Args:
        net: the network. It is wrapped, not copied: its weights become the posterior means.
        prior: the prior over the random weights.
        init_std: initial posterior standard deviation exp(s), a number or one per parameter.
        where: chooses the random parameters by `where(name, parameter)`; the others stay deterministic. All
            floating-point parameters when None.

    Raises:
        ValueError: a mapping, `init_std` or one in the prior, names a parameter that `net` does not have.
    """
    _check_convertible(net)
    check_names(net, prior, init_std)
    return Bayesian(net, prior=prior, init_std=init_std, where=where)


class Bayesian(nn.Module):
    """A network whose weights are redrawn from q(w) = N(mu, exp(s)^2) at every call.

    Attributes:
        net: the posterior-mean network: the module that was wrapped, still a plain module on the same storage.
        log_std: the parameters `s`, under the names that their means have in `net`.
        prior: the prior.
    """

    net: nn.Module
    log_std: nn.Module

    def __init__(
        self,
        net: nn.Module,
        *,
        prior: Prior = GaussianPrior(std=0.05),
        init_std: PerParameter = 0.05,
        where: Choice | None = None,
    ) -> None:
        super().__init__()
        _check_convertible(net)
        if not isinstance(prior, Prior):
            raise ArgumentTypeError(
                f"prior must have a method kl(name, mu, log_std), such as GaussianPrior(std=0.05); got {prior!r}"
            )
        chosen = _choose_parameters(net, where)
        self.net = net
        self.log_std = _mirror(chosen, init_std)
        self.prior = prior
        self.training = net.training
        self._names = tuple(chosen)
        self._places = parameter_paths(chosen, net)
        self._frozen: dict[str, Tensor] | None = None
        self._workspace: Workspace | None = None
        # a bias that is tied may have an effect in its other place
        self._hidden = [(bias, norm) for bias, norm in hidden_biases(net) if len(self._places.get(bias, ())) == 1]

    @property
    def noise_size(self) -> int:
        """P, the number of random weights and so the length of a noise vector."""
        return sum(s.numel() for s in self.log_std.parameters())

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The network's output with fresh weights, or with those of the enclosing `frozen` block."""
        return self.run(self.sample() if self._frozen is None else self._frozen, *args, **kwargs)

    def run(self, weights: dict[str, Tensor], *args: Any, **kwargs: Any) -> Any:
        """The network's output with given weights, such as those of `sample(eps)`; works under `torch.func.vmap`."""
        weights = self._without_hidden_gradients(weights)
        if torch.compiler.is_compiling():  # which has no use for the explanation of an error
            return call_with(self.net, weights, self._places, args, kwargs)
        try:
            return call_with(self.net, weights, self._places, args, kwargs)
        except RuntimeError as error:
            mismatch = _input_mismatch(error, next(iter(weights.values())), (*args, *kwargs.values()))
            if mismatch is None:
                raise
            raise ArgumentError(mismatch) from error

    def posterior(self) -> Iterator[tuple[str, nn.Parameter, nn.Parameter]]:
        """(name, mu, s) for every random parameter, in the order of the noise vector."""
        means = dict(self.net.named_parameters())
        log_stds = dict(self.log_std.named_parameters())
        for name in self._names:
            yield name, means[name], log_stds[name]

    def sample(self, eps: Tensor | None = None) -> dict[str, Tensor]:
        """One draw w = mu + exp(s) * eps of all random weights by name, differentiable in mu and s.

        Args:
            eps: noise of length P (a row of `noise`); fresh noise when None.
        """
        names, means, log_stds = zip(*self.posterior(), strict=True)
        if eps is None and not torch.compiler.is_compiling() and not _in_function_transform():
            workspace = self._workspace
            if workspace is None or not workspace.fits(means):
                workspace = self._workspace = Workspace(means) if _uniform(means) else None
            if workspace is not None:
                return dict(zip(names, draw_all(means, log_stds, workspace), strict=True))
        if eps is None:
            eps = torch.randn(self.noise_size, dtype=torch.float32, device=means[0].device)
        elif eps.numel() != self.noise_size:
            raise ArgumentError(
                f"eps must hold one number for each of the {self.noise_size} random weights, got shape "
                f"{tuple(eps.shape)}; bnn.noise() makes such vectors, one a row"
            )
        pieces = split_like(eps.reshape(-1), means)
        return {
            name: mu + s.exp() * piece.to(mu.device, mu.dtype)
            for name, mu, s, piece in zip(names, means, log_stds, pieces, strict=True)
        }

    def noise(self, k: int = 1, seed: int | None = None, antithetic: bool = False) -> Tensor:
        """`k` vectors of standard normal noise, as rows of a [k, P] float32 tensor.

        Row i is the same for every k, and is the noise of the i-th forward pass after seeding torch with `seed`.

        Args:
            k: the number of rows.
            seed: draws from a generator of its own; torch's default generator when None.
            antithetic: rows come in pairs eps, -eps, so that their mean is exactly zero; `k` must be even.
        """
        if k < 1:
            raise ArgumentError(f"k must be at least 1, got {k}")
        if antithetic and k % 2:
            raise ArgumentError(f"k must be even for antithetic pairs, got {k}")
        device = next(self.log_std.parameters()).device
        generator = None if seed is None else torch.Generator(device).manual_seed(seed)
        rows = [
            torch.randn(self.noise_size, dtype=torch.float32, device=device, generator=generator)
            for _ in range(k // 2 if antithetic else k)
        ]
        if antithetic:
            rows = [row for eps in rows for row in (eps, -eps)]
        return torch.stack(rows)

    @contextmanager
    def frozen(self, seed: int | None = None, *, eps: Tensor | None = None) -> Iterator["Bayesian"]:
        """Within the block every forward pass uses one and the same draw: a deterministic network.

        The draw is made on entry and carries no gradient to mu and s.

        Args:
            seed: the draw of `noise(seed=seed)`; a fresh one when None.
            eps: the noise itself, instead of a seed.
        """
        if seed is not None and eps is not None:
            raise ArgumentError("frozen takes a seed or eps, not both")
        outer = self._frozen
        with torch.no_grad():
            self._frozen = self.sample(self.noise(seed=seed)[0] if eps is None else eps)
        try:
            yield self
        finally:
            self._frozen = outer

    def _without_hidden_gradients(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """The weights; in training mode, biases that normalisation takes away again lead no rounding errors back."""
        if not self.net.training or not torch.is_grad_enabled():
            return weights
        hidden = {bias for bias, norm in self._hidden if self.net.get_submodule(norm).training}
        return {name: _with_gradient_zero(weight) if name in hidden else weight for name, weight in weights.items()}

    def extra_repr(self) -> str:
        """The prior and the number of random weights, for `print`."""
        return f"prior={self.prior!r}, random_weights={self.noise_size:,}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Bayesian":
        self._workspace = None
        super()._apply(fn, recurse)
        return self

    def __getstate__(self) -> dict[str, Any]:
        # neither scratch memory nor the enclosing `frozen` block belongs to a copy
        return {**self.__dict__, "_workspace": None, "_frozen": None}


def _check_convertible(net: nn.Module) -> None:
    if not isinstance(net, nn.Module):
        raise ArgumentTypeError(f"net must be a torch.nn.Module, got {type(net).__name__}")
    for path, module in net.named_modules():
        if isinstance(module, Bayesian):
            place = f"its part {path!r} is" if path else "it is"
            raise ArgumentError(
                f"net is converted already: {place} a {type(module).__name__}; convert a plain network once"
            )


def _choose_parameters(net: nn.Module, where: Choice | None) -> dict[str, nn.Parameter]:
    parameters = dict(net.named_parameters())
    if not parameters:
        raise ArgumentError("net has no parameters, so nothing of it can be random")
    for name, parameter in parameters.items():
        if isinstance(parameter, nn.UninitializedParameter):
            raise ArgumentError(f"parameter {name!r} has no shape yet: run the lazy network once, then convert it")
    chosen = {n: p for n, p in parameters.items() if where is None or where(n, p)}
    unsuited = {n: p.dtype for n, p in chosen.items() if p.dtype not in _RANDOM_DTYPES}
    if unsuited:
        listed = ", ".join(f"{name} ({str(dtype).removeprefix('torch.')})" for name, dtype in unsuited.items())
        warnings.warn(f"left deterministic, not being real floating-point parameters: {listed}", stacklevel=4)
    chosen = {n: p for n, p in chosen.items() if n not in unsuited}
    if not chosen:
        raise ArgumentError(f"no parameter is chosen to be random; net has {', '.join(parameters)}")
    for name, parameter in chosen.items():
        if not torch.isfinite(parameter).all():
            raise ArgumentError(
                f"parameter {name!r} of net holds NaN or infinite values, which cannot be posterior means; "
                "load a sound checkpoint or re-initialise the network"
            )
    return chosen


def _mirror(parameters: dict[str, nn.Parameter], init_std: PerParameter) -> nn.Module:
    """A tree with a parameter s = log(init_std) at the place of every given parameter."""

    def log_std(name: str, mu: nn.Parameter) -> nn.Parameter:
        std = std_for("init_std", init_std, name, mu)
        value = std.log().to(mu) if isinstance(std, Tensor) else torch.tensor(math.log(std))
        s = torch.empty_like(mu, requires_grad=False).copy_(value)  # in the memory format of mu
        return nn.Parameter(s, requires_grad=mu.requires_grad)

    return module_tree((name, log_std(name, mu)) for name, mu in parameters.items())


def _with_gradient_zero(weight: Tensor) -> Tensor:
    """The weight, whose gradient is zero instead of missing: weight decay and the sharing of gradients count on it."""
    return weight.detach() + 0 * weight


def _uniform(parameters: tuple[Tensor, ...]) -> bool:
    first = parameters[0]
    return all(p.device == first.device and p.dtype == first.dtype for p in parameters)


def _in_function_transform() -> bool:
    """Inside vmap, grad or another function transform, where writing into shared memory is not allowed."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def _input_mismatch(error: RuntimeError, weight: Tensor, inputs: tuple[Any, ...]) -> str | None:
    """What to tell the caller if an input lies on another device, or is of another type, than the weights."""
    if not any(word in str(error) for word in ("type", "device")):
        return None  # tokens are rightly of another type, and something else is wrong
    for position, value in enumerate(inputs):
        if not isinstance(value, Tensor):
            continue
        if value.device != weight.device:
            return (
                f"input {position} is on {value.device} but the network's weights are on {weight.device}; "
                f"move one of them, for example x.to({str(weight.device)!r})"
            )
        if value.dtype != weight.dtype and (position == 0 or value.is_floating_point()):
            return (
                f"input {position} is {value.dtype} but the network's weights are {weight.dtype}; "
                f"convert it with x.to({weight.dtype})"
                + ("" if value.is_floating_point() else " (images as numbers in [0, 1], not as integers)")
            )
    return None
