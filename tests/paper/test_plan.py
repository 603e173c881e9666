"""Which trainings and measurements are needed, and which of them are done."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from advbnn.defenses.profiles import DEFENSES
from advbnn.errors import ArgumentError, RunError
from advbnn.evaluation.records import Records
from advbnn.paper import EXPERIMENTS, Experiment, Plan, Reproduction, make_plan
from advbnn.paper.plan import finished
from advbnn.training.run_folder import CONFIG, MODEL
from made_up_reproductions import CIFAR10, as_in_the_paper, radius_records

DIGITS = Experiment.choose("digits")


def planned(out: Path, *names: str, experiment: Experiment = DIGITS, **options) -> Plan:
    return make_plan(experiment, out, names or EXPERIMENTS, **{"defenses": DEFENSES} | options)


def kinds(plan: Plan) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one in plan.measurements:
        found.setdefault(one.what, []).append(one.network.label)
    return found


def test_the_whole_paper(tmp_path) -> None:
    plan = planned(tmp_path)
    assert [run.label for run in plan.runs] == [*DEFENSES, "adv_bnn-alpha0.002", "adv_bnn-alpha0.0002"]
    assert kinds(plan) == {
        "radius": list(DEFENSES),
        "averaged": ["rse", "bnn", "adv_bnn"],  # the others are deterministic
        "audit": list(DEFENSES),
        "transfer": ["none"],
        "ensemble": ["adv_bnn"],
        "steps": ["adv_bnn"],
        "lipschitz": ["adv", "adv_bnn"],
        "alpha": ["adv_bnn", "adv_bnn-alpha0.002", "adv_bnn-alpha0.0002"],
    }
    assert len({one.name for one in plan.measurements}) == len(plan.measurements)
    assert plan.pending_runs() == list(plan.runs)
    assert plan.left_out == ()


def test_an_experiment_needs_only_its_own_networks_and_shares_measurements(tmp_path) -> None:
    table, figure = (planned(tmp_path, name).measurements[0] for name in ("table1", "fig2"))
    assert table.name == figure.name and table.points(DIGITS.protocol) < figure.points(DIGITS.protocol)
    assert [run.label for run in planned(tmp_path, "fig4").runs] == ["adv_bnn"]
    assert [run.label for run in planned(tmp_path, "lipschitz").runs] == ["adv", "adv_bnn"]
    assert kinds(planned(tmp_path, "table1", audit="none")).keys() == {"radius", "averaged"}


def test_seeds_are_trained_and_measured_but_transfer_takes_the_first(tmp_path) -> None:
    plan = planned(tmp_path, "table1", "fig3", defenses=["adv", "adv_bnn"], seeds=2)
    assert [run.label for run in plan.runs] == ["adv", "adv-seed1", "adv_bnn", "adv_bnn-seed1"]
    assert [run.label for run in plan.measurements[-1].runs] == ["adv", "adv_bnn"]


def test_further_seeds_are_added_to_trainings_whose_weights_are_gone(tmp_path) -> None:
    plan = planned(tmp_path, "table1", "fig4", "alpha", defenses=["adv_bnn"], seeds=2, first_seed=1)
    factors = ["adv_bnn-seed1-alpha0.002", "adv_bnn-seed1-alpha0.0002"]
    assert [run.label for run in plan.runs] == ["adv_bnn-seed1", "adv_bnn-seed2", *factors]
    assert [run.config.seed for run in plan.runs] == [1, 2, 1, 1]
    assert kinds(plan)["steps"] == ["adv_bnn-seed1"]


def test_what_cannot_be_made_is_listed(tmp_path) -> None:
    chosen = Experiment.choose("digits", settings=["network.first=0.3", "batch_size=32"])
    plan = planned(tmp_path, experiment=chosen, defenses=["adv"])
    left_out = ["--set network.first", "fig3", "fig4", "lipschitz", "alpha"]
    assert [reason.split(":")[0] for reason in plan.left_out] == left_out
    assert all("adv_bnn" in reason for reason in plan.left_out[2:])
    with pytest.raises(ArgumentError, match="fig3"):
        planned(tmp_path, "fig3", defenses=["adv"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": 0}, "seeds .*got 0"),
        ({"first_seed": -1}, "first_seed .*got -1"),
        ({"audit": "medium"}, "audit='medium'"),
        ({"defenses": ["adv", "adv"]}, "defenses .*distinct"),
    ],
)
def test_mistakes_are_found_at_once(tmp_path, options: dict, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        planned(tmp_path, **options)


def finish(plan: Plan, label: str, **changes) -> Path:
    """A folder that looks like the finished run of a label."""
    (run,) = (run for run in plan.runs if run.label == label)
    folder = plan.folder(run)
    folder.mkdir(parents=True)
    (folder / CONFIG).write_text(replace(run.config, **changes).to_toml())
    (folder / MODEL).touch()
    return folder


def test_a_finished_run_is_accepted_on_any_machine(tmp_path) -> None:
    plan = planned(tmp_path, "fig2")
    folder = finish(plan, "adv", engine="eager", root="elsewhere", log_every=7)
    assert [run.label for run in plan.pending_runs()] == ["none", "rse", "bnn", "adv_bnn"]
    (folder / MODEL).unlink()
    assert not finished(folder, plan.runs[2].config)


def test_a_run_is_accepted_after_its_image_folder_was_moved(tmp_path) -> None:
    (tmp_path / "images").mkdir()
    experiment = Experiment.choose(str(tmp_path / "images"), like="digits")
    plan = planned(tmp_path, "fig2", experiment=experiment, defenses=["adv"])
    folder = finish(plan, "adv", data="elsewhere/images")
    assert plan.pending_runs() == []
    (folder / CONFIG).write_text(replace(plan.runs[0].config, data="elsewhere/others").to_toml())
    with pytest.raises(RunError, match="data = .*others.* there, .*images.* now.*--out"):
        plan.pending_runs()


def test_a_run_with_other_settings_is_refused(tmp_path) -> None:
    plan = planned(tmp_path, "fig2")
    folder = finish(plan, "adv", defense=replace(plan.runs[2].config.defense, batch_size=7))
    with pytest.raises(RunError, match="batch_size .*7.*64.*--out"):
        plan.pending_runs()
    (folder / CONFIG).write_text("seed = 3")
    with pytest.raises(RunError, match="config.toml"):
        plan.pending_runs()


def test_a_measurement_is_done_when_its_records_are_complete_and_of_these_weights(tmp_path) -> None:
    plan = planned(tmp_path, "fig2", experiment=CIFAR10, defenses=["adv"])
    (one,) = plan.measurements
    records = Records(radius_records(CIFAR10.protocol, as_in_the_paper, ["adv"]))
    records[:-1].save(one.file(tmp_path))
    assert plan.pending() == [one]
    records.save(one.file(tmp_path))
    assert plan.pending() == []
    assert plan.pending_runs() == []  # the network is no longer needed
    model = finish(plan, "adv") / MODEL
    os.utime(model, (0, 0))
    assert plan.pending() == [one]  # nothing says that the records are of these weights
    one.note_weights(tmp_path)
    assert plan.pending() == []
    os.utime(model, (2e9, 2e9))
    assert plan.pending() == []
    model.write_bytes(b"other weights")
    os.utime(model, (0, 0))
    assert plan.pending() == [one]


def test_tasks_have_estimates_and_measurements_wait_for_their_networks(tmp_path) -> None:
    plan = planned(tmp_path, "fig2", "fig3", defenses=["none", "adv"])
    reproduction = Reproduction(plan=plan, devices=["cpu"], command="")
    tasks = {task.name: task for task in reproduction.tasks({"training adv": 100.0, "transfer": 7.0})}
    assert tasks["transfer"].needs == ("training none", "training adv")
    assert [tasks[name].seconds for name in ("training adv", "transfer", "training none")] == [100, 7, None]
