"""Faster attacks and predictions: a model whose forward passes are compiled, or captured as CUDA graphs."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from advbnn.bayes.modes import Modes
from advbnn.bayes.protocol import EXACT_UP_TO, HasMembers, Member, RandomNetwork, members
from advbnn.errors import ArgumentError, one_of
from advbnn.fast.accelerated_modes import AcceleratedModes
from advbnn.fast.compiling import ENGINES, PRECISIONS
from advbnn.fast.cuda_graph import GraphMemory
from advbnn.fast.fallback import Fallback
from advbnn.fast.fast_passes import FastPasses, wants_gradient
from advbnn.fast.inference import eager_forward
from advbnn.modules import device_of
from advbnn.randomness import Resampled, draws_into_buffers, offers_resample, with_fresh_state


def accelerate(
    model: nn.Module,
    engine: str = "auto",
    precision: str = "full",
    *,
    gradients: str | None = None,
    batch_size: int | None = None,
    memory: GraphMemory | None = None,
    fallback: Fallback | None = None,
) -> nn.Module:
    """The model in evaluation mode, run by `engine`; for attacks, `predict`, `Ensemble` and the like.

    For the same seed its outputs differ from the model's by rounding alone, since the random numbers come from the same
    calls. It computes gradients of the input, never of weights. The model itself runs where a fast pass cannot be
    built, and the log says why: if the network waits for the device, uses random numbers of the CPU, is not repeatable
    under a seed, or is resampled at every pass (see `with_fresh_state`), as a fast pass would keep one random state,
    unless all of that state is in buffers (`draws_into_buffers`).
    It also runs in training mode, within `frozen` and `torch.autocast` blocks, and while its parts have forward hooks.
    The model is not changed, and changes of its weights take effect. The modes of a mixture, and the members of a
    posterior with finite support, are accelerated one by one, and their graphs use the same memory in turn.

    Args:
        model: any module that returns logits; an accelerated one is returned as it is.
        engine: `"eager"`, the model as it is; `"compile"`, torch.compile; `"graph"`, CUDA graphs; `"auto"`, CUDA
            graphs on a GPU and eager elsewhere, where compiling takes longer than most attacks.
        precision: `"full"`, the precision of the weights, with TF32 according to torch's flags; or `"bf16"`, matrix
            products in bfloat16, with images, normalisation and outputs in float32.
        gradients: the precision of passes that are differentiated; as the others when None.
        batch_size: the largest batch of an attack. Smaller ones are padded to a few sizes, where that changes nothing,
            and share their fast passes.
        memory: of CUDA graphs; given to several networks, it holds the activations of one at a time.
        fallback: gets the reason why the model itself runs, if it does although `engine` is a fast one.
    """
    one_of("engine", engine, ENGINES)
    one_of("precision", precision, PRECISIONS)
    gradients = precision if gradients is None else gradients
    one_of("gradients", gradients, PRECISIONS)
    on_gpu = device_of(model, torch.device("cpu")).type == "cuda"
    if engine == "graph" and not on_gpu:
        raise ArgumentError("engine='graph' captures CUDA graphs, and the model is on the CPU; use 'compile' or 'auto'")
    if engine == "auto":
        engine = "graph" if on_gpu else "eager"
    if isinstance(model, Accelerated | AcceleratedModes):
        return model
    model = with_fresh_state(model)
    how: dict[str, Any] = {"precision": precision, "gradients": gradients, "batch_size": batch_size}
    how |= {"memory": memory or GraphMemory(), "fallback": fallback or Fallback()}
    if engine != "eager" and isinstance(model, Resampled) and draws_into_buffers(model):
        # drawn before every pass, in place, where a fast pass reads it
        return Resampled(Accelerated(model.net, engine, **how))
    if engine != "eager" and offers_resample(model):
        how["fallback"].add("its random state is resampled at every pass")
        engine = "eager"
    if engine != "eager" and any(part._forward_hooks for part in model.modules()):
        how["fallback"].add("its parts have forward hooks")  # as long as they do
    if engine == "eager" and precision == gradients == "full":
        return model
    if isinstance(model, Modes):
        return AcceleratedModes(model, _accelerated(model.net, engine, how))
    return Accelerated(model, engine, **how)


def computes_in_bf16(model: nn.Module) -> bool:
    """Whether a model was accelerated with `precision="bf16"`."""
    return any(isinstance(part, Accelerated) and part.precision == "bf16" for part in model.modules())


def rough_gradients(model: nn.Module) -> bool:
    """Whether a model was accelerated with `gradients="bf16"` and `precision="full"`: the gradients alone are rough."""
    return any(isinstance(part, Accelerated) and part.rough_gradients for part in model.modules())


def engine_of(model: nn.Module) -> str:
    """The engine that runs a model, which may be `"eager"` although `accelerate` was given another."""
    return next((part.engine for part in model.modules() if isinstance(part, Accelerated)), "eager")


def _accelerated(networks: Iterable[nn.Module], engine: str, how: Mapping[str, Any]) -> list[nn.Module]:
    # more than that are sampled, and hardly one of them occurs often enough for a fast pass
    return [
        accelerate(network, engine if number < EXACT_UP_TO else "eager", **how)
        for number, network in enumerate(networks)
    ]


class Accelerated(HasMembers):
    """The result of `accelerate`."""

    def __init__(
        self,
        model: nn.Module,
        engine: str,
        precision: str = "full",
        gradients: str | None = None,
        batch_size: int | None = None,
        memory: GraphMemory | None = None,
        fallback: Fallback | None = None,
    ) -> None:
        super().__init__()
        self.model, self.precision, self.gradients = model, precision, gradients or precision
        self.training = model.training
        self._requested_engine, self._batch_size, self._memory = engine, batch_size, memory or GraphMemory()
        self._fallback = fallback or Fallback()
        self._parts: _Parts | None = None
        self._fast: tuple[tuple[int, ...], dict[str, FastPasses]] = ((), {})  # by precision, of weights at addresses
        self._members: tuple[tuple[int, ...], tuple[Member, ...]] | None = None

    @property
    def engine(self) -> str:
        """`"eager"`, `"compile"` or `"graph"`; `"eager"` once a fast pass has turned out to be impossible."""
        found = {passes.engine for passes in self._fast[1].values()} or {self._requested_engine}
        return next((engine for engine in found if engine != "eager"), "eager")

    @property
    def largest_batch(self) -> int:
        """The largest batch that it is prepared for; 0 if that is not known."""
        return self._batch_size or 0

    @property
    def rough_gradients(self) -> bool:
        """Whether differentiated passes are less precise than others, so that their outputs must decide nothing."""
        return (self.precision, self.gradients) == ("full", "bf16")

    def forward(self, x: Tensor) -> Tensor:
        precision = self.gradients if wants_gradient(x) else self.precision
        addresses = None if (self._requested_engine, precision) == ("eager", "full") else self._weight_addresses()
        if addresses is None or x.numel() == 0 or torch.is_autocast_enabled(x.device.type):
            return eager_forward(self.model, x, precision == "bf16")
        if self._fast[0] != addresses:
            self._fast = addresses, {}
        if precision not in self._fast[1]:
            how = self._requested_engine, precision, self._batch_size, self._memory, self._fallback
            self._fast[1][precision] = FastPasses(self.model, *how)
        return self._fast[1][precision](x)

    @property
    def support(self) -> int:
        return self.model.support if isinstance(self.model, HasMembers) else 0

    def members(self) -> tuple[Member, ...]:
        """The members of the network, each accelerated."""
        addresses = self._weight_addresses()
        if addresses is None or not self.support:
            return members(self.model)
        if self._members is None or self._members[0] != addresses:
            found = members(self.model)
            how: dict[str, Any] = {"precision": self.precision, "gradients": self.gradients}
            how |= {"batch_size": self._batch_size, "memory": self._memory, "fallback": self._fallback}
            fast = _accelerated((member.net for member in found), self._requested_engine, how)
            pairs = zip(found, fast, strict=True)
            self._members = addresses, tuple(Member(member.weight, net) for member, net in pairs)
        return self._members[1]

    def extra_repr(self) -> str:
        rough = f", gradients={self.gradients!r}" if self.rough_gradients else ""
        return f"engine={self._requested_engine!r}, precision={self.precision!r}{rough}"

    def __getstate__(self) -> dict[str, Any]:
        # captured graphs and compiled code do not belong to a copy
        return {**self.__dict__, "_parts": None, "_fast": ((), {}), "_members": None}

    def _weight_addresses(self) -> tuple[int, ...] | None:
        """Memory addresses of all weights; None if the network itself must run.

        It does in training mode, frozen to one weight sample, resampled at every pass, and with hooks on its parts,
        such as those that give an attack its straight-through gradients.
        """
        if self._parts is None:
            self._parts = _Parts(list(self.model.modules()))
        return self._parts.addresses()


class _Parts:
    """The parts of a network, looked at before every pass: what cannot change is found once."""

    def __init__(self, parts: list[nn.Module]) -> None:
        self._parts = parts
        self._resampled = any(isinstance(part, Resampled) for part in parts)
        self._random = [part for part in parts if isinstance(part, RandomNetwork)]

    def addresses(self) -> tuple[int, ...] | None:
        if self._resampled or any(part.frozen_sample is not None for part in self._random):
            return None
        if any(part.training or part._forward_hooks for part in self._parts):
            return None
        tensors = (one for part in self._parts for held in (part._parameters, part._buffers) for one in held.values())
        return tuple([tensor.data_ptr() for tensor in tensors if tensor is not None])
