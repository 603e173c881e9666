"""The settings of a reproduction: defaults, checks, and the file that keeps them."""

import pytest

from advbnn.errors import AdvbnnError, ArgumentError, ConfigError
from advbnn.paper import Experiment
from advbnn.paper.experiment import stored


def test_defaults() -> None:
    assert [Experiment.choose(name).profile for name in ("digits", "cifar10")] == ["ours", "authors_code"]


def test_an_image_folder_uses_the_hyper_parameters_of_a_data_set(tmp_path) -> None:
    chosen = Experiment.choose(str(tmp_path / "." / ""), like="imagenet143")
    assert chosen.data == str(tmp_path.resolve())
    assert chosen.protocol.table_radii == (0.004, 0.01, 0.016, 0.02)
    assert chosen.run("adv").config.defense.attack.threat.eps == 0.01
    with pytest.raises(ArgumentError, match="--like"):
        Experiment.choose(str(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"data": "cifar1O"}, "cifar1O.*did you mean 'cifar10'"),
        ({"data": "cifar10", "like": "stl10"}, "like .*leave it out"),
        ({"data": "digits", "limit": 0}, "limit .*got 0"),
        ({"data": "digits", "settings": ["engine.x=here"]}, "--set engine.x .*option"),
        ({"data": "digits", "settings": ["no_such_thing=1"]}, "no_such_thing"),
    ],
)
def test_mistakes_are_found_at_once(arguments: dict, message: str) -> None:
    with pytest.raises(AdvbnnError, match=message):
        Experiment.choose(**arguments).run("none")


@pytest.mark.parametrize("setting", ["attack=none", "network=noisy"])
def test_a_setting_must_not_turn_a_defence_into_another(setting: str) -> None:
    key = setting.partition("=")[0]
    with pytest.raises(ConfigError, match=f"--set {key} .*adv_bnn.*--defenses"):
        Experiment.choose("digits", settings=["batch_size=32", setting]).run("adv_bnn")


def test_settings_apply_to_the_defences_that_have_them() -> None:
    settings = ["attack.steps=2", "network.first=0.3", "network.prior_std=0.1", "objective.alpha=0.002", "batch_size=7"]
    chosen = Experiment.choose("digits", settings=settings)
    changed = {name: set(chosen.run(name).config.defense.changed) for name in ("none", "rse", "adv", "bnn", "adv_bnn")}
    assert changed == {
        "none": {"batch_size"},
        "rse": {"batch_size", "network.first"},
        "adv": {"batch_size", "attack.steps"},
        "bnn": {"batch_size", "network.prior_std", "objective.alpha"},
        "adv_bnn": {"batch_size", "attack.steps", "network.prior_std", "objective.alpha"},
    }
    assert chosen.unused_settings(["none", "adv"]) == ["network.first", "network.prior_std", "objective.alpha"]
    assert chosen.unused_settings(["rse", "adv_bnn"]) == []


def test_seeds_and_alphas_have_their_own_folders() -> None:
    chosen = Experiment.choose("cifar10")
    assert (chosen.run("adv", seed=2).label, chosen.run("adv", seed=2).config.seed) == ("adv-seed2", 2)
    smaller = chosen.run("adv_bnn", factor=0.1)
    assert (smaller.label, smaller.config.defense.objective.alpha) == ("adv_bnn-alpha0.1", 0.1)


def test_the_settings_are_kept_and_read_back(tmp_path) -> None:
    chosen = Experiment.choose("digits", settings=["batch_size=32"], limit=50)
    for _ in range(2):
        chosen.write(tmp_path, test_images=500)
        assert stored(tmp_path) == (chosen, {"test_images": 500})
    with pytest.raises(ArgumentError, match="limit .*50.*60.*--out"):
        Experiment.choose("digits", settings=["batch_size=32"], limit=60).check(tmp_path)


def test_a_run_is_not_the_folder_of_a_reproduction(tmp_path) -> None:
    (tmp_path / "config.toml").touch()
    with pytest.raises(ArgumentError, match="run; give --out"):
        Experiment.choose("digits").check(tmp_path)


def test_an_image_folder_may_be_moved(tmp_path) -> None:
    def images(parent: str, name: str = "woof") -> Experiment:
        folder = tmp_path / parent / name
        folder.mkdir(parents=True, exist_ok=True)
        return Experiment.choose(str(folder), like="cifar10")

    images("before").write(tmp_path / "out")
    images("now").check(tmp_path / "out")
    images("now").write(tmp_path / "out", test_sha256="a")
    images("now").check(tmp_path / "out", test_sha256="a")
    with pytest.raises(ArgumentError, match="test_sha256 .*'a'.*'b'.*--out"):
        images("now").check(tmp_path / "out", test_sha256="b")
    with pytest.raises(ArgumentError, match="data was"):
        images("now", "other").check(tmp_path / "out")
    images("now", "cifar10").write(tmp_path / "named")  # a folder of this name is not the data set
    with pytest.raises(ArgumentError, match="data was"):
        Experiment.choose("cifar10").check(tmp_path / "named")
