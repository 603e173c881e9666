"""Settings of runs: the files in configs/, `--set`, and what is refused."""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from advbnn.defenses.profiles import DATASETS, DEFENSES, defense
from advbnn.defenses.registry import ONE_NETWORK, PUBLISHED
from advbnn.errors import ConfigError
from advbnn.paper.evidence import Evidence
from advbnn.training.config import INDIFFERENT, Config, load_config, parse_settings
from advbnn.training.mode_plan import ModePlan

CONFIGS = Path(__file__).parents[2] / "configs"


def write(folder: Path, text: str) -> Path:
    path = folder / "run.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("data", DATASETS)
@pytest.mark.parametrize("name", DEFENSES)
def test_the_configs_of_the_paper(name: str, data: str) -> None:
    path = CONFIGS / f"{data}-{name}.toml"
    config = load_config(path)
    assert (config.data, config.defense.name) == (data, name)
    assert config.defense.changed == ()
    if data != "digits":
        assert load_config(path, ["profile=paper"]).defense == defense(name, data, "paper")


@pytest.mark.parametrize("name", [name for name, entry in ONE_NETWORK.items() if entry.trained])
def test_the_configs_of_the_leaderboard_differ_in_the_network(name: str) -> None:
    run = load_config(CONFIGS / f"cifar10-{name}.toml")
    plain = PUBLISHED[ONE_NETWORK[name].baseline].recipe
    config, baseline = run.defense, load_config(CONFIGS.parent / plain).defense
    assert config.network == ONE_NETWORK[name].network
    # and IG-BNN in the loss of its particles
    same = {field: getattr(baseline, field) for field in ("name", "network", "objective", "changed")}
    assert replace(config, **same) == baseline
    if getattr(config.network, "std", 1.0) == 0.251:  # most sources normalise, and so does the baseline
        assert (config.network.mean, config.network.std) == (baseline.network.mean, baseline.network.std)
    assert (config.objective == baseline.objective) == (name != "ig_bnn")
    assert config.attack_mode == ONE_NETWORK[name].attack_mode
    assert run.precision == ("full" if name == "double_win" else "auto")  # its activations have up to 16 bits


def test_the_recipes_of_later_work_have_the_numbers_of_their_sources() -> None:
    names = ("idbh-awp-ema", "rebat", "trades-awp")
    idbh, rebat, trades = (load_config(CONFIGS / f"cifar10-resnet18-{name}.toml").defense for name in names)
    for recipe in (idbh, rebat, trades):
        attack, sgd = recipe.attack, recipe.optimizer
        assert (attack.steps, attack.step_size, attack.threat.eps, attack.random_start) == (10, 2 / 255, 8 / 255, True)
        assert (sgd.kind, sgd.momentum, sgd.weight_decay, sgd.nesterov) == ("sgd", 0.9, 5e-4, False)
        assert sgd.lr == pytest.approx(0.1 * recipe.batch_size / 128)
    # ReBAT divides the rate by 1.5 after 100 and 150 epochs; TRADES with AWP counts epochs from one
    assert [rebat.schedule.scale(epoch) for epoch in (99, 100, 150)] == pytest.approx([1, 1 / 1.5, 1 / 1.5**2])
    assert [trades.schedule.scale(epoch) for epoch in (98, 99, 148, 149)] == pytest.approx([1, 0.1, 0.1, 0.01])
    assert rebat.schedule.total_epochs == trades.schedule.total_epochs == 200
    assert (rebat.averaging.decay, rebat.averaging.start, rebat.averaging.consistency) == (0.999, 105, 1.0)
    assert (trades.objective.trades, trades.awp, trades.awp_start) == (6.0, 0.005, 9)
    assert (rebat.network.mean, rebat.network.std) == (0.473, 0.251)


def test_adv_bnn_on_the_leaderboard_has_the_attack_and_schedule_of_its_baseline() -> None:
    names = ("resnet18-adv_bnn", "resnet18-adv_adam", "resnet18-adv")
    adv_bnn, adam, sgd = (load_config(CONFIGS / f"cifar10-{which}.toml").defense for which in names)
    for field in ("architecture", "attack", "schedule", "batch_size", "optimizer", "norm_scales", "augment"):
        assert getattr(adv_bnn, field) == getattr(adam, field), field
    assert replace(adam, network=sgd.network, optimizer=sgd.optimizer, changed=sgd.changed) == sgd


