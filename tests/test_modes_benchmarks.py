"""The benchmarks of several modes: their rows, the judge from outside, mean weights and students."""

import copy
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import advbnn
from advbnn.attacks.threat import Threat
from advbnn.data import to_float
from advbnn.evaluation.accuracy import SmallSampleWarning
from advbnn.evaluation.intervals import paired_interval
from advbnn.randomness import crafting_seed

pytest.importorskip("pyautoattack")
pytestmark = pytest.mark.filterwarnings(f"ignore::{SmallSampleWarning.__module__}.{SmallSampleWarning.__name__}")

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
THREAT, ROWS = Threat("linf", 0.08), range(24)


@pytest.fixture(scope="module")
def judge() -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(BENCHMARKS / "judge.py")))


@pytest.fixture(scope="module")
def data() -> Any:
    return advbnn.data.load("digits")


@pytest.fixture(scope="module")
def modes(data: Any) -> advbnn.Modes:
    nets = []
    x, y = to_float(data.train.images), data.train.labels
    for seed in range(2):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        for _ in range(60):
            rows = torch.randint(len(x), (128,))
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()
        nets.append(net.eval())
    return advbnn.Modes(nets, weights=[0.7, 0.3]).eval()


def test_one_network_has_the_mean_probability(judge: SimpleNamespace, modes: advbnn.Modes, data: Any) -> None:
    x = to_float(data.test.images[:5])
    torch.testing.assert_close(judge.one_network(modes)(x).exp(), advbnn.predict(modes, x).probs)
    alone = modes.net[0]
    torch.testing.assert_close(judge.one_network(alone)(x), alone(x).log_softmax(-1))


def test_attack_by_attack_breaks_what_the_package_breaks(
    judge: SimpleNamespace, modes: advbnn.Modes, data: Any
) -> None:
    seed = crafting_seed(0, 0) % 2**31
    package = judge._peer(judge.one_network(modes), "square", THREAT, seed, torch.device("cpu"), True)
    package.attacks_to_run = list(judge.ATTACKS)
    chosen = data.test.subset(ROWS)
    x, y = to_float(chosen.images), chosen.labels
    with torch.random.fork_rng():
        _, labels = package.run_standard_evaluation(x, y, batch_size=len(x))
    record = judge.autoattack(modes, data.test, THREAT, rows=ROWS, seeds=1, quick=True)
    assert (record.right == 1).tolist() == (labels == y).tolist()
    broken = sum(attack["broken"] for attack in record.details["attacks"].values())
    assert record.details["clean"] - broken == record.correct[0]
    assert 0 < record.correct[0] < len(ROWS)


