import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from advbnn.attacks import PGD
from advbnn.attacks.threat import Threat
from advbnn.cli.train import train
from advbnn.data import DataError
from advbnn.defenses.config_io import keys_of, merged, nested, parse_literal, to_toml
from advbnn.defenses.defense import Averaging, Defense, EarlyStopping
from advbnn.defenses.profiles import DATASETS, DEFENSES, defense
from advbnn.errors import ConfigError
from advbnn.paper.evidence import Evidence
from advbnn.training.config import Config, load_config, parse_settings
from advbnn.training.loading import load_trained

CONFIGS = Path(__file__).parents[2] / "configs"

app = typer.Typer()
app.command()(train)


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
    comment = path.read_text().partition("data =")[0]
    known = ("%", "not given in the paper", "results/digits")
    assert comment.startswith("# ") and any(words in comment for words in known)
    if data != "digits":
        paper = load_config(path, ["profile=paper"])
        assert paper.defense == defense(name, data, "paper")


def test_the_config_of_the_results_is_the_run_that_they_are_of() -> None:
    config = load_config(CONFIGS / "cifar10-adv_bnn-full_kl.toml")
    run = CONFIGS.parent / "results" / "cifar10-full_kl" / "runs" / "adv_bnn" / "config.toml"
    assert config.defense == Config.from_run(run.read_text(encoding="utf-8")).defense


@pytest.mark.parametrize("data", DATASETS)
@pytest.mark.parametrize("name", DEFENSES)
def test_resolved_text_reads_back(name: str, data: str) -> None:
    table = {
        "data": data,
        "defense": name,
        "seed": 3,
        "clip": 0.5,
        "early_stopping": {"patience": 4},
        "schedule": {"kind": "cosine", "epochs": 7},
    }
    config = Config.from_table(table)
    again = Config.from_table(tomllib.loads(config.to_toml()))
    assert again == config and again.defense.changed == config.defense.changed != ()


