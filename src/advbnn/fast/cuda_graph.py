"""CUDA graphs: a forward pass with the gradient of its input, or a whole training step, captured once and replayed."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from advbnn.randomness import seeded

Pass = Callable[[Tensor], Tensor]

_WARM_UP = 2
_STEP_WARM_UP = 3
_CAPTURE: dict[str, Any] = {"capture_error_mode": "thread_local"}
"""What other threads do meanwhile, such as those of torch.distributed, is no business of the capture."""


class GraphedForward:
    """A pass on batches of one shape, called like the pass itself.

    Inputs and outputs live in fixed memory, so they are copied in and out. A replay takes its random numbers from
    torch's generator as it is at that time, and moves it on, as the pass would. Any number of replays may precede a
    backward pass: what a later one has overwritten is made again, with the random numbers that it had.

    Args:
        one_pass: what to record.
        x: a batch of the shape and the layout to record.
        differentiable: record the gradient of the input too, if there is one.
        memory: returns what else the pass reads and writes, to be kept as long as the recording.

    Raises:
        RuntimeError: it cannot be recorded.
    """

    def __init__(self, one_pass: Pass, x: Tensor, *, differentiable: bool, memory: Callable[[], object]) -> None:
        self.replays = 0
        x = x.detach()
        with torch.inference_mode(False), torch.cuda.device(x.device), seeded(0, x.device):
            self._x = torch.empty_like(x).copy_(x)
            leaf = self._x.detach().requires_grad_(differentiable)
            with torch.set_grad_enabled(differentiable):
                self.differentiable = _warm_up(one_pass, leaf)
                self._graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self._graph, **_CAPTURE):
                    outputs = one_pass(leaf)
                self._outputs = outputs.detach()
                if self.differentiable:
                    self._slope = torch.zeros_like(self._outputs)
                    self._backward_graph = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(self._backward_graph, pool=self._graph.pool(), **_CAPTURE):
                        (self._gradient,) = torch.autograd.grad(outputs, leaf, self._slope)
        self._memory = memory()

    def __call__(self, x: Tensor) -> Tensor:
        """The outputs of a new pass."""
        if not self.differentiable:
            return self.forward(x)
        outputs: Tensor = _Replay.apply(x, self)
        return outputs

    def forward(self, x: Tensor) -> Tensor:
        """The outputs of a new pass, which autograd does not see."""
        self._x.copy_(x.detach())
        self._graph.replay()
        self.replays += 1
        return self._outputs.clone()

    def backward(self, slope: Tensor) -> Tensor:
        """The gradient of the input of the latest pass."""
        self._slope.copy_(slope)
        self._backward_graph.replay()
        return self._gradient.clone(memory_format=torch.contiguous_format)


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, recording: GraphedForward) -> Tensor:
        ctx.recording, ctx.random_state = recording, torch.cuda.get_rng_state(x.device)
        outputs = recording.forward(x)
        ctx.number = recording.replays
        ctx.save_for_backward(x)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        recording: GraphedForward = ctx.recording
        if recording.replays != ctx.number:
            (x,) = ctx.saved_tensors
            now = torch.cuda.get_rng_state(x.device)
            torch.cuda.set_rng_state(ctx.random_state, x.device)
            recording.forward(x)
            ctx.number = recording.replays
            torch.cuda.set_rng_state(now, x.device)
        return recording.backward(slope), None


@torch.no_grad()
def check_capturable(one_pass: Pass, x: Tensor) -> None:
    """Refuse a pass that does what a graph would not do again.

    Raises:
        RuntimeError: with the reason.
    """
    with seeded(0, x.device):
        one_pass(x)
        before = torch.get_rng_state()
        with _refusing_to_wait():
            outputs: Any = one_pass(x)
        if not torch.equal(before, torch.get_rng_state()):
            raise RuntimeError("the network draws random numbers on the CPU, which a graph would not draw again")
    if not isinstance(outputs, Tensor):
        raise RuntimeError(f"the network returns a {type(outputs).__name__} instead of one tensor")


@contextmanager
def _refusing_to_wait() -> Iterator[None]:
    """Within the block, what waits for the device raises; inside a capture it would break more than this pass."""
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)


def _warm_up(one_pass: Pass, leaf: Tensor) -> bool:
    """Let libraries set themselves up outside the capture; whether the outputs have a gradient."""
    side, current = torch.cuda.Stream(leaf.device), torch.cuda.current_stream(leaf.device)
    side.wait_stream(current)
    with torch.cuda.stream(side):
        for _ in range(_WARM_UP):
            outputs = one_pass(leaf)
            if outputs.requires_grad:
                torch.autograd.grad(outputs, leaf, torch.zeros_like(outputs))
    current.wait_stream(side)
    return outputs.requires_grad


class GraphedStep:
    """A step as a CUDA graph: its inputs and outputs live in fixed memory."""

    def __init__(
        self, step: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor, state: Callable[[], list[Tensor]]
    ) -> None:
        self.x, self.y = x.clone(memory_format=torch.preserve_format), y.clone()
        self.graph = torch.cuda.CUDAGraph()
        side = torch.cuda.Stream(x.device)
        side.wait_stream(torch.cuda.current_stream(x.device))
        # the shapes never change, so that the fastest convolutions can be found by trying all of them, once
        flags = torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=False, allow_tf32=_tf32())
        # seeded, so that warming up takes none of the random numbers of the step itself
        with flags, seeded(0, x.device):
            with torch.cuda.stream(side):
                kept = [t.detach().clone() for t in state()]
                for _ in range(_STEP_WARM_UP):
                    step(self.x, self.y)
            torch.cuda.current_stream(x.device).wait_stream(side)
            # of high priority: a step may make draws ahead on a stream of lower priority
            with torch.cuda.graph(self.graph, stream=torch.cuda.Stream(x.device, priority=-1)):
                self.outputs = step(self.x, self.y)
        with torch.no_grad():
            after = state()
            for tensor, value in zip(after, kept, strict=False):
                tensor.copy_(value)
            # what the optimizer has made while warming up starts at zero, as it would have
            for tensor in after[len(kept) :]:
                tensor.zero_()

    def fits(self, x: Tensor) -> bool:
        """Whether the recording is of batches of this shape."""
        return x.shape == self.x.shape

    def replay(self, x: Tensor, y: Tensor) -> Tensor:
        """Run the step on a batch; the outputs are a copy, since the next replay overwrites them."""
        self.x.copy_(x)
        self.y.copy_(y)
        self.graph.replay()
        return self.outputs.clone()


def _tf32() -> bool:
    allowed: bool = torch.backends.cudnn.allow_tf32
    return allowed


def make_capturable(optimizer: torch.optim.Optimizer) -> None:
    """The fused form of an optimizer, which reads its learning rate and its count of steps on the device."""
    for group in optimizer.param_groups:
        device = group["params"][0].device
        group["fused"], group["foreach"] = True, False
        if "capturable" in group:
            group["capturable"] = True
        lr = group["lr"]
        if not isinstance(lr, Tensor) or lr.device != device:
            # a checkpoint brings it back on the CPU, where a graph would record its value and not its place
            group["lr"] = torch.tensor(float(lr), device=device)
    for parameter, state in optimizer.state.items():
        if "step" in state:
            state["step"] = torch.as_tensor(state["step"], dtype=torch.float32, device=parameter.device)
