"""What a caller adds to a training: callbacks, augmentation, batches of a loader, a checkpoint to start from."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import advbnn
from advbnn.bayes.modes import Modes
from advbnn.data import ImageSet, Splits
from advbnn.defenses.defense import EarlyStopping
from advbnn.defenses.schedules import Constant
from advbnn.errors import ArgumentError, ArgumentTypeError
from advbnn.training import Callback, Config, Interrupted, Moment, fit, load_trained
from advbnn.training.loop import fit_config
from advbnn.training.step import EagerStep
from quick import quick, same, train


class Seen(Callback):
    def __init__(self) -> None:
        self.steps: list[int] = []
        self.epochs: list[int] = []
        self.closed = 0

    def after_step(self, now: Moment) -> None:
        self.steps.append(now.step)
        now.model.eval()  # forgotten, and restored by fit
        torch.manual_seed(0)

    def after_epoch(self, now: Moment) -> None:
        assert now.metrics is not None and now.metrics["epoch"] == now.epoch and now.steps == 10
        self.epochs.append(now.epoch)

    def close(self) -> None:
        self.closed += 1


def test_callbacks_see_every_step_and_epoch_and_change_nothing(digits: Splits[ImageSet]) -> None:
    seen = Seen()
    with_them = train(digits, quick(), callbacks=[seen])
    assert (seen.steps, seen.epochs, seen.closed) == ([*range(1, 11)], [1, 2], 1)
    assert same(with_them.model, train(digits, quick()).model)
    with pytest.raises(ArgumentTypeError, match="Callback"):
        train(digits, quick(), callbacks=[print])
    with pytest.raises(ArgumentTypeError, match=r"augment must be a function.*'cutmix'.*defense\("):
        train(digits, quick(), augment="cutmix")
    with pytest.raises(ArgumentError, match="callbacks.*Modes"):
        train(digits, quick(), callbacks=[seen], modes=2)


def test_an_augmentation_of_ones_own_is_reproducible(digits: Splits[ImageSet], tmp_path: Path) -> None:
    def dimmed(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x * torch.rand(len(x), 1, 1, 1), y

    once, again = (train(digits, quick("none"), augment=dimmed) for _ in range(2))
    assert same(once.model, again.model) and not same(once.model, train(digits, quick("none")).model)

    def broken(x: Tensor, y: Tensor) -> Any:
        return x[:, :, 1:], y

    with pytest.raises(ArgumentError, match="augment.*shape"):
        train(digits, quick("none"), augment=broken)
    with pytest.raises(ArgumentTypeError, match="augment.*pair"):
        train(digits, quick("none"), augment=lambda x, y: x)


def loader(digits: Splits[ImageSet]) -> DataLoader[Any]:
    return DataLoader(TensorDataset(digits.train.images / 255, digits.train.labels), batch_size=16, shuffle=True)


class Stop(Callback):
    def after_step(self, now: Moment) -> None:
        if now.step == 7:
            raise KeyboardInterrupt


def test_a_loader_trains_and_resumes_in_the_middle_of_an_epoch(digits: Splits[ImageSet], tmp_path: Path) -> None:
    how = quick("bnn")

    def run(**options: Any) -> Any:
        net = how.build(classes=10, shape=(1, 8, 8), seed=0)
        return fit(net, loader(digits), how, save_every=0.0, **options)

    whole = run()
    assert whole.steps == 10
    with pytest.raises((KeyboardInterrupt, Interrupted)):
        run(out=tmp_path / "run", callbacks=[Stop()])
    assert same(run(out=tmp_path / "run", resume=True).model, whole.model)
    assert same(load_trained(tmp_path / "run").model, whole.model)


def test_the_loss_of_a_batch_keeps_its_weight_if_a_loader_changes_its_size(
    digits: Splits[ImageSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Varying:
        sizes = (16, 8)

        def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
            self.sizes = self.sizes[::-1]
            first = (digits.train.images[:24] / 255, digits.train.labels[:24])
            return zip(*(part.split(self.sizes) for part in first), strict=True)

    shares, step = [], EagerStep.__call__

    def noted(self: EagerStep, *batch: Any, **options: Any) -> Any:
        shares.append((len(batch[0]), options["share"]))
        return step(self, *batch, **options)

    monkeypatch.setattr(EagerStep, "__call__", noted)
    fit(quick("none").build(classes=10, shape=(1, 8, 8)), Varying(), quick("none"))
    assert sorted(shares) == [(8, 1.0), (8, 1.0), (16, 1.0), (16, 1.0)]


def test_a_list_of_batches_trains_and_says_what_it_cannot_do(digits: Splits[ImageSet]) -> None:
    batches = [(digits.train.images[:20] / 255, digits.train.labels[:20])] * 2
    how = quick("adv")
    net = how.build(classes=10, shape=(1, 8, 8)).to("cuda" if torch.cuda.is_available() else "cpu")
    assert fit(net, batches, how).steps == 4
    with pytest.raises(ArgumentError, match="validation"):
        fit(net, batches, quick("adv", early_stopping=EarlyStopping()))
    with pytest.raises(ArgumentError, match="augment='crop_flip'"):
        fit(net, batches, quick("adv", augment="crop_flip"))
    with pytest.raises(ArgumentTypeError, match="data .*Splits"):
        fit(net, digits.train.images, how)  # type: ignore[arg-type]


def test_a_checkpoint_of_a_plain_network_is_fine_tuned_around_it(digits: Splits[ImageSet], tmp_path: Path) -> None:
    plain = train(digits, quick("none")).model
    file = tmp_path / "w.safetensors"
    save_file(plain.state_dict(), file)
    how = quick("bnn", network={"prior_mean": "init"}, schedule=Constant(epochs=1))
    table = {"data": "digits", "defense": "bnn", "init": str(file), "architecture": "mlp", "batch_size": 16}
    parts = {"network": {"prior_mean": "init"}, "schedule": {"kind": "constant", "epochs": 1}}
    config = Config.from_table({**table, **parts})
    assert Config.from_run(config.to_toml()) == config
    run = fit_config(config, digits, out=tmp_path / "run", resume=False, device="cpu")
    by_hand = fit(how.build(classes=10, shape=(1, 8, 8), init=file), digits, how)
    assert same(run.model, by_hand.model)
    loaded = load_trained(tmp_path / "run").model  # the checkpoint is no longer needed
    centre = dict(loaded.prior_mean.named_buffers())
    assert torch.equal(centre["classifier.weight"], plain.get_parameter("classifier.weight"))
    torch.testing.assert_close(advbnn.kl_divergence(loaded), advbnn.kl_divergence(run.model))


def test_fit_starts_a_network_of_ones_own_from_a_checkpoint(digits: Splits[ImageSet]) -> None:
    def net() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    first, how = net(), quick("none", schedule=Constant(epochs=1), optimizer={"lr": 1e-12})
    found = fit(net(), digits, how, init=first.state_dict())
    torch.testing.assert_close(found.model.state_dict(), first.state_dict())
    with pytest.raises(ArgumentError, match="init .*plain"):
        fit(advbnn.bayesianize(net()), digits, quick("bnn"), init=first.state_dict())


@pytest.mark.parametrize("built", [True, False])
def test_several_checkpoints_become_modes(digits: Splits[ImageSet], tmp_path: Path, built: bool) -> None:
    how = quick("none", schedule=Constant(epochs=1), optimizer={"lr": 1e-12})

    def net() -> nn.Module:
        if built:
            return how.build(classes=10, shape=(1, 8, 8))
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    checkpoints = [net().state_dict() for _ in range(2)]
    for number, state in enumerate(checkpoints):
        checkpoints[number] = {name: value + number for name, value in state.items()}
        save_file(checkpoints[number], tmp_path / f"{number}.safetensors")
    files = [tmp_path / f"{number}.safetensors" for number in range(2)]
    found = fit(net(), digits, how, modes=2, init=files, out=tmp_path / "run").model
    assert isinstance(found, Modes)
    for member, state in zip(found.members(), checkpoints, strict=True):
        torch.testing.assert_close(member.net.state_dict(), state)
    with pytest.raises(ArgumentError, match="init.*2 modes.*3"):
        fit(net(), digits, how, modes=2, init=[*files, files[0]])


def test_tensorboard_keeps_the_lines_up_to_the_step_where_a_run_resumes(
    digits: Splits[ImageSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Any] = []

    class Writer:
        def __init__(self, folder: str, purge_step: int) -> None:
            written.append((Path(folder).name, purge_step))

        def add_scalar(self, name: str, value: float, step: int) -> None:
            if name == "loss":
                written.append(step)

        def close(self) -> None:
            written.append("closed")

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=Writer))
    train(digits, quick("none"), out=tmp_path / "run", tensorboard=True)
    assert written == [("tensorboard", 1), 5, 10, "closed"]
