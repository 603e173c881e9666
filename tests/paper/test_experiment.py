"""What decides a reproduction: filled in, checked, and kept with its folder."""

import json

import pytest

from advbnn.errors import ConfigError
from advbnn.paper import Experiment
from advbnn.paper.experiment import FILE, stored


def test_what_is_left_out_is_filled_in() -> None:
    assert Experiment.choose("digits").profile == "ours"
    assert Experiment.choose("cifar10").profile == "authors_code"
    assert Experiment.choose("cifar10", "paper").title == "cifar10-paper"


def test_an_image_folder_borrows_the_numbers_of_a_data_set(tmp_path) -> None:
    chosen = Experiment.choose(str(tmp_path / "." / ""), like="imagenet143")
    assert chosen.data == str(tmp_path.resolve())
    assert chosen.protocol.table_radii == (0.004, 0.01, 0.016, 0.02)
    assert chosen.run("adv").config.defense.attack.threat.eps == 0.01


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"data": "cifar1O"}, "there is no folder cifar1O, and data='cifar1O' is unknown: .*did you mean 'cifar10'"),
        ({"data": "cifar10", "like": "stl10"}, "like is for image folders"),
        ({"data": "digits", "profile": "paper"}, "profile for digits"),
        ({"data": "digits", "limit": 0}, "limit must be a number of images, at least 1, got 0"),
        ({"data": "digits", "settings": ["batch_size"]}, "--set takes key=value"),
        ({"data": "digits", "settings": ["seed=3"]}, "seed is not: use the option for it"),
        ({"data": "digits", "settings": ["root=here"]}, "root is not: use the option for it"),
        ({"data": "digits", "settings": ["engine.x=here"]}, "engine.x is not: use the option for it"),
        ({"data": "digits", "settings": ["network=noisy"]}, "--set network makes another defence of none"),
        ({"data": "digits", "settings": ["network.std=1"]}, "'network.prior_std'"),
        ({"data": "digits", "settings": ["schedule.epoch=3"]}, "epoch"),
    ],
)
def test_mistakes_are_found_at_once(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Experiment.choose(**arguments).run("none")


def test_a_radius_beyond_the_pixels_is_refused() -> None:
    with pytest.raises(ConfigError, match='a linf radius of 8 allows every image.*do you mean "8/255"'):
        Experiment.choose("digits", settings=["attack.threat.eps=8"]).run("adv")


def test_a_folder_needs_to_be_told_whose_numbers_to_use(tmp_path) -> None:
    with pytest.raises(ValueError, match="say with --like"):
        Experiment.choose(str(tmp_path))


def test_settings_change_every_training() -> None:
    chosen = Experiment.choose("digits", settings=["schedule.epochs=2", "batch_size=32"])
    for name in ("none", "adv_bnn"):
        config = chosen.run(name).config
        assert (config.defense.schedule.epochs, config.defense.batch_size) == (2, 32)
        assert config.defense.changed == ("schedule.epochs", "batch_size")


def test_settings_of_a_part_that_some_defences_lack_are_for_the_others() -> None:
    chosen = Experiment.choose("digits", settings=["attack.steps=2", "network.first=0.3", "network.prior_std=0.1"])
    assert chosen.run("adv").config.defense.attack.steps == 2
    assert chosen.run("none").config.defense.attack is None
    assert chosen.run("rse").config.defense.network.first == 0.3
    assert chosen.run("rse").config.defense.changed == ("network.first",)
    assert chosen.run("bnn").config.defense.network.prior_std == 0.1


@pytest.mark.parametrize("setting", ["attack=none", "network.kind=plain", "network=noisy"])
def test_a_setting_must_not_make_another_defence_under_the_old_name(setting: str) -> None:
    key = setting.partition("=")[0]
    with pytest.raises(ConfigError, match=f"--set {key} makes another defence of adv_bnn.*choose with --defenses"):
        Experiment.choose("digits", settings=["batch_size=32", setting]).run("adv_bnn")


def test_settings_that_change_nothing_are_known() -> None:
    chosen = Experiment.choose("digits", settings=["attack.steps=2", "network.first=0.3", "batch_size=32"])
    assert chosen.idle_settings(["none", "bnn"]) == ["attack.steps", "network.first"]
    assert chosen.idle_settings(["rse", "adv"]) == []


def test_a_file_is_no_folder(tmp_path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is a file; give --out a folder"):
        Experiment.choose("digits").check(tmp_path / "file")


def test_the_folder_of_a_run_holds_no_reproduction(tmp_path) -> None:
    (tmp_path / "config.toml").touch()
    with pytest.raises(ValueError, match="is the folder of a run; give --out another"):
        Experiment.choose("digits").check(tmp_path)


def test_what_no_defence_has_yet_can_be_set_for_all() -> None:
    chosen = Experiment.choose("digits", settings=["early_stopping.patience=3"])
    assert chosen.run("none").config.defense.early_stopping.patience == 3
    with pytest.raises(ConfigError, match="network.second"):
        Experiment.choose("digits", settings=["network.second=0.3"]).run("bnn")


def test_settings_of_the_divergence_are_for_random_weights() -> None:
    chosen = Experiment.choose("cifar10", settings=["objective.alpha=0.002", "objective.kl_scope=all"])
    assert chosen.run("adv_bnn").config.defense.objective.alpha == 0.002
    assert chosen.run("adv").config.defense.changed == ()
    assert chosen.idle_settings(["adv", "rse"]) == ["objective.alpha", "objective.kl_scope"]


def test_an_image_folder_may_be_moved(tmp_path) -> None:
    def among(parent: str, name: str = "woof") -> Experiment:
        folder = tmp_path / parent / name
        folder.mkdir(parents=True, exist_ok=True)
        return Experiment.choose(str(folder), like="imagenet143")

    among("before").write(tmp_path / "out")
    among("now").check(tmp_path / "out")
    with pytest.raises(ValueError, match="data was .*before/woof.* and is now .*now/other"):
        among("now", "other").check(tmp_path / "out")
    named = tmp_path / "now" / "cifar10"
    named.mkdir()
    Experiment.choose(str(named), like="cifar10").write(tmp_path / "named")
    with pytest.raises(ValueError, match="data was"):
        Experiment.choose("cifar10").check(tmp_path / "named")


def test_seeds_and_alphas_have_folders_of_their_own() -> None:
    chosen = Experiment.choose("cifar10")
    assert chosen.run("adv", seed=2).label == "adv-seed2"
    assert chosen.run("adv", seed=2).config.seed == 2
    smaller = chosen.run("adv_bnn", factor=0.1)
    assert smaller.label == "adv_bnn-alpha0.1"
    assert smaller.config.defense.objective.alpha == 0.1
    assert smaller.config.defense.changed == ("objective.alpha",)


def test_the_settings_are_kept_and_read_back(tmp_path) -> None:
    chosen = Experiment.choose("digits", settings=["batch_size=32"], limit=50)
    chosen.check(tmp_path)
    chosen.write(tmp_path, test_images=500)
    assert stored(tmp_path) == (chosen, {"test_images": 500})
    assert json.loads((tmp_path / FILE).read_text())["settings"] == ["batch_size=32"]
    chosen.write(tmp_path, test_images=500)


def test_a_folder_holds_one_reproduction(tmp_path) -> None:
    Experiment.choose("digits", limit=50).write(tmp_path)
    with pytest.raises(ValueError, match="limit was 50 and is now 60; give --out another folder"):
        Experiment.choose("digits", limit=60).check(tmp_path)


def test_a_folder_without_one_says_so(tmp_path) -> None:
    with pytest.raises(ValueError, match="holds no reproduction"):
        stored(tmp_path)


def test_an_unknown_key_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError):
        Experiment.choose("digits", settings=["no_such_thing=1"]).run("none")
