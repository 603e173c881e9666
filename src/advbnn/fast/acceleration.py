"""Attacks and predictions in their fast forms: a network whose passes are compiled, or recorded as CUDA graphs.

To whoever calls it, `accelerate(model)` is the model in evaluation mode: the same outputs and the same gradients of the
input, up to rounding. For the same seed it has the same noise too, as the random numbers come from the same calls.
"""

import logging
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from advbnn.bayes.mean_field import Bayesian
from advbnn.bayes.sample_bank import SampleBank
from advbnn.errors import ArgumentError, unknown
from advbnn.fast.compiling import ENGINES, PRECISIONS, compiled_apart
from advbnn.fast.cuda_graph import GraphedForward, Pass, check_capturable
from advbnn.fast.inference import StructuredPass, run_plainly
from advbnn.modules import device_of, without_parameter_gradients
from advbnn.randomness import seeded

_WORTH = 3
"""How often a kind of batch must be seen before a fast form is made for it; twice as often for each that is dropped."""

_KEPT = 6
"""Fast forms kept at a time: for attacking and for asking, full batches and the last one, and some more."""

_REPEATS, _AGREES = 1e-4, {"full": 0.02, "bf16": 0.1}
"""How far two answers may be apart, over the largest output: of the model with itself, and of the fast form with it."""

log = logging.getLogger("advbnn")


def accelerate(model: nn.Module, engine: str = "auto", precision: str = "full") -> nn.Module:
    """The model in evaluation mode, in the form that `engine` names; for attacks, `predict`, `Ensemble` and the like.

    Its passes differ from those of the model by rounding alone. They compute gradients of the input, never of weights.
    Where a fast form cannot be made, the model itself runs, and the log says why: for a network that waits for the
    device or draws random numbers on the CPU, and for one that answers differently under the same seed. It also runs
    in training mode and within `frozen` and `torch.autocast` blocks. The model is not changed, and changes to its
    weights are followed.

    Args:
        model: any module that returns logits; one that is accelerated already stays as it is.
        engine: `"eager"`, the model as it is; `"compile"`, by torch.compile; `"graph"`, as CUDA graphs; `"auto"`, the
            graph on a GPU and eager elsewhere, where compiling takes longer than most attacks.
        precision: `"full"`, that of the weights, with TF32 as torch's flags say; or `"bf16"`, matrix products in
            bfloat16, with images, normalisation and outputs in float32.
    """
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    if precision not in PRECISIONS:
        raise unknown("precision", precision, PRECISIONS)
    on_gpu = device_of(model, torch.device("cpu")).type == "cuda"
    if engine == "graph" and not on_gpu:
        raise ArgumentError("engine='graph' records CUDA graphs, and the model is on the CPU; use 'compile' or 'auto'")
    if engine == "auto":
        engine = "graph" if on_gpu else "eager"
    if isinstance(model, Accelerated):
        return model
    return model if (engine, precision) == ("eager", "full") else Accelerated(model, engine, precision)


def computes_in_bf16(model: nn.Module) -> bool:
    """Whether a model was accelerated with `precision="bf16"`."""
    return any(isinstance(part, Accelerated) and part.precision == "bf16" for part in model.modules())


def engine_of(model: nn.Module) -> str:
    """How the passes of a model run: what came of the engine that `accelerate` was asked for."""
    return next((part.engine for part in model.modules() if isinstance(part, Accelerated)), "eager")


class Accelerated(nn.Module):
    """What `accelerate` makes.

    Attributes:
        model: the model.
        precision: see `accelerate`.
    """

    def __init__(self, model: nn.Module, engine: str, precision: str = "full") -> None:
        super().__init__()
        self.model, self.precision = model, precision
        self.training = model.training
        self._asked_for = engine
        self._parts: list[nn.Module] | None = None
        self._forms: _Forms | None = None

    @property
    def engine(self) -> str:
        """`"eager"`, `"compile"` or `"graph"`; `"eager"` once it has turned out that no fast form can be made."""
        return self._asked_for if self._forms is None else self._forms.engine

    def forward(self, x: Tensor) -> Tensor:
        """The model's output for a batch."""
        places = self._places_of_weights()
        if places is None or x.numel() == 0 or torch.is_autocast_enabled(x.device.type):
            return run_plainly(self.model, x, self.precision == "bf16")
        if self._forms is None or self._forms.places != places:
            self._forms = _Forms(self.model, self._asked_for, self.precision, places)
        return self._forms(x)

    def extra_repr(self) -> str:
        """Engine and precision, for `print`."""
        return f"engine={self._asked_for!r}, precision={self.precision!r}"

    def __getstate__(self) -> dict[str, Any]:
        # neither recordings nor compiled code belongs to a copy
        return {**self.__dict__, "_parts": None, "_forms": None}

    def _places_of_weights(self) -> tuple[int, ...] | None:
        """Where all weights lie; None if the network is in training mode, or frozen to one draw."""
        if self._parts is None:
            self._parts = list(self.model.modules())
        places = []
        for part in self._parts:
            if part.training or (isinstance(part, Bayesian | SampleBank) and part._frozen is not None):
                return None
            for tensor in (*part._parameters.values(), *part._buffers.values()):
                if tensor is not None:
                    places.append(tensor.data_ptr())
        return tuple(places)


