"""The outputs of a network under weight samples, of all its members if they are few, and what is expected of them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from advbnn.bayes.activations import outputs_of
from advbnn.bayes.protocol import EXACT_UP_TO, Member, RandomNetwork, members, some_are_random
from advbnn.errors import ArgumentError, ArgumentTypeError, whole
from advbnn.modules import evaluating, explain_input_errors, input_unchanged
from advbnn.randomness import (
    LOOKS,
    Resampled,
    is_random,
    random_state,
    seeded,
    transparent,
    with_fresh_state,
)


def check_module(model: object) -> None:
    """Refuse what is no network, such as a function."""
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(f"model must be a torch.nn.Module, got {type(model).__name__}; make a function one")


def sampled_outputs(
    model: nn.Module, x: Tensor, samples: int, seed: int | None, exact_up_to: int = EXACT_UP_TO, looks: bool = True
) -> tuple[list[Any], list[float] | None]:
    """As `outputs_and_weights`, in evaluation mode and with a fresh random state for every pass.

    A network that is not random is passed once, and its output repeated. Members whose passes differ are sampled;
    without `looks` only the random numbers of torch show that they do.
    """
    check_module(model)
    if not isinstance(x, Tensor):
        raise ArgumentTypeError(f"x must be a tensor, got {type(x).__name__}; torch.as_tensor makes one of an array")
    explained = explain_input_errors(model, "x", x.shape, x.dtype, x.device)
    with evaluating(model), seeded(seed, x.device), input_unchanged(x), explained:
        fresh = with_fresh_state(model)
        passes = passes_needed(fresh, x, samples)
        parts = members(fresh, whole("exact_up_to", exact_up_to, 0))
        if looks and must_be_sampled(parts, x):
            parts = ()
        before = random_state(x.device)
        outputs, weights = outputs_and_weights(fresh, x, passes, parts)
        if weights is None and passes < samples and not torch.equal(before, random_state(x.device)):
            # only some inputs are given random numbers, and not the first
            outputs += [fresh(x) for _ in range(samples - passes)]
            passes = samples
    return outputs * (samples // passes if weights is None else 1), weights


def passes_needed(model: nn.Module, x: Tensor, samples: int) -> int:
    """How many passes give the outputs of `samples` weight samples: 1 for a network that is not random.

    `LOOKS` passes on two inputs decide, unless the network is known to be random, or takes no such batch. A state that
    is kept for longer, without `resample(seed)`, is not seen: `samples` passes would see few of its states, too. What
    is `transparent` can be random by torch's numbers alone, which its pass shows.
    """
    if any(isinstance(part, RandomNetwork | Resampled) for part in model.modules()):
        return samples
    if transparent(model):
        return 1
    if samples <= LOOKS or not _has_rows(x):
        return samples
    try:
        # another seed than that of attacks, as nothing that scores shares random numbers with them
        return samples if is_random(model, x[:2], LOOKS, seed=1) else 1
    except Exception:  # a network may require one size of batches; real errors come again
        return samples


def _has_rows(x: Tensor) -> bool:
    return x.dim() > 0 and len(x) > 0


def must_be_sampled(parts: Sequence[Member], x: Tensor) -> bool:
    """Whether a member is random itself, as passes on two inputs show: its single pass would be no exact mean.

    `transparent` ones need none: they can be random by torch's numbers alone, which `outputs_and_weights` sees.
    """
    try:
        return _has_rows(x) and some_are_random((part for part in parts if not transparent(part.net)), x[:2])
    except Exception:  # a network may require one size of batches; real errors come again
        return False


def outputs_and_weights(
    model: nn.Module, x: Tensor, samples: int, parts: Sequence[Member]
) -> tuple[list[Any], list[float] | None]:
    """The outputs of all members with their weights, if there are `parts`; else of weight samples, without weights.

    Members that use random numbers of torch, such as noise, are sampled too.
    """
    if parts:
        before = None if torch.compiler.is_compiling() else random_state(x.device)
        outputs = outputs_of([part.net for part in parts], x)
        if before is None or torch.equal(before, random_state(x.device)):
            return outputs, [part.weight for part in parts]
    return [model(x) for _ in range(samples)], None


def are_probabilities(outputs: Tensor) -> Tensor:
    """Whether all rows are non-negative and sum to 1, as after a softmax and hardly ever for logits; one bool."""
    return some_are_probabilities(outputs[None])


def some_are_probabilities(outputs: Tensor) -> Tensor:
    """Whether those of one of several networks are, [networks, ..., classes]; one bool."""
    if not outputs.numel():
        return torch.zeros((), dtype=torch.bool, device=outputs.device)
    off = (outputs.sum(-1) - 1).abs().reshape(len(outputs), -1).amax(1)
    positive = (outputs >= 0).reshape(len(outputs), -1).all(1)
    # a sum in bfloat16 has a larger error than one in float32
    return ((off <= max(1e-3, torch.finfo(outputs.dtype).eps)) & positive).any()


def check_same_outputs(*shapes: torch.Size) -> None:
    """Refuse networks of one model that differ in the shape of their outputs."""
    different = next((shape for shape in shapes if shape != shapes[0]), None)
    if different is not None:
        found = f"{list(shapes[0])} and {list(different)}"
        raise ArgumentError(
            f"model's networks must return outputs of one shape, got {found}; give all the same classes"
        )