def test_the_config_of_the_results_is_the_run_that_they_are_of() -> None:
    config = load_config(CONFIGS / "cifar10-adv_bnn-full_kl.toml")
    run = CONFIGS.parent / "results" / "cifar10-full_kl" / "runs" / "adv_bnn" / "config.toml"
    assert config.defense == Config.from_run(run.read_text(encoding="utf-8")).defense


def test_the_records_on_digits() -> None:
    """As `advbnn reproduce all --data digits` has left them: the defended nets resist where the undefended does not."""
    evidence = Evidence.read(CONFIGS.parent / "results" / "digits")
    assert evidence.measured == list(DEFENSES)
    for measured in (evidence.authors, evidence.averaged, evidence.worst):
        defended, plain = (measured(name, 0.15).mean for name in ("adv_bnn", "none"))
        assert defended > plain + 50
    assert all(evidence.clean(name).mean > 90 for name in DEFENSES)


@pytest.mark.parametrize("name", DEFENSES)
def test_the_text_of_a_run_reads_back(name: str) -> None:
    parts = {"early_stopping": {"patience": 4}, "schedule": {"kind": "cosine", "epochs": 7}}
    config = Config.from_table({"data": "stl10", "defense": name, "seed": 3, "clip": 0.5, **parts})
    again = Config.from_run(config.to_toml())
    assert again == config and again.defense.changed == config.defense.changed != ()


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('data = "digits"\ndefense = "adv"\n', encoding="utf-8-sig")
    assert load_config(path).defense.name == "adv"


def test_a_file_without_data_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, 'defense = "adv"\n')
    with pytest.raises(ConfigError, match="data is missing.*data ="):
        load_config(path)
    assert load_config(path, ["data=digits"]).data == "digits"


def test_every_character_of_a_path_reads_back() -> None:
    path = "".join(map(chr, [*range(1, 0x180), 0x2028, 0xFEFF, 0x1F600]))
    config = Config.from_table({"data": "digits", "defense": "adv", "cache": path})
    assert Config.from_run(config.to_toml()).cache == path


def test_an_unknown_network_is_named_by_its_key() -> None:
    with pytest.raises(ConfigError, match="architecture='vgg17'.*'vgg16'"):
        Config.from_table({"data": "digits", "defense": "adv", "architecture": "vgg17"})


def test_settings_on_the_command_line(tmp_path: Path) -> None:
    path = write(tmp_path, 'data = "cifar10"\ndefense = "adv_bnn"\nbatch_size = 64\n[attack]\nsteps = 7\n')
    settings = ["seed=4", "root=/d", "batch_size=16", "batch_size = 32", "attack.eot = 2", "schedule.epochs=[1, 2]"]
    config = load_config(path, settings)
    found = config.defense
    assert found.attack is not None and (found.attack.eot, found.attack.steps) == (2, 7)
    assert (config.seed, config.root, found.batch_size, found.schedule.epochs) == (4, "/d", 32, (1, 2))
    for setting in ("seed", "=3"):
        with pytest.raises(ConfigError, match="--set takes key=value"):
            parse_settings([setting])


