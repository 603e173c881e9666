"""advbnn leaderboard: a submission from an empty folder, a measurement, and what is refused."""

import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from advbnn.cli.common import Subject
from advbnn.cli.entries import save_entry
from advbnn.cli.leaderboard import _trained
from advbnn.data import load
from advbnn.evaluation.audit import LEVELS
from advbnn.evaluation.identity import ModelIdentity
from advbnn.evaluation.records import Records
from advbnn.leaderboard.entry import load as load_entry
from advbnn.models.from_file import load_model
from evaluation_workers import measure_for_the_board
from made_up_entries import entry as made_up_entry
from workers import run_all

pytestmark = [
    pytest.mark.filterwarnings("ignore::advbnn.evaluation.accuracy.SmallSampleWarning"),
    pytest.mark.filterwarnings("default::advbnn.evaluation.points.PartialPointsWarning"),
]

MODEL = """
import torch
from torch import nn


class Noise(nn.Module):
    def forward(self, x):
        return x + 0.05 * torch.randn_like(x)


def plain():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval()


def build():
    return nn.Sequential(Noise(), plain()).eval()
"""

ABOUT = """
id = "digits-noise"
name = "Noise on the input"
paper = "none: an example"
kind = "post hoc"
architecture = "linear"
random = "Gaussian noise on the input"
redrawn = "every forward pass"
shared = false
baseline = "digits-plain"

[[claims]]
attack = "PGD-20"
accuracy = 0.9
where = "a belief"
eps = 0.02
"""


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """The quick level, with hardly any steps."""
    effort = {"eot": (1, 2), "steps": (3, 6), "restarts": 2, "apgd_steps": 4, "apgd_eot": 2, "selection_samples": 2}
    queries = {"query_eot": 1, "square_queries": 5, "nes_queries": 12, "nes_directions": 2, "comparison_samples": 20}
    scores = {"ensembles": 2, "max_weight_samples": 50}
    monkeypatch.setitem(LEVELS, "quick", replace(LEVELS["quick"], **effort, **queries, **scores))


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def section(title: str) -> str:
    """A section of the page about the leaderboard."""
    page = (Path(__file__).parents[2] / "docs" / "leaderboard.md").read_text(encoding="utf-8")
    return page.partition(f"## {title}\n")[2].partition("\n## ")[0]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def commands(text: str) -> list[list[str]]:
    lines = "".join(blocks(text, "sh")).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines]


def test_a_submission_as_the_page_shows_it(
    advbnn: Callable[..., Any], empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LEVELS, "standard", LEVELS["quick"])
    steps = section("Submitting a defence of your own")
    for block in blocks(steps, "python") + blocks(steps, "toml"):
        name = re.match(r"# ([\w.]+)\n", block)
        assert name is not None
        (empty / name[1]).write_text(block)
    for program, *words in commands(steps):
        if program == "python":
            subprocess.run([sys.executable, *words], check=True, timeout=120)
        else:
            assert program == "advbnn"
            printed = advbnn(*words)
    assert "2 entries" in printed and "Noise on the input" in (empty / "page" / "index.html").read_text()
    entry, worst = load_entry("board/digits-noise.json"), Records.load("noise.json")[0]
    assert entry.clean is not None and entry.clean.accuracy > 0.8  # trained
    assert entry.worst_case is not None and entry.worst_case.accuracy == pytest.approx(worst.accuracy, abs=1e-6)
    assert entry.weights_sha256 == worst.model.sha256 and entry.command == worst.command
    assert entry.difference is not None and entry.difference.n == 500
    assert {attack.name for attack in entry.attacks} >= {"noise", "APGD-CE", "Square"}
    assert "digits-noise: valid, weights audited" in advbnn("leaderboard", "check", "board/digits-noise.json")

    # somebody disputes the number: adversarial images in the ball, whatever made them
    ((_, *dispute),) = commands(section("Disputing a number"))
    before = (empty / "board" / "digits-noise.json").read_text()
    save_file({"mine": load("digits").test.images / 255}, "yours.safetensors")
    assert "not lower" in advbnn(*dispute) and (empty / "board" / "digits-noise.json").read_text() == before
    table = json.loads(before)
    for name in ("clean", "worst_case"):
        table[name] |= {"accuracy": 0.99, "interval": [0.97, 1.0]}  # an audit that had missed the points
    (empty / "board" / "digits-noise.json").write_text(json.dumps(table | {"attacks": []}))
    shutil.copy("points.safetensors", "yours.safetensors")
    assert "; lowered" in advbnn(*dispute)
    lower = load_entry("board/digits-noise.json")
    assert lower.worst_case is not None and lower.worst_case.accuracy < 0.99 and lower.worst_case.level == "points"
    assert lower.difference is None and "lowered from 0.99" in lower.notes[-1]


