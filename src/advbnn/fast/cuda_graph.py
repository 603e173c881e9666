"""CUDA graphs: a forward pass with the gradient of its input, or a whole training step, captured once and replayed."""

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from advbnn.randomness import seeded

Forward = Callable[[Tensor], Tensor]

_WARM_UP, _STEP_WARM_UP = 2, 3
_CAPTURE: dict[str, Any] = {"capture_error_mode": "thread_local"}
"""Other threads, such as those of torch.distributed, must not fail the capture."""


@contextmanager
def _capture(graph: torch.cuda.CUDAGraph, **options: Any) -> Iterator[None]:
    """Capture what runs in the block.

    The garbage collector waits: if it destroyed an older graph in the middle, the capture would fail, and torch's
    generator with it, for the rest of the process.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph, **options):
            yield
    finally:
        if enabled:
            gc.enable()


class GraphMemory:
    """Memory that several captured passes use in turn: that of the largest, not of all together.

    Every replay overwrites what the one before it left there. `replays` counts them, so that a gradient knows whether
    the activations of its pass are the latest.
    """

    def __init__(self) -> None:
        self.replays = 0
        self._first: dict[torch.device, torch.cuda.CUDAGraph] = {}
        self._fixed: dict[tuple[Any, ...], Tensor] = {}

    def pool(self, device: torch.device) -> Any:
        """The memory pool for captures on a device."""
        if device not in self._first:
            # a pool is released with its last graph, and passes come and go: this one stays
            graph = torch.cuda.CUDAGraph()
            with _capture(graph, **_CAPTURE):
                torch.zeros(1, device=device)  # torch warns of an empty graph
            self._first[device] = graph
        return self._first[device].pool()

    def release(self) -> None:
        """Begin anew; what graphs have now is released with the last of them."""
        self._first.clear()
        self._fixed.clear()

    def fixed(self, name: str, like: Tensor) -> Tensor:
        """Memory outside of the pool, for what is copied into and out of graphs."""
        key = name, like.shape, like.stride(), like.dtype, like.device
        return self._fixed.setdefault(key, torch.zeros_like(like))

    def __reduce__(self) -> Any:
        return GraphMemory, ()  # captured graphs do not belong to a copy


class GraphedForward:
    """A forward pass on batches of one shape, called like the pass itself.

    Inputs and outputs live in fixed memory, so they are copied in and out. A replay takes its random numbers from
    torch's generator and advances it, as the pass would. Any number of replays may precede a backward pass:
    activations that a later replay has overwritten are recomputed with the same random numbers.

    Args:
        forward: the pass to capture.
        x: a batch of the shape and memory format to capture.
        differentiable: also capture the gradient of the input, if there is one.
        memory: of the activations, shared with other passes that run before or after this one, never beside it.
        scratch: returns other memory that the pass uses, to be kept as long as the graph.
    """

    def __init__(
        self, forward: Forward, x: Tensor, *, differentiable: bool, memory: GraphMemory, scratch: Callable[[], object]
    ) -> None:
        self.memory, x = memory, x.detach()
        memory.replays += 1  # the input of the latest pass is overwritten
        with torch.inference_mode(False), torch.cuda.device(x.device), seeded(0, x.device):
            self._x = memory.fixed("x", x).copy_(x)
            leaf = self._x.detach().requires_grad_(differentiable)
            with torch.set_grad_enabled(differentiable):
                example = _warm_up(forward, leaf)
                self.differentiable = example.requires_grad
                self._outputs, self._slope = (memory.fixed(name, example.detach()) for name in ("outputs", "slope"))
                self._gradient = memory.fixed("gradient", x.contiguous())
                del example
                self._graph, pool = torch.cuda.CUDAGraph(), memory.pool(x.device)
                with _capture(self._graph, pool=pool, **_CAPTURE):
                    outputs = forward(leaf)
                    self._outputs.copy_(outputs.detach())
                if self.differentiable:
                    self._backward_graph = torch.cuda.CUDAGraph()
                    with _capture(self._backward_graph, pool=pool, **_CAPTURE):
                        self._gradient.copy_(torch.autograd.grad(outputs, leaf, self._slope)[0])
        self._scratch = scratch()

    def __call__(self, x: Tensor) -> Tensor:
        """The outputs of a new pass."""
        if not self.differentiable:
            return self.forward(x)
        outputs: Tensor = _Replay.apply(x, self)
        return outputs

    def forward(self, x: Tensor) -> Tensor:
        """The outputs of a new pass, without autograd."""
        self._x.copy_(x.detach())
        self._graph.replay()
        self.memory.replays += 1
        return self._outputs.clone()

    def backward(self, slope: Tensor) -> Tensor:
        """The gradient of the input of the latest pass, whose activations it overwrites."""
        self._slope.copy_(slope)
        self._backward_graph.replay()
        self.memory.replays += 1
        return self._gradient.clone()


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, graphed: GraphedForward) -> Tensor:
        ctx.graphed, ctx.random_state = graphed, torch.cuda.get_rng_state(x.device)
        outputs = graphed.forward(x)
        ctx.number = graphed.memory.replays
        ctx.save_for_backward(x)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        graphed: GraphedForward = ctx.graphed
        if graphed.memory.replays != ctx.number:
            (x,) = ctx.saved_tensors
            now = torch.cuda.get_rng_state(x.device)
            torch.cuda.set_rng_state(ctx.random_state, x.device)
            graphed.forward(x)
            torch.cuda.set_rng_state(now, x.device)
        return graphed.backward(slope), None


@torch.no_grad()
def check_capturable(forward: Forward, x: Tensor) -> None:
    """Raise a RuntimeError, with the reason, for a pass that a replay would not repeat faithfully."""
    with seeded(0, x.device):
        forward(x)
        before = torch.get_rng_state()
        with _no_synchronisation():
            outputs: Any = forward(x)
        if not torch.equal(before, torch.get_rng_state()):
            raise RuntimeError("the network uses random numbers of the CPU, which a replay would not renew")
    if not isinstance(outputs, Tensor):
        raise RuntimeError(f"the network returns a {type(outputs).__name__} instead of one tensor")


@contextmanager
def _no_synchronisation() -> Iterator[None]:
    """Within the block, waiting for the device raises; inside a capture it would break more than this pass."""
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)


def _warm_up(forward: Forward, leaf: Tensor) -> Tensor:
    """Initialise libraries outside the capture; returns an example of the outputs."""
    side, current = _side_stream(leaf.device), torch.cuda.current_stream(leaf.device)
    side.wait_stream(current)
    with torch.cuda.stream(side):
        for _ in range(_WARM_UP):
            outputs = forward(leaf)
            if outputs.requires_grad:
                torch.autograd.grad(outputs, leaf, torch.zeros_like(outputs))
    current.wait_stream(side)
    return outputs


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """One stream for all warming up: cuBLAS keeps a workspace of each thread for each stream, 32 MiB on Hopper."""
    return torch.cuda.Stream(device)


class GraphedStep:
    """A training step as a CUDA graph, with inputs and outputs in fixed memory."""

    def __init__(
        self, step: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor, state: Callable[[], list[Tensor]]
    ) -> None:
        self.x, self.y = x.clone(memory_format=torch.preserve_format), y.clone()
        self.graph = torch.cuda.CUDAGraph()
        side = _side_stream(x.device)
        side.wait_stream(torch.cuda.current_stream(x.device))
        # the shapes never change, so cuDNN may search for the fastest convolutions once
        allow_tf32: bool = torch.backends.cudnn.allow_tf32
        flags = torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=False, allow_tf32=allow_tf32)
        # seeded, so that warming up uses none of the step's random numbers
        with flags, seeded(0, x.device):
            with torch.cuda.stream(side):
                kept = [t.detach().clone() for t in state()]
                for _ in range(_STEP_WARM_UP):
                    step(self.x, self.y)
            torch.cuda.current_stream(x.device).wait_stream(side)
            # high priority: a step may sample weights ahead on a stream of lower priority
            with _capture(self.graph, stream=torch.cuda.Stream(x.device, priority=-1)):
                self.outputs = step(self.x, self.y)
        with torch.no_grad():
            after = state()
            for tensor, value in zip(after, kept, strict=False):
                tensor.copy_(value)
            # optimizer state that was created while warming up starts at zero
            for tensor in after[len(kept) :]:
                tensor.zero_()

    def fits(self, x: Tensor) -> bool:
        """Whether the graph is for batches of this shape."""
        return x.shape == self.x.shape

    def replay(self, x: Tensor, y: Tensor) -> Tensor:
        """Run the step on a batch; the outputs are a copy, since the next replay overwrites them."""
        self.x.copy_(x)
        self.y.copy_(y)
        self.graph.replay()
        return self.outputs.clone()


def make_capturable(optimizer: torch.optim.Optimizer) -> None:
    """Switch an optimizer to its fused form, with learning rate and step count on the device."""
    for group in optimizer.param_groups:
        device = group["params"][0].device
        group["fused"], group["foreach"] = True, False
        if "capturable" in group:
            group["capturable"] = True
        lr = group["lr"]
        if not isinstance(lr, Tensor) or lr.device != device:
            # after loading a checkpoint it is on the CPU, where a graph would capture its value instead of its address
            group["lr"] = torch.tensor(float(lr), device=device)
    for parameter, state in optimizer.state.items():
        if "step" in state:
            state["step"] = torch.as_tensor(state["step"], dtype=torch.float32, device=parameter.device)
