"""What results look like in a notebook and at a prompt: their numbers, briefly, and nothing that could be markup."""

import math
import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import advbnn
import made_up_records as made_up
from advbnn.display import notebook
from advbnn.display.progress import ProgressBar
from advbnn.evaluation.records import Records


def cells(html: str) -> list[list[str]]:
    rows = re.findall(r"<tr>(.*?)</tr>", html, re.DOTALL)
    return [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in rows]


def test_tables_escape_and_count_what_they_leave_out() -> None:
    html = notebook.table("<b>", ("<i>",), ([f"row {k} <script>"] for k in range(50)), 50)
    assert "<b>" not in html and "<script>" not in html
    assert f"and {50 - notebook.MOST_ROWS} more" in html
    assert len(cells(html)) == 1 + notebook.MOST_ROWS + 1


def test_records_show_accuracy_and_interval() -> None:
    records = made_up.clean()
    record = records[0]
    shown = f"{100 * record.accuracy:.1f} % [{100 * record.interval[0]:.1f}, {100 * record.interval[1]:.1f}]"
    assert shown in repr(record) and shown in repr(records)
    assert len(repr(record)) < 120
    rows = cells(records._repr_html_())
    assert [row[0] for row in rows[1:]] == [r.model.label for r in records]
    assert shown in rows[1]
    assert len(repr(made_up.radius_curves()).splitlines()) == notebook.MOST_ROWS + 2
    assert "0 measurements" in repr(Records())


def test_an_audit_shows_the_worst_case_the_attacks_and_the_flags() -> None:
    audit = advbnn.Audit(made_up.audits().where(label="rse"))
    shown = f"{100 * audit.records[-1].accuracy:.1f} %"
    html = audit._repr_html_()
    assert shown in html and shown in repr(audit)
    for flag in audit.raised:
        assert flag.title in html and flag.name in repr(audit)
    for entry in audit.records[-1].details["attacks"]:
        assert notebook.table("", (), [[entry["name"]]]).count(entry["name"]) <= html.count(entry["name"])


def test_a_prediction_shows_labels_and_uncertainty() -> None:
    bnn = advbnn.bayesianize(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)))
    found = advbnn.predict(bnn, torch.rand(30, 1, 2, 2), samples=4, seed=0)
    assert "30 inputs" in repr(found) and "4 weight samples" in repr(found)
    rows = cells(found._repr_html_())
    confidence = found.probs[0, found.label[0]].item()
    assert rows[1][:3] == ["0", str(found.label[0].item()), f"{confidence:.1%}"]
    assert repr(advbnn.predict(bnn, torch.rand(0, 1, 2, 2)))


def test_networks_show_their_posterior() -> None:
    net = nn.Linear(2, 2, bias=False)
    nn.init.constant_(net.weight, -0.5)
    bnn = advbnn.bayesianize(net, init_std=0.25)
    assert cells(bnn._repr_html_())[1] == ["weight", "2 x 2", "0.5", "0.25", "2"]
    modes = advbnn.Modes([nn.Linear(2, 2), bnn], weights=[3, 1])
    assert [row[1:3] for row in cells(modes._repr_html_())[1:]] == [["Linear", "0.75"], ["Bayesian", "0.25"]]


def test_a_caption_has_the_prior_in_brief() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    captions = [
        advbnn.bayesianize(net, prior=advbnn.GaussianPrior(0.5, mean))._repr_html_().partition("</caption>")[0]
        for mean in ({}, {"1.weight": 1.0}, net.state_dict(), 0.25)
    ]
    assert all("GaussianPrior(std=0.5" in caption and "{" not in caption for caption in captions)
    assert "mean" not in captions[0] and "1 param" in captions[1] and "mean=0.25" in captions[3]


def test_a_training_shows_its_last_metrics() -> None:
    line: dict[str, Any] = {"epoch": 1, "step": 7, "clean_accuracy": 0.5, "robust_accuracy": 0.25, "loss": 1.5}
    from advbnn.training import FitResult

    defense = advbnn.defense("adv", "digits")
    result = FitResult(
        model=nn.Linear(2, 2), defense=defense, seed=0, steps=7, history=[line], noise_std=None, out=None
    )
    assert cells(result._repr_html_()) == [
        ["epoch", "step", "clean accuracy", "robust accuracy", "loss"],
        ["1", "7", "50.0%", "25.0%", "1.5"],
    ]


class Screen:
    """Stands in for the handle of IPython, and keeps what is drawn."""

    def __init__(self) -> None:
        self.drawn: list[dict[str, str]] = []

    def update(self, data: dict[str, str], raw: bool) -> None:
        assert raw
        self.drawn.append(data)


@pytest.mark.parametrize("kernel", [True, False])
def test_progress_is_redrawn_in_place_in_a_notebook(
    kernel: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    screen, shell = Screen(), SimpleNamespace(**({"kernel": object()} if kernel else {}))
    display = SimpleNamespace(display=lambda data, raw, display_id: screen)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell, display=display))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    with ProgressBar("photos <3", "images") as bar:
        bar.update(100, 400)
        bar.update(400, 400, "done")
    values = [re.search(r'value="(.*?)"', data["text/html"]) for data in screen.drawn]
    assert [math.floor(4 * float(found[1])) for found in values if found] == ([1, 4] if kernel else [])
    assert all("photos <3" in data["text/plain"] and "photos &lt;3" in data["text/html"] for data in screen.drawn)
    assert ("done" in capsys.readouterr().err) == (not kernel)