@pytest.mark.parametrize("text", ["modes = 3", "[modes]\ncount = 3"])
def test_a_number_of_modes_and_the_keys_of_their_table_do_not_replace_each_other(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, f'data = "digits"\ndefense = "adv"\n{text}\n')
    assert load_config(path, ["modes.how=snapshots"]).modes == ModePlan(count=3, how="snapshots")
    path = write(tmp_path, 'data = "digits"\ndefense = "adv"\n[modes]\ncount = 3\nhow = "branches"\ntrunk = 1\n')
    assert load_config(path, ["modes=4"]).modes == ModePlan(count=4, how="branches", trunk=1)
    assert load_config(path, ["modes=1"]).modes == ModePlan()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "defense is missing"),
        ('defense = "advbnn"', "defense='advbnn'.*'adv_bnn'"),
        ('defense = "adv"\nprofile = "paper"', "profile for digits"),
        ('defense = "adv"\ndata = "cifar1O"', "data='cifar1O'.*'cifar10'"),
        ('defense = "adv"\ndata = "."\nlike = "imges"', "like='imges'.*'images'"),
        ('defense = "adv"\nname = "x"', "key='name'"),
        ('defense = "adv"\nseed = "one"', "run.toml: seed: .*whole number"),
        ('defense = "adv"\nmodes = "5"', "run.toml: modes .*whole number.*table"),
        ('defense = "adv"\n[attack]\n"threat.eps" = 0.1', "attack.threat.eps = ... without the quotes"),
        ('data = "digits"\ndefense = "adv"\nattack.threat.eps = 8', 'run.toml: attack.threat.eps: .*"8/255"'),
        ('defense = "adv', "run.toml: "),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(write(tmp_path, text))


def test_files_that_are_missing_or_folders_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "")
    with pytest.raises(ConfigError, match=r"run\.toml"):
        load_config(tmp_path / "rum.toml")
    with pytest.raises(ConfigError, match=r"config\.toml"):
        load_config(tmp_path)
    with pytest.raises(ConfigError, match="Invalid value"):
        Config.from_run("seed = ")


def test_own_data_starts_from_named_hyper_parameters() -> None:
    config = Config.from_table({"data": "photos", "like": "cifar10", "defense": "adv", "profile": "paper"})
    assert config.defense == defense("adv", "cifar10", "paper") and config.data == "photos"
    assert Config.from_table(tomllib.loads(config.to_toml())) == config


def test_a_folder_has_the_recipe_for_small_sets_by_default(tmp_path: Path) -> None:
    config = Config.from_table({"data": str(tmp_path), "defense": "adv_bnn"})
    assert config.defense == defense("adv_bnn", "images")
    assert config.defense.attack is not None and config.defense.attack.threat.eps == 8 / 255
    assert Config.from_run(config.to_toml()) == config


def test_a_radius_that_can_be_meant_is_taken_and_any_that_was_trained_with_stays_readable(tmp_path: Path) -> None:
    path = write(tmp_path, 'data = "digits"\ndefense = "adv"')
    for settings in (["attack.threat.eps=1"], ["attack.threat.eps=inf"], ["attack.threat={norm='l2', eps=8}"]):
        assert load_config(path, settings).defense.attack is not None
    config = Config.from_table({"defense": "adv", "attack": {"threat": {"eps": 8}}})
    assert Config.from_run(config.to_toml()) == config


def test_settings_that_decide_the_result_and_those_that_do_not() -> None:
    config = Config(defense=defense("adv"))
    others = {"root": "r", "cache": "c", "engine": "eager", "log_every": 1, "save_every": 1.0, "tensorboard": True}
    assert set(others) == set(INDIFFERENT)
    assert config.difference(Config(defense=defense("adv"), **others)) is None
    assert config.difference(Config(defense=defense("adv"), seed=1)) == "seed = 0 there, 1 now"
    for other in (Config(defense=defense("adv"), precision="bf16"), Config(defense=defense("none"))):
        assert config.difference(other) is not None
    changed = Config(defense=defense("adv", attack={"threat": {"eps": 0.5}}))
    assert config.difference(changed) == "attack.threat.eps = 0.15 there, 0.5 now"


def test_a_file_that_does_not_exist_names_the_closest_one(tmp_path: Path) -> None:
    for name in ("adv", "adv_bnn", "bnn", "none", "rse", "zz"):
        (tmp_path / f"digits-{name}.toml").touch()
    with pytest.raises(ConfigError, match=r"digits-adv_bn\.toml .*1 more.*'digits-adv_bnn\.toml'"):
        load_config(tmp_path / "digits-adv_bn.toml")
    with pytest.raises(ConfigError, match=r"no \.toml"):
        load_config(tmp_path / "nowhere" / "a.toml")
