"""Runs of several modes: what each starts from, that a kill loses nothing, and that processes share the work."""

import copy
import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from advbnn.bayes.mean_field import bayesianize
from advbnn.bayes.modes import Modes
from advbnn.bayes.prediction import predict
from advbnn.bayes.priors import GaussianPrior
from advbnn.data import ImageSet, Splits
from advbnn.defenses.defense import Averaging, EarlyStopping, Swag
from advbnn.defenses.optimizers import SGDOptimizer
from advbnn.defenses.schedules import Constant
from advbnn.errors import ArgumentError, CheckpointError, RunError
from advbnn.machine.processes import World
from advbnn.training import modes as modes_module
from advbnn.training.interrupts import Interrupted
from advbnn.training.loading import load_trained
from advbnn.training.loop import fit
from advbnn.training.mode_plan import ModePlan
from advbnn.training.mode_run import ModesRun, claimed
from advbnn.training.run_folder import is_sound
from advbnn.training.state import TrainingState
from quick import quick, same, train
from workers import modes_together, processes, run_all, train_modes, train_modes_until_killed

PLANS = {
    "independent": ModePlan(count=3),
    "snapshots": ModePlan(count=3, how="snapshots"),
    "branches": ModePlan(count=3, how="branches", trunk=1),
}


@pytest.fixture
def one_thread() -> Iterator[None]:
    """The number of threads decides the order of additions, and workers share it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def trained_by_hand(splits: Splits[ImageSet], plan: ModePlan, value) -> list[nn.Module]:
    """Each mode by a `fit` of its own."""
    found: dict[str, nn.Module] = {}
    for name in plan.trainings:
        seed, start = plan.seed_of(name, 7), plan.start_of(name)
        net = value.build(classes=10, shape=splits.train.shape, seed=seed)
        if start is not None:
            net.load_state_dict(found[start].state_dict())
        found[name] = fit(net, splits, plan.defense_of(name, value), seed=seed).model
    return [found[name] for name in plan.names]


@pytest.mark.parametrize("how", PLANS)
def test_modes_are_ordinary_trainings(digits: Splits[ImageSet], tmp_path: Path, how: str) -> None:
    value, plan, out = quick("adv_bnn"), PLANS[how], tmp_path / "run"
    expected = trained_by_hand(digits, plan, value)
    assert not same(expected[0], expected[1])
    result = train(digits, value, modes=plan, seed=7, out=out)
    in_memory = train(digits, value, modes=plan, seed=7)
    assert result.steps == in_memory.steps == (20 if how == "branches" else 30)
    loaded = load_trained(out)
    assert loaded.finished and loaded.config.modes == plan
    for model in (result.model, in_memory.model, loaded.model):
        assert isinstance(model, Modes) and len(model) == 3
        assert all(same(mode, other) for mode, other in zip(model.net, expected, strict=True))
    for number, mode in enumerate(expected):
        assert same(load_trained(out / "modes" / str(number)).model, mode)
    assert {line["mode"] for line in result.history} == set(plan.trainings)
    assert "mode 2: " in repr(result) and "<th>mode</th>" in result._repr_html_()
    assert "3 modes" in (out / "log.txt").read_text()
    with pytest.raises(RunError, match="other settings"):
        train(digits, value, modes=2, seed=7, out=out)


@pytest.mark.parametrize("how", ["independent", "snapshots"])
def test_a_run_may_get_more_modes(digits: Splits[ImageSet], tmp_path: Path, how: str) -> None:
    value, out, plans = quick("adv"), tmp_path / "run", [ModePlan(count=count, how=how) for count in (2, 3)]
    train(digits, value, modes=plans[0], out=out)
    with pytest.raises(RunError, match="2 modes.*resume"):
        train(digits, value, modes=plans[1], out=out)
    assert len(load_trained(out).model) == 2
    more = train(digits, value, modes=plans[1], out=out, resume=True).model
    assert same(more, train(digits, value, modes=plans[1]).model) and load_trained(out).config.modes == plans[1]
    assert (out / "modes" / "0" / "log.txt").read_text().count("finished after") == 1
    with pytest.raises(RunError, match="other settings"):
        train(digits, quick("adv", batch_size=33), modes=4, out=out, resume=True)
    assert load_trained(out).finished


def test_a_process_with_fewer_modes_does_not_finish_a_run_that_got_more(
    digits: Splits[ImageSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value, out, train_missing = quick("adv"), tmp_path / "run", modes_module._train_missing

    def while_another_adds_a_mode(*given: object) -> None:
        train_missing(*given)
        with monkeypatch.context() as patched, pytest.raises(Interrupted):
            patched.setattr(modes_module, "_train_missing", stopped)
            train(digits, value, modes=3, out=out, resume=True)

    def stopped(*given: object) -> None:
        raise Interrupted("before the third mode", None)

    with monkeypatch.context() as patched:
        patched.setattr(modes_module, "_train_missing", while_another_adds_a_mode)
        train(digits, value, modes=2, out=out)
    assert not load_trained(out).finished and len(load_trained(out).model) == 2
    assert same(train(digits, value, modes=3, out=out, resume=True).model, train(digits, value, modes=3).model)
    assert load_trained(out).finished


def test_a_run_whose_metrics_are_lost_is_finished_all_the_same(digits: Splits[ImageSet], tmp_path: Path) -> None:
    value, out = quick("none"), tmp_path / "run"
    train(digits, value, modes=2, out=out)
    (out / "model.safetensors").unlink()
    (out / "modes" / "0" / "metrics.jsonl").unlink()
    train(digits, value, modes=2, out=out, resume=True)
    assert load_trained(out).finished


def test_a_run_keeps_the_weights_that_it_began_with(digits: Splits[ImageSet], tmp_path: Path) -> None:
    value, shape = quick("adv"), digits.train.shape
    one, two, three = (value.build(classes=10, shape=shape, seed=seed).state_dict() for seed in range(3))
    # a change of weights would otherwise give the results of others
    train(digits, value, init=one, out=tmp_path / "single")
    with pytest.raises(RunError, match="init"):
        train(digits, value, init=two, out=tmp_path / "single", resume=True)
    out = tmp_path / "modes"
    train(digits, value, modes=2, init=[one, two], out=out)
    for other in ([two, one], [one, three]):
        with pytest.raises(RunError, match="init"):
            train(digits, value, modes=2, init=other, out=out, resume=True)
    more = train(digits, value, modes=3, init=[one, two, three], out=out, resume=True).model
    assert same(more, train(digits, value, modes=3, init=[one, two, three]).model)
    with pytest.raises(RunError, match="init"):
        train(digits, value, modes=3, init=[one, two, two], out=out, resume=True)


def test_further_modes_may_start_from_further_files(digits: Splits[ImageSet], tmp_path: Path) -> None:
    value, files = quick("none"), [str(tmp_path / f"{number}.safetensors") for number in range(3)]
    for seed, file in enumerate(files):
        save_file(value.build(classes=10, shape=digits.train.shape, seed=seed).state_dict(), file)
    out = tmp_path / "run"
    train(digits, value, modes=2, init=files[:2], out=out)
    with pytest.raises(RunError, match="seed"):  # not the number of modes, which may grow
        train(digits, value, modes=3, init=files, seed=5, out=out, resume=True)
    assert len(train(digits, value, modes=3, init=files, out=out, resume=True).model) == 3
    Path(files[1]).write_bytes(Path(files[2]).read_bytes())
    with pytest.raises(RunError, match="init"):
        train(digits, value, modes=3, init=files, out=out, resume=True)


@pytest.mark.parametrize("how", ["independent", "boosted"])
def test_a_damaged_mode_is_written_again(
    digits: Splits[ImageSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    value, out, plan = quick("adv"), tmp_path / "run", ModePlan(count=2, how=how)
    whole = train(digits, value, modes=plan, out=out).model
    file = out / "modes" / "1" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-2] + b"no")
    (out / "model.safetensors").unlink()
    damaged = list[bool]()

    class Waiting(World):
        def any(self, flag: bool) -> bool:
            damaged.append(file.exists() and not is_sound(file.parent, file.name))
            return flag

    monkeypatch.setattr(modes_module, "world", Waiting)
    assert same(train(digits, value, modes=plan, out=out, resume=True).model, whole)
    assert damaged and not any(damaged)  # other processes, which wait for this one, find no damaged file


def test_a_damaged_mixture_is_written_again_from_its_modes(digits: Splits[ImageSet], tmp_path: Path) -> None:
    value, out = quick("adv"), tmp_path / "run"
    whole = train(digits, value, modes=2, out=out).model
    content = bytearray((out / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (out / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match="resume"):
        load_trained(out)
    assert same(train(digits, value, modes=2, out=out, resume=True).model, whole)
    assert same(load_trained(out).model, whole)


def test_the_modes_share_the_validation_set_and_load_their_last_epochs(
    digits: Splits[ImageSet], tmp_path: Path
) -> None:
    value = quick("adv", early_stopping=EarlyStopping(patience=5), schedule=Constant(epochs=3))
    out = tmp_path / "run"
    train(digits, value, modes=2, out=out)
    held_out = {json.loads((out / "modes" / k / "run.json").read_text())["data"]["sha256"] for k in "01"}
    assert len(held_out) == 1
    last = load_trained(out, last=True).model
    assert same(last.net[1], load_trained(out / "modes" / "1", last=True).model)


def test_own_networks_get_fresh_weights(digits: Splits[ImageSet], tmp_path: Path) -> None:
    def own() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))

    value = quick("adv_bnn")
    net = own()
    result = fit(net, digits, value, modes=2, out=tmp_path / "run")
    assert same(net, own())  # it is not trained itself
    first, second = result.model.net
    assert not torch.equal(first.net[1].weight, second.net[1].weight)
    loaded = load_trained(tmp_path / "run", net=own())
    assert same(loaded.model, result.model)
    with pytest.raises(ArgumentError, match="net=|net"):
        load_trained(tmp_path / "run")

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.net = nn.Parameter(torch.ones(())), own()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.scale * self.net(x)

    with pytest.raises(ArgumentError, match="reset_parameters.*Modes"):
        fit(Scaled(), digits, value, modes=2)


@pytest.mark.parametrize("built", [True, False])
@pytest.mark.parametrize("how", ["independent", "branches"])
def test_modes_share_the_weights_of_frozen_layers(digits: Splits[ImageSet], built: bool, how: str) -> None:
    value = quick("adv_bnn", architecture="small_cnn", schedule=Constant(epochs=2))
    net = value.build(classes=10, shape=digits.train.shape, seed=3)
    if not built:
        net = copy.deepcopy(net)
    net.net[0].requires_grad_(False)
    result = fit(net, digits, value, modes=ModePlan(count=2, how=how, trunk=int(how == "branches")))
    assert isinstance(result.model, Modes)
    for mode in result.model.net:
        for name, weight in net.named_parameters():
            assert torch.equal(mode.get_parameter(name), weight) == (not weight.requires_grad), name


def test_a_prior_around_a_checkpoint_needs_it_as_init(digits: Splits[ImageSet]) -> None:
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    checkpoint = {name: value.clone() for name, value in plain.state_dict().items()}
    net = bayesianize(plain, prior=GaussianPrior(0.05, mean=checkpoint))
    with pytest.raises(ArgumentError, match="init"):
        fit(net, digits, quick("bnn"), modes=2)
    # updates of a size that cannot leave the checkpoint
    value = quick("bnn", optimizer=SGDOptimizer(lr=1e-9))
    for mode in fit(net, digits, value, modes=2, init=checkpoint).model.net:
        torch.testing.assert_close(mode.net.state_dict(), checkpoint)


@pytest.mark.parametrize("statistics", ["kept", "anew"])
def test_modes_of_swag(digits: Splits[ImageSet], tmp_path: Path, statistics: str) -> None:
    swag = Swag(start=1, per_epoch=2, rank=3, statistics=statistics, samples=4)
    value = quick("adv", architecture="small_cnn", swag=swag, schedule=Constant(epochs=3))
    out = tmp_path / "run"
    result = train(digits, value, modes=2, out=out)
    kind = "SWAG" if statistics == "kept" else "SampleBank"
    assert [type(mode).__name__ for mode in result.model.net] == [kind, kind]
    assert result.model.support == (0 if statistics == "kept" else 8)
    loaded = load_trained(out).model
    assert same(loaded, result.model)
    x = digits.test.images / 255
    assert torch.equal(predict(loaded, x, seed=1).probs, predict(result.model, x, seed=1).probs)
    again = train(digits, value, modes=2, out=out)
    assert same(again.model, result.model)


def test_swag_resumes_bit_for_bit(digits: Splits[ImageSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    value = quick("adv", swag=Swag(start=1, per_epoch=3, rank=3, samples=2), schedule=Constant(epochs=3))
    whole = train(digits, value, seed=2)
    stopped_after(12, monkeypatch)
    with pytest.raises(Interrupted):
        train(digits, value, seed=2, out=tmp_path / "run")
    monkeypatch.undo()
    assert not load_trained(tmp_path / "run").finished
    assert same(train(digits, value, seed=2, out=tmp_path / "run", resume=True).model, whole.model)


def stopped_after(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Ctrl-C after so many steps of this process."""
    advance, done = TrainingState.advance, []

    def advance_and_stop(self: TrainingState, x: torch.Tensor, y: torch.Tensor) -> None:
        advance(self, x, y)
        done.append(1)
        if len(done) == steps:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(TrainingState, "advance", advance_and_stop)


