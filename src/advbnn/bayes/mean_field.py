"""A mean-field Bayesian network: a plain network and a vector of noise (eq. 5), w = mu + exp(s) * eps.

The network's own parameters are the means `mu`, a mirrored tree holds `s`. The only randomness is `eps`. The network is
never changed: a forward pass runs it with the sampled weights in place of its own.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from advbnn.bayes.functional import module_tree
from advbnn.bayes.priors import GaussianPrior, HeldMeans, PerParameter, Prior, check_names, std_for, tensor_means
from advbnn.bayes.protocol import Choice, RandomNetwork, Weights, check_plain
from advbnn.bayes.sampling import Workspace, sample_all, split_like
from advbnn.display import notebook
from advbnn.errors import ArgumentError, ArgumentTypeError, positive_whole
from advbnn.randomness import check_seed


def bayesianize(
    net: nn.Module, *, prior: Prior = GaussianPrior(), init_std: PerParameter = 0.05, where: Choice | None = None
) -> "Bayesian":
    """Turn any module into a Bayesian network with a factorised Gaussian posterior (eq. 5).

    Activation checkpointing inside `net` gives wrong gradients; see `RandomNetwork`.

    Args:
        net: the network. It is wrapped, not copied: its weights become the posterior means.
        prior: any `Prior`. Tensors in its mean are copied and saved with the weights.
        init_std: initial posterior standard deviation exp(s), a number or one per parameter.
        where: chooses the random parameters by `where(name, parameter)`; all floating-point ones when None.
    """
    check_plain(net)
    check_names(net, prior, init_std)
    return Bayesian(net, prior=prior, init_std=init_std, where=where)


class Bayesian(RandomNetwork):
    """A network whose weights are sampled from q(w) = N(mu, exp(s)^2) at every call.

    `net` is the posterior-mean network: the wrapped module, still a plain module on the same storage. `log_std` holds
    the parameters `s`, under the names that their means have in `net`. If the prior means differ from weight to weight,
    as for a prior centred on pretrained weights, `prior_mean` holds them as buffers.
    """

    prior: Prior
    scratch: Workspace | None = None

    def __init__(
        self,
        net: nn.Module,
        *,
        prior: Prior = GaussianPrior(),
        init_std: PerParameter = 0.05,
        where: Choice | None = None,
    ) -> None:
        super().__init__(net)
        if not isinstance(prior, Prior):
            raise ArgumentTypeError(f"prior must have a method kl, such as GaussianPrior(std=0.05); got {prior!r}")
        chosen = _choose_parameters(net, where)
        self.log_std = module_tree((name, _initial_log_std(init_std, name, mu)) for name, mu in chosen.items())
        self.prior = prior
        if means := tensor_means(prior, chosen):
            self.prior_mean = module_tree(means.items())
            self.prior = cast(Prior, replace(cast(Any, prior), mean=HeldMeans(self.prior_mean)))
        self._names = tuple(chosen)

    @property
    def noise_size(self) -> int:
        """P, the number of random weights and so the length of a noise vector."""
        return sum(s.numel() for s in self.log_std.parameters())

    @property
    def posterior_mean(self) -> nn.Module:
        return self.net

    def posterior(self) -> Iterator[tuple[str, nn.Parameter, nn.Parameter]]:
        """(name, mu, s) for every random parameter, in the order of the noise vector."""
        means, log_stds = dict(self.net.named_parameters()), dict(self.log_std.named_parameters())
        for name in self._names:
            yield name, means[name], log_stds[name]

    def sample(self, eps: Tensor | None = None) -> Weights:
        """One weight sample w = mu + exp(s) * eps, differentiable in mu and s; `eps` has length P, fresh when None."""
        names, means, log_stds = zip(*self.posterior(), strict=True)
        if eps is None and not torch.compiler.is_compiling() and not _in_function_transform():
            if self.scratch is None or not self.scratch.fits(means):
                uniform = len({(mu.device, mu.dtype) for mu in means}) == 1
                self.scratch = Workspace(means) if uniform else None
            if self.scratch is not None:
                return dict(zip(names, sample_all(means, log_stds, self.scratch), strict=True))
        if eps is None:
            eps = torch.randn(self.noise_size, dtype=torch.float32, device=means[0].device)
        elif eps.numel() != self.noise_size:
            expected = f"one number for each of the {self.noise_size} random weights, as a row of bnn.noise()"
            raise ArgumentError(f"eps must hold {expected}, got shape {tuple(eps.shape)}")
        pieces = split_like(eps.reshape(-1), means)
        return {
            name: mu + s.exp() * piece.to(mu.device, mu.dtype)
            for name, mu, s, piece in zip(names, means, log_stds, pieces, strict=True)
        }

    def noise(self, k: int = 1, seed: int | None = None, antithetic: bool = False) -> Tensor:
        """`k` vectors of standard normal noise, as rows of a [k, P] float32 tensor.

        Row i is the same for every k, and is the noise of the i-th forward pass after seeding torch with `seed`;
        without a seed, torch's default generator is used. Antithetic rows come in pairs eps, -eps, for an even `k`.
        """
        count = positive_whole("k", k)
        if antithetic and count % 2:
            raise ArgumentError(f"k must be even for antithetic pairs, got {k}")
        device = next(self.log_std.parameters()).device
        generator = None if seed is None else torch.Generator(device).manual_seed(check_seed(seed))
        rows: list[Tensor] = []
        while len(rows) < count:
            eps = torch.randn(self.noise_size, dtype=torch.float32, device=device, generator=generator)
            rows += [eps, -eps] if antithetic else [eps]
        return torch.stack(rows)

    def extra_repr(self) -> str:
        return f"prior={self.prior!r}, random_weights={self.noise_size:,}"

    @torch.no_grad()
    def _repr_html_(self) -> str:
        """The posterior of each parameter, for notebooks."""
        columns = ("parameter", "shape", "mean |mu|", "mean std", "|mu| / std, median")
        rows = (
            (
                name,
                " x ".join(map(str, mu.shape)),
                f"{mu.abs().mean():.3g}",
                f"{s.exp().mean():.3g}",
                f"{(mu.abs() / s.exp()).median():.3g}",
            )
            for name, mu, s in self.posterior()
        )
        caption = f"{type(self.net).__name__} with {self.noise_size:,} random weights, prior {self.prior}"
        return notebook.table(caption, columns, rows, len(self._names))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Bayesian":
        self.scratch = None
        super()._apply(fn, recurse)
        return self

    def __getstate__(self) -> dict[str, Any]:
        # scratch memory does not belong to a copy
        return {**super().__getstate__(), "scratch": None}


def _choose_parameters(net: nn.Module, where: Choice | None) -> dict[str, nn.Parameter]:
    parameters = dict(net.named_parameters())
    if not parameters:
        raise ArgumentError("net has no parameters, so nothing of it can be random")
    for name, parameter in parameters.items():
        if isinstance(parameter, nn.UninitializedParameter):
            raise ArgumentError(f"parameter {name!r} has no shape yet: run the lazy network once, then convert it")
    chosen = {n: p for n, p in parameters.items() if p.is_floating_point() and (where is None or where(n, p))}
    if not chosen:
        raise ArgumentError(f"no parameter is chosen to be random; net has {', '.join(parameters)}")
    for name, parameter in chosen.items():
        if not torch.isfinite(parameter).all():
            raise ArgumentError(f"parameter {name!r} of net holds NaN or infinity; load another checkpoint")
    return chosen


def _initial_log_std(init_std: PerParameter, name: str, mu: nn.Parameter) -> nn.Parameter:
    std = std_for("init_std", init_std, name, mu)
    value = std.log().to(mu) if isinstance(std, Tensor) else torch.tensor(math.log(std))
    s = torch.empty_like(mu, requires_grad=False).copy_(value)  # in the memory format of mu
    return nn.Parameter(s, requires_grad=mu.requires_grad)


def _in_function_transform() -> bool:
    """Inside vmap, grad or another function transform, where writing into shared memory is not allowed."""
    return torch._C._functorch.peek_interpreter_stack() is not None
