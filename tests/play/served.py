"""The command `advbnn play` in a process of its own, which notes every attempt to reach another machine."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_PROGRAM = """
import signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # which a process in the background of a shell ignores

def watch(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo"):
        host = arguments[1] if event == "socket.connect" else arguments[0]
        host = host[0] if isinstance(host, tuple) else host
        if str(host) not in ("127.0.0.1", "localhost", "::1", "None", "0.0.0.0") and not str(host).startswith("/"):
            print("reaches for", host, file=sys.stderr, flush=True)

sys.addaudithook(watch)
from advbnn.cli.app import app
app()
"""


@dataclass
class Served:
    """A running playground; `output` holds everything it wrote, once it has ended."""

    address: str
    process: subprocess.Popen[str]
    output: str = ""

    def interrupt(self) -> int:
        """Ctrl-C; the exit status."""
        self.process.send_signal(signal.SIGINT)
        rest, _ = self.process.communicate(timeout=30)
        self.output += rest
        return self.process.returncode


@contextmanager
def served(*arguments: object) -> Iterator[Served]:
    command = [sys.executable, "-c", _PROGRAM, "play", "--no-browser", "--device", "cpu", *map(str, arguments)]
    plain = {name: value for name, value in os.environ.items() if not name.startswith("GRADIO")}
    plain["OMP_NUM_THREADS"] = "1"  # more are slow on a busy machine
    with subprocess.Popen(command, env=plain, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            output = ""
            assert process.stdout is not None
            for line in process.stdout:
                output += line
                if found := re.search(r"http://\S+", line):
                    yield Served(found[0], process, output)
                    break
            else:
                raise AssertionError(output)
        finally:
            if process.poll() is None:
                process.kill()
