"""Faster attacks and predictions: a model whose forward passes are compiled, or captured as CUDA graphs."""

import logging
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from advbnn.bayes.modes import Modes
from advbnn.bayes.protocol import HasMembers, Member, RandomNetwork, members, random_parts
from advbnn.errors import ArgumentError, unknown
from advbnn.fast.accelerated_modes import AcceleratedModes
from advbnn.fast.compiling import ENGINES, PRECISIONS, compile_separately
from advbnn.fast.cuda_graph import Forward, GraphedForward, check_capturable
from advbnn.fast.inference import FusedForward, eager_forward
from advbnn.modules import device_of, without_parameter_gradients
from advbnn.randomness import Resampled, offers_resample, seeded, with_fresh_state

_BUILD_AFTER = 3
"""How often a kind of batch must occur before a fast pass is built for it; doubled whenever one is dropped."""

_MAX_PASSES = 6
"""Fast passes kept at a time: with and without gradient, for full batches and the last one, and some more."""

_MAX_MEMBERS = 16
"""Members of a mixture that get a fast engine of their own, each with its memory; the others run as they are."""

_REPEATABLE, _EQUAL = 1e-4, {"full": 0.02, "bf16": 0.1}
"""Largest relative difference of outputs: between two runs of the model, and between a fast pass and the model."""

log = logging.getLogger("advbnn")


def accelerate(model: nn.Module, engine: str = "auto", precision: str = "full") -> nn.Module:
    """The model in evaluation mode, run by `engine`; for attacks, `predict`, `Ensemble` and the like.

    For the same seed its outputs differ from the model's by rounding alone, since the random numbers come from the same
    calls. It computes gradients of the input, never of weights. The model itself runs where a fast pass cannot be
    built, and the log says why: if the network waits for the device, uses random numbers of the CPU, is not repeatable
    under a seed, or is resampled at every pass (see `with_fresh_state`), as a fast pass would keep one random state.
    It also runs in training mode, within `frozen` and `torch.autocast` blocks, and while its parts have forward hooks.
    The model is not changed, and changes of its weights take effect. The modes of a mixture, and the members of a
    posterior with finite support, are accelerated one by one.

    Args:
        model: any module that returns logits; an accelerated one is returned as it is.
        engine: `"eager"`, the model as it is; `"compile"`, torch.compile; `"graph"`, CUDA graphs; `"auto"`, CUDA
            graphs on a GPU and eager elsewhere, where compiling takes longer than most attacks.
        precision: `"full"`, the precision of the weights, with TF32 according to torch's flags; or `"bf16"`, matrix
            products in bfloat16, with images, normalisation and outputs in float32.
    """
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    if precision not in PRECISIONS:
        raise unknown("precision", precision, PRECISIONS)
    on_gpu = device_of(model, torch.device("cpu")).type == "cuda"
    if engine == "graph" and not on_gpu:
        raise ArgumentError("engine='graph' captures CUDA graphs, and the model is on the CPU; use 'compile' or 'auto'")
    if engine == "auto":
        engine = "graph" if on_gpu else "eager"
    if isinstance(model, Accelerated | AcceleratedModes):
        return model
    model = with_fresh_state(model)
    if engine != "eager" and offers_resample(model):
        log.info("running the model as it is: its random state is resampled at every pass")
        engine = "eager"
    if isinstance(model, Modes) and (engine, precision) != ("eager", "full"):
        return AcceleratedModes(model, _accelerated(model.net, engine, precision))
    return model if (engine, precision) == ("eager", "full") else Accelerated(model, engine, precision)


def computes_in_bf16(model: nn.Module) -> bool:
    """Whether a model was accelerated with `precision="bf16"`."""
    return any(isinstance(part, Accelerated) and part.precision == "bf16" for part in model.modules())


def engine_of(model: nn.Module) -> str:
    """The engine that runs a model, which may be `"eager"` although `accelerate` was given another."""
    return next((part.engine for part in model.modules() if isinstance(part, Accelerated)), "eager")


def _accelerated(networks: Iterable[nn.Module], engine: str, precision: str) -> list[nn.Module]:
    return [
        accelerate(network, engine if number < _MAX_MEMBERS else "eager", precision)
        for number, network in enumerate(networks)
    ]


