"""Threads on a CPU: small networks and commands by the number of threads, with and without busy loops beside them.

    python benchmarks/threads.py [--rounds 3] [--busy 0 2] [--seconds 5] [--out benchmarks/records/threads-cpu.json]
    python benchmarks/threads.py --commands --out benchmarks/records/threads-cpu-commands.json
    python benchmarks/threads.py --table          # the table of docs/speed.md, from the record

Every measurement is a process of its own. Small networks are evaluated again and again for some seconds; with
`--commands`, an audit of two networks and the demo run once, from start to end. Within a round the settings take turns,
so that other load affects all of them alike. `torch's default` is what torch does by itself: a thread for each core,
which spins while it waits; the demo leaves it out, as it takes too long.
"""

import argparse
import itertools
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
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
    # the command line lets threads sleep, unless the number of spins is given: this is the default of libgomp
    "torch's default": {**EACH, "GOMP_SPINCOUNT": "300000"},
}
CASES = ("small_cnn, 50 digits", "vgg11, 4 images of 32x32")
DIGITS = Path(__file__).parents[1] / "src/advbnn/play/digits"
AUDITS, DEMO = "quick audits of two networks, 50 digits", "`make demo`"
COMMANDS = {
    AUDITS: [["audit", str(DIGITS / name), "--level", "quick", "--limit", "50"] for name in ("adv", "adv_bnn")],
    DEMO: [["reproduce", "all", "--data", "digits"]],
}


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


def commanded(case: str, env: dict[str, str]) -> dict[str, Any]:
    """The wall and the processor seconds of the commands of a case, one after the other."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for number, arguments in enumerate(COMMANDS[case]):
            out = str(Path(folder, f"{number}.json" if case == AUDITS else "demo"))
            command = [sys.executable, "-m", "advbnn", *arguments, "--out", out]
            subprocess.run(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_s": time.perf_counter() - started, "processor_s": processor, "calls": 1}


def measured(case: str, name: str) -> dict[str, Any]:
    """One measurement of a case under a setting."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("OMP_", "MKL_"))}
    env = {**inherited, **SETTINGS[name]}
    if case in COMMANDS:
        return commanded(case, env)
    command = [sys.executable, "-W", "ignore", *sys.argv, "--child", case]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def settings_of(case: str) -> tuple[str, ...]:
    """The settings that a case is measured under; a command is no other program, and spinning threads are too slow."""
    if case not in COMMANDS:
        return tuple(SETTINGS)
    left_out = {"advbnn's choice, within another program"} | ({"torch's default"} if case == DEMO else set())
    return tuple(name for name in SETTINGS if name not in left_out)


def table(record: dict[str, Any]) -> str:
    """Medians over the rounds: wall time and, in brackets, processor time; seconds of commands, else milliseconds."""
    columns = list(dict.fromkeys((row["case"], row["busy"]) for row in record["rows"]))
    unit, factor = ("s", 1) if columns[0][0] in COMMANDS else ("ms", 1e3)
    titles = [f"the same, {busy} busy loops" if busy else case for case, busy in sorted(columns)]
    lines = [f"| {unit} (processor {unit}) | {' | '.join(titles)} |", "| :-- " + "| --: " * len(columns) + "|"]
    for name in dict.fromkeys(row["setting"] for row in record["rows"]):
        cells = []
        for column in sorted(columns):
            rows = [row for row in record["rows"] if (row["case"], row["busy"]) == column and row["setting"] == name]
            times = [[factor * row[key] for row in rows] for key in ("wall_s", "processor_s")]
            cells.append("{:,.0f} ({:,.0f})".format(*map(statistics.median, times)) if rows else "-")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--busy", type=int, nargs="*", default=[0, 2], help="busy loops beside the evaluations")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--out", type=Path, default=RECORD)
    parser.add_argument("--commands", action="store_true", help="an audit and the demo instead of small networks")
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
    for number, busy in itertools.product(range(options.rounds), options.busy):
        with ExitStack() as beside:
            for _ in range(busy):
                loop = subprocess.Popen([sys.executable, "-c", "while True: pass"])
                beside.callback(loop.wait)
                beside.callback(loop.kill)
            for case in COMMANDS if options.commands else CASES:
                for name in settings_of(case):
                    load = round(os.getloadavg()[0], 1)
                    about_row = {"case": case, "setting": name, "busy": busy, "round": number + 1, "load": load}
                    rows.append({**about_row, **measured(case, name)})
                    print(json.dumps(rows[-1]), flush=True)
                    record = {"date": date.today().isoformat(), **about, "rows": rows}
                    options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
