"""Memory of tensors is kept: pages that the system had to clear, in processes of their own."""

import ctypes
import os
import resource
import subprocess
import sys

import pytest

from advbnn.machine.memory import THRESHOLDS

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library is not glibc"
)

PASSES = """
import resource, sys, torch
from advbnn.machine.memory import reuse_memory

if sys.argv[1] == "kept":
    reuse_memory()
torch.set_num_threads(1)
for number in range(60):
    if number == 10:  # the first ones fill the heap
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    a = torch.ones(2**20)  # 4 MiB
    b = torch.ones(2**20)
    del a, b
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def cleared_pages(how: str, **environment: object) -> int:
    plain = {name: value for name, value in os.environ.items() if name not in THRESHOLDS}
    variables = plain | {name: str(value) for name, value in environment.items()}
    command = [sys.executable, "-c", PASSES, how]
    return int(subprocess.run(command, env=variables, check=True, capture_output=True, text=True).stdout)


def test_a_tensor_gets_the_pages_of_an_earlier_one() -> None:
    pages = 50 * 2 * 4 * 2**20 // resource.getpagesize()
    assert cleared_pages("kept") < pages / 10
    # as in the workers of a local cluster
    assert cleared_pages("as it is", **THRESHOLDS) < pages / 10


def test_the_environment_decides() -> None:
    always_returned = {"MALLOC_MMAP_THRESHOLD_": 2**17, "MALLOC_TRIM_THRESHOLD_": 2**17}
    as_it_is, kept = (cleared_pages(how, **always_returned) for how in ("as it is", "kept"))
    assert kept >= as_it_is / 2