class _Forms:
    """The fast forms of a network, for as long as its weights stay where they are; those last used are kept.

    Batches without one run by the pass that would be recorded, so that a result does not depend on what has been seen
    before. The model itself runs if its `StructuredPass` cannot be trusted.
    """

    def __init__(self, model: nn.Module, engine: str, precision: str, places: tuple[int, ...]) -> None:
        self.engine, self.places = engine, places
        self._model, self._bf16, self._agrees = model, precision == "bf16", _AGREES[precision]
        self._pass = StructuredPass(model, self._bf16)
        self._trusted: bool | None = None
        self._compiled: Callable[..., Tensor] | None = None
        self._forms: OrderedDict[tuple[Any, ...], Pass] = OrderedDict()
        self._seen: Counter[tuple[Any, ...]] = Counter()
        self._refused: set[tuple[Any, ...]] = set()
        self._worth = _WORTH

    def __call__(self, x: Tensor) -> Tensor:
        if self._trusted is None:
            self._trusted = self._can_be_trusted(x)
        if not self._trusted:
            return self._plainly(x)
        kind = _kind_of(x)
        if self.engine != "eager" and kind not in self._forms and kind not in self._refused:
            self._seen[kind] += 1
            if self._seen[kind] >= self._worth:
                self._add(kind, x)
        if kind not in self._forms:
            return self._pass(x)
        self._forms.move_to_end(kind)
        return self._forms[kind](x)

    def _plainly(self, x: Tensor) -> Tensor:
        return run_plainly(self._model, x, self._bf16)

    def _can_be_trusted(self, x: Tensor) -> bool:
        """Whether the network repeats itself under a seed, and its structured pass, in some layout, says the same."""
        expected = _answer(self._plainly, x)
        reason = _difference("the model and itself", expected, _answer(self._plainly, x), _REPEATS)
        if reason is None:
            for self._pass.channels_last in (True, False) if x.is_cuda else (False,):
                try:
                    found = _answer(self._pass, x)
                except Exception as error:  # such as of a network that wants its images in one layout
                    reason = _first_line(error)
                    continue
                reason = _difference("the model and its structure", expected, found, self._agrees)
                if reason is None:
                    return True
        log.info("running the model as it is: %s", reason)
        self.engine = "eager"
        return False

    def _add(self, kind: tuple[Any, ...], x: Tensor) -> None:
        try:
            form = self._compile() if self.engine == "compile" else self._record(x)
            with warnings.catch_warnings():
                # torch's compiler looks at the gradient of its input, also of one that will never have any
                warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
                found = _answer(form, x)
            reason = _difference("the model and its fast form", _answer(self._pass, x), found, self._agrees)
            lasting = True
        except RuntimeError as error:
            reason, lasting = _first_line(error), not isinstance(error, torch.OutOfMemoryError)
        if reason is not None:
            log.info("running batches of shape %s eagerly: %s", tuple(x.shape), reason)
            self._refused.add(kind)
            if lasting and not self._forms:
                self.engine = "eager"
            return
        self._forms[kind] = form
        if len(self._forms) > _KEPT:
            # the batches change often, as in an attack that lets go of what has fallen
            dropped, _ = self._forms.popitem(last=False)
            del self._seen[dropped]
            self._worth *= 2

    def _record(self, x: Tensor) -> Pass:
        check_capturable(self._pass, x)
        with without_parameter_gradients(self._model):
            differentiable = _wants_gradient(x)
            return GraphedForward(self._pass, self._pass.arranged(x), differentiable=differentiable, memory=self._noise)

    def _noise(self) -> list[object]:
        """The memory that noise is drawn into, which a model may give up before its recordings do."""
        return [part._workspace for part in self._model.modules() if isinstance(part, Bayesian)]

    def _compile(self) -> Pass:
        if len(self._forms) == _KEPT:
            raise RuntimeError(f"{_KEPT} other kinds of batches are compiled already")
        if self._compiled is None:
            # the compiler's own random numbers would be others than those of the model
            options: dict[str, Any] = {"fallback_random": True}
            structured = self._pass

            def run_structured(tensors: dict[str, Tensor], x: Tensor) -> Tensor:
                return structured.run(tensors, x)

            self._compiled = compiled_apart(run_structured, fullgraph=True, options=options)
        run = self._compiled

        def form(x: Tensor) -> Tensor:
            with without_parameter_gradients(self._model):
                return run(self._pass.draw(), self._pass.arranged(x))

        return form


def _kind_of(x: Tensor) -> tuple[Any, ...]:
    """What a fast form is made for: the batch, what is asked of it, and the precision that torch's flags allow."""
    flags = (torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()) if x.is_cuda else ()
    return (tuple(x.shape), x.dtype, x.device, _wants_gradient(x), *flags)


def _wants_gradient(x: Tensor) -> bool:
    return torch.is_grad_enabled() and x.requires_grad


def _answer(network: Pass, x: Tensor) -> Any:
    """What a network says under a seed that is always the same."""
    with seeded(1, x.device):
        outputs: Any = network(x)
    return outputs.detach() if isinstance(outputs, Tensor) else outputs


def _difference(who: str, a: Any, b: Any, most: float) -> str | None:
    """What to say of two answers that are further apart than `most` times the largest number in them."""
    if not (isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape == b.shape):
        return f"the answers of {who} are not tensors of one shape"
    a, b = a.double(), b.double()
    apart = ((a - b).abs().amax() / a.abs().amax().clamp_min(torch.finfo(a.dtype).tiny)).item()
    return None if apart <= most else f"under the same seed the answers of {who} are {apart:.1e} of the largest apart"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
