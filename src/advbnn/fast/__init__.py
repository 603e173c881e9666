"""The same forward passes and training steps, faster: CUDA graphs, torch.compile, Triton kernels, BatchNorm folding.

Contract: for the same seed a fast pass returns the same numbers as the plain one, up to rounding. Where a fast form
does not apply, the plain one runs and the log says why. No package below this one imports it.

- `accelerate(model)` is for attacks and predictions. `engine_of` and `computes_in_bf16` say how a model runs.
- The fast training step is built from `fused_net`, `weights`, `attack_weights` and `cuda_graph`.
"""

from advbnn.fast.acceleration import accelerate as accelerate
from advbnn.fast.acceleration import computes_in_bf16 as computes_in_bf16
from advbnn.fast.acceleration import engine_of as engine_of
from advbnn.fast.compiling import ENGINES as ENGINES
from advbnn.fast.compiling import PRECISIONS as PRECISIONS
