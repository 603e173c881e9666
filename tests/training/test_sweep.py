"""Sweeps: which runs they are, their folders, and the table over them."""

import json
from pathlib import Path

import pytest

from advbnn.errors import ArgumentError, ConfigError, RunError
from advbnn.training.run_folder import METRICS, MODEL
from advbnn.training.sweep import SweepRun, plan_sweep, sweep_table, sweep_tasks

FILE = 'data = "digits"\ndefense = "adv_bnn"\narchitecture = "mlp"\nseed = 3\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(FILE)
    return path


def test_a_sweep_is_the_product_of_values_and_seeds(file: Path, tmp_path: Path) -> None:
    settings = ["objective.alpha=0.1,0.02", "schedule.epochs=2"]
    runs = plan_sweep(file, settings, seeds=2, out=tmp_path / "out")
    assert [run.folder.name for run in runs] == [
        "objective.alpha=0.1,seed=3",
        "objective.alpha=0.1,seed=4",
        "objective.alpha=0.02,seed=3",
        "objective.alpha=0.02,seed=4",
    ]
    assert [(run.config.defense.objective.alpha, run.config.seed) for run in runs] == [
        (0.1, 3),
        (0.1, 4),
        (0.02, 3),
        (0.02, 4),
    ]
    assert all(run.config.defense.schedule.total_epochs == 2 for run in runs)
    assert len({task.name for task in sweep_tasks(runs)}) == 4


def test_without_several_values_it_is_one_run_in_the_folder_itself(file: Path, tmp_path: Path) -> None:
    for settings, seeds in (([], None), (["attack.threat.eps=8/255"], None), (["objective.alpha=0.1"], 1)):
        (run,) = plan_sweep(file, settings, seeds, out=tmp_path / "out")
        assert run.folder == tmp_path / "out" and not run.varies and run.config.seed == 3


def test_values_may_be_fractions_text_and_lists(file: Path, tmp_path: Path) -> None:
    runs = plan_sweep(file, ["attack.threat.eps=8/255,4/255,inf"], None, out=tmp_path)
    assert [run.config.defense.attack.threat.eps for run in runs] == [8 / 255, 4 / 255, float("inf")]  # type: ignore[union-attr]
    assert [run.folder.name.partition("=")[2] for run in runs] == ["8_255", "4_255", "inf"]
    runs = plan_sweep(file, ['architecture="mlp","small_cnn"'], None, out=tmp_path)
    assert [run.config.defense.architecture for run in runs] == ["mlp", "small_cnn"]
    runs = plan_sweep(file, ["schedule={kind = 'stages', epochs = [1, 2]}"], None, out=tmp_path)
    assert [run.config.defense.schedule.total_epochs for run in runs] == [3]


@pytest.mark.parametrize(
    ("settings", "seeds", "match"),
    [
        (["seed=1,2"], 2, "--seeds"),
        (["batch_size=8,8"], None, "every value once"),
        (["batch_size=8,"], None, "empty"),
        (["batch_size"], None, "key=value"),
        (["batch_size=8,-1"], None, "batch_size"),
        ([], 0, "seeds"),
    ],
)
def test_mistakes_are_refused_before_anything_is_trained(
    file: Path, tmp_path: Path, settings: list[str], seeds: int | None, match: str
) -> None:
    with pytest.raises((ArgumentError, ConfigError), match=match):
        plan_sweep(file, settings, seeds, out=tmp_path / "out")


def test_a_sweep_does_not_go_into_the_folder_of_a_run(file: Path, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(FILE)
    with pytest.raises(RunError, match="--out"):
        plan_sweep(file, [], 2, out=tmp_path)


def test_modes_of_one_run_are_shared_by_workers(file: Path, tmp_path: Path) -> None:
    runs = plan_sweep(file, ["modes=3"], None, out=tmp_path / "out")
    assert len(sweep_tasks(runs, shared_modes=True)) == 3 and len(sweep_tasks(runs)) == 1


def finish(run: SweepRun, *lines: dict[str, float]) -> None:
    run.folder.mkdir()
    (run.folder / MODEL).touch()
    always = {"step": 1, "epoch": 1, "lr": 1, "kl_weight": 1, "loss": 1, "nll": 1, "kl": 1, "examples_per_second": 1}
    (run.folder / METRICS).write_text("".join(json.dumps(always | line) + "\n" for line in lines))


def test_the_table_has_a_row_for_each_run_and_means_over_seeds(file: Path, tmp_path: Path) -> None:
    runs = plan_sweep(file, ["objective.alpha=0.1,0.02"], seeds=3, out=tmp_path)
    for number, run in enumerate(runs[:5]):  # the last one is not finished
        last = {"clean_accuracy": 0.5 + 0.1 * number, "validation_accuracy": 0.8}
        finish(run, {"clean_accuracy": 0.0, "validation_accuracy": 0.9}, last)
    table = sweep_table(runs)
    assert table[0] == ["objective.alpha", "seed", "clean %", "validation %", "run"]
    assert table[1] == ["0.1", "3", "50.0", "90.0", str(runs[0].folder)]  # training at its end, validation at its best
    assert table[6] == ["0.02", "5", "-", "-", str(runs[5].folder)]
    assert table[7] == ["0.1", "3 seeds", "60.0 ± 10.0", "90.0 ± 0.0", ""]
    assert table[8] == ["0.02", "2 seeds", "85.0 ± 7.1", "90.0 ± 0.0", ""]


def test_runs_without_a_metric_of_others_have_a_dash_in_the_table(file: Path, tmp_path: Path) -> None:
    runs = plan_sweep(file, ["defense=adv_bnn,bnn"], seeds=2, out=tmp_path)
    for run in runs:
        attacked = run.config.defense.attack is not None
        finish(run, {"clean_accuracy": 0.75} | ({"robust_accuracy": 0.5} if attacked else {}))
    table = sweep_table(runs)
    assert table[0] == ["defense", "seed", "clean %", "robust %", "run"]
    assert [row[2:4] for row in table[3:]] == [["75.0", "-"]] * 2 + [["75.0 ± 0.0", "50.0 ± 0.0"], ["75.0 ± 0.0", "-"]]
