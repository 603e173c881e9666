"""The documents agree with the code: examples run, names exist, tables match the records."""

import dataclasses
import pkgutil
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import advbnn
from advbnn.cli.tables import tables_of_entries
from advbnn.evaluation.audit.attack_suite import LEVELS
from advbnn.paper.docs_tables import has_tables, refresh

ROOT = Path(__file__).parent.parent


def python_blocks(path: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_example_runs_as_written(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = python_blocks(ROOT / "README.md")
    assert len([line for line in example.splitlines() if line.strip()]) <= 16
    torch.manual_seed(0)
    scope: dict[str, object] = {}
    exec(example, scope)
    assert capsys.readouterr().out.startswith("tensor([")  # labels
    data = scope["data"]
    accuracy = (advbnn.predict(scope["bnn"], data.test.images / 255, seed=0).label == data.test.labels).float().mean()
    assert accuracy > 0.85  # it has learned something, under attack all the while


@pytest.mark.filterwarnings("ignore::advbnn.evaluation.accuracy.SmallSampleWarning")
def test_the_examples_for_own_networks_run_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    exec("\n".join(python_blocks(ROOT / "docs" / "own.md")), {})
    assert capsys.readouterr().out.endswith("True\n")  # dropout was seen to be random


@pytest.mark.filterwarnings("ignore::advbnn.evaluation.accuracy.SmallSampleWarning")
@pytest.mark.parametrize("page", ["index", "training", "attacks", "evaluation", "report", "from-autoattack"])
def test_the_examples_of_other_pages_run_as_written(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They evaluate the run of `configs/digits-adv_bnn.toml`, for which the network of the playground stands in."""
    monkeypatch.chdir(tmp_path)
    less: dict[str, Any] = {"eot": (1, 2), "steps": (1, 2), "apgd_steps": 2, "square_queries": 4, "nes_queries": 30}
    less |= {"max_weight_samples": 20, "comparison_samples": 20, "ensembles": 2}
    for level in ("quick", "standard"):
        monkeypatch.setitem(LEVELS, level, dataclasses.replace(LEVELS["quick"], **less))
    shutil.copytree(Path(advbnn.__file__).parent / "play" / "digits" / "adv_bnn", "runs/digits-adv_bnn")
    test = advbnn.data.load("digits").test
    scope: dict[str, Any] = {"x": test.images[:20] / 255, "y": test.labels[:20]}
    scope["model"] = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))  # for from-autoattack.md
    blocks = python_blocks(ROOT / "docs" / f"{page}.md")
    for block in blocks[:2] if page == "training" else blocks:  # its others are tested below
        block = block.replace('data="digits")', 'data="digits", schedule={"epochs": 1})')
        block = block.replace('out="runs/digits-adv_bnn"', 'out="runs/new"').replace("range(200)", "range(20)")
        exec(re.sub(r"steps=\d+, eot=\d+", "steps=2, eot=2", block), scope)
    assert page != "evaluation" or "worst-case accuracy" in capsys.readouterr().out


def test_the_examples_for_own_attacks_run_as_written(capsys: pytest.CaptureFixture[str]) -> None:
    mine, theirs = python_blocks(ROOT / "docs" / "own-attack.md")
    torch.manual_seed(0)
    scope: dict[str, Any] = {}
    exec(mine, scope)
    assert "mine" in capsys.readouterr().out
    peers = {name: pytest.importorskip(name) for name in ("torchattacks", "foolbox")}
    exec(theirs, scope | peers)


def test_the_examples_of_modes_run_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {"__name__": "__main__", "__file__": str(tmp_path / "nets.py")}
    exec("\n".join(python_blocks(ROOT / "docs" / "modes.md")), scope)
    assert capsys.readouterr().out == "True 3\n(8, 10)\n"
    assert scope["modes"]().weights == (0.4, 0.3, 0.1, 0.1, 0.1)


def test_the_example_of_a_regression_runs_as_written(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = [block for block in python_blocks(ROOT / "docs" / "training.md") if "score_regression" in block]
    torch.manual_seed(0)
    scope: dict[str, Any] = {}
    exec(example, scope)
    assert capsys.readouterr().out.count("RegressionScore(mse=") == 2
    found, y = scope["found"], scope["y"][400:]
    assert (found.mean - y).square().mean() < 0.5 * y.var()  # it has learned something
    assert ((found.mean - y).abs() < 2 * found.std).float().mean() > 0.8  # and knows how much


def test_the_example_of_a_loader_runs_as_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    example, wandb = [block for block in python_blocks(ROOT / "docs" / "training.md") if "Callback)" in block]
    scope: dict[str, Any] = {}
    exec(example + wandb, scope)
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["1", "2"]
    logged: list[int] = []
    run = SimpleNamespace(log=lambda line, step: logged.append(step), finish=lambda: logged.append(-1))
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **options: run))
    advbnn.fit(scope["net"], scope["loader"], scope["how"], callbacks=[scope["WandB"](project="mine")], log_every=2)
    assert logged == [2, 3, 5, 6, -1]  # every second step, and the end of an epoch


@pytest.mark.filterwarnings("ignore::advbnn.evaluation.accuracy.SmallSampleWarning")
def test_the_examples_of_fine_tuning_run_as_written(capsys: pytest.CaptureFixture[str]) -> None:
    scope: dict[str, Any] = {}
    torch.manual_seed(0)
    exec("\n".join(python_blocks(ROOT / "docs" / "fine-tune.md")).replace("range(200)", "range(10)"), scope)
    assert "worst-case accuracy" in capsys.readouterr().out
    kept = dict(scope["bnn"].prior_mean.named_buffers())
    assert torch.equal(kept["0.weight"], scope["checkpoint"]["0.weight"])


def test_every_test_that_the_method_table_names_exists() -> None:
    text = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text)
    assert len(named) > 15
    for path, function in named:
        source = (ROOT / path).read_text(encoding="utf-8")
        assert f"def {function}" in source, f"{path}::{function}"


def test_every_function_that_the_method_table_names_exists() -> None:
    rows = re.findall(
        r"^\| [^|]+ \| [^|]+ \| ([^|]+) \| `tests/", (ROOT / "docs" / "method.md").read_text(), re.MULTILINE
    )
    names = [name for row in rows for name in re.findall(r"`([\w.]+)", row)]
    assert len(names) > 25
    for name in names:
        assert pkgutil.resolve_name(f"advbnn.{name}") is not None, name


def test_every_path_that_the_documents_name_is_an_attribute() -> None:
    """`advbnn.evaluation.uncertainty` and the like work after `import advbnn` alone."""
    documents = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    text = "\n".join(path.read_text(encoding="utf-8") for path in documents)
    named = set(re.findall(r"\badvbnn((?:\.[A-Za-z_]\w*)+)", text))
    assert len(named) > 30
    for name in named:
        found: Any = advbnn
        for part in name[1:].split("."):
            assert hasattr(found, part), f"advbnn{name}"
            found = getattr(found, part)


def test_every_equation_has_its_row() -> None:
    text = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")
    covered: set[int] = set()
    for first, joint, last in re.findall(r"^\| eq\. (\d+)(?: (to|and) (\d+))? \|", text, flags=re.MULTILINE):
        covered |= set(range(int(first), int(last) + 1)) if joint else {int(first)}
    assert covered == set(range(1, 22))


def test_the_tables_are_what_the_records_say() -> None:
    documents = [ROOT / "README.md", ROOT / "leaderboard" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    marked = [path for path in documents if path.name != "report.md" and has_tables(path.read_text(encoding="utf-8"))]
    assert {"README.md", "results.md", "leaderboard.md"} <= {path.name for path in marked}
    others = {"entries": lambda: tables_of_entries(ROOT / "leaderboard")}
    assert refresh(marked, ROOT / "results", others=others, check=True) == []


def test_the_walks_of_the_design_name_code_that_exists() -> None:
    named = re.findall(r"`([\w/]+\.py):(\w+)`", (ROOT / "docs" / "design.md").read_text(encoding="utf-8"))
    assert len(named) > 40
    for path, name in named:
        source = (ROOT / "src" / "advbnn" / path).read_text(encoding="utf-8")
        assert re.search(rf"^ *(?:def|class) {name}\b", source, re.MULTILINE), f"{path}:{name}"
