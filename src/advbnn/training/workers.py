"""Runs tasks that need each other: one after another in this process, or side by side on several workers.

Finished work is on disk, and a training has checkpoints: after Ctrl-C or a crash the same tasks continue.
"""

import os
import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import cycle, islice

from advbnn.errors import positive_whole
from advbnn.training.interrupts import raised
from advbnn.training.tasks import Ledger, Task, TaskResults


def run_tasks(
    tasks: Sequence[Task],
    devices: Sequence[str],
    *,
    threads: int | None,
    log: Callable[[str], None],
    cluster: str | None = None,
) -> TaskResults:
    """Runs the tasks, each after those it needs, first those with the most work depending on them.

    Args:
        tasks: a need that is not among them counts as done.
        devices: one runs everything in this process; for several, a local process is started for each. With a cluster
            the first, if any, is what all tasks run on, instead of the GPU or CPU of their worker.
        threads: of each process on the CPU; None, and a cluster, leave them as they are.
        log: receives a line whenever a task starts or ends, with the time left if all have estimates.
        cluster: the address of a Dask scheduler, whose workers run the tasks.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM; trainings have saved their state.
    """
    ledger = Ledger(tasks, log)
    if cluster is None and len(devices) == 1:
        with raised():
            while (task := ledger.start()) is not None:
                ledger.end(task, task.run(devices[0]), workers=1)
    elif tasks:
        from advbnn.training.cluster import connected, local_workers, run_on_workers

        place = local_workers(devices[: len(tasks)]) if cluster is None else connected(cluster)
        with place as client:
            device = devices[0] if cluster and devices else None
            run_on_workers(client, ledger, device=device, threads=None if cluster else threads)
    return ledger.results


def device_list(device: str, jobs: int | None, pending: int) -> list[str]:
    """The device of each worker, at most `pending`; without `jobs` one for each GPU, or up to two on the CPU.

    Without Dask there is one worker by default.
    """
    import torch

    jobs = None if jobs is None else positive_whole("jobs", jobs)
    places = [f"cuda:{index}" for index in range(torch.cuda.device_count())] if device == "cuda" else [device]
    default = len(places) if device.startswith("cuda") else min(2, os.cpu_count() or 1)
    if find_spec("distributed") is None:
        if jobs is None and len(places) > 1:
            warnings.warn(f"only one of {len(places)} GPUs is used; pip install 'advbnn[cluster]'", stacklevel=2)
        default = 1
    devices = list(islice(cycle(places), max(1, min(jobs or default, pending))))
    if len(devices) > 1:
        import advbnn.training.cluster  # noqa: F401  # refuses at once if Dask is missing
    return devices
