"""A training that is killed at any file operation resumes, and gives the same weights, bit for bit.

A few operations of each kind of training are tried; `ADVBNN_FUZZ=all` (`make kills`) tries all of them.
"""

import json
import os
from pathlib import Path

import pytest

from kills import KINDS, kill
from workers import processes

EVERYTHING = os.environ.get("ADVBNN_FUZZ") == "all"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_a_file_operation_and_resumed_bit_for_bit(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    worker = processes.Process(target=kill, args=(list(KINDS), None if EVERYTHING else 3, report))
    worker.start()
    worker.join()
    assert worker.exitcode == 0
    found = json.loads(report.read_text())
    print(found)
    assert {kind: each["failed"] for kind, each in found.items()} == {kind: {} for kind in KINDS}
    assert all(each["tried"] >= 3 and each["operations"] > 50 for each in found.values())
