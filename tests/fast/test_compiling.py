"""Compiling many functions that share their code."""

from collections.abc import Callable

import torch

from advbnn.fast.compiling import compile_separately


def scaling(factor: float) -> Callable[..., torch.Tensor]:
    def scaled(x: torch.Tensor, *, shift: float = 1.0) -> torch.Tensor:
        return factor * x + shift

    return scaled


def test_functions_of_the_same_code_do_not_share_the_recompilation_limit() -> None:
    x = torch.arange(3.0)
    with torch._dynamo.config.patch(recompile_limit=2):
        for factor in range(4):
            function = compile_separately(scaling(factor), fullgraph=True, backend="eager")
            assert torch.equal(function(x), factor * x + 1)
            assert torch.equal(function(x, shift=2.0), factor * x + 2)
