"""Random self-ensemble (RSE): Gaussian noise on the input of every convolution, in training and prediction.

A baseline of the paper. The noise is a hook, not a layer, so parameters keep their names: a checkpoint of the plain
network loads into the noisy one, and vice versa.
"""

import copy
from typing import Any, TypeVar

import torch
from torch import nn

from advbnn.errors import ArgumentError, within

CONVOLUTIONS: tuple[type[nn.Module], ...] = (
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)

Net = TypeVar("Net", bound=nn.Module)


def add_noise(
    net: Net, first: float = 0.2, inner: float = 0.1, before: tuple[type[nn.Module], ...] = CONVOLUTIONS
) -> Net:
    """A copy of `net` in which each layer of a type in `before` gets its input plus N(0, std^2).

    Every call adds fresh noise from torch's default generator to every element, in training and in evaluation mode.
    The defaults are from the authors' later code, for their comparison with Adv-BNN.

    Args:
        net: any module with such layers; not changed.
        first: standard deviation before the first such layer, in the order of registration.
        inner: standard deviation before the others.
        before: the layer types.
    """
    check_noise(first, inner)
    if noise_levels(net):
        raise ArgumentError("net has noise already, which a second call would raise; add noise to the plain network")
    noisy = copy.deepcopy(net)
    layers = [module for module in noisy.modules() if isinstance(module, before)]
    if not layers:
        kinds = ", ".join(kind.__name__ for kind in before)
        remedy = "take another architecture, or in Python give the layer types, such as before=(nn.Linear,)"
        raise ArgumentError(f"net has no layer to add noise to, of {kinds}; {remedy}")
    for index, layer in enumerate(layers):
        noise = GaussianNoise(float(inner if index else first))
        # Hooks are stored under process-wide ids. The pickled handle makes the loading process skip this id;
        # otherwise the next hook registered there could take it and silently replace the noise.
        noise.handle = layer.register_forward_pre_hook(noise, with_kwargs=True)
    return noisy


def check_noise(first: float, inner: float) -> None:
    """Refuse what are not standard deviations."""
    for argument, std in {"first": first, "inner": inner}.items():
        within(argument, std, "[0, 1e6]", "it is a standard deviation")


def noise_levels(net: nn.Module) -> dict[str, float]:
    """The standard deviation of the noise before each noisy layer, by the layer's name in `net`."""
    return {
        name: hook.std
        for name, module in net.named_modules()
        for hook in module._forward_pre_hooks.values()
        if isinstance(hook, GaussianNoise)
    }


class GaussianNoise:
    """A forward pre-hook that adds N(0, std^2) to a layer's input."""

    handle: Any

    def __init__(self, std: float) -> None:
        self.std = std

    def __call__(
        self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self.std == 0:
            return args, kwargs
        if args:
            return (self._perturb(args[0]), *args[1:]), kwargs
        return args, {**kwargs, "input": self._perturb(kwargs["input"])}

    def _perturb(self, x: torch.Tensor) -> torch.Tensor:
        # not randn_like, which follows the memory format: a seed gives the same noise in every layout
        return torch.add(x, torch.randn(x.shape, dtype=x.dtype, device=x.device), alpha=self.std)

    def __repr__(self) -> str:
        return f"GaussianNoise(std={self.std})"
