"""How the C library gives memory to tensors on the CPU.

By default glibc takes large blocks from the system and returns them when they are free. A network allocates the same
blocks at every pass, and the system clears each page anew, which small convolutions notice.
"""

import ctypes
import os

THRESHOLDS = {"MALLOC_MMAP_THRESHOLD_": 2**25, "MALLOC_TRIM_THRESHOLD_": 2**28}
"""Bytes: blocks up to 32 MiB, the most that glibc allows, come from the heap; as much as 256 MiB of it are kept."""

_OPTIONS = {"MALLOC_MMAP_THRESHOLD_": -3, "MALLOC_TRIM_THRESHOLD_": -1}  # of mallopt, from malloc.h


def reuse_memory() -> None:
    """Large blocks are kept for the next tensors, if the C library is glibc and the environment says nothing else."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # of another C library or system
        return
    for name, value in THRESHOLDS.items():
        if name not in os.environ:
            mallopt(_OPTIONS[name], value)
