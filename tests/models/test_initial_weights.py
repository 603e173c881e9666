"""A checkpoint from elsewhere as the start: names and shapes must fit, the classifier may be left out."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from advbnn import models
from advbnn.errors import ArgumentError, ArgumentTypeError, FileError
from advbnn.models.initial_weights import load_initial


def net(classes: int = 10, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return models.build("small_cnn", classes=classes, image_size=8, channels=1)


def test_all_weights_are_loaded(tmp_path: Path) -> None:
    elsewhere, here = net(seed=1), net(seed=2)
    save_file(elsewhere.state_dict(), tmp_path / "w.safetensors")
    load_initial(here, tmp_path / "w.safetensors")
    torch.testing.assert_close(here.state_dict(), elsewhere.state_dict(), rtol=0, atol=0)


def test_the_classifier_of_another_size_is_left_out_on_request() -> None:
    elsewhere, here = net(classes=3, seed=1), net(seed=2)
    before = here.get_parameter("classifier.weight").clone()
    with pytest.raises(ArgumentError, match=r"(?s)init.*classifier\.weight.*init_classifier"):
        load_initial(here, elsewhere.state_dict())
    load_initial(here, elsewhere.state_dict(), "fresh")
    assert torch.equal(here.get_parameter("classifier.weight"), before)
    assert torch.equal(here.get_parameter("features.0.weight"), elsewhere.get_parameter("features.0.weight"))


def test_names_that_do_not_fit_are_listed_and_nothing_is_loaded() -> None:
    here = net(seed=2)
    state, before = net(seed=1).state_dict(), here.get_parameter("features.0.weight").clone()
    wrong = {"stem.weight" if name == "features.0.weight" else name: value for name, value in state.items()}
    with pytest.raises(ArgumentError, match=r"features\.0\.weight.*stem\.weight"):
        load_initial(here, wrong)
    with pytest.raises(ArgumentError, match=r"prefix 'module\.'"):
        load_initial(here, {f"module.{name}": value for name, value in state.items()})
    assert torch.equal(here.get_parameter("features.0.weight"), before)


def test_counts_of_batches_and_second_names_of_tied_weights_may_be_missing() -> None:
    state = {name: value for name, value in net(seed=1).state_dict().items() if "num_batches" not in name}
    load_initial(net(), state)
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    load_initial(tied, {"0.weight": torch.eye(4), "0.bias": torch.ones(4), "1.bias": torch.ones(4)})
    assert torch.equal(tied[1].weight, torch.eye(4))


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    torch.save({"a": 1}, tmp_path / "pickle.pt")
    with pytest.raises(ArgumentError, match="safetensors"):
        load_initial(net(), tmp_path / "pickle.pt")
    with pytest.raises(FileError, match="no file"):
        load_initial(net(), tmp_path / "absent.safetensors")
    with pytest.raises(ArgumentTypeError, match="state_dict"):
        load_initial(net(), {"model": {}, "epoch": 3})  # type: ignore[dict-item]
    with pytest.raises(ArgumentTypeError, match=r"init .*net\.state_dict\(\), got "):
        load_initial(net(), net())  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="init_classifier"):
        load_initial(net(), net().state_dict(), "new")
