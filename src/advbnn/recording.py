"""A training step recorded as a CUDA graph, and replayed for every batch of the same shape."""

from collections.abc import Callable

import torch
from torch import Tensor

from advbnn.rng import seeded

_WARM_UP = 3


class RecordedStep:
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
                for _ in range(_WARM_UP):
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