@pytest.mark.parametrize("how", ["snapshots", "branches"])
def test_ctrl_c_in_the_third_mode_resumes_bit_for_bit(
    digits: Splits[ImageSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    value, plan, out = quick("adv_bnn", averaging=Averaging(decay=0.9)), PLANS[how], tmp_path / "run"
    whole = train(digits, value, modes=plan, seed=3)
    stopped_after(17 if how == "branches" else 23, monkeypatch)
    with pytest.raises(Interrupted, match="2 of 3 modes.*resume"):
        train(digits, value, modes=plan, seed=3, out=out)
    monkeypatch.undo()
    partly = load_trained(out)
    assert not partly.finished and len(partly.model) == 2
    with pytest.raises(RunError, match="resume"):
        train(digits, value, modes=plan, seed=3, out=out)
    resumed = train(digits, value, modes=plan, seed=3, out=out, resume=True)
    assert same(resumed.model, whole.model) and resumed.steps == whole.steps
    log = (out / "modes" / "2" / "log.txt").read_text()
    assert "resumed after step" in log and (out / "modes" / "1" / "log.txt").read_text().count("finished after") == 1


def test_kill_9_in_the_third_mode_resumes_bit_for_bit(tmp_path: Path, one_thread: None) -> None:
    killed = processes.Process(target=train_modes_until_killed, args=(tmp_path / "run",))
    killed.start()
    killed.join(120)
    assert killed.exitcode == -signal.SIGKILL
    assert {path.parent.name for path in (tmp_path / "run" / "modes").glob("*/model.safetensors")} == {"0", "1"}
    assert same(train_modes(tmp_path / "run"), train_modes(None))


def test_processes_share_the_modes(
    digits: Splits[ImageSet],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    one_thread: None,
) -> None:
    """Workers of one run, one for each device, and a mode that another process has taken for a while."""
    pytest.importorskip("distributed")
    monkeypatch.setattr(modes_module, "_devices", lambda device, size: ["cpu", "cpu"])
    value, out = quick("adv"), tmp_path / "run"
    result = train(digits, value, modes=3, out=out, progress=True)
    shown = capfd.readouterr().err
    assert all(f"mode {number}/3: epoch 2/2" in shown for number in (1, 2, 3))
    assert all((out / "modes" / k / "log.txt").read_text().count("finished after") == 1 for k in "012")
    assert same(result.model, train(digits, value, modes=3).model)


def test_a_mode_that_another_process_trains_is_left_to_it(
    digits: Splits[ImageSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value, out, claim = quick("adv"), tmp_path / "run", ExitStack()
    with monkeypatch.context() as patched, pytest.raises(Interrupted):
        stopped_after(3, patched)
        train(digits, value, modes=3, out=out)

    def killed(run: ModesRun, said: list[str]) -> list[str]:
        """The other process is killed while this one waits for it."""
        assert [run.finished(name) for name in run.plan.names] == [False, True, True]
        claim.close()
        return said

    monkeypatch.setattr(modes_module, "_wait_for_others", killed)
    assert claim.enter_context(claimed(out / "modes" / "claims" / "0"))
    model = train(digits, value, modes=3, out=out, resume=True).model
    assert same(model, train(digits, value, modes=3).model)


def test_what_is_waited_for_is_said_once(
    digits: Splits[ImageSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks, claim, out = iter(range(5)), ExitStack(), tmp_path / "run"
    with monkeypatch.context() as patched, pytest.raises(Interrupted):
        stopped_after(3, patched)
        train(digits, quick("none"), modes=2, out=out)
    monkeypatch.setattr("advbnn.training.modes.time.sleep", lambda _: claim.close() if next(looks) == 3 else None)
    claim.enter_context(claimed(out / "modes" / "claims" / "0"))
    train(digits, quick("none"), modes=2, out=out, resume=True, progress=True)
    assert capsys.readouterr().err.count("waiting for other processes") == 1


def test_two_processes_train_each_mode_together(tmp_path: Path) -> None:
    run_all(modes_together, 2, tmp_path)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert len(load_trained(tmp_path / "run").model) == 2
