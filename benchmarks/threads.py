"""Threads on a CPU: an evaluation of small networks by the number of threads, with and without busy loops beside it.

    python benchmarks/threads.py [--rounds 3] [--busy 0 2] [--seconds 5] [--out benchmarks/records/threads-cpu.json]
    python benchmarks/threads.py --table          # the table of docs/speed.md, from the record

Every measurement is a process of its own, which evaluates again and again for some seconds. Within a round the settings
take turns, so that other load affects all of them alike. `torch's default` is what torch does by itself: a thread for
each core, which spins while it waits.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from typing import Any

RECORD = Path(__file__).parent / "records" / "threads-cpu.json"
EACH = {"OMP_NUM_THREADS": str(os.cpu_count())}
SETTINGS = {
    "advbnn's choice": {"OMP_WAIT_POLICY": "PASSIVE"},
    "advbnn's choice, within another program": {},
    "one thread": {"OMP_NUM_THREADS": "1"},
    "a thread for each core, asleep while it waits": {**EACH, "OMP_WAIT_POLICY": "PASSIVE"},
    "torch's default": EACH,
}
CASES = ("small_cnn, 50 digits", "vgg11, 4 images of 32x32")


def evaluated(case: str, seconds: float) -> dict[str, Any]:
    """Medians of the wall and the processor seconds of PGD-5 and 4 weight samples, and the threads."""
    import torch

    from advbnn import attacks, bayesianize, data, evaluate, models
    from advbnn.attacks.threat import Threat

    torch.manual_seed(0)
    if case == CASES[0]:
        net, images = models.build("small_cnn", classes=10, image_size=8, channels=1), data.load("digits").test
    else:
        net = models.build("vgg11", classes=10, image_size=32, channels=3)
        images = data.from_tensors(torch.rand(50, 3, 32, 32), torch.arange(50) % 10)
    rows, attack = range(50 if case == CASES[0] else 4), attacks.PGD(Threat("linf", 0.1), steps=5)
    model = bayesianize(net)
    wall, processor = [], []
    began = time.perf_counter()
    while len(wall) < 2 or time.perf_counter() - began < seconds:
        started, worked = time.perf_counter(), time.process_time()
        (record,) = evaluate(model, images, attack, rows=rows, seeds=1, samples=4)
        wall.append(time.perf_counter() - started)
        processor.append(time.process_time() - worked)
    found = {"wall_s": statistics.median(wall[1:]), "processor_s": statistics.median(processor[1:])}
    return {**found, "calls": len(wall) - 1, "threads": int(record.versions["threads"])}


def table(record: dict[str, Any]) -> str:
    """Medians over the rounds: milliseconds of wall time and of processor time."""
    columns = sorted({(row["case"], row["busy"]) for row in record["rows"]})
    titles = [f"{case}{f', {busy} busy loops' if busy else ''}" for case, busy in columns]
    lines = [f"| ms (processor ms) | {' | '.join(titles)} |", "| :-- " + "| --: " * len(columns) + "|"]
    for name in SETTINGS:
        cells = []
        for column in columns:
            rows = [row for row in record["rows"] if (row["case"], row["busy"]) == column and row["setting"] == name]
            times = [[1e3 * row[key] for row in rows] for key in ("wall_s", "processor_s")]
            cells.append("{:,.0f} ({:,.0f})".format(*map(statistics.median, times)))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--busy", type=int, nargs="*", default=[0, 2], help="busy loops beside the evaluations")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--out", type=Path, default=RECORD)
    parser.add_argument("--table", action="store_true", help="only print the table of the record")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(options.out.read_text())))
        return
    if options.child is not None:
        print(json.dumps(evaluated(options.child, options.seconds)))
        return
    rows: list[dict[str, Any]] = []
    about = {"machine": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()}
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("OMP_", "MKL_"))}
    for number in range(options.rounds):
        for busy in options.busy:
            with ExitStack() as beside:
                for _ in range(busy):
                    loop = subprocess.Popen([sys.executable, "-c", "while True: pass"])
                    beside.callback(loop.wait)
                    beside.callback(loop.kill)
                for case in CASES:
                    for name, env in SETTINGS.items():
                        command = [sys.executable, "-W", "ignore", *sys.argv, "--child", case]
                        load = round(os.getloadavg()[0], 1)
                        done = subprocess.run(
                            command, env={**inherited, **env}, stdout=subprocess.PIPE, text=True, check=True
                        )
                        found = json.loads(done.stdout.splitlines()[-1])
                        about_row = {"case": case, "setting": name, "busy": busy, "round": number + 1, "load": load}
                        rows.append({**about_row, **found})
                        print(json.dumps(rows[-1]), flush=True)
                        record = {"date": date.today().isoformat(), **about, "rows": rows}
                        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
