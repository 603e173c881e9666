"""The fast passes of one network: for which batches one is compiled or captured, and checks that it is right."""

import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from advbnn.bayes.protocol import random_parts
from advbnn.errors import first_line
from advbnn.fast.compiling import compile_separately
from advbnn.fast.cuda_graph import Forward, GraphedForward, GraphMemory, check_capturable
from advbnn.fast.fallback import Fallback
from advbnn.fast.inference import FusedForward, eager_forward
from advbnn.modules import without_parameter_gradients
from advbnn.randomness import seeded

_BUILD_AFTER = 3
"""How often a kind of batch must occur before a fast pass is built for it; doubled whenever one is dropped."""

_MAX_PASSES = 6
"""Fast passes kept at a time, or more if batches are padded: with and without gradient, for full batches and others."""

_SIZES = 16
"""Equal parts of a full batch, up to multiples of which smaller ones are padded: a larger part would waste more work
than it saves captures, which take as long as a few passes."""

_REPEATABLE, _EQUAL = 1e-4, {"full": 0.02, "bf16": 0.1}
"""Largest relative difference of outputs: between two runs of the model, and between a fast pass and the model."""


class FastPasses:
    """The fast passes of a network as long as its weights keep their addresses; the last used ones are kept.

    Batches without a fast pass run the `FusedForward` that it would be built from, so a result does not depend on
    earlier batches. The model itself runs if its `FusedForward` is not equal to it.

    Smaller batches than `batch_size` are padded to a few sizes (see `ladder`), so that those of an attack that drops
    broken examples share the fast passes of these sizes. A network is not padded if its outputs depend on the rest of
    the batch, or its random numbers depend on the number of images.
    """

    def __init__(
        self,
        model: nn.Module,
        engine: str,
        precision: str,
        batch_size: int | None,
        memory: GraphMemory,
        fallback: Fallback,
    ) -> None:
        self.engine, self._memory, self._fallback = engine, memory, fallback
        self.passes: OrderedDict[tuple[Any, ...], Forward] = OrderedDict()
        self._sizes = ladder(batch_size)
        self._most, self._may_pad = max(_MAX_PASSES, 2 * len(self._sizes)), None if self._sizes else False
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
        size = next((size for size in self._sizes if size >= len(x)), len(x))
        if size == len(x) or self.engine == "eager":
            return self._run(x)
        if self._may_pad is None:
            self._may_pad = self._check_padding(x)
        return self._run(padded(x, size))[: len(x)] if self._may_pad else self._run(x)

    def _run(self, x: Tensor) -> Tensor:
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
                    reason = first_line(error)
                    continue
                reason = _difference("the model and its fused pass", expected, found, self._tolerance)
                if reason is None:
                    return True
        if self.engine != "eager":
            self._fallback.add(str(reason))
        self.engine = "eager"
        return False

    @torch.no_grad()
    def _check_padding(self, x: Tensor) -> bool:
        """Whether images share their random numbers, and each output depends on its own image alone."""
        if not self._fused.draws_ignore_the_batch(x):
            return False
        alone, beside = _seeded_output(self._fused, x), _seeded_output(self._fused, torch.cat([x, x / 2]))
        return _difference("a batch and a larger one", alone, beside[: len(x)], self._tolerance) is None

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
            reason, permanent = first_line(error), not isinstance(error, torch.OutOfMemoryError)
        if reason is not None:
            self._fallback.add(reason, f"batches of shape {tuple(x.shape)}")
            self._failed.add(key)
            if not permanent:
                self.passes.clear()  # the eager pass needs the memory
                self._memory.release()
            elif not self.passes:
                self.engine = "eager"
            return
        self.passes[key] = built
        if len(self.passes) > self._most:
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
            gradient = wants_gradient(x)
            return GraphedForward(self._fused, example, differentiable=gradient, memory=self._memory, scratch=scratch)

    def _compile(self) -> Forward:
        if len(self.passes) == self._most:
            raise RuntimeError(f"{self._most} other kinds of batches are compiled already")
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
    return (tuple(x.shape), x.dtype, x.device, wants_gradient(x), *flags)


def wants_gradient(x: Tensor) -> bool:
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


def ladder(batch_size: int | None) -> tuple[int, ...]:
    """The sizes that smaller batches are padded to, growing; none without a size."""
    return (
        () if batch_size is None else tuple(sorted({-(-batch_size * part // _SIZES) for part in range(1, _SIZES + 1)}))
    )


def padded(x: Tensor, size: int) -> Tensor:
    """The batch, its last example repeated until there are `size`."""
    # detached: the gradient of a repeated example is nobody's
    return torch.cat([x, x[-1:].detach().expand(size - len(x), *x.shape[1:])])
