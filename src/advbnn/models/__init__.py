"""The networks of the paper and of its authors' code, two residual networks, and two small ones for quick work.

Contract: `build(name)` returns an `nn.Sequential` of `features` and `classifier`, a single `nn.Linear`. It takes images
[n, channels, height, width] in [0, 1], not normalised, and returns logits. `advbnn.models.conv_bn` finds and folds
pairs of convolution and BatchNorm in any network.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

from advbnn.errors import ArgumentError, one_of, positive_whole
from advbnn.lazy import submodules
from advbnn.models import plain, resnet

__all__ = ["NAMES", "build", "reset_parameters_", "uniform_norm_scales_"]

Net = TypeVar("Net", bound=nn.Module)

_BUILDERS: dict[str, Callable[..., nn.Sequential]] = {
    **{f"vgg{depth}": partial(plain.vgg, depth) for depth in plain.CONVOLUTIONS_PER_STAGE},
    "wide_vgg16": partial(plain.vgg, 16, wider=2.25),
    "model_a": plain.model_a,
    "model_a_playground": partial(plain.model_a, playground=True),
    "resnet18": resnet.resnet18,
    "preact_resnet18": resnet.preact_resnet18,
    "small_cnn": plain.small_cnn,
    "wide_small_cnn": partial(plain.small_cnn, wider=3.2),
    "mlp": plain.mlp,
}
NAMES = tuple(_BUILDERS)
"""The networks that `build` makes."""


def build(name: str, *, classes: int = 10, image_size: int = 32, channels: int = 3) -> nn.Sequential:
    """A network with initial weights from torch's default generator.

    Args:
        name: "vgg11", "vgg13", "vgg16", "vgg19", "wide_vgg16" (2.25 times as wide, the cost of five "vgg16"), "model_a"
            (the authors' network for STL-10), "model_a_playground" (the one in the paper's footnote), "resnet18",
            "preact_resnet18", "small_cnn", "wide_small_cnn" (3.2 times as wide, the cost of ten "small_cnn") or "mlp".
        image_size: height and width of the images, in pixels.
    """
    one_of("name", name, _BUILDERS)
    given = {"classes": classes, "image_size": image_size, "channels": channels}
    return _BUILDERS[name](**{argument: positive_whole(argument, value) for argument, value in given.items()})


def uniform_norm_scales_(net: Net) -> Net:
    """Initialise every BatchNorm scale of `net`, in place, from U(0, 1), and return `net`.

    This was the default of PyTorch 0.4, which the authors used; today scales are initialised with 1.
    """
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.affine:
            nn.init.uniform_(module.weight)
    return net


def reset_parameters_(net: Net) -> Net:
    """Give every layer of `net`, in place, fresh initial weights, and return `net`; what is frozen stays as it is."""
    frozen = [(parameter, parameter.detach().clone()) for parameter in net.parameters() if not parameter.requires_grad]
    for path, part in net.named_modules():
        own = list(part.parameters(recurse=False))
        if own and not any(parameter.requires_grad for parameter in own):
            continue  # its running statistics fit its weights
        # layers of torch have the first, its attention the second
        reset: Any = getattr(part, "reset_parameters", getattr(part, "_reset_parameters", None))
        if reset is not None:
            reset()
        elif own:
            raise ArgumentError(
                f"net cannot get fresh weights: its part {path!r}, a {type(part).__name__}, has no reset_parameters(); "
                "for several modes build a network for each, train each with fit, and combine them: Modes(networks)"
            )
    with torch.no_grad():
        for parameter, value in frozen:  # those of a layer, or of its part, that is frozen in part only
            parameter.copy_(value)
    return net


if not TYPE_CHECKING:  # type checkers know the submodules
    __getattr__ = submodules(__name__)
