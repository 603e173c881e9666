"""Time of cuDNN's convolutions for the shapes of VGG16 in bfloat16, against their arithmetic.

    python benchmarks/convolutions.py --out benchmarks/records/convolutions-h200.json

Needs a GPU. Each is timed in a CUDA graph of 30 calls, after cuDNN has chosen its algorithm.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from common import Rows, seconds_of
from torch import Tensor

SHAPES = [(8, 64, 32), (64, 64, 32), (64, 128, 16), (128, 128, 16), (128, 256, 8), (256, 256, 8), (256, 512, 4)]
SHAPES += [(512, 512, 4), (512, 512, 2)]
"""Input channels, output channels and image size."""
CALLS, REPLAYS = 30, 5


def main() -> None:
    """Time every shape forward, forward with bias and ReLU, and back to the input and to the weights."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", nargs="+", type=int, default=[128, 512])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    rows = Rows(options.out)
    rate = rows.about["matrix_tflops"] * 1e12
    convolve, back = torch.ops.aten.convolution, torch.ops.aten.convolution_backward
    clipped = torch.ops.aten.cudnn_convolution_relu
    one, none = [1, 1], [0, 0]
    for batch in options.batches:
        for inputs, outputs, side in SHAPES:
            x, y = half(batch, inputs, side, side), half(batch, outputs, side, side)
            w, bias = half(outputs, inputs, 3, 3), torch.randn(outputs, device="cuda", dtype=torch.bfloat16)
            work: dict[str, Callable[[], object]] = {
                "forward": lambda x=x, w=w: convolve(x, w, None, one, one, one, False, none, 1),
                "forward_with_relu": lambda x=x, w=w, bias=bias: clipped(x, w, bias, one, one, one, 1),
                "to_input": lambda x=x, w=w, y=y: back(
                    y, x, w, None, one, one, one, False, none, 1, [True, False, False]
                ),
                "to_weights": lambda x=x, w=w, y=y: back(
                    y, x, w, None, one, one, one, False, none, 1, [False, True, False]
                ),
            }
            floor = 2 * batch * inputs * outputs * 9 * side * side / rate
            times = {name: 1e6 * seconds_per_call(function) for name, function in work.items()}
            rows.add({"batch": batch, "shape": [inputs, outputs, side], **times, "floor": 1e6 * floor})
        a, m = (torch.randn(n, 2048, device="cuda", dtype=torch.bfloat16) for n in (batch, 2048))
        rows.add(
            {"batch": batch, "shape": "2x2 as a product", "forward": 1e6 * seconds_per_call(lambda a=a, m=m: a @ m)}
        )


def half(*shape: int) -> Tensor:
    """Random numbers in the layout and type of the fast engine."""
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)


def seconds_per_call(work: Callable[[], object]) -> float:
    """Seconds of one call."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            work()
    graph.replay()
    return seconds_of(lambda: [graph.replay() for _ in range(REPLAYS)]) / CALLS / REPLAYS


if __name__ == "__main__":
    main()