def test_settings_on_the_command_line(tmp_path: Path) -> None:
    path = write(tmp_path, 'data = "cifar10"\ndefense = "adv_bnn"\nbatch_size = 64\n[attack]\nsteps = 7\n')
    config = load_config(
        path,
        [
            *("seed=4", "root=/d", "save_every=5", "tensorboard=true", "batch_size=32", "optimizer=sgd"),
            *("attack.threat.eps=8/255", "attack.eot = 2", "schedule.epochs=[1, 2]", "objective.kl_scope=all"),
            "early_stopping.patience=2",
        ],
    )
    found = config.defense
    assert found.attack is not None
    assert (found.attack.threat.eps, found.attack.eot, found.attack.steps) == (8 / 255, 2, 7)
    assert found.schedule.epochs == (1, 2) and type(found.optimizer).__name__ == "SGD"
    assert (config.seed, config.root, config.save_every, config.tensorboard) == (4, "/d", 5.0, True)
    assert found.batch_size == 32 and found.objective.kl_scope == "all"
    assert found.early_stopping is not None and found.early_stopping.patience == 2
    assert load_config(path, ["attack=none"]).defense.attack is None


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("", [], "defense is missing"),
        ('defnse = "adv"', [], "key='defnse' is unknown.*did you mean 'defense'"),
        ('defense = "adv"\nbatchsize = 3', [], "did you mean 'batch_size'"),
        ('defense = "adv"\n[objective]\nalpa = 1', [], "key='objective.alpa'.*did you mean 'objective.alpha'"),
        ('defense = "adv"\nname = "x"', [], "key='name' is unknown"),
        ('defense = "adv"\nchanged = []', [], "key='changed' is unknown"),
        ('defense = "adv"\nseed = "one"', [], "seed: expected a whole number, got 'one'"),
        ('defense = "adv"\nbatch_size = 1.5', [], "batch_size: expected a whole number, got 1.5"),
        ('defense = "adv"\nroot = 3', [], 'root: expected text or "none", got 3'),
        ('defense = "adv"\naugment = 1', [], "augment: expected true or false, got 1"),
        ('defense = "adv"\nattack = 3', [], "attack: expected a table, got 3"),
        ('defense = "adv"', ["schedule.epochs=x"], "schedule.epochs: expected a whole number, got 'x'"),
        ('defense = "adv"', ["attack.eps=8/255"], "key='attack.eps' is unknown; did you mean 'attack.threat.eps'"),
        ('defense = "adv"', ["epochs=5"], "key='epochs' is unknown; did you mean 'schedule.epochs'"),
        ('defense = "none"', ["lr=0.1"], "key='lr' is unknown; did you mean 'optimizer.lr'?"),
        ('defense = "none"', ["steps=5"], "did you mean 'attack.steps'?"),
        ('defense = "none"', ["eps=0.1"], "did you mean 'attack.threat.eps'?"),
        ('defense = "adv"', ["alpha=1"], "did you mean 'objective.alpha'?"),
        ('defense = "adv"', ["threat.eps=0.1"], "key='threat.eps' is unknown; did you mean 'attack.threat.eps'?"),
        ('defense = "adv"', ["train.epochs=5"], "key='train.epochs' is unknown; did you mean 'schedule.epochs'"),
        ('defense = "adv"\n[train]\nepoch = 5', [], "key='train.epoch' is unknown: .*did you mean 'schedule.epochs'"),
        ('defense = "adv"', ["attack.epochs=5"], "key='attack.epochs' is unknown; did you mean 'schedule.epochs'"),
        ('defense = "adv"', ["optimizer.epoch=5"], "did you mean 'schedule.epochs'"),
        ('defense = "adv"', ["shedule.epochs=5"], "did you mean 'schedule.epochs'"),
        ('defense = "adv"', ["shedule.kind=cosine"], "unknown; did you mean 'schedule.kind'\\?"),
        ('defense = "adv"', ["attack.batch_size=5"], "unknown; did you mean 'batch_size'"),
        ('defense = "adv"', ["attack.threat.eps=8"], 'attack.threat.eps: a linf radius of 8 .* do you mean "8/255"'),
        ('defense = "adv"', ["data=cifar1O"], "there is no folder cifar1O, and data=.*did you mean 'cifar10'"),
        ('defense = "adv"', ["defense=advbnn"], "defense='advbnn' is unknown.*did you mean 'adv_bnn'"),
        ('defense = "bnn"', ["network.prior_std=0"], "network: prior_std must be a positive, finite"),
        ('defense = "bnn"', ["network.init_std=-1"], "network: init_std must be a positive, finite"),
        ('defense = "adv"', ["train.seed=5"], "unknown; did you mean 'seed'"),
        ('defense = "adv"', ["objective.xyzzy=5"], "unknown: expected one of 'objective.alpha', [^;]*$"),
        ('defense = "adv"', ["train.xyzzy=5"], "unknown: expected one of 'architecture', [^;]*$"),
        ('defense = "adv"\nbatch_size = {a = 1}', [], "batch_size: expected a whole number"),
        ('defense = "adv"', ["momentum=0"], "did you mean 'attack.momentum' or 'optimizer.momentum'?"),
        ('defense = "adv"', ["attack.threat.eps=8/0"], "attack.threat.eps: expected a number, got '8/0'"),
        ('defense = "adv"', ["objective.alpha=2"], r"objective: alpha must lie in \(0, 1\], got 2"),
        ('defense = "adv"', ["seed"], "--set takes key=value"),
        ('defense = "adv"', ["=3"], "--set takes key=value"),
        ('defense = "adv"', ["seed=1", "seed.x=2"], "'seed' has been given a value"),
        ('defense = "adv"', ["attack.steps=3", "attack=none"], "attack: a part of it has been set already"),
        ('defense = "none"', ["attack.steps=3"], "attack.steps: attack is none here, so there is nothing to change"),
        ('defense = "none"\n[attack]\nsteps = 3', [], "attack.steps: attack is none here"),
        ('defense = "none"\n[network]\nfirst = 0.3', [], 'network.first is for network.kind = "noisy"'),
        ('defense = "advbnn"', [], "did you mean 'adv_bnn'"),
        ('defense = "adv"\nprofile = "paper"', [], "profile for digits"),
        ('defense = "adv', [], "run.toml: "),
        ('defense = "adv_bnn"\n"attack.steps" = 3', [], "key='attack.steps' is one name .*: write it without the q"),
        ('defense = "adv"\n[attack]\n"threat.eps" = 0.1', [], "quotes, attack.threat.eps = ..., or as a table"),
        ('defense = "adv"\n"attack.threat" = {eps = 0.1}', [], "without the quotes, attack.threat = "),
        ('defense = "adv"\n"attack.stepps" = 3', [], "key='attack.stepps' is unknown.*did you mean 'attack.steps'"),
        ('defense = "adv"', ["objective.kind=elbo"], "key='objective.kind' is unknown; did you mean 'objective.likeli"),
    ],
)
def test_bad_input(tmp_path: Path, text: str, settings: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(write(tmp_path, text), settings)


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        # a name that some other part has
        ("train.epochs", ["schedule.epochs"]),
        ("attack.epochs", ["schedule.epochs"]),
        ("attack.batch_size", ["batch_size"]),
        ("attack.norm", ["attack.threat.norm"]),
        ("scheduler.epochs", ["schedule.epochs"]),
        ("averaging.momentum", ["attack.momentum", "optimizer.momentum"]),
        # misspelt
        ("attack.num_steps", ["attack.steps"]),
        ("optimizer.beta1", ["optimizer.betas"]),
        ("optimizer.epoch", ["schedule.epochs"]),
        ("shedule.epoch", ["schedule.epochs"]),
        ("batch_sizes", ["batch_size"]),
        # longer or shorter than it is
        ("attack.threat.epsilon", ["attack.threat.eps"]),
        ("attack.epsilon", ["attack.threat.eps"]),
        ("epsilon", ["attack.threat.eps"]),
        ("optimizer.learning_rate", ["optimizer.lr"]),
        ("learning_rate", ["optimizer.lr"]),
        ("optimizer.wd", ["optimizer.weight_decay"]),
        ("network.std", ["network.prior_std", "network.init_std"]),
        ("arch", ["architecture"]),
        # nothing is near
        ("attack.radius", []),
        ("attack.iterations", []),
        ("optimizer.rate", []),
        ("network.sigma", []),
        ("objective.xyzzy", []),
        ("attack.", []),
    ],
)
def test_an_unknown_key_is_answered_by_the_one_that_was_meant(key: str, meant: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        Config.from_table({"defense": "adv_bnn", **nested({key: 1})})
    _, _, hint = str(raised.value).partition("did you mean ")
    assert hint == (f"{' or '.join(map(repr, meant))}?" if meant else "")


def test_a_kind_is_a_key_where_there_is_a_choice() -> None:
    kinds = {key.removesuffix(".kind") for key in keys_of(Defense) if key.endswith(".kind")}
    several = {"network", "objective.likelihood", "optimizer", "schedule"}
    assert kinds == several | {"attack", "averaging", "early_stopping"}  # or none


def test_a_part_that_a_defence_lacks_can_be_given_whole(tmp_path: Path) -> None:
    given = load_config(write(tmp_path, 'defense = "none"'), ['attack={kind="pgd", steps=3}', "attack.eot=2"])
    assert given.defense.attack == PGD(Threat(), steps=3, eot=2)
    extra = load_config(write(tmp_path, 'defense = "none"'), ["early_stopping.patience=3", "averaging.start=1"])
    assert extra.defense.early_stopping == EarlyStopping(patience=3) and extra.defense.averaging == Averaging(start=1)


def test_settings_are_parsed_alike_wherever_they_are_given() -> None:
    assert parse_settings([" batch_size = 32", "schedule.epochs=[1, 2]", "batch_size=64"]) == {
        "batch_size": 64,
        "schedule.epochs": [1, 2],
    }
    with pytest.raises(ConfigError, match="--set takes key=value, such as .*; got 'batch_size'"):
        parse_settings(["batch_size"])


def test_the_settings_of_a_run_that_cannot_be_read() -> None:
    with pytest.raises(ConfigError, match="defense is missing"):
        Config.from_run("seed = 1")
    with pytest.raises(ConfigError, match="Invalid value"):
        Config.from_run("seed = ")


def test_missing_file(tmp_path: Path) -> None:
    write(tmp_path, "")
    with pytest.raises(ConfigError, match="does not exist; its folder has run.toml"):
        load_config(tmp_path / "rum.toml")


def test_own_data_starts_from_named_hyper_parameters(tmp_path: Path) -> None:
    config = Config.from_table({"data": "photos", "like": "cifar10", "defense": "adv", "profile": "paper"})
    assert config.defense == defense("adv", "cifar10", "paper") and config.data == "photos"
    assert Config.from_table(tomllib.loads(config.to_toml())) == config


scalars = st.one_of(st.booleans(), st.integers(-(2**53), 2**53), st.floats(allow_nan=False), st.text("ab\"'\\\n\tü €"))
tables = st.recursive(
    st.dictionaries(
        st.text("abc_", min_size=1, max_size=4), st.one_of(scalars, st.lists(scalars, max_size=3)), max_size=4
    ),
    lambda inner: st.dictionaries(st.text("def_", min_size=1, max_size=4), inner, max_size=3),
    max_leaves=6,
)


def test_numbers_of_numpy_are_written_as_numbers() -> None:
    text = to_toml({"lr": np.float64(0.05), "steps": np.int64(7), "eps": np.float32(0.5)})
    assert tomllib.loads(text) == {"lr": 0.05, "steps": 7, "eps": 0.5}


@given(tables)
def test_toml_text_is_toml(table: dict[str, Any]) -> None:
    assert tomllib.loads(to_toml(table)) == table


def test_literals_and_merging() -> None:
    values = {"3": 3, "0.5": 0.5, "true": True, "[1, 2]": [1, 2], "abc": "abc", '"3"': "3", "8/255": "8/255", "": ""}
    assert {text: parse_literal(text) for text in values} == values
    assert nested({"a.b": 1, "a.c": 2, "d": 3}) == {"a": {"b": 1, "c": 2}, "d": 3}
    assert merged({"a": {"b": 1, "c": 2}}, {"a": {"b": 5}, "d": 3}) == {"a": {"b": 5, "c": 2}, "d": 3}


def test_command(tmp_path: Path) -> None:
    path = write(tmp_path, 'data = "digits"\ndefense = "bnn"\narchitecture = "mlp"\n')
    runner, out = CliRunner(), str(tmp_path / "out")
    quick = ["--out", out, "--set", "schedule.epochs=1", "--set", "batch_size=500", "--device", "cpu"]
    first = runner.invoke(app, [str(path), *quick])
    assert first.exit_code == 0 and "finished after 3 steps" in first.output
    again = runner.invoke(app, [str(path), *quick])
    assert again.exit_code == 0 and "is finished: 3 steps" in again.output
    other = runner.invoke(app, [str(path), *quick, "--set", "seed=1"])
    assert other.exit_code == 1 and "error:" in other.output and "other settings: seed = 0 there, 1 now" in other.output
    assert load_trained(out).config == load_config(path, ["schedule.epochs=1", "batch_size=500"])


def test_command_errors_are_one_line(tmp_path: Path) -> None:
    for text, message in (
        ('defense = "adv"\ndata = "cifar10"\nroot = "nowhere"', "nowhere"),
        ('defense = "adv"\nsed = 1', "did you mean 'seed'"),
    ):
        failed = CliRunner().invoke(app, [str(write(tmp_path, text))])
        assert failed.exit_code == 1 and message in failed.output and failed.output.count("\n") == 1
        assert isinstance(failed.exception, SystemExit)
    assert issubclass(DataError, ValueError)


def test_the_records_on_digits() -> None:
    """As `advbnn reproduce all --data digits` has left them: the defended nets resist where the undefended does not."""
    evidence = Evidence.read(CONFIGS.parent / "results" / "digits")
    assert evidence.measured == list(DEFENSES)
    for measured in (evidence.authors, evidence.averaged, evidence.worst):
        defended, plain = (measured(name, 0.15).mean for name in ("adv_bnn", "none"))
        assert defended > plain + 50
    assert all(evidence.clean(name).mean > 90 for name in DEFENSES)


def test_a_radius_that_can_be_meant_is_taken(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('defense = "adv"')
    for settings in (["attack.threat.eps=1"], ["attack.threat.eps=inf"], ["attack.threat={norm='l2', eps=8}"]):
        assert load_config(tmp_path / "run.toml", settings).defense.attack is not None


def test_a_run_that_was_trained_with_too_large_a_radius_stays_readable() -> None:
    config = Config.from_table({"defense": "adv", "attack": {"threat": {"eps": 8}}})
    assert Config.from_run(config.to_toml()) == config


def test_an_image_folder_needs_a_dataset_like_it(tmp_path: Path) -> None:
    table = {"defense": "adv", "data": str(tmp_path)}
    with pytest.raises(ConfigError, match="set like to the dataset"):
        Config.from_table(table)
    assert Config.from_table(table | {"like": "cifar10"}).defense.like == "cifar10"


def test_a_folder_is_no_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is a folder; give a TOML file, such as .*config\.toml"):
        load_config(tmp_path)
