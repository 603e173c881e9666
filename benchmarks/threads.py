"""An audit of two small networks on a CPU by threads, with and without busy loops beside it; and the demo's time.

    python benchmarks/threads.py [--images 50] [--rounds 2] [--busy 0 2] [--demo]
    python benchmarks/threads.py --table          # the table of docs/speed.md, from the record

Every measurement is `advbnn audit --level quick` in a process of its own. Within a round the settings take turns.
`torch's default` is what torch does by itself: a thread for each core, which spins while it waits.
"""

import argparse
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

import torch

from advbnn import __version__

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "benchmarks" / "records" / "threads-cpu.json"
CORES = str(os.cpu_count())
SETTINGS = {
    "advbnn's choice": {},
    "one thread": {"OMP_NUM_THREADS": "1"},
    "a thread for each core, sleeping": {"OMP_NUM_THREADS": CORES},
    "torch's default": {"OMP_NUM_THREADS": CORES, "OMP_WAIT_POLICY": "ACTIVE"},
}
NETWORKS = ("adv", "adv_bnn")


def advbnn(*words: str, limit: float | None = None, **env: str) -> dict[str, Any]:
    """Wall and processor seconds of a command in a process of its own, stopped after `limit` seconds."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("OMP_", "MKL_"))}
    load, before, began = os.getloadavg()[0], resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-m", "advbnn", *words]
    process = subprocess.Popen(command, env={**inherited, **env}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        _, errors = process.communicate(timeout=limit)
        if process.returncode:
            raise SystemExit(errors.decode())
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    worked = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    stopped = process.returncode != 0
    return {
        "wall_s": round(wall, 2),
        "processor_s": round(worked, 2),
        "stopped": stopped,
        "load_before": round(load, 2),
    }


def audit_both(folder: Path, images: int, limit: float, **env: str) -> dict[str, Any]:
    """An audit of both networks, one after the other."""
    parts = []
    for name in NETWORKS:
        out = folder / "audit.json"
        out.unlink(missing_ok=True)
        words = ("audit", str(folder / name), "--level", "quick", "--limit", str(images), "--out", str(out))
        parts.append(advbnn(*words, limit=limit, **env))
    total = {key: round(sum(part[key] for part in parts), 2) for key in ("wall_s", "processor_s")}
    return {**total, "stopped": any(p["stopped"] for p in parts), "load_before": parts[0]["load_before"]}


def table(record: dict[str, Any]) -> str:
    """Medians of wall and processor seconds, by setting and by the number of busy loops."""
    loops = sorted({row["busy"] for row in record["audits"]})
    head = [f"{count or 'no'} busy loops: s (processor s)" for count in loops]
    lines = [f"| threads | {' | '.join(head)} |", "| :-- " + "| --: " * len(loops) + "|"]
    for name in SETTINGS:
        cells = []
        for count in loops:
            rows = [row for row in record["audits"] if (row["threads"], row["busy"]) == (name, count)]
            wall, worked = (statistics.median(row[key] for row in rows) for key in ("wall_s", "processor_s"))
            cells.append(f"{'over ' if any(row['stopped'] for row in rows) else ''}{wall:.0f} ({worked:.0f})")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--busy", type=int, nargs="*", default=[0, 2], help="busy loops beside the audits")
    parser.add_argument("--limit", type=float, default=240, help="seconds after which an audit is stopped")
    parser.add_argument("--demo", action="store_true", help="measure the demo, too")
    parser.add_argument("--out", type=Path, default=RECORD)
    parser.add_argument("--table", action="store_true", help="only print the table of the record")
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(options.out.read_text())))
        return
    record: dict[str, Any] = {
        "what": f"advbnn audit --level quick of {' and '.join(NETWORKS)}, small_cnn, {options.images} digits",
        "date": date.today().isoformat(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "versions": {"advbnn": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "audits": [],
        **({"demo": json.loads(options.out.read_text()).get("demo")} if options.out.exists() else {}),
    }

    def write() -> None:
        options.out.write_text(json.dumps(record, indent=1) + "\n")

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name in NETWORKS if options.rounds else ():
            advbnn("train", str(ROOT / "configs" / f"digits-{name}.toml"), "--out", str(folder / name))
        for number in range(options.rounds):
            for busy in options.busy:
                with ExitStack() as beside:
                    for _ in range(busy):
                        loop = subprocess.Popen([sys.executable, "-c", "while True: pass"])
                        beside.callback(loop.wait)
                        beside.callback(loop.kill)
                    for name, env in SETTINGS.items():
                        found = audit_both(folder, options.images, options.limit, **env)
                        record["audits"].append({"threads": name, "busy": busy, "round": number + 1, **found})
                        print(json.dumps(record["audits"][-1]), flush=True)
                        write()
        if options.demo:
            record["demo"] = advbnn("reproduce", "all", "--data", "digits", "--out", str(folder / "demo"))
            print(json.dumps(record["demo"]))
            write()


if __name__ == "__main__":
    main()
