"""Biases that BatchNorm cancels: their gradient in an update is set to exactly zero.

With batch statistics, BatchNorm subtracts whatever the bias of the convolution before it adds. The true gradient of
such a bias is zero, but rounding leaves a tiny one, which Adam scales up to full steps. The mean would drift, which is
harmless, and so would the standard deviation of a random bias, which harms every pass with running statistics.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from advbnn.bayes.functional import parameter_paths
from advbnn.bayes.protocol import random_parts
from advbnn.models.conv_bn import conv_bn_pairs


def hidden_biases(net: nn.Module) -> list[tuple[str, str]]:
    """The biases of a network that batch statistics cancel: (bias, BatchNorm), by name."""
    pairs = conv_bn_pairs(net, training=True)
    return [(f"{pair.conv}.bias", pair.norm) for pair in pairs if net.get_submodule(pair.conv).bias is not None]


class HiddenBiases:
    """The random biases of `model` that BatchNorm cancels in training mode."""

    def __init__(self, model: nn.Module) -> None:
        self._pairs: list[tuple[nn.Module, nn.Module]] = []
        for _, part in random_parts(model):
            random, paths = {name for name, _, _ in part.posterior()}, parameter_paths(part.net)
            for bias, norm in hidden_biases(part.net):
                # a tied bias may have an effect in its other place
                if bias in random and len(paths[bias]) == 1:
                    conv = part.net.get_submodule(bias.removesuffix(".bias"))
                    self._pairs.append((conv, part.net.get_submodule(norm)))

    @contextmanager
    def without_gradients(self) -> Iterator[None]:
        """Within the block, a pass gives these biases a gradient of zero, if their BatchNorm uses batch statistics."""
        hooks = [conv.register_forward_pre_hook(_detach_bias) for conv, norm in self._pairs if norm.training]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def _detach_bias(conv: nn.Module, inputs: Any) -> None:
    # in a forward pass of a random network this is the sampled bias, which is replaced when the pass ends
    bias: Any = conv._parameters["bias"]
    if not isinstance(bias, nn.Parameter):
        # zero instead of no gradient: weight decay and gradient averaging rely on it
        conv._parameters["bias"] = bias.detach() + 0 * bias
