"""Which trainings and measurements are needed, and which are there already."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from advbnn.defenses.profiles import DEFENSES
from advbnn.errors import RunError
from advbnn.evaluation.records import Records
from advbnn.paper import EXPERIMENTS, Experiment, estimate
from advbnn.paper.estimate import Cost, measurement_seconds, task_seconds
from advbnn.paper.plan import Plan, finished, make_plan
from advbnn.paper.reproduction import Reproduction
from advbnn.training.run_folder import CONFIG, MODEL
from made_up_reproductions import CIFAR10, as_in_the_paper, radius_records

DIGITS = Experiment.choose("digits")


def planned(out: Path, *names: str, experiment: Experiment = DIGITS, **options) -> Plan:
    return make_plan(experiment, out, names or EXPERIMENTS, **{"defenses": DEFENSES} | options)


def kinds(plan: Plan) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one in plan.measurements:
        found.setdefault(one.what, []).append(one.runs[0].label)
    return found


def test_the_whole_paper(tmp_path) -> None:
    plan = planned(tmp_path)
    assert [run.label for run in plan.runs] == [*DEFENSES, "adv_bnn-alpha0.002", "adv_bnn-alpha0.0002"]
    assert kinds(plan) == {
        "radius": list(DEFENSES),
        "averaged": ["rse", "bnn", "adv_bnn"],  # for the others there is nothing to average
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


def test_an_experiment_needs_only_its_own_networks(tmp_path) -> None:
    assert [run.label for run in planned(tmp_path, "fig4").runs] == ["adv_bnn"]
    assert [run.label for run in planned(tmp_path, "lipschitz").runs] == ["adv", "adv_bnn"]
    assert kinds(planned(tmp_path, "table1", audit="none")).keys() == {"radius", "averaged"}


def test_the_table_and_the_figure_share_their_measurements(tmp_path) -> None:
    table, figure = planned(tmp_path, "table1"), planned(tmp_path, "fig2")
    assert table.measurements[0].name == figure.measurements[0].name
    assert table.measurements[0].points(DIGITS) < figure.measurements[0].points(DIGITS)


def test_seeds_are_trained_and_measured_but_transfer_takes_the_first(tmp_path) -> None:
    plan = planned(tmp_path, "table1", "fig3", defenses=["adv", "adv_bnn"], seeds=2)
    assert [run.label for run in plan.runs] == ["adv", "adv-seed1", "adv_bnn", "adv_bnn-seed1"]
    (transfer,) = (one for one in plan.measurements if one.what == "transfer")
    assert [run.label for run in transfer.runs] == ["adv", "adv_bnn"]


def test_what_cannot_be_made_is_said(tmp_path) -> None:
    plan = planned(tmp_path, defenses=["adv"])
    assert [reason.split(":")[0] for reason in plan.left_out] == ["fig3", "fig4", "lipschitz", "alpha"]
    assert "adv_bnn" in plan.left_out[1]


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (["fig5"], {}, "fig5"),
        ([], {"seeds": 0}, "seeds must be how many trainings"),
        ([], {"audit": "medium"}, "audit"),
        ([], {"defenses": ["adv", "adv"]}, "different ones"),
        ([], {"defenses": ["madry"]}, "defense"),
    ],
)
def test_mistakes_are_found_at_once(tmp_path, names: list[str], options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        planned(tmp_path, *names, **options)


def finish(plan: Plan, label: str, **changes) -> Path:
    """A folder that looks like the finished run of a label."""
    (run,) = (run for run in plan.runs if run.label == label)
    folder = plan.folder(run)
    folder.mkdir(parents=True)
    (folder / CONFIG).write_text(replace(run.config, **changes).to_toml())
    (folder / MODEL).touch()
    return folder


def test_a_finished_run_is_accepted_by_whatever_command_it_was_made(tmp_path) -> None:
    plan = planned(tmp_path, "fig2")
    finish(plan, "adv", engine="eager", root="elsewhere", log_every=7)
    assert [run.label for run in plan.pending_runs()] == ["none", "rse", "bnn", "adv_bnn"]


def test_a_run_is_accepted_after_its_image_folder_was_moved(tmp_path) -> None:
    (tmp_path / "images").mkdir()
    experiment = Experiment.choose(str(tmp_path / "images"), like="digits")
    plan = planned(tmp_path, "fig2", experiment=experiment, defenses=["adv"])
    folder = finish(plan, "adv", data="elsewhere/images")
    assert plan.pending_runs() == []
    (folder / CONFIG).write_text(replace(plan.runs[0].config, data="elsewhere/others").to_toml())
    with pytest.raises(RunError, match="data = 'the folder others' there, 'the folder images' now"):
        plan.pending_runs()


def test_a_run_with_other_settings_is_refused(tmp_path) -> None:
    plan = planned(tmp_path, "fig2")
    finish(plan, "adv", defense=replace(plan.runs[2].config.defense, batch_size=7))
    with pytest.raises(RunError, match="settings: batch_size = 7 there, 64 now"):
        plan.pending_runs()


def test_a_run_without_weights_goes_on(tmp_path) -> None:
    plan = planned(tmp_path, "fig2")
    folder = finish(plan, "adv")
    (folder / MODEL).unlink()
    assert not finished(folder, plan.runs[2].config)


def test_measurements_are_done_when_their_records_are_there(tmp_path) -> None:
    plan = planned(tmp_path, "fig2", experiment=CIFAR10, defenses=["adv"])
    (one,) = plan.measurements
    records = Records(radius_records(CIFAR10.protocol, as_in_the_paper, ["adv"]))
    records[:-1].save(one.file(tmp_path))
    assert plan.pending() == [one]
    records.save(one.file(tmp_path))
    assert plan.pending() == []
    assert plan.pending_runs() == []  # nothing needs the network any more


def test_records_of_a_network_that_was_trained_anew_are_made_again(tmp_path) -> None:
    plan = planned(tmp_path, "fig2", experiment=CIFAR10, defenses=["adv"])
    (one,) = plan.measurements
    Records(radius_records(CIFAR10.protocol, as_in_the_paper, ["adv"])).save(one.file(tmp_path))
    weights = finish(plan, "adv") / MODEL
    os.utime(weights, (2e9, 2e9))
    assert plan.pending() == [one]


def test_tasks_have_their_estimates_and_measurements_wait_for_their_networks(tmp_path) -> None:
    plan = planned(tmp_path, "fig2", "fig3", defenses=["none", "adv"])
    known = {
        "none": Cost(training=1, gradient=0.01, forward=0.001),
        "adv": Cost(training=100, gradient=0.01, forward=0.001),
    }
    trainings, measurements = task_seconds(plan, known, test_images=500)
    assert trainings == {"none": 1, "adv": 100}
    assert measurements["radius-none"] == pytest.approx(150 * (20 * 8 * 0.01 + 9 * 0.001))
    tasks = {
        task.name: task
        for task in Reproduction(plan=plan, devices=["cpu"], threads=1, command="").tasks(trainings, measurements)
    }
    assert tasks["transfer"].needs == ("training none", "training adv")
    assert tasks["training adv"].seconds == 100
    assert tasks["transfer"].seconds == measurements["transfer"]


def test_every_kind_of_measurement_has_an_estimate(tmp_path) -> None:
    known = {name: Cost(training=1, gradient=0.01, forward=0.001) for name in DEFENSES}
    estimates = {
        one.what: measurement_seconds(one, DIGITS.protocol, known, test_images=500)
        for one in planned(tmp_path).measurements
    }
    assert set(estimates) == {
        "radius", "averaged", "audit", "transfer", "ensemble", "steps", "lipschitz", "alpha"
    }  # fmt: skip
    assert all(seconds > 0 for seconds in estimates.values())


def test_fewer_images_for_the_averaged_attack_shorten_its_estimate(tmp_path) -> None:
    known = {name: Cost(training=1, gradient=0.01, forward=0.001) for name in DEFENSES}
    fewer = replace(DIGITS.protocol, averaged_images=15)
    for one in planned(tmp_path).measurements:
        before, after = (measurement_seconds(one, p, known, test_images=500) for p in (DIGITS.protocol, fewer))
        ratio = after / before
        assert ratio == pytest.approx(0.1) if one.what == "averaged" else (ratio < 1) == (one.what == "alpha"), one.what


@pytest.mark.parametrize(("long", "calls"), [(60.0, 4), (-1.0, 1)])
def test_an_estimate_does_not_repeat_what_takes_long(monkeypatch, long: float, calls: int) -> None:
    monkeypatch.setattr(estimate, "_LONG", long)
    made: list[int] = []
    assert estimate._seconds(lambda: made.append(1), "cpu", times=2) >= 0
    assert len(made) == calls


def test_settings_without_effect_are_told(tmp_path) -> None:
    chosen = Experiment.choose("digits", settings=["attack.steps=3", "batch_size=32"])
    plan = planned(tmp_path, "fig2", experiment=chosen, defenses=["none", "bnn"])
    assert plan.left_out == ("--set attack.steps: none of the chosen defences has it",)
    assert planned(tmp_path, "fig2", experiment=chosen).left_out == ()