class Accelerated(HasMembers):
    """The result of `accelerate`."""

    def __init__(self, model: nn.Module, engine: str, precision: str = "full") -> None:
        super().__init__()
        self.model, self.precision = model, precision
        self.training = model.training
        self._requested_engine = engine
        self._modules_list: list[nn.Module] | None = None
        self._fast: _FastPasses | None = None
        self._members: tuple[tuple[int, ...], tuple[Member, ...]] | None = None

    @property
    def engine(self) -> str:
        """`"eager"`, `"compile"` or `"graph"`; `"eager"` once a fast pass has turned out to be impossible."""
        return self._requested_engine if self._fast is None else self._fast.engine

    def forward(self, x: Tensor) -> Tensor:
        """The model's output for a batch."""
        addresses = self._weight_addresses()
        if addresses is None or x.numel() == 0 or torch.is_autocast_enabled(x.device.type):
            return eager_forward(self.model, x, self.precision == "bf16")
        if self._fast is None or self._fast.addresses != addresses:
            self._fast = _FastPasses(self.model, self._requested_engine, self.precision, addresses)
        return self._fast(x)

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
            fast = _accelerated((member.net for member in found), self._requested_engine, self.precision)
            pairs = zip(found, fast, strict=True)
            self._members = addresses, tuple(Member(member.weight, net) for member, net in pairs)
        return self._members[1]

    def extra_repr(self) -> str:
        return f"engine={self._requested_engine!r}, precision={self.precision!r}"

    def __getstate__(self) -> dict[str, Any]:
        # captured graphs and compiled code do not belong to a copy
        return {**self.__dict__, "_modules_list": None, "_fast": None, "_members": None}

    def _weight_addresses(self) -> tuple[int, ...] | None:
        """Memory addresses of all weights; None if the network itself must run.

        It does in training mode, frozen to one weight sample, resampled at every pass, and with hooks on its parts,
        such as those that give an attack its straight-through gradients.
        """
        if self._modules_list is None:
            self._modules_list = list(self.model.modules())
        addresses = []
        for part in self._modules_list:
            if (
                part.training
                or part._forward_hooks
                or isinstance(part, Resampled)
                or (isinstance(part, RandomNetwork) and part.frozen_sample is not None)
            ):
                return None
            for tensor in (*part._parameters.values(), *part._buffers.values()):
                if tensor is not None:
                    addresses.append(tensor.data_ptr())
        return tuple(addresses)


