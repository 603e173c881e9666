import multiprocessing
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from advbnn import data
from advbnn.attacks import PGD, Transfer
from advbnn.attacks.identity import settings_of
from advbnn.attacks.threat import Threat
from advbnn.bayes.modes import Modes
from advbnn.bayes.prediction import predict
from advbnn.data import to_float
from advbnn.errors import ArgumentTypeError
from advbnn.evaluation.accuracy import Evaluation, SingleMemberWarning, evaluate, store_of
from advbnn.evaluation.records import Record, Records
from advbnn.randomness import crafting_seed, scoring_seed
from evaluation_workers import OPTIONS, Shift, evaluate_as_one_of_two, evaluate_until_killed
from trained_nets import blank, bnn, digits, net

THREAT = Threat("linf", 0.1)
ATTACK = PGD(THREAT, steps=3)


class Recording(nn.Module):
    """A random network that records its random numbers, and whether an attack used them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.crafting = nn.Linear(64, 10), False
        self.seen: dict[bool, list[float]] = {True: [], False: []}

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.randn(())
        if self.crafting or len(x) > 2:  # two inputs show whether the network is random, and score nothing
            self.seen[self.crafting].append(noise.item())
        return self.layer(x.flatten(1)) * (1 + 0.1 * noise)


@dataclass(frozen=True)
class Custom:
    """An attack from outside the library: any function."""

    run: Callable[[nn.Module, Tensor, Tensor, int | None], Tensor]
    threat: Threat = THREAT

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, seed: int | None = None) -> Tensor:
        return self.run(model, x, y, seed)


def test_scores_use_weight_samples_that_no_attack_has_seen() -> None:
    def craft(model: Recording, x: Tensor, y: Tensor, seed: int | None) -> Tensor:
        model.crafting = True
        x_adv = PGD(THREAT, steps=4, eot=3, pick="best")(model, x, y, seed)
        model.crafting = False
        return x_adv

    model = Recording()
    evaluate(model, digits(), {"clean": None, "pgd": Custom(craft)}, samples=5, seeds=2, batch_size=40)
    crafting, scoring = model.seen[True], model.seen[False]
    assert len(set(crafting)) > 50
    assert set(crafting).isdisjoint(scoring)
    # one ensemble of five for each seed: the same weight samples for the three batches of both attacks
    assert (len(scoring), len(set(scoring))) == (2 * 3 * 2 * 5, 2 * 5)
    assert scoring[:5] == scoring[10:15]


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
    attacks = {"clean": None, "pgd": ATTACK, "from net": Transfer(net(), ATTACK)}
    clean, pgd, transfer = evaluate(bnn(), digits(), attacks, samples=2, seeds=2)
    assert (clean.kind, clean.attack, clean.threat, clean.source) == ("clean", None, None, None)
    assert (pgd.kind, pgd.attack, pgd.threat) == ("attack", settings_of(ATTACK), THREAT)
    assert (pgd.samples, pgd.seeds, pgd.n, pgd.precision) == (2, (0, 1), 120, "float32")
    assert (pgd.model.kind, pgd.data.name) == ("Bayesian(Sequential)", "digits[120 of 500]")
    assert (transfer.kind, transfer.source.kind) == ("transfer", "Sequential")
    assert transfer.attack == {"name": "Transfer", "source": transfer.source.sha256, "attack": settings_of(ATTACK)}
    assert pgd.seconds > 0
    assert clean.accuracy > pgd.accuracy


@pytest.mark.parametrize("batch_size", [7, 1000])
def test_the_clean_accuracy_of_a_deterministic_network_is_its_accuracy(batch_size: int) -> None:
    logits = net()(to_float(digits().images))
    right = int((logits.argmax(1) == digits().labels).sum())
    ties = int((logits.topk(2, 1).values.diff(dim=1).abs() < 1e-4).sum())  # whose label rounding may change
    record = evaluate(net(), digits(), samples=3, seeds=2, batch_size=batch_size)[0]
    assert abs(record.correct[0] - right) <= ties
    assert record.spread.sd == 0


def test_seeds_are_reproducible_and_independent_of_each_other() -> None:
    together = evaluate(bnn(), digits(), ATTACK, samples=3, seeds=3)[0]
    assert together.correct[2] == evaluate(bnn(), digits(), ATTACK, samples=3, seeds=(2,))[0].correct[0]
    assert together.spread.sd > 0
    assert evaluate(bnn(), digits(), ATTACK, samples=3, seeds=3)[0] == together


def test_several_ensembles_show_how_much_a_classifier_of_one_pass_varies() -> None:
    class Coin(nn.Module):
        """One draw for all images of a pass: all are right, or all wrong."""

        def forward(self, x: Tensor) -> Tensor:
            side = torch.sign(torch.rand(()) - 0.5).expand(len(x))
            return torch.stack([side, -side], 1)

    images = data.from_tensors(torch.zeros(100, 1, 2, 2), torch.zeros(100, dtype=torch.int64), classes=2, name="blank")
    measured = Evaluation(Coin(), images, samples=1, seeds=1)
    (one,), (many,) = measured.accuracy("clean", None), measured.accuracy("clean", None, 40)
    assert set(many.correct) == {0, 100} and many.correct[0] == one.correct[0]
    assert abs(many.accuracy - 0.5) < 4 * 0.5 / 40**0.5
    low, high = many.interval
    assert high - low > 2 * 1.96 * 0.5 / 40**0.5 * 0.9  # the standard error over draws


def test_rows_choose_images() -> None:
    test, rows = data.load("digits").test, list(range(100, 220))
    chosen = evaluate(net(), test, samples=1, seeds=1, rows=rows)[0]
    assert chosen.correct == evaluate(net(), test.subset(rows), samples=1, seeds=1)[0].correct
    assert (chosen.n, chosen.data.rows) == (120, "100-219")


def test_uses_the_dtype_of_the_model_and_restores_its_state() -> None:
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Dropout(0.5), nn.Linear(64, 10)).double().train()
    statistics, state = model[1].running_mean.clone(), torch.get_rng_state()

    def own(model: nn.Module, x: Tensor, y: Tensor, seed: int | None) -> Tensor:
        assert not any(part.training for part in model.modules())
        x = x.requires_grad_()
        nn.functional.cross_entropy(model(x), y).backward()
        return THREAT.project(x.detach() + THREAT.eps * x.grad.sign(), x.detach())

    for attack in (ATTACK, Custom(own)):
        assert evaluate(model, digits(), attack, samples=2, seeds=1)[0].precision == "float64"
        assert all(part.training for part in model.modules())
        assert torch.equal(model[1].running_mean, statistics)
        assert torch.equal(torch.get_rng_state(), state)
        assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())


def test_a_radius_of_zero_is_the_clean_accuracy() -> None:
    attacks = {"clean": None, "pgd": PGD(Threat("linf", 0.0), steps=3)}
    clean, attacked = evaluate(bnn(), digits(), attacks, samples=3, seeds=2)
    assert clean.correct == attacked.correct


def test_finished_records_are_kept_and_guarded(tmp_path: Path) -> None:
    out, attack = tmp_path / "records.json", Shift()
    first = evaluate(blank(), digits(), {"clean": None, "shift": attack}, **OPTIONS, out=out)
    assert Records.load(out) == first
    assert list(tmp_path.iterdir()) == [out]
    calls, before = len(attack.calls), out.read_bytes()
    assert evaluate(blank(), digits(), {"shift": attack}, **OPTIONS, out=out) == first[1:]
    with pytest.raises(ValueError, match="record 'shift'.* of blank .*: model.kind was .* 'Sequential', model.sha256"):
        evaluate(net(), digits(), {"shift": attack}, **OPTIONS, out=out)
    assert (len(attack.calls), out.read_bytes()) == (calls, before)
    other = replace(attack, threat=Threat("linf", 0.05))  # another radius is another record of the same name
    evaluate(blank(), digits(), {"shift": other}, **OPTIONS, out=out)
    assert [record.threat.eps for record in Records.load(out).where(name="shift")] == [0.1, 0.05]


def test_a_killed_evaluation_resumes(tmp_path: Path) -> None:
    out = tmp_path / "records.json"
    process = multiprocessing.get_context("spawn").Process(target=evaluate_until_killed, args=(out,))
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    assert [record.name for record in Records.load(out)] == ["clean"]
    parts = sorted((tmp_path / "records.json.unfinished").rglob("*.safetensors"))
    assert len(parts) == 2
    parts[1].write_bytes(parts[1].read_bytes()[:-5])  # a damaged part is made again

    attack = Shift()
    resumed = evaluate(blank(), digits(), {"clean": None, "shift": attack}, **OPTIONS, out=out)
    assert len(attack.calls) == 4 * 2  # of five batches, for two seeds each
    assert resumed == evaluate(blank(), digits(), {"clean": None, "shift": Shift()}, **OPTIONS)
    assert list(tmp_path.iterdir()) == [out]


def test_unfinished_work_has_a_folder_for_each_choice_of_settings_and_versions(tmp_path: Path) -> None:
    plans = [Evaluation(blank(), digits(), **OPTIONS | changes).plan for changes in ({}, {"seeds": (5, 6)})]
    folders = [store_of(tmp_path / "r.json", [plan], {"torch": version}) for plan in plans for version in ("1", "2")]
    assert len(set(folders)) == 4
    assert store_of(tmp_path / "r.json", plans[:1], {"torch": "1"}) == folders[0]


def test_two_processes_give_what_one_gives(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=evaluate_as_one_of_two, args=(rank, tmp_path)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0]
    alone = evaluate(blank(), digits(), {"clean": None, "shift": Shift()}, **OPTIONS)
    for name in ("records.json", "of-0.json", "of-1.json"):
        assert Records.load(tmp_path / name) == alone
    assert [(tmp_path / f"calls-{rank}").read_text() for rank in range(2)] == ["6", "4"]
    assert not (tmp_path / "records.json.unfinished").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, "batch_size must be a positive whole number"),
        ({"seeds": 0}, "seeds must be .*got 0"),
        ({"seeds": (1, 1)}, r"distinct seeds, got \(1, 1\)"),
        ({"rule": "votes"}, "rule='votes'.*'vote'"),
        ({"sampels": 3}, "option='sampels'.*'samples'"),
        ({"attacks": "cleen"}, "attacks='cleen'.*'clean'"),
        ({"attacks": {}}, "attacks is empty"),
    ],
)
def test_refuses_bad_options(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        evaluate(net(), digits(), **changes)


@pytest.mark.parametrize("flag", ["exact", "progress", "overwrite"])
def test_a_flag_is_true_or_false(flag: str) -> None:
    with pytest.raises(ArgumentTypeError, match=f"{flag} must be True or False, got 'no'"):
        evaluate(net(), digits(), **{flag: "no"})


def test_refuses_models_that_it_cannot_evaluate() -> None:
    with pytest.raises(ValueError, match="model .*3 .*digits.*10"):
        evaluate(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), digits())
    broken = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with torch.no_grad():
        broken[1].bias[0] = torch.nan
    with pytest.raises(ValueError, match="NaN or infinite"):
        evaluate(broken, digits())
    with pytest.raises(ValueError, match="model .*probabilities"):
        evaluate(nn.Sequential(net(), nn.Softmax(1)), digits())


def test_an_attack_that_writes_into_its_inputs_is_checked_against_the_clean_ones() -> None:
    def overwriting(model: nn.Module, x: Tensor, y: Tensor, seed: int | None) -> Tensor:
        y.zero_()
        return x.add_(0.2).clamp_(0, 1)

    with pytest.raises(ValueError, match=r"Custom.*linf.*0\.2"):
        evaluate(net(), digits(), Custom(overwriting))
    allowed = Custom(overwriting, Threat("linf", 0.2))
    x_adv = (to_float(digits().images) + 0.2).clamp(0, 1)
    expected = int((net()(x_adv).argmax(1) == digits().labels).sum())
    assert evaluate(net(), digits(), allowed, samples=1, seeds=1)[0].correct == (expected,)


def test_the_global_generators_follow_the_seed_around_an_attack_of_ones_own(tmp_path: Path) -> None:
    def guess(model: nn.Module, x: Tensor, y: Tensor, seed: int | None) -> Tensor:
        drawn.append((torch.rand(()).item(), np.random.rand(), random.random()))
        return x

    drawn: list[tuple[float, float, float]] = []
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    for _ in range(2):
        evaluate(net(), digits(), Custom(guess), seeds=2, batch_size=60)
    assert drawn[:4] == drawn[4:] and len(set(drawn)) == 4  # two batches under two seeds
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[2]
    assert (np.random.get_state()[1] == before[1]).all()


def test_few_members_are_scored_by_their_exact_mean(tmp_path: Path) -> None:
    torch.manual_seed(0)
    others = [nn.Sequential(nn.Flatten(), nn.Linear(64, 10)) for _ in range(2)]
    modes, images = Modes([net(), *others], weights=[2, 1, 1]).eval(), digits()
    exact = {"clean": None, "pgd": replace(ATTACK, eot=3)}
    records = evaluate(modes, images, exact, seeds=2, out=tmp_path / "records.json")
    assert [(record.samples, record.details["members"]) for record in records] == [(3, 3), (3, 3)]
    right = int((predict(modes, to_float(images.images)).label == images.labels).sum())
    assert records[0].correct == (right, right)  # nothing is left to the seed
    with pytest.warns(SingleMemberWarning, match="pgd.*eot=3") as caught:  # and the accuracy is too high
        evaluate(modes, images, {"pgd": ATTACK, "again": ATTACK}, seeds=1)
    assert len(caught) == 1 and caught[0].filename == __file__
    sampled = evaluate(Modes([net(), bnn()]).eval(), images, seeds=1, samples=4)
    assert sampled[0].samples == 4 and "members" not in sampled[0].details
    noisy = Modes([net(), Recording()]).eval()  # only a pass shows that it is random
    assert not Evaluation(noisy, images, samples=4).exact and Evaluation(noisy, images, samples=4).plan.samples == 4


def test_an_exact_mean_is_not_taken_for_as_many_random_picks(tmp_path: Path) -> None:
    modes, out = Modes([net(), nn.Sequential(nn.Flatten(), nn.Linear(64, 10))]).eval(), tmp_path / "records.json"
    assert evaluate(modes, digits(), out=out, seeds=1)[0].exact
    assert Records.load(out)[0].exact
    with pytest.raises(ValueError, match="exact was True"):
        evaluate(modes, digits(), out=out, seeds=1, samples=2, exact=False)


def test_another_number_of_ensembles_is_measured_again_or_refused(tmp_path: Path) -> None:
    def found(count: int, **options: Any) -> Record:
        evaluation = Evaluation(bnn(), digits(), out=tmp_path / "records.json", samples=2, seeds=1, **options)
        return evaluation.accuracy("clean", None, ensembles=count)[0]

    assert found(2).ensembles == 2
    with pytest.raises(ValueError, match="2 ensembles.*not 3.*overwrite"):
        found(3)
    assert found(3, overwrite=True).ensembles == found(3).ensembles == 3


def test_overwrite_replaces_a_record_with_other_settings_and_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "records.json"

    def measured(label: str, samples: int, **more: Any) -> Records:
        return evaluate(net(), digits(), samples=samples, label=label, rows=range(100), seeds=1, out=out, **more)

    first, other = measured("a", 1), measured("b", 1)
    with pytest.raises(ValueError, match="--overwrite"):
        measured("a", 2)
    again = measured("a", 2, overwrite=True)
    stored = Records.load(out)
    assert stored.only(label="a") == again[0] != first[0]
    assert stored.only(label="b") == other[0]
    # what has the same settings is not measured again
    kept = measured("a", 2, overwrite=True)
    assert kept[0].seconds == again[0].seconds
