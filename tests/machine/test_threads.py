"""Threads on a CPU: few for small work, the caller's choice kept, and the number restored."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from advbnn import attacks, audit, data, evaluate, models
from advbnn.attacks.threat import Threat
from advbnn.machine.threads import GRAIN, few_threads, most_operations, share_of_threads
from advbnn.training.callbacks import Callback, Moment
from quick import quick, same, train

SEVERAL = 3


@pytest.fixture(autouse=True)
def _several(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Three threads that nobody has chosen."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(SEVERAL)
    yield
    torch.set_num_threads(before)


def used(model: nn.Module, shape: tuple[int, ...], batch_size: int) -> int:
    with few_threads(model, shape, batch_size):
        return torch.get_num_threads()


def linear(inputs: int, outputs: int) -> nn.Module:
    return nn.Linear(inputs, outputs, bias=False)


def test_each_thread_has_its_share_of_work_and_the_number_is_restored() -> None:
    net = linear(100, 50)  # 2 * 100 * 50 operations for each input
    for work, expected in ((0, 1), (GRAIN // 2, 1), (2 * GRAIN, 2), (3 * GRAIN, SEVERAL), (100 * GRAIN, SEVERAL)):
        assert used(net, (100,), work // 10_000) == expected
        assert torch.get_num_threads() == SEVERAL
    with pytest.raises(RuntimeError), few_threads(net, (100,), 1):
        raise RuntimeError
    assert torch.get_num_threads() == SEVERAL


def test_the_work_is_two_operations_for_each_weight_at_each_position() -> None:
    assert most_operations(linear(7, 5), (7,)) == 2 * 7 * 5
    same_size = nn.Conv2d(3, 8, 3, padding=1)
    assert most_operations(same_size, (3, 16, 16)) == 2 * 8 * 3 * 3 * 3 * 16 * 16
    net = nn.Sequential(same_size, nn.BatchNorm2d(8), nn.MaxPool2d(16), nn.Flatten(), linear(8, 10))
    assert most_operations(net, (3, 16, 16)) >= most_operations(same_size, (3, 16, 16)) + 2 * 8 * 10


def test_a_choice_by_the_environment_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    net = linear(4, 4)
    assert used(net, (4,), 1) == 1
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, str(SEVERAL))
        assert used(net, (4,), 1) == SEVERAL and share_of_threads(2) == SEVERAL
        monkeypatch.delenv(name)
    monkeypatch.setenv("OMP_NUM_THREADS", f"{SEVERAL},1")  # nested levels
    assert used(net, (4,), 1) == SEVERAL
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as Dask sets it for its workers, which then get SEVERAL by a call
    assert used(net, (4,), 1) == 1


def test_a_smaller_number_of_the_caller_is_kept() -> None:
    for own in (1, 2):
        torch.set_num_threads(own)
        assert used(linear(100, 50), (100,), 100 * GRAIN) == own == torch.get_num_threads()


def test_threads_are_shared_out_among_processes() -> None:
    assert [share_of_threads(workers) for workers in (1, 2, 3, 8)] == [3, 1, 1, 1]


class _Seen(nn.Module):
    """A network that notes the threads of every pass."""

    def __init__(self) -> None:
        super().__init__()
        self.net = models.build("small_cnn", classes=10, image_size=8, channels=1)
        self.threads: set[int] = set()

    def forward(self, x: Tensor) -> Tensor:
        self.threads.add(torch.get_num_threads())
        return self.net(x)


@pytest.mark.filterwarnings("ignore::advbnn.evaluation.accuracy.SmallSampleWarning")
def test_small_networks_are_evaluated_and_audited_on_one_thread() -> None:
    digits, net = data.load("digits"), _Seen()
    attack = attacks.PGD(Threat("linf", 0.1), steps=1)
    (record,) = evaluate(net, digits.test, attack, rows=range(8), seeds=1)
    assert net.threads == {1} and record.versions["threads"] == "1"
    audit(net, digits.test, Threat("linf", 0.1), "quick", rows=range(2))
    assert net.threads == {1} and torch.get_num_threads() == SEVERAL


def test_a_run_is_the_same_on_machines_with_other_numbers_of_cores(tmp_path: Path) -> None:
    digits = data.load("digits")
    few = data.Splits(train=digits.train.subset(range(40)), test=digits.test)
    whole = train(few, quick("adv_bnn"), out=tmp_path / "whole").model
    assert torch.get_num_threads() == SEVERAL
    assert json.loads((tmp_path / "whole" / "run.json").read_text())["threads"] == 1

    class Stop(Callback):
        def after_step(self, now: Moment) -> None:
            if now.step == 3:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(few, quick("adv_bnn"), out=tmp_path / "run", save_every=0.0, callbacks=[Stop()])
    assert torch.get_num_threads() == SEVERAL
    torch.set_num_threads(2)
    assert same(train(few, quick("adv_bnn"), out=tmp_path / "run", resume=True).model, whole)
    assert "threads" not in (tmp_path / "run" / "log.txt").read_text()


def test_the_command_line_lets_threads_sleep_unless_told_otherwise() -> None:
    show = "import os, sys; from advbnn.cli.app import main; main()"
    show += "; print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)"
    for given, expected in (({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")):
        env = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"} | given
        env["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        found = subprocess.run([sys.executable, "-c", show], env=env, capture_output=True, text=True, check=True)
        assert found.stdout.split() == [expected, "False"]
