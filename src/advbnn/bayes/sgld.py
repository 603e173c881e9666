"""Sampling the posterior by stochastic gradient Langevin dynamics (section 2.2).

Gradient descent with noise of the right scale samples from the posterior. The optimizers produce a chain of weights,
`keep` chooses the states that count as samples, and a `SampleBank` stores them and uses one of them at every call:

    bank, optimizer = SampleBank(net), SGLD(net.parameters(), lr=0.1, data_size=n)
    for step, (x, y) in enumerate(batches, start=1):
        loss = cross_entropy(net(x), y) + negative_log_prior(net, prior) / n
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        if keep(step, burn_in=1000, every=100):
            bank.add()
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, ParamsT

from advbnn.bayes.priors import GaussianPrior, at_least_float32, choose, std_for
from advbnn.errors import ArgumentError, ArgumentTypeError, positive_whole, within


class SGLD(Optimizer):
    """Stochastic gradient Langevin dynamics (Welling and Teh, 2011).

        w <- w - lr * g + sqrt(2 * lr * temperature / N) * xi,    xi ~ N(0, I)

    where g is the gradient of the mean negative log-likelihood per example plus 1/N times the negative log prior,
    estimated on a mini-batch. As lr -> 0 the states are samples from p(w | data)^(1/temperature); the paper's step
    is 2 lr / N in these units. So `lr` has the scale it has in SGD, and at temperature 0 the update is SGD's.

    A fixed lr leaves a bias of order lr: where the loss has curvature h, the variance is too large by the factor
    1 / (1 - lr h / 2), and mini-batches add the variance of their gradients.

    Noise comes from torch's default generator, for parameters that have a gradient. Processes that train one
    network together must use the same noise: `with seeded(seed, device): optimizer.step()`, with a shared seed that
    changes at every step.
    """

    def __init__(self, params: ParamsT, lr: float, *, data_size: int, temperature: float = 1.0) -> None:
        """`data_size` is N, the number of training examples; a `temperature` below 1 gives a "cold" posterior."""
        positive_whole("data_size", data_size)
        within("lr", lr, "(0, 1e30]")
        within("temperature", temperature, "[0, 1e30]", "1 is the posterior")
        super().__init__(params, {"lr": lr, "data_size": data_size, "temperature": temperature})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update; `closure`, if given, recomputes the loss and its gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters:
                noise_scale = (2 * group["lr"] * group["temperature"] / group["data_size"]) ** 0.5
                self._update(group, parameters, [p.grad for p in parameters], noise_scale)
        return loss

    def _update(
        self, group: dict[str, Any], parameters: list[Tensor], grads: list[Tensor], noise_scale: float | Tensor
    ) -> None:
        _add_scaled(parameters, grads, -group["lr"])
        if group["temperature"] > 0:
            _add_scaled(parameters, [torch.randn_like(p) for p in parameters], noise_scale)


class PSGLD(SGLD):
    """SGLD whose step adapts to each weight by RMSprop's preconditioner (Li et al., 2016).

        V <- alpha * V + (1 - alpha) * g^2,    G = 1 / (sqrt(V) + eps)
        w <- w - lr * G * g + sqrt(2 * lr * temperature / N * G) * xi,    xi ~ N(0, I)

    with g and N as for `SGLD`; at temperature 0 and `burn_in=None` the update is RMSprop's. V starts at the mean of
    the first g^2 over each parameter tensor. If it started at zero, a weight whose first gradient is small would get
    noise of size 1 / |g|^(1/2).

    A preconditioner that depends on w requires a drift Gamma = sum_j dG_ij / dw_j, which needs second derivatives.
    Here G adapts during the first `burn_in` updates of a parameter and is constant afterwards, so Gamma = 0 and later
    states follow the posterior. The original algorithm always adapts and drops Gamma as small. This holds if V is
    dominated by mini-batch noise; if V follows the gradient at w, a Gaussian posterior gets up to twice its variance.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        *,
        data_size: int,
        burn_in: int | None,
        temperature: float = 1.0,
        alpha: float = 0.99,
        eps: float = 1e-5,
    ) -> None:
        """`burn_in`: updates during which the preconditioner adapts; keep samples only after them. None: always."""
        if burn_in is not None:
            positive_whole("burn_in", burn_in, most=1_000_000_000)
        within("alpha", alpha, "[0, 1)", "0.99 is usual")
        within("eps", eps, "(0, 1e30]", "1e-5 is usual")
        super().__init__(params, lr, data_size=data_size, temperature=temperature)
        # capturable: torch puts the count of updates on the device of the parameter when it loads a state
        own = {"burn_in": burn_in, "alpha": alpha, "eps": eps, "capturable": True}
        self.defaults.update(own)
        for group in self.param_groups:
            group.update({**own, **group})

    def _update(
        self, group: dict[str, Any], parameters: list[Tensor], grads: list[Tensor], noise_scale: float | Tensor
    ) -> None:
        for parameter, gradient in zip(parameters, grads, strict=True):
            state = self.state[parameter]
            if not state:
                # counted per parameter: one whose first gradient comes late still adapts; and on the device, where a
                # captured step goes on counting
                state["step"] = torch.zeros((), device=parameter.device)
                state["square_avg"] = torch.zeros_like(parameter)
            step, average, square = state["step"], state["square_avg"], gradient.square()
            average.copy_(torch.where(step == 0, square.mean(), average))
            adapts = torch.ones_like(step) if group["burn_in"] is None else step < group["burn_in"]
            average.lerp_(square, (adapts * (1 - group["alpha"])).to(average))
            step += 1
        roots = torch._foreach_sqrt([self.state[p]["square_avg"] for p in parameters])
        torch._foreach_add_(roots, group["eps"])
        _add_scaled(parameters, torch._foreach_div(grads, roots), -group["lr"])
        if group["temperature"] > 0:
            noise = [torch.randn_like(p) for p in parameters]
            _add_scaled(parameters, torch._foreach_div(noise, torch._foreach_sqrt(roots)), noise_scale)


def _add_scaled(parameters: list[Tensor], directions: list[Tensor] | tuple[Tensor, ...], scale: float | Tensor) -> None:
    if isinstance(scale, Tensor):  # a captured step reads the learning rate on the device
        torch._foreach_add_(parameters, torch._foreach_mul(directions, scale))
    else:
        torch._foreach_add_(parameters, directions, alpha=scale)


def keep(step: int, *, burn_in: int, every: int) -> bool:
    """Whether the state after `step` updates is a sample: every `every`-th one after the first `burn_in`."""
    if burn_in < 0 or every < 1:
        raise ArgumentError(f"burn_in must be at least 0 and every at least 1 update, got {burn_in} and {every}")
    return step > burn_in and (step - burn_in) % every == 0


def negative_log_prior(net: nn.Module, prior: GaussianPrior) -> Tensor:
    """-log p(w) = sum (w - mean)^2 / (2 std^2) over the trainable parameters of `net`, up to a constant."""
    if not isinstance(prior, GaussianPrior):
        raise ArgumentTypeError(f"prior must be a GaussianPrior, got {prior!r}")
    terms = []
    for name, weight in net.named_parameters():
        if weight.requires_grad:
            std, mean = std_for("prior std", prior.std, name, weight), choose(prior.mean, name, weight, default=0.0)
            terms.append((((at_least_float32(weight) - mean) / std) ** 2).sum() / 2)
    if not terms:
        raise ArgumentError("net has no trainable parameter, so no prior; see net.requires_grad_()")
    return torch.stack([term.to(terms[0].device) for term in terms]).sum()
