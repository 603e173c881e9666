import multiprocessing
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from advbnn import data
from advbnn.attacks import PGD, Transfer
from advbnn.attacks.threat import Threat
from advbnn.bayes.prediction import predict
from advbnn.data import from_tensors, to_float
from advbnn.evaluation.accuracy import SmallSampleWarning, evaluate
from advbnn.evaluation.audit.worst_case import audit
from advbnn.evaluation.curves import ensemble_curve, radius_curve
from advbnn.evaluation.lipschitz import lipschitz_records
from advbnn.evaluation.records import Records
from advbnn.evaluation.transfer import transfer_matrix
from advbnn.evaluation.uncertainty import uncertainty
from advbnn.randomness import crafting_seed, scoring_seed
from evaluation_workers import Shift, evaluate_as_one_of_two, evaluate_until_killed, options
from judged import blank, bnn, digits, net

THREAT = Threat("linf", 0.1)
ATTACK = PGD(THREAT, steps=3)


class Diary(nn.Module):
    """A random network that writes down every number that it draws, and for whom."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)
        self.crafting = False
        self.seen: dict[bool, list[float]] = {True: [], False: []}

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.randn(())
        self.seen[self.crafting].append(noise.item())
        return self.layer(x.flatten(1)) * (1 + 0.1 * noise)


@dataclass(frozen=True)
class Announced:
    """An attack that tells the diary when it is at work."""

    attack: PGD

    @property
    def threat(self) -> Threat:
        return self.attack.threat

    def __call__(self, model: Diary, x: Tensor, y: Tensor, seed: int | None = None) -> Tensor:
        model.crafting = True
        try:
            return self.attack(model, x, y, seed)
        finally:
            model.crafting = False


def test_scores_come_from_draws_that_no_attack_has_seen() -> None:
    model = Diary()
    attacks = {"clean": None, "pgd": Announced(PGD(THREAT, steps=4, eot=3, pick="best"))}
    evaluate(model, digits(), attacks, samples=5, seeds=2, batch_size=40)
    crafting, scoring = model.seen[True], model.seen[False]
    assert len(set(crafting)) > 50
    assert set(crafting).isdisjoint(scoring)
    # one ensemble of five for each seed: the same draws for the three batches of both attacks
    assert len(scoring) == 2 * 3 * 2 * 5
    assert len(set(scoring)) == 2 * 5
    assert scoring[:5] == scoring[10:15]
    assert set(scoring[:5]).isdisjoint(scoring[5:10])


def test_is_what_its_parts_give_by_hand() -> None:
    x, y = to_float(digits().images), digits().labels
    record = evaluate(bnn(), digits(), ATTACK, samples=4, seeds=(7,), batch_size=50, rule="vote")[0]
    right: list[bool] = []
    for number, (a, b) in enumerate(zip(x.split(50), y.split(50), strict=True)):
        x_adv = ATTACK(bnn(), a, b, seed=crafting_seed(7, number))
        right += (predict(bnn(), x_adv, 4, scoring_seed(7), "vote").label == b).tolist()
    assert record.right.tolist() == right
    assert record.correct == (sum(right),)
    assert 0 < sum(right) < 120


def test_a_record_says_everything() -> None:
    source = Transfer(net(), ATTACK)
    records = evaluate(bnn(), digits(), {"clean": None, "pgd": ATTACK, "from net": source}, samples=2, seeds=2)
    clean, pgd, transfer = records
    assert (clean.kind, pgd.kind, transfer.kind) == ("clean", "attack", "transfer")
    assert (clean.attack, clean.threat, clean.source) == ("", None, None)
    assert (pgd.attack, pgd.threat, pgd.samples, pgd.seeds) == (repr(ATTACK), THREAT, 2, (0, 1))
    assert transfer.source is not None
    assert transfer.source.kind == "Sequential"
    assert pgd.model.kind == "Bayesian(Sequential)"
    assert (pgd.data.name, pgd.n, pgd.precision) == ("digits[120 of 500]", 120, "float32")
    assert pgd.seconds > 0
    assert clean.accuracy > pgd.accuracy
    low, high = clean.interval
    assert low < clean.accuracy < high


def test_the_clean_accuracy_of_a_plain_network_is_the_plain_accuracy() -> None:
    x, y = to_float(digits().images), digits().labels
    right = int((net()(x).argmax(1) == y).sum())
    for batch_size in (7, 120, 1000):
        record = evaluate(net(), digits(), samples=3, seeds=2, batch_size=batch_size)[0]
        assert record.correct == (right, right)
        assert record.spread.sd == 0


def test_seeds_are_repeatable_and_independent_of_each_other() -> None:
    together = evaluate(bnn(), digits(), ATTACK, samples=3, seeds=3)[0]
    alone = evaluate(bnn(), digits(), ATTACK, samples=3, seeds=(2,))[0]
    assert together.correct[2] == alone.correct[0]
    assert together.spread.sd > 0
    assert evaluate(bnn(), digits(), ATTACK, samples=3, seeds=3)[0] == together


def test_rows_choose_images() -> None:
    test = data.load("digits").test
    rows = list(range(100, 220))
    chosen = evaluate(net(), test, samples=1, seeds=1, rows=rows)[0]
    assert chosen.correct == evaluate(net(), test.subset(rows), samples=1, seeds=1)[0].correct
    assert (chosen.n, chosen.data.rows) == (120, "100-219")


def test_runs_in_the_precision_of_the_model_and_leaves_it_and_the_random_state_alone() -> None:
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Dropout(0.5), nn.Linear(64, 10)).double().train()
    statistics, state = model[1].running_mean.clone(), torch.get_rng_state()
    record = evaluate(model, digits(), ATTACK, samples=2, seeds=1)[0]
    assert record.precision == "float64"
    assert all(part.training for part in model.modules())
    assert torch.equal(model[1].running_mean, statistics)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())


def test_attacks_come_in_several_forms() -> None:
    def names(attacks: object) -> list[str]:
        return [record.name for record in evaluate(net(), digits(), attacks, samples=1, seeds=1)]

    assert names(None) == names("clean") == ["clean"]
    assert names(ATTACK) == ["PGD"]
    assert names({"a": ATTACK, "b": None}) == ["a", "b"]


def test_a_radius_of_zero_is_the_clean_accuracy() -> None:
    nothing = PGD(Threat("linf", 0.0), steps=3)
    clean, attacked = evaluate(bnn(), digits(), {"clean": None, "pgd": nothing}, samples=3, seeds=2)
    assert clean.correct == attacked.correct
    assert attacked.threat == nothing.threat


def test_shows_progress_when_asked(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advbnn.progress.SECONDS_BETWEEN_LINES", 0.0)
    evaluate(net(), digits(), samples=1, seeds=1, batch_size=40, label="plain", progress=True)
    assert "plain: clean: 2 of 3 batches" in capsys.readouterr().err
    evaluate(net(), digits(), samples=1, seeds=1, batch_size=40)
    assert capsys.readouterr().err == ""


def test_finished_records_are_kept_and_guarded(tmp_path: Path) -> None:
    out, attack = tmp_path / "records.json", Shift()
    first = evaluate(blank(), digits(), {"clean": None, "shift": attack}, **options(), out=out)
    assert Records.load(out) == first
    assert list(tmp_path.iterdir()) == [out]
    calls = len(attack.calls)
    assert evaluate(blank(), digits(), {"shift": attack}, **options(), out=out) == first[1:]
    assert len(attack.calls) == calls
    before = out.read_bytes()
    with pytest.raises(ValueError, match="finished record 'shift'.* of blank .*: samples was 3 and is now 4"):
        evaluate(blank(), digits(), {"shift": attack}, **{**options(), "samples": 4}, out=out)
    with pytest.raises(ValueError, match="model.kind was 'Bayesian.Sequential.' and is now 'Sequential', model.sha256"):
        evaluate(net(), digits(), {"shift": attack}, **options(), out=out)
    assert len(attack.calls) == calls
    assert out.read_bytes() == before


def test_another_radius_is_another_record_of_the_same_name(tmp_path: Path) -> None:
    out = tmp_path / "records.json"
    for eps in (0.05, 0.1):
        evaluate(net(), digits(), Shift(Threat("linf", eps)), samples=1, seeds=1, out=out)
    assert [record.threat.eps for record in Records.load(out).where(name="Shift")] == [0.05, 0.1]


def test_a_killed_evaluation_goes_on_where_it_was(tmp_path: Path) -> None:
    out = tmp_path / "records.json"
    process = multiprocessing.get_context("spawn").Process(target=evaluate_until_killed, args=(out,))
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    assert [record.name for record in Records.load(out)] == ["clean"]
    parts = sorted((tmp_path / "records.json.unfinished").rglob("*.safetensors"))
    assert len(parts) == 2
    parts[1].write_bytes(parts[1].read_bytes()[:-5])  # torn by a failing disk: done again, not believed

    attack = Shift()
    resumed = evaluate(blank(), digits(), {"clean": None, "shift": attack}, **options(), out=out)
    assert len(attack.calls) == 4 * 2  # of five batches, for two seeds each
    assert resumed == evaluate(blank(), digits(), {"clean": None, "shift": Shift()}, **options())
    assert [len(record.outcomes) for record in resumed] == [2, 2]  # for each seed, and equal as all else
    assert resumed.only(name="shift").seconds > 0
    assert list(tmp_path.iterdir()) == [out]


def test_unfinished_work_of_other_settings_is_not_used(tmp_path: Path) -> None:
    out = tmp_path / "records.json"

    @dataclass(frozen=True)
    class Failing(Shift):
        def __call__(self, model: nn.Module, x: Tensor, y: Tensor, seed: int | None = None) -> Tensor:
            if len(self.calls) == 4:
                raise RuntimeError("the power is gone")
            return super().__call__(model, x, y, seed)

    with pytest.raises(RuntimeError, match="the power is gone"):
        evaluate(blank(), digits(), {"shift": Failing()}, **options(), out=out)
    other = Failing(calls=[0] * 9)
    record = evaluate(blank(), digits(), {"shift": other}, **{**options(), "seeds": (5, 6)}, out=out)[0]
    assert len(other.calls) == 9 + 5 * 2
    assert record.seeds == (5, 6)
    assert len(list((tmp_path / "records.json.unfinished").rglob("*.safetensors"))) == 2


def test_two_processes_give_what_one_gives(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=evaluate_as_one_of_two, args=(rank, tmp_path)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0]
    alone = evaluate(blank(), digits(), {"clean": None, "shift": Shift()}, **options())
    for name in ("records.json", "of-0.json", "of-1.json"):
        assert Records.load(tmp_path / name) == alone
    assert [(tmp_path / f"calls-{rank}").read_text() for rank in range(2)] == ["6", "4"]
    assert not (tmp_path / "records.json.unfinished").exists()


def test_warns_of_few_images() -> None:
    with pytest.warns(SmallSampleWarning, match="16 images: .* spans up to 50 points; evaluate at least 100"):
        evaluate(net(), digits(), samples=1, seeds=1, rows=range(16))


def test_refuses_data_that_cannot_be_judged_on() -> None:
    splits = data.load("digits")
    with pytest.raises(TypeError, match="got Splits; pass splits.test"):
        evaluate(net(), splits)
    with pytest.raises(TypeError, match="data must be examples, got tuple; advbnn.data.from_tensors"):
        evaluate(net(), (splits.test.images, splits.test.labels))
    with pytest.raises(TypeError, match="data must be examples, got Tensor; advbnn.data.from_tensors"):
        evaluate(net(), splits.test.images)
    with pytest.raises(ValueError, match="'tensors' is a regression set.*advbnn.score_regression gives"):
        evaluate(net(), from_tensors(torch.rand(5, 4), torch.rand(5)))

    class Nothing:
        name, classes, gather = "nothing", ("a",), None

        def __len__(self) -> int:
            return 0

    with pytest.raises(ValueError, match="data is empty: 'nothing' has no images"):
        evaluate(net(), Nothing())


def test_refuses_models_that_cannot_be_judged() -> None:
    with pytest.raises(TypeError, match="model must be a torch.nn.Module"):
        evaluate(lambda x: x, digits())
    with pytest.raises(ValueError, match="model knows 3 classes, 'digits.*' has 10"):
        evaluate(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), digits())
    broken = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with torch.no_grad():
        broken[1].bias[0] = torch.nan
    with pytest.raises(ValueError, match="NaN or infinite"):
        evaluate(broken, digits())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"samples": 0}, "samples must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"seeds": 0}, "seeds must be how many seeds, at least 1, or different seeds; got 0"),
        ({"seeds": (1, 1)}, r"different seeds; got \(1, 1\)"),
        ({"rule": "votes"}, "rule='votes' is unknown.*did you mean 'vote'"),
        ({"rows": [120]}, "indices must lie in 0..119"),
        ({"rows": [3] * 150 + [4, 4]}, "rows must be different examples, got 152 that name 2, row 3 150 times; .*once"),
        ({"rows": torch.tensor([0, 7, 0])}, "rows must be different examples, got 3 that name 2, row 0 2 times"),
    ],
)
def test_refuses_bad_options(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        evaluate(net(), digits(), **changes)


@pytest.mark.parametrize(
    "judge",
    [
        lambda **options: audit(net(), digits(), Threat(), **options),
        lambda **options: radius_curve(net(), digits(), ATTACK, **options),
        lambda **options: ensemble_curve(net(), digits(), **options),
        lambda **options: transfer_matrix({"a": net(), "b": net()}, digits(), ATTACK, **options),
        lambda **options: lipschitz_records(net(), digits(), ATTACK, **options),
        lambda **options: uncertainty(net(), digits(), **options),
    ],
)
def test_no_evaluation_counts_an_image_twice(judge: Callable[..., object]) -> None:
    with pytest.raises(ValueError, match="rows must be different examples, got 200 that name 1, row 0 200 times"):
        judge(rows=[0] * 200)


def test_refuses_bad_attacks() -> None:
    @dataclass(frozen=True)
    class Cheat(Shift):
        def __call__(self, model: nn.Module, x: Tensor, y: Tensor, seed: int | None = None) -> Tensor:
            return (x + 0.2).clamp(0, 1)

    with pytest.raises(ValueError, match="Cheat.* left its threat: a perturbation of linf norm 0.2"):
        evaluate(net(), digits(), Cheat())
    with pytest.raises(ValueError, match="attack 'PGD' is targeted"):
        evaluate(net(), digits(), replace(ATTACK, targeted=True))
    with pytest.raises(ValueError, match="attack 'Transfer' is targeted"):
        evaluate(net(), digits(), Transfer(net(), replace(ATTACK, targeted=True)))
    with pytest.raises(TypeError, match="attack 'mine' must be callable and have a threat"):
        evaluate(net(), digits(), {"mine": lambda model, x, y, seed: x})
    with pytest.raises(ValueError, match="attacks='cleen' is unknown.*did you mean 'clean'"):
        evaluate(net(), digits(), "cleen")
    with pytest.raises(ValueError, match="attacks is empty"):
        evaluate(net(), digits(), {})


def test_an_attack_that_writes_into_its_inputs_is_found_out() -> None:
    @dataclass(frozen=True)
    class Overwriting(Shift):
        def __call__(self, model: nn.Module, x: Tensor, y: Tensor, seed: int | None = None) -> Tensor:
            y.zero_()
            return x.add_(0.2).clamp_(0, 1)

    with pytest.raises(ValueError, match="Overwriting.* left its threat: a perturbation of linf norm 0.2"):
        evaluate(net(), digits(), Overwriting())
    allowed = Overwriting(Threat("linf", 0.2))
    expected = int((net()((to_float(digits().images) + 0.2).clamp(0, 1)).argmax(1) == digits().labels).sum())
    assert evaluate(net(), digits(), allowed, samples=1, seeds=1)[0].correct == (expected,)


def test_an_attack_of_ones_own_finds_the_model_in_evaluation_mode_without_parameter_gradients() -> None:
    @dataclass(frozen=True)
    class Looking(Shift):
        def __call__(self, model: nn.Module, x: Tensor, y: Tensor, seed: int | None = None) -> Tensor:
            assert not any(part.training for part in model.modules())
            x = x.requires_grad_()
            nn.functional.cross_entropy(model(x), y).backward()
            return self.threat.project(x.detach() + self.threat.eps * x.grad.sign(), x.detach())

    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10)).train()
    statistics = model[1].running_mean.clone()
    evaluate(model, digits(), Looking(), samples=1, seeds=1)
    assert torch.equal(model[1].running_mean, statistics)
    assert all(part.training for part in model.modules())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())


def test_refuses_a_network_that_returns_probabilities() -> None:
    with pytest.raises(ValueError, match="model returned probabilities"):
        evaluate(nn.Sequential(net(), nn.Softmax(1)), digits())
