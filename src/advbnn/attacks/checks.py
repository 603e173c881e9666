"""What an attack refuses: inputs that it cannot perturb, and networks that do not return logits."""

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from advbnn.attacks.threat import Threat
from advbnn.bayes.outputs import are_probabilities
from advbnn.errors import ArgumentError, ArgumentTypeError


def check_inputs(model: nn.Module, x: Tensor, y: Tensor, threat: Threat, classifies: bool) -> Tensor:
    """Refuse arguments that an attack cannot use; returns `y` in the dtype and on the device that losses need."""
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(f"model must be a torch.nn.Module that returns logits, got {type(model).__name__}")
    if not isinstance(x, Tensor) or not x.is_floating_point():
        came = str(x.dtype) if isinstance(x, Tensor) else type(x).__name__
        raise ArgumentTypeError(f"x must be a floating point tensor, got {came}; for bytes use x.float() / 255")
    if x.ndim == 0:
        raise ArgumentError("x must be a batch [n, ...], got a single number; for one example use x[None]")
    bounds = torch.tensor(threat.bounds, dtype=x.dtype).tolist()
    smallest, largest = torch.stack(torch.aminmax(x)).tolist() if x.numel() else bounds
    if not smallest <= largest:
        raise ArgumentError("x holds NaN; clean the inputs before the attack")
    if smallest < bounds[0] or largest > bounds[1]:
        raise ArgumentError(
            f"x lies in [{smallest:.6g}, {largest:.6g}], outside bounds {threat.bounds}; scale x into the "
            "bounds, put the normalisation inside the model, or give Threat the bounds of your data"
        )
    if threat.holds_everything:
        eps, box = threat.eps, threat.bounds
        warnings.warn(f"eps={eps:g} allows every point of the box {box}; did you mean {eps:g}/255?", stacklevel=4)
    if not isinstance(y, Tensor) or y.ndim == 0 or len(y) != len(x):
        came = f"shape {tuple(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
        raise ArgumentError(f"y must be a tensor with one label for each of the {len(x)} inputs, got {came}")
    if not classifies:
        if not y.is_floating_point():
            raise ArgumentTypeError(f"y must be floating point for loss='nll', got {y.dtype}; for classes use 'ce'")
        if not bool(y.isfinite().all()):
            raise ArgumentError("y holds NaN or infinity; leave out those examples")
        return y.to(x.device)
    if y.ndim != 1:
        raise ArgumentError(f"y must hold class numbers, [n], got {tuple(y.shape)}; one-hot rows: y.argmax(1)")
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise ArgumentTypeError(f"y must hold class numbers of an integer type, got {y.dtype}; use y.long()")
    if len(y) and (least := int(y.min())) < 0:
        raise ArgumentError(f"y holds the label {least}; class numbers start at 0")
    return y.to(x.device, torch.int64)


def check_outputs(outputs: Any, x: Tensor, y: Tensor, classifies: bool) -> None:
    """Refuse outputs that are not one tensor of logits for the labels `y`."""
    if not isinstance(outputs, Tensor):
        came = type(outputs).__name__
        raise ArgumentTypeError(f"model must return one tensor, got a {came}; wrap it to return only the logits")
    if len(outputs) != len(x):
        raise ArgumentError(f"model must return one row per input, got {len(outputs)} rows for {len(x)} inputs")
    if classifies and outputs.ndim != 2:
        raise ArgumentError(f"model must return logits of shape [n, classes], got {tuple(outputs.shape)}")
    # transferred together, to synchronise with the device once
    sums_to_one = are_probabilities(outputs)
    highest = y.max().long() if classifies else torch.zeros_like(sums_to_one, dtype=torch.int64)
    has_nan, probabilities, label = torch.stack([outputs.isnan().any().long(), sums_to_one.long(), highest]).tolist()
    if has_nan:
        raise ArgumentError("model returned NaN before any attack step; check its weights and its normalisation")
    if classifies and label >= outputs.shape[1]:
        raise ArgumentError(
            f"y holds the label {label}, but the model has {outputs.shape[1]} classes, numbered from 0; "
            "check the labels, or the size of the model's last layer"
        )
    if classifies and probabilities:
        raise ArgumentError("model returned probabilities, attacks need logits: remove the softmax, or return its log")
