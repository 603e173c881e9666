"""torch.compile for functions that are made anew for every network."""

import types
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

from advbnn.names import ENGINES as ENGINES
from advbnn.names import PRECISIONS as PRECISIONS

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled_apart(function: Function, **options: Any) -> Function:
    """`function` compiled, apart from its twins: functions that were made by the same lines of code.

    The compiler counts how often it compiles one piece of code, and refuses when that is too often. A function made for
    each of many networks would share this count with all others, so each gets a copy of the code for itself.
    """
    code = function.__code__.replace()
    copy = types.FunctionType(code, function.__globals__, code.co_name, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    own: Any = torch.compile(copy, dynamic=False, **options)
    return cast(Function, own)
