"""The command opens what the user names, and refuses what cannot be served."""

import builtins
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from advbnn.play import page, server
from advbnn.play.playground import Playground

Command = Callable[..., str]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Playground]:
    """What would be served."""
    found: list[Playground] = []
    monkeypatch.setattr(page, "check_gradio", lambda: None)
    monkeypatch.setattr(page, "build", found.append)
    monkeypatch.setattr(server, "serve", lambda *_, **__: None)
    return found


def test_without_a_run_the_networks_of_the_package_are_shown(advbnn: Command, shown: list[Playground]) -> None:
    advbnn("play", "--device", "cpu")
    (play,) = shown
    assert play.titles == ["No defence", "Adv. training", "Adv-BNN"]
    assert (play.data.name, len(play.data), play.threat.eps) == ("digits", 500, 0.15)


def test_runs_are_shown_side_by_side(advbnn: Command, shown: list[Playground], runs: Path) -> None:
    advbnn("play", runs / "robust", "--samples", 3, "--device", "cpu")
    advbnn("play", runs / "plain", runs / "robust", "--device", "cpu")
    one, both = shown
    assert [network.label for network in one.networks] == ["robust"] and one.networks[0].samples == 3
    assert [network.label for network in both.networks] == ["plain", "robust"]
    assert both.threat.eps == 0.05


def test_a_network_of_ones_own_needs_no_run(advbnn: Command, shown: list[Playground], tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from torch import nn\n\ndef net():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    advbnn("play", "--model", f"{tmp_path / 'own.py'}:net", "--data", "digits", "--device", "cpu")
    assert [network.label for network in shown[0].networks] == ["own"]
    assert shown[0].threat.eps > 0


def test_a_missing_gradio_is_one_line(advbnn: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == "gradio":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    assert "pip install 'advbnn[play]'" in advbnn("play", status=1)


def test_what_is_no_run_is_refused(advbnn: Command, shown: list[Playground], tmp_path: Path) -> None:
    assert "not a run folder" in advbnn("play", tmp_path, status=1)
    assert "--port" in advbnn("play", "--port", 0, status=2)
    assert not shown


def test_a_port_in_use_and_a_foreign_host_are_refused(advbnn: Command, shown: list[Playground]) -> None:
    assert "--host=''" in advbnn("play", "--host", "", status=1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"port={port}.*another"):
            server.check_free("127.0.0.1", port)
        assert f"--port={port} is in use" in advbnn("play", "--port", port, status=1)
    assert not shown
    server.check_free("127.0.0.1", port)
    with pytest.raises(ValueError, match="host='192.0.2.1'.*127.0.0.1"):
        server.check_free("192.0.2.1", None)
    with pytest.raises(ValueError, match="host='a..b'"):
        server.check_free("a..b", None)
