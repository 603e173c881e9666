"""torch.compile for functions that are made for each network, and the names of engines and precisions."""

import types
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

from advbnn.machine.caches import keep_compiled_code
from advbnn.names import ENGINES as ENGINES
from advbnn.names import PRECISIONS as PRECISIONS

Function = TypeVar("Function", bound=Callable[..., Any])


def compile_separately(function: Function, **options: Any) -> Function:
    """`function` compiled, with its own limit of recompilations.

    The compiler counts how often it compiles one code object, and gives up after a limit. A closure made for each of
    many networks would share this count with all others, so each gets its own copy of the code.
    """
    keep_compiled_code()
    code = function.__code__.replace()
    copy = types.FunctionType(code, function.__globals__, code.co_name, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    own: Any = torch.compile(copy, dynamic=False, **options)
    return cast(Function, own)