def test_points_outside_the_ball_other_networks_and_other_classifiers_are_refused(
    advbnn: Callable[..., Any], empty: Path
) -> None:
    (empty / "noise.py").write_text(MODEL)
    images = load("digits").test.images[:30] / 255
    save_file({"far": (images + 0.5).clamp(0, 1)}, "far.safetensors")
    given = ["--model", "noise.py:build", "--data", "digits", "--adversarial", "far.safetensors"]
    own = {"weights_sha256": ModelIdentity.of(load_model("noise.py:build")).sha256}

    def refused(*options: Any, **fields: Any) -> str:
        (empty / "digits-noise.json").write_text(json.dumps(_measured() | fields))
        return str(advbnn("leaderboard", "rescore", "digits-noise.json", *given, *options, status=1))

    assert "far.safetensors" in (far := refused(**own)) and "ball" in far
    # what the points are for is checked before the points
    assert "digest" in (other := refused()) and "ball" not in other
    # the same weights in a file that was changed
    assert "--model" in (changed := refused(**own, source="build sha256:0")) and "ball" not in changed
    for elsewhere in ({"dataset": "cifar10"}, {"dataset": "other digits", "data_sha256": "0" * 64}):
        words = refused(**own, **elsewhere)
        assert "digits" in words and elsewhere["dataset"] in words and "ball" not in words
    for option in (("--samples", 7), ("--samples", 20), ("--exact",), ("--rule", "vote")):
        words = refused(*option, **own)
        assert option[0] in words and "leave" in words
    (empty / "digits-noise.json").write_text(json.dumps(_measured() | own))
    save_file({"near": images[:10]}, "far.safetensors")
    # as the entry says
    words = advbnn("leaderboard", "rescore", "digits-noise.json", *given, "--samples", 1, "--no-exact")
    assert "warning: far.safetensors: points for 10 of 30 images; the others count as clean" in words


def test_a_classifier_that_picks_members_is_rescored_as_it_was_audited(advbnn: Callable[..., Any], empty: Path) -> None:
    two = "\n\ndef two():\n    from advbnn import Modes\n    return Modes([plain(), plain()])"
    (empty / "noise.py").write_text(MODEL + two)
    (empty / "about.toml").write_text(ABOUT.replace('baseline = "digits-plain"', ""))
    network = ["--model", "noise.py:two", "--data", "digits"]
    audit = ["--eps", 0.02, "--level", "quick", "--limit", 12, "--save-points", "points.safetensors"]
    for options, passes, exact in ((["--no-exact", "--samples", 3], 3, False), ([], 2, True)):
        file = f"{passes}.json"
        advbnn("audit", *network, *audit, *options, "--out", file)
        advbnn("leaderboard", "entry", file, "--about", "about.toml")
        entry = load_entry("digits-noise.json")
        assert (entry.samples, entry.exact) == (passes, exact)
        again = ["--adversarial", "points.safetensors", "--out", f"again-{file}"]
        advbnn("leaderboard", "rescore", "digits-noise.json", *network, *again)
        (record,) = Records.load(f"again-{file}")
        assert (record.samples, record.exact) == (passes, exact)


def test_an_audit_writes_the_entry_that_its_records_give(advbnn: Callable[..., Any], empty: Path) -> None:
    (empty / "noise.py").write_text(MODEL)
    (empty / "about.toml").write_text(ABOUT)
    audit = ["audit", "--data", "digits", "--level", "quick", "--limit", 12, "--samples", 1, "--eps", 0.02]
    advbnn(*audit, "--model", "noise.py:plain", "--out", "plain.json")
    own = [*audit, "--model", "noise.py:build", "--out", "noise.json", "--about", "about.toml"]
    alone = advbnn(*own)
    assert "digits-noise.json" in alone and "without --baseline" in alone
    advbnn(*own, "--baseline", "plain.json", "--entries", "one/step")
    advbnn("leaderboard", "entry", "noise.json", "--about", "about.toml", "--baseline", "plain.json", "--out", "two")
    one, two = load_entry("one/step/digits-noise.json"), load_entry("two/digits-noise.json")
    assert one == two and one.difference is not None
    assert load_entry("digits-noise.json").difference is None
    # the file may hold audits of other norms and levels: the entry is of the one that was asked for
    advbnn(*own, "--norm", "l2", "--entries", "l2")
    assert load_entry("l2/digits-noise.json").threat.norm == "l2"
    other = advbnn(*own, "--norm", "l2", "--baseline", "plain.json", status=1)
    assert "plain.json" in other and "l2" in other and "quick" in other