class _FastPasses:
    """The fast passes of a network as long as its weights keep their addresses; the last used ones are kept.

    Batches without a fast pass run the `FusedForward` that it would be built from, so a result does not depend on
    earlier batches. The model itself runs if its `FusedForward` is not equal to it.
    """

    def __init__(self, model: nn.Module, engine: str, precision: str, addresses: tuple[int, ...]) -> None:
        self.engine, self.addresses = engine, addresses
        self.passes: OrderedDict[tuple[Any, ...], Forward] = OrderedDict()
        self._model, self._bf16, self._tolerance = model, precision == "bf16", _EQUAL[precision]
        self._fused = FusedForward(model, self._bf16)
        self._fused_is_equal: bool | None = None
        self._compiled: Callable[..., Tensor] | None = None
        self._seen: Counter[tuple[Any, ...]] = Counter()
        self._failed: set[tuple[Any, ...]] = set()
        self._build_after = _BUILD_AFTER

    def __call__(self, x: Tensor) -> Tensor:
        if self._fused_is_equal is None:
            self._fused_is_equal = self._check_fused(x)
        if not self._fused_is_equal:
            return self._eager(x)
        key = _batch_key(x)
        if self.engine != "eager" and key not in self.passes and key not in self._failed:
            self._seen[key] += 1
            if self._seen[key] >= self._build_after:
                self._build(key, x)
        if key not in self.passes:
            return self._fused(x)
        self.passes.move_to_end(key)
        return self.passes[key](x)

    def _eager(self, x: Tensor) -> Tensor:
        return eager_forward(self._model, x, self._bf16)

    def _check_fused(self, x: Tensor) -> bool:
        """Whether the network is repeatable under a seed and its fused pass, in some memory format, equals it."""
        expected = _seeded_output(self._eager, x)
        reason = _difference("the model and itself", expected, _seeded_output(self._eager, x), _REPEATABLE)
        if reason is None:
            for self._fused.channels_last in (True, False) if x.is_cuda else (False,):
                try:
                    found = _seeded_output(self._fused, x)
                except Exception as error:  # for example of a network that requires one memory format
                    reason = _first_line(error)
                    continue
                reason = _difference("the model and its fused pass", expected, found, self._tolerance)
                if reason is None:
                    return True
        log.info("running the model as it is: %s", reason)
        self.engine = "eager"
        return False

    def _build(self, key: tuple[Any, ...], x: Tensor) -> None:
        try:
            built = self._compile() if self.engine == "compile" else self._capture(x)
            with warnings.catch_warnings():
                # torch's compiler reads the gradient of its input even if it is no leaf
                warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
                found = _seeded_output(built, x)
            reason = _difference("the model and its fast pass", _seeded_output(self._fused, x), found, self._tolerance)
            permanent = True
        except RuntimeError as error:
            reason, permanent = _first_line(error), not isinstance(error, torch.OutOfMemoryError)
        if reason is not None:
            log.info("running batches of shape %s eagerly: %s", tuple(x.shape), reason)
            self._failed.add(key)
            if permanent and not self.passes:
                self.engine = "eager"
            return
        self.passes[key] = built
        if len(self.passes) > _MAX_PASSES:
            # batch sizes change often, as in an attack that drops broken examples
            dropped, _ = self.passes.popitem(last=False)
            del self._seen[dropped]
            self._build_after *= 2

    def _capture(self, x: Tensor) -> Forward:
        check_capturable(self._fused, x)

        def scratch() -> list[object]:
            """Memory for noise, which a model may release while a captured graph still uses it."""
            return [part.scratch for _, part in random_parts(self._model)]

        with without_parameter_gradients(self._model):
            example = self._fused.arrange(x)
            return GraphedForward(self._fused, example, differentiable=_wants_gradient(x), memory=scratch)

    def _compile(self) -> Forward:
        if len(self.passes) == _MAX_PASSES:
            raise RuntimeError(f"{_MAX_PASSES} other kinds of batches are compiled already")
        fused = self._fused
        if self._compiled is None:

            def run_fused(tensors: dict[str, Tensor], x: Tensor) -> Tensor:
                return fused.run(tensors, x)

            # the compiler's own random numbers would differ from the model's
            self._compiled = compile_separately(run_fused, fullgraph=True, options={"fallback_random": True})
        run = self._compiled

        def compiled(x: Tensor) -> Tensor:
            with without_parameter_gradients(self._model):
                return run(fused.sample(), fused.arrange(x))

        return compiled


def _batch_key(x: Tensor) -> tuple[Any, ...]:
    """What a fast pass is built for: the kind of batch, with or without gradient, and torch's precision flags."""
    flags = (torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()) if x.is_cuda else ()
    return (tuple(x.shape), x.dtype, x.device, _wants_gradient(x), *flags)


def _wants_gradient(x: Tensor) -> bool:
    return torch.is_grad_enabled() and x.requires_grad


def _seeded_output(forward: Forward, x: Tensor) -> Any:
    """The output under a fixed seed."""
    with seeded(1, x.device):
        outputs: Any = forward(x)
    return outputs.detach() if isinstance(outputs, Tensor) else outputs


def _difference(compared: str, a: Any, b: Any, tolerance: float) -> str | None:
    """The reason if two outputs differ by more than `tolerance` times the largest of their numbers."""
    if not (isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape == b.shape):
        return f"the outputs of {compared} are not tensors of one shape"
    a, b = a.double(), b.double()
    relative = ((a - b).abs().amax() / a.abs().amax().clamp_min(torch.finfo(a.dtype).tiny)).item()
    if relative <= tolerance:
        return None
    return f"under the same seed the outputs of {compared} differ by {relative:.1e} of the largest output"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
