"""How modes are trained: their seeds, schedules and starts; and the keys of a run."""

from dataclasses import replace
from pathlib import Path

import pytest

from advbnn.defenses.defense import Averaging, Defense, EarlyStopping, Swag
from advbnn.defenses.optimizers import LangevinSampler
from advbnn.defenses.profiles import defense
from advbnn.defenses.schedules import Constant, Cosine, Section, Stages
from advbnn.errors import ArgumentError, ArgumentTypeError, ConfigError
from advbnn.training.config import Config, load_config
from advbnn.training.mode_plan import TRUNK, ModePlan, mode_plan

CONFIGS = Path(__file__).parents[2] / "configs"


def test_every_training_has_a_seed_of_its_own() -> None:
    plan = ModePlan(count=5, how="branches", trunk=2)
    seeds = [plan.seed_of(name, seed) for seed in (0, 1) for name in plan.trainings]
    assert len(set(seeds)) == 12 and seeds == [plan.seed_of(name, seed) for seed in (0, 1) for name in plan.trainings]


def test_where_each_training_starts() -> None:
    independent, snapshots, branches = (
        ModePlan(count=3),
        ModePlan(count=3, how="snapshots"),
        ModePlan(count=3, how="branches", trunk=4),
    )
    assert [independent.start_of(name) for name in independent.trainings] == [None, None, None]
    assert [snapshots.start_of(name) for name in snapshots.trainings] == [None, "0", "1"]
    assert branches.trainings == (TRUNK, "0", "1", "2")
    assert [branches.start_of(name) for name in branches.trainings] == [None, TRUNK, TRUNK, TRUNK]


def test_the_second_of_two_boosted_modes_learns_examples_of_the_first() -> None:
    plan = ModePlan(count=2, how="boosted")
    assert [plan.start_of(name) for name in plan.names] == [None, None]
    assert (
        [plan.attacked_for(name) for name in plan.names] == [plan.needed_by(name) for name in plan.names] == [None, "0"]
    )
    adversarial = defense("adv", radius_warmup=1)
    first, second = (plan.defense_of(name, adversarial) for name in plan.names)
    assert first is adversarial and second == replace(adversarial, name="none", attack=None, radius_warmup=0)
    assert plan.weights == (0.9, 0.1) and ModePlan(count=2).weights is None


def test_trunk_and_branch_are_sections_of_the_schedule() -> None:
    plan = ModePlan(count=2, how="branches", trunk=3)
    whole = Defense(schedule=Cosine(epochs=10), averaging=Averaging(decay=0.9, start=4))
    trunk, branch = (plan.defense_of(name, whole) for name in (TRUNK, "1"))
    assert trunk.averaging is None and branch.averaging == whole.averaging
    assert (trunk.schedule.first_epoch, trunk.schedule.total_epochs) == (0, 3)
    assert (branch.schedule.first_epoch, branch.schedule.total_epochs) == (3, 10)
    for epoch in (0.0, 2.5, 3.0, 9.9):
        assert trunk.schedule.scale(epoch) == branch.schedule.scale(epoch) == whole.schedule.scale(epoch)
    stages = Section(whole=Stages(epochs=(2, 2)), begin=1, end=3)
    assert [stages.restarts(epoch) for epoch in range(4)] == [False, False, True, False]
    assert ModePlan(count=2).defense_of("0", whole) is whole


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ModePlan(count=0), "count"),
        (lambda: ModePlan(count=2, how="snapshot"), "how.*snapshots"),
        (lambda: ModePlan(how="snapshots"), "several modes.*count"),
        (lambda: ModePlan(count=2, how="branches"), "trunk.*got 0.*set trunk"),
        (lambda: ModePlan(count=2, trunk=3), "trunk=3.*leave it out"),
        (lambda: mode_plan({"count": 2, "how": "snapshots"}), "ModePlan.count=2, how='snapshots'"),
        (lambda: mode_plan(0), "modes"),
        (lambda: ModePlan(count=3, how="boosted"), "boosted.*count=2"),
        (lambda: ModePlan(count=2, how="branches", trunk=2).check(Defense(swag=Swag(start=1))), "swag.start=2.*trunk"),
        (lambda: ModePlan(count=2, how="boosted").check(defense("none")), "boosted.*attack"),
        (lambda: ModePlan(count=2, how="boosted").check(defense("adv", objective={"trades": 6.0})), "boosted.*trades"),
        (lambda: ModePlan(count=2, how="branches", trunk=5).check(Defense(schedule=Constant(epochs=5))), "trunk.*5"),
        (lambda: ModePlan(count=2, how="branches", trunk=1).check(Defense(optimizer=LangevinSampler())), "snapshots"),
        (lambda: Section(whole=Constant(epochs=3), begin=2, end=4), "begin.*end.*3"),
    ],
)
def test_bad_plans_are_refused(call, message: str) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError), match=message):
        call()


def test_the_keys_of_a_run(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('data = "digits"\ndefense = "adv"\nmodes = 4\n')
    assert load_config(path).modes == ModePlan(count=4) and load_config(path, ["modes=2"]).modes == ModePlan(count=2)
    path.write_text('data = "digits"\ndefense = "adv"\n[modes]\ncount = 4\nhow = "branches"\ntrunk = 5\n')
    config = load_config(path)
    assert config.modes == ModePlan(count=4, how="branches", trunk=5)
    assert Config.from_run(config.to_toml()) == config
    other = load_config(path, ["modes.trunk=6"])
    assert config.difference(other) == "modes.trunk = 5 there, 6 now"
    for settings, message in (["modes.trunks=6"], "trunk"), (["modes.trunk=400"], "trunk"), (["modes=two"], "modes"):
        with pytest.raises(ConfigError, match=message):
            load_config(path, settings)


def test_a_run_without_modes_says_nothing_of_them_and_sections_read_back() -> None:
    config = Config.from_table({"data": "digits", "defense": "adv"})
    assert "modes" not in config.to_toml() and config.modes == ModePlan()
    section = {"kind": "section", "begin": 1, "end": 4, "whole": {"kind": "cosine", "epochs": 7}}
    config = Config.from_table({"data": "digits", "defense": "adv", "schedule": section})
    assert config.defense.schedule == Section(whole=Cosine(epochs=7), begin=1, end=4)
    assert Config.from_run(config.to_toml()) == config


def test_the_configs_with_modes() -> None:
    cifar, digits = (load_config(CONFIGS / f"{name}.toml") for name in ("cifar10-modes5", "digits-modes"))
    assert cifar.modes == ModePlan(count=5) and digits.modes == ModePlan(count=3)
    assert cifar.modes.count * cifar.defense.schedule.total_epochs == 200
    assert digits.defense.early_stopping is None and EarlyStopping() is not None