def test_an_audit_that_could_not_write_its_entry_is_refused_at_once(advbnn: Callable[..., Any], empty: Path) -> None:
    (empty / "noise.py").write_text(MODEL)
    (empty / "about.toml").write_text(ABOUT)
    audit = ["audit", "--model", "noise.py:build", "--data", "digits", "--level", "quick", "--eps", 0.02]
    about = ["--about", "about.toml"]
    several = advbnn(*audit, "--eps", 0.03, *about, status=2)
    assert "--about" in several and "one radius" in several and "leaderboard entry --eps" in several
    for option in (["--baseline", "plain.json"], ["--entries", "board"]):
        words = advbnn(*audit, *option, status=2)
        assert option[0] in words and "--about" in words
    assert "noise.py" in advbnn(*audit, "--about", "noise.py", status=1)
    assert "plain.json" in advbnn(*audit, *about, "--baseline", "plain.json", status=1)
    assert "--entries" in advbnn(*audit, *about, "--entries", "noise.py", status=2)
    assert not (empty / "records.json").exists()


@pytest.mark.parametrize(
    ("n", "level", "warns"), [(1000, "standard", False), (999, "thorough", True), (1000, "quick", True)]
)
def test_an_entry_of_a_smaller_audit_than_those_of_the_board_is_written_with_a_warning(
    n: int, level: str, warns: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = made_up_entry()
    worst = replace(found.worst_case, n=n, level=level)
    save_entry(replace(found, worst_case=worst, attacks=(), difference=None), tmp_path)
    said = capsys.readouterr().err
    assert said.count("\n") == said.count("warning") == warns and (f"{n:,} images at level {level}" in said) is warns
    assert load_entry(tmp_path / f"{found.id}.json").worst_case == worst


def test_a_description_with_a_wrong_field_is_refused(advbnn: Callable[..., Any], empty: Path) -> None:
    (empty / "about.toml").write_text(ABOUT.replace("architecture", "architectur"))
    message = advbnn("leaderboard", "entry", "records.json", "--about", "about.toml", status=1)
    assert "architectur: no such field" in message and "architecture" in message
    (empty / "about.toml").write_text(ABOUT.replace("post hoc", "posthoc"))
    message = advbnn("leaderboard", "entry", "records.json", "--about", "about.toml", status=1)
    assert "about.toml: kind='posthoc'" in message and "did you mean 'post hoc'" in message
    (empty / "about.toml").write_text("id = ")
    assert "not TOML" in advbnn("leaderboard", "entry", "records.json", "--about", "about.toml", status=1)


def test_a_run_is_measured_with_its_baseline_and_resumes(advbnn: Callable[..., Any], runs: Path) -> None:
    given = ["adv_bnn", runs / "robust", "--baseline", runs / "plain", "--level", "quick", "--limit", 12, "--steps", 3]
    given += ["--samples", 2, "--entries", runs]
    first = advbnn("leaderboard", "measure", *given, "--only", "clean", "--only", "eot")  # in two parts
    assert "once the audit is done" in first and not (runs / "digits-adv_bnn.json").exists()
    given += [word for part in ("protocol", "audit", "seed", "mean") for word in ("--only", part)]
    advbnn("leaderboard", "measure", *given)
    entry = load_entry(runs / "digits-adv_bnn.json")
    assert entry.clean is not None and entry.worst_case is not None and entry.own_protocol is not None
    assert [point.eot for point in entry.plateau][:2] == [1, 10]
    assert entry.known_seed is not None and entry.mean_weights is not None
    assert entry.baseline == "digits-none" and entry.difference is not None and entry.difference.n == 12
    assert entry.cost is not None and entry.cost.epochs == 2 and entry.architecture == "mlp"
    shutil.copytree(runs / "plain", runs / "adv_adam")  # a baseline of the leaderboard, by the name of its folder
    given[given.index(runs / "plain")] = runs / "adv_adam"
    advbnn("leaderboard", "measure", *given)
    assert load_entry(runs / "digits-adv_bnn.json").baseline == "digits-adv_adam"
    given[given.index(runs / "adv_adam")] = runs / "plain"
    (runs / "digits-adv_bnn.json").unlink()
    before = (runs / "robust" / "records.json").read_bytes()
    advbnn("leaderboard", "measure", *given)  # from its records
    assert (runs / "robust" / "records.json").read_bytes() == before
    assert load_entry(runs / "digits-adv_bnn.json") == entry


def test_processes_wait_for_the_records_that_the_first_of_them_writes(empty: Path) -> None:
    (empty / "net.py").write_text(MODEL)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    run_all(measure_for_the_board, 2, port, empty)
    difference = load_entry(empty / "digits-mc_dropout.json").difference
    assert difference is not None and difference.n == 8


def test_a_classifier_of_one_pass_is_not_the_mean_over_its_networks(
    advbnn: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bat.py").write_text(
        f"{MODEL}\n\ndef two():\n    from advbnn import Modes\n    return Modes([plain(), plain()])"
    )
    given = ["--model", "bat.py:two", "--data", "digits", "--eps", 0.1, "--only", "clean", "--limit", 12]
    advbnn("leaderboard", "measure", "bat", *given)
    (record,) = Records.load(Path("records.json"))
    assert record.samples == 1 and "members" not in record.details


def test_what_several_modes_cost_is_the_cost_of_all(advbnn: Callable[..., Any], empty: Path) -> None:
    Path("modes.toml").write_text(
        'data = "digits"\ndefense = "adv"\narchitecture = "mlp"\nmodes = 2\n\n'
        '[attack]\nsteps = 1\n\n[schedule]\nkind = "cosine"\nepochs = 2\n'
    )
    advbnn("train", "modes.toml", "--out", "two", "--device", "cpu")
    given = ["--eps", 0.1, "--level", "quick", "--limit", 12, "--only", "audit", "--baseline", "two/modes/0"]
    advbnn("leaderboard", "measure", "bat", "two", *given, "--device", "cpu")
    cost = load_entry(Path("two/digits-bat.json")).cost
    facts = json.loads(Path("two/modes/0/run.json").read_text())
    assert cost is not None and cost.epochs == 4 and cost.seconds and cost.device == facts["device"]


@pytest.mark.parametrize(
    ("defence", "settings", "epochs"),
    [
        pytest.param("none", '[modes]\ncount = 2\nhow = "branches"\ntrunk = 2\n\n', 2 + 1 + 1, id="branches"),
        pytest.param("ig_bnn", "[network]\ncount = 2\n\n[attack]\nsteps = 1\n\n", 2 * 3, id="particles"),
    ],
)
def test_training_costs_the_epochs_of_one_network(
    defence: str, settings: str, epochs: int, advbnn: Callable[..., Any], empty: Path
) -> None:
    head = f'data = "digits"\ndefense = "{defence}"\narchitecture = "mlp"\n\n'
    Path("run.toml").write_text(f'{head}{settings}[schedule]\nkind = "constant"\nepochs = 3\n')
    advbnn("train", "run.toml", "--out", "two", "--device", "cpu")
    _, cost = _trained(Subject(run=Path("two")))
    assert cost is not None and cost.epochs == epochs


def test_a_baseline_that_was_not_finished_does_not_stand_for_the_finished_one(
    advbnn: Callable[..., Any], runs: Path
) -> None:
    given = ["adv_bnn", runs / "robust", "--baseline", runs / "plain", "--level", "quick", "--limit", 12, "--steps", 3]
    given += ["--samples", 2, "--entries", runs, "--only", "audit"]
    unfinished = runs / "plain"
    model = unfinished / "model.safetensors"
    model.rename(unfinished / "kept")
    warned = advbnn("leaderboard", "measure", *given)
    (first,) = Records.load(unfinished / "records.json")
    assert "not finished" in warned and first.model.label != "plain"
    (unfinished / "kept").rename(model)
    advbnn("leaderboard", "measure", *given)
    assert [record.model.label for record in Records.load(unfinished / "records.json")] == [first.model.label, "plain"]


def test_an_unknown_defence_is_refused(advbnn: Callable[..., Any], runs: Path) -> None:
    assert "'rpf'" in advbnn("leaderboard", "measure", "rpff", runs / "robust", status=1)


def _measured() -> dict[str, Any]:
    share = {"accuracy": 0.5, "interval": [0.3, 0.7], "n": 30}
    return {
        **{"schema": 1, "id": "digits-noise", "name": "Noise", "paper": "none", "kind": "post hoc"},
        **{"architecture": "linear", "dataset": "digits", "threat": {"norm": "linf", "eps": 0.02}, "random": "noise"},
        **{"redrawn": "every forward pass", "status": "reproduced", "samples": 1, "clean": share},
        **{"worst_case": {**share, "level": "quick"}, "weights_sha256": "0" * 64, "commit": "c0ffee5"},
        "command": "advbnn",
    }