def test_bfloat16_decides_nothing(judge: SimpleNamespace, modes: advbnn.Modes, data: Any, tmp_path: Path) -> None:
    """A network in bfloat16 that is always wrong: every image is attacked again in float32, with the same result."""
    rows = (data.test.labels != 0).nonzero().flatten()[:24].tolist()
    options = {"rows": rows, "seeds": 1, "quick": True, "out": tmp_path / "x.json"}
    expected = judge.autoattack(modes, data.test, THREAT, label="float32", **options)
    wrong = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with torch.no_grad():
        wrong[1].weight.zero_()
        wrong[1].bias.copy_(torch.eye(10)[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(judge.autoattack.__globals__, "accelerate", lambda model, engine, precision: wrong)
        record = judge.autoattack(modes, data.test, THREAT, bf16=judge.ATTACKS, label="both", **options)
    assert record.right.tolist() == expected.right.tolist()
    for name, found in record.details["attacks"].items():
        attacked, broken, again, of_these, _ = found.values()
        assert (again, broken) == (attacked, 0)
        assert of_these == expected.details["attacks"][name]["broken"]
    assert list(advbnn.Records.load(tmp_path / "x.json")) == [expected, record]


@pytest.fixture(scope="module")
def scripts() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        names = ("modes", "modes_few_images", "modes_worth", "modes_gains")
        yield {name: SimpleNamespace(**runpy.run_path(str(BENCHMARKS / f"{name}.py"))) for name in names}


def test_the_rows_have_one_recipe_and_cost_the_same(scripts: Any) -> None:
    """In passes of VGG16: 13 for PGD-5, where an input gradient is two, and three more with AWP."""
    modes = scripts["modes"]
    for name in modes.ROWS:
        config = modes.config_of(name, 1, [])
        how = config.defense
        epochs = config.modes.count * how.schedule.total_epochs
        cost = (5 if how.architecture == "wide_vgg16" else 1) * (13 if how.awp is None else 16) / 13
        budget = 1000 if name == "wide_long" else {"short": 90, "long": 270}.get(name.split("_")[0], 200)
        assert cost * epochs == pytest.approx(budget, rel=0.02), name
        assert (how.batch_size, how.attack.steps, config.seed) == (512, 5, 1)
        assert how.attack.step_size == pytest.approx(how.attack.threat.eps / 2)
        assert how.optimizer.kind == ("adam" if name in ("adam", "adv_bnn5") else "sgd")


def test_the_rows_of_few_images_cost_the_same_too(scripts: Any) -> None:
    few = scripts["modes_few_images"]
    operations = {few.NARROW: 1, few.WIDE: 3}
    for name, row in few.ROWS.items():
        config = few.config_of(row)
        epochs = config.modes.count * config.defense.schedule.total_epochs
        assert epochs * operations[row.channels] == (450 if name.startswith("long") else 200), name
        assert config.defense.attack.threat.eps == pytest.approx(row.radius / 255)
    for channels, times in operations.items():
        with FlopCounterMode(display=False) as counter:
            assert few.strided_cnn(channels)(torch.rand(1, 3, 32, 32)).shape == (1, 10)
        assert counter.get_total_flops() == pytest.approx(9.92e6 * times, rel=0.01)


def test_snapshots_begin_with_the_first_mode(scripts: Any, tmp_path: Path) -> None:
    small = ["data=digits", "profile=ours", "architecture=mlp", "batch_size=256", "attack.steps=1", "modes.count=2"]
    short = ["schedule.epochs=2", "schedule.warmup=1", "radius_warmup=0", "early_stopping.every=1"]
    settings = [*small, *short, "optimizer.lr=0.05"]
    found = []
    for runs in (tmp_path / "shared", tmp_path / "alone"):
        given = SimpleNamespace(root=None, seed=0, settings=settings, runs=runs, device="cpu")
        for name in ("modes5", "snapshots") if runs.name == "shared" else ("snapshots",):
            scripts["modes"].train(name, given)
        found.append(advbnn.training.load_trained(runs / "snapshots").model.state_dict())
    kept = (tmp_path / "shared" / row / "modes" / "0" / "metrics.jsonl" for row in ("modes5", "snapshots"))
    assert len({file.read_text() for file in kept}) == 1  # copied, with the speed of that training
    torch.testing.assert_close(*found, atol=0, rtol=0)


def test_mean_weights(scripts: Any, modes: advbnn.Modes, data: Any) -> None:
    attack = advbnn.attacks.PGD(THREAT, steps=1)
    mean = scripts["modes_worth"].mean_weights(modes, data.train, attack, "cpu")
    for name, found in mean.state_dict().items():
        first, second = (net.state_dict()[name] for net in modes.net)
        torch.testing.assert_close(found, 0.7 * first + 0.3 * second)


def test_a_student_learns_its_teacher(scripts: Any, judge: SimpleNamespace, modes: advbnn.Modes, data: Any) -> None:
    student, attack = copy.deepcopy(modes.net[0]), advbnn.attacks.PGD(Threat("linf", 0.02), steps=1)
    scripts["modes_worth"].train_student(student, judge.one_network(modes), data.train, attack, 25)
    chosen = data.test.subset(range(200))
    agree = student.eval()(to_float(chosen.images)).argmax(1) == advbnn.predict(modes, to_float(chosen.images)).label
    assert agree.double().mean() > 0.7  # chance is 0.1


def test_gains_are_paired(scripts: Any) -> None:
    """Equal networks do not differ in any resample, and accuracies differ by about their paired interval."""

    def network(right: int) -> dict[str, Any]:
        labels, correct = torch.zeros(400, dtype=torch.int64), torch.arange(400) < right
        probs = torch.where(correct[:, None], torch.tensor([0.8, 0.2]), torch.tensor([0.4, 0.6]))
        found = {"probs": probs, "entropy": -(probs * probs.log()).sum(1), "correct": correct, "labels": labels}
        return dict.fromkeys(("clean", "pgd", "evasive", "foreign", "foreign, attacked"), found)

    networks = {"one": network(300), "same": network(300), "better": network(320)}
    found = scripts["modes_gains"].gains(networks, resamples=200)
    assert all(one["difference"] == 0 and one["interval"] == [0, 0] for one in found["same"].values())
    better = found["better"]["accuracy"]
    assert better["difference"] == pytest.approx(20 / 400)
    expected = paired_interval(*(networks[name]["clean"]["correct"].double() for name in ("better", "one")))
    # an end of 200 resamples has a standard error of a fifth of that of the mean, 0.002
    assert better["interval"] == pytest.approx(expected, abs=0.01)
