import copy
import functools
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from advbnn import data
from advbnn.attacks import PGD, Transfer
from advbnn.attacks.threat import Threat
from advbnn.bayes.mean_field import bayesianize
from advbnn.bayes.prediction import predict
from advbnn.data import ImageSet, to_float
from advbnn.defenses.profiles import defense
from advbnn.defenses.schedules import OneCycle
from advbnn.evaluation.accuracy import Evaluation, SmallSampleWarning, evaluate
from advbnn.evaluation.audit.attack_suite import LEVELS, Level
from advbnn.evaluation.audit.flags import TITLES, Flag
from advbnn.evaluation.audit.worst_case import Audit, audit
from advbnn.evaluation.records import Records
from advbnn.report.audited import accuracy_in
from advbnn.training.loop import fit
from cheats import Counting, Exploding, Hashing, Jittered, Normalising, Reseeding, Rounded, Scaled, Softened
from judged import bnn, digits, net

pytestmark = pytest.mark.filterwarnings("ignore::advbnn.evaluation.accuracy.SmallSampleWarning")

THREAT = Threat("linf", 0.15)
TINY = Level(
    draws=(1, 2),
    steps=(2, 4),
    restarts=2,
    apgd_steps=3,
    apgd_draws=2,
    targets=2,
    selection_samples=2,
    query_draws=2,
    square_queries=8,
    nes_queries=12,
    nes_directions=2,
    most_draws=60,
)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the quick level so quick that it says little."""
    monkeypatch.setitem(LEVELS, "quick", TINY)


@functools.cache
def images() -> ImageSet:
    return digits().subset(range(80))


@functools.cache
def trained(name: str) -> nn.Module:
    method = defense(name, "digits", schedule=OneCycle(epochs=6))
    return fit(method.build(classes=10, shape=(1, 8, 8), seed=0), data.load("digits"), method).model


def left_right(model: nn.Module, x: Tensor) -> float:
    """The accuracy of a large ensemble."""
    return (predict(model, x, samples=200, seed=99).label == images().labels).float().mean().item()


def under(found: Audit, attack: str) -> float:
    (one,) = [one for one in found.records[-1].details["attacks"] if one["name"] == attack]
    return one["correct"][0] / one["n"][0]


def names(flags: tuple[Flag, ...]) -> set[str]:
    return {flag.name for flag in flags}


@pytest.mark.parametrize("name", ["adv", "adv_bnn"])
def test_a_well_trained_network_raises_no_flag(name: str) -> None:
    found = audit(trained(name), images(), THREAT, "quick", rows=range(48))
    assert found.raised == (), str(found)
    assert [flag.name for flag in found.flags()] == list(TITLES)
    record = found.records[0]
    assert 0.4 < record.accuracy < under(found, "authors' PGD-20") < under(found, "clean")
    low, high = record.interval
    assert low < record.accuracy < high
    assert under(found, "noise") > 0.9
    if name == "adv":
        assert record.accuracy <= min(under(found, one["name"]) for one in record.details["attacks"])


@pytest.mark.parametrize(
    ("make", "flags", "claim"),
    [
        (Scaled, {"gradients", "noise", "black_box", "large_eps"}, "APGD-CE"),
        (Rounded, {"gradients", "noise", "black_box", "large_eps"}, "APGD-CE"),
        (Jittered, {"single_draw"}, "authors' PGD-20"),
        (lambda net: bayesianize(copy.deepcopy(net), init_std=0.2), {"single_draw"}, "authors' PGD-20"),
        (Counting, {"hidden_randomness"}, "authors' PGD-20"),
        (Hashing, {"gradients", "discontinuity"}, "clean"),
    ],
    ids=["scaled", "rounded", "jittered", "weight-noise", "counting", "hashing"],
)
def test_a_cheat_is_flagged_and_ends_near_its_true_accuracy(
    make: Callable[[nn.Module], nn.Module], flags: set[str], claim: str
) -> None:
    model = make(net())
    found = audit(model, images(), THREAT, "quick")
    assert flags <= names(found.raised), str(found)
    # who knows the trick attacks the network behind it
    x, y = to_float(images().images), images().labels
    truth = left_right(model, PGD(THREAT, steps=50)(net(), x, y, seed=5))
    assert under(found, claim) > truth + 0.2
    assert found.records[0].accuracy < truth + 0.04


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    ("make", "flag"),
    [
        (Softened, "probabilities"),
        (Normalising, "batch"),
        (Reseeding, "hidden_randomness"),
        (Exploding, "gradients"),
    ],
)
def test_what_cannot_be_believed_is_flagged(make: type[nn.Module], flag: str) -> None:
    assert flag in names(audit(make(net()), images(), THREAT, "quick").raised)


@pytest.mark.usefixtures("tiny")
def test_probabilities_are_attacked_as_what_they_mean() -> None:
    honest, soft = (audit(model, images(), THREAT, "quick").records[0] for model in (net(), Softened(net())))
    assert soft.correct == honest.correct
    assert under(Audit(Records([soft])), "PGD-4") == under(Audit(Records([honest])), "PGD-4")


@pytest.mark.usefixtures("tiny")
def test_a_record_says_everything() -> None:
    own = PGD(THREAT, steps=1, random_start=False)
    found = audit(
        bnn(), images(), THREAT, "quick", transfer_from={"plain": net()}, attacks={"mine": own}, samples=3, seeds=2
    )
    (record,) = found.records
    assert (record.kind, record.name, record.threat, record.samples) == ("worst_case", "quick", THREAT, 3)
    assert (record.n, record.seeds, len(record.correct)) == (80, (0, 1), 2)
    assert repr(TINY) in record.attack
    assert repr(own) in record.attack
    assert "'plain': '" in record.attack
    details = record.details
    by_name = {one["name"]: one for one in details["attacks"]}
    assert next(iter(by_name)) == "clean"
    assert {"noise", "authors' PGD-20", "from plain", "from its mean network", "mine", "Square", "NES"} <= set(by_name)
    assert by_name["mine"] == {"name": "mine", "role": "given", "on": "all", "attack": repr(own)} | {
        "n": [80, 80],
        "correct": by_name["mine"]["correct"],
    }
    assert by_name["NES"]["on"] == "survivors"
    for seed in range(2):
        assert record.correct[seed] <= by_name["NES"]["n"][seed] < 80
        assert record.correct[seed] + details["undecided"][seed] <= by_name["clean"]["correct"][seed] + 5
    assert details["random"]
    assert details["mean_draws"] > 0
    assert (details["error"], details["most_draws"]) == (0.01, 60)
    assert [flag["name"] for flag in details["flags"]] == list(TITLES)


@pytest.mark.usefixtures("tiny")
def test_the_accuracy_of_one_attack_is_what_evaluate_measures() -> None:
    own = PGD(THREAT, steps=3, eot=2)
    found = audit(bnn(), images(), THREAT, "quick", attacks={"mine": own}, samples=4, seeds=(3,), batch_size=50)
    records = evaluate(bnn(), images(), {"clean": None, "mine": own}, samples=4, seeds=(3,), batch_size=50)
    for record in records:
        assert under(found, record.name) == record.accuracy
    (clean,) = (record.accuracy for record in records.where(kind="clean"))
    assert accuracy_in(found.records[0], "clean").accuracy == clean  # as a record of its own


@pytest.mark.usefixtures("tiny")
def test_more_radii_give_one_accuracy_each_that_never_rises() -> None:
    threats = [Threat("linf", eps) for eps in (0.2, 0.02, 0.1)]
    found = audit(net(), images(), threats, "quick", attacks={"mine": PGD(threats[2], steps=3)})
    assert [record.threat.eps for record in found.records] == [0.02, 0.1, 0.2]
    counts = [record.correct[0] for record in found.records]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[2]
    for smaller, larger in pairwise(found.records):
        assert bool((smaller.right >= larger.right).all())  # what has fallen stays fallen
    with_it = ["mine" in [one["name"] for one in record.details["attacks"]] for record in found.records]
    assert with_it == [False, True, False]
    alone = audit(net(), images(), threats[1], "quick")
    assert alone.records[0].correct == found.records[0].correct
    assert found.flags(0.02) == alone.flags()


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(("norm", "eps"), [("l2", 1.0), ("l1", 6.0)])
def test_other_norms(norm: str, eps: float) -> None:
    found = audit(bnn(), images(), Threat(norm, eps), "quick", samples=3)
    assert found.records[0].accuracy < under(found, "clean")
    assert not {"gradients", "discontinuity", "batch", "hidden_randomness"} & names(found.raised)


@pytest.mark.usefixtures("tiny")
def test_rounding_to_bfloat16_is_no_discontinuity() -> None:
    found = audit(copy.deepcopy(bnn()).bfloat16(), images(), THREAT, "quick", samples=3)
    assert "discontinuity" not in names(found.raised)


@pytest.mark.usefixtures("tiny")
def test_leaves_everything_as_it_was_and_repeats_itself() -> None:
    model = copy.deepcopy(bnn()).train()
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    first = audit(model, images(), THREAT, "quick", samples=3)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(part.training for part in model.modules())
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)
    assert audit(model, images(), THREAT, "quick", samples=3) == first


@pytest.mark.usefixtures("tiny")
def test_finished_audits_are_kept_and_guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "records.json"
    first = audit(net(), images(), THREAT, "quick", out=out)
    assert Audit(Records.load(out)) == first
    assert str(Audit(Records.load(out))) == str(first)
    monkeypatch.setattr(PGD, "__call__", None)
    assert audit(net(), images(), THREAT, "quick", out=out) == first
    with pytest.raises(ValueError, match="finished record 'quick'.*attack was"):
        audit(net(), images(), THREAT, "quick", out=out, transfer_from={"itself": net()})


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("begun", [1, 6, 12])
def test_attacks_that_were_finished_survive_an_interruption(
    begun: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    craft, crafted = Evaluation.craft, []

    def counting(self: Evaluation, *args: Any) -> Tensor:
        crafted.append(args[0])
        if len(crafted) == begun:
            raise KeyboardInterrupt
        return craft(self, *args)

    whole = audit(bnn(), images(), THREAT, "quick", samples=3)
    monkeypatch.setattr(Evaluation, "craft", counting)
    again = {"out": tmp_path / "records.json", "samples": 3}
    with pytest.raises(KeyboardInterrupt):
        audit(bnn(), images(), THREAT, "quick", **again)
    assert audit(bnn(), images(), THREAT, "quick", **again) == whole
    assert [file.name for file in tmp_path.iterdir()] == ["records.json"]
    # each was made once, but for the one that was under way; the last is that of the sanity_attack radius
    tried = [one for one in whole.records[0].details["attacks"] if one["role"] != "clean" and sum(one["n"])]
    assert len(crafted) == len(tried) + 1 + 1


@pytest.mark.usefixtures("tiny")
def test_the_attack_under_way_is_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("advbnn.progress.SECONDS_BETWEEN_LINES", 0.0)
    audit(net(), images(), THREAT, "quick", label="plain", progress=True)
    begun = "plain: quick: 0 of 1 batches, now at seed 0, radius 1 of 1, attack 1 of 9: noise"
    shown = capsys.readouterr().err
    assert f"{begun}\n" in shown and f"{begun}, 100%\n" in shown


@pytest.mark.usefixtures("tiny")
def test_the_source_of_a_given_transfer_belongs_to_the_settings(tmp_path: Path) -> None:
    out, attack = tmp_path / "records.json", PGD(THREAT, steps=1)
    first = audit(net(), images(), THREAT, "quick", out=out, attacks={"mine": Transfer(net(), attack)})
    assert audit(net(), images(), THREAT, "quick", out=out, attacks={"mine": Transfer(net(), attack)}) == first
    other = copy.deepcopy(net())
    with torch.no_grad():
        next(other.parameters()).add_(0.01)
    with pytest.raises(ValueError, match="finished record 'quick'.*attack was"):
        audit(net(), images(), THREAT, "quick", out=out, attacks={"mine": Transfer(other, attack)})


@pytest.mark.usefixtures("tiny")
def test_is_found_among_other_records() -> None:
    found = audit(net(), images(), THREAT, "quick", label="plain")
    others = evaluate(net(), images(), samples=1, seeds=1)
    assert Audit(others + found.records) == found
    with pytest.raises(ValueError, match="audit of one model at one level, found: none"):
        Audit(others)
    renamed = replace(found.records[0], model=replace(found.records[0].model, label="other"))
    with pytest.raises(ValueError, match=r"found: plain \(quick\), other \(quick\)"):
        Audit(Records([*found.records, renamed]))


@pytest.mark.usefixtures("tiny")
def test_is_told_in_words() -> None:
    text = str(audit(Scaled(net()), images(), THREAT, "quick", label="cheat"))
    assert text.startswith("cheat, 80 images of digits")
    assert "linf 0.15: " in text
    assert "% robust in the worst case, 95 % interval" in text
    assert "Its gradients mislead. The gradient of the loss is exactly zero" in text
    sound = audit(net(), images(), Threat(eps=0.01), "quick")
    assert str(sound).endswith("No flag is raised.")


def test_refuses_what_it_cannot_audit() -> None:
    other = PGD(Threat("linf", 0.1))
    for threat, message in (
        ([], "one Threat, or several with different radii; got"),
        ([THREAT, THREAT], "several with different radii"),
        ([THREAT, Threat("l2", 0.2)], "may differ in their radius alone"),
        (Threat("linf", 0.0), "positive and finite radius to be audited, got eps=0.0"),
    ):
        with pytest.raises(ValueError, match=message):
            audit(net(), images(), threat)
    wrong = ((0.1, "0.1"), ([0.1], "0.1"), ("linf", "'linf'"), (None, "None"), (torch.tensor(0.1), "tensor"))
    for threat, came in wrong:
        with pytest.raises(TypeError, match=f"threat must be a Threat such as .* or several in a list; got {came}"):
            audit(net(), images(), threat)
    with pytest.raises(ValueError, match="level='quik' is unknown.*did you mean 'quick'"):
        audit(net(), images(), THREAT, "quik")
    with pytest.raises(ValueError, match="takes no rule"):
        audit(net(), images(), THREAT, rule="vote")
    with pytest.raises(TypeError, match="transfer_from must hold models by name; 'x' is str"):
        audit(net(), images(), THREAT, transfer_from={"x": "y"})
    with pytest.raises(ValueError, match="attack 'mine' has Threat.*eps=0.1.*this audit is of Threat.*eps=0.15"):
        audit(net(), images(), THREAT, attacks={"mine": other})
    with pytest.raises(ValueError, match="attack 'mine' is targeted"):
        audit(net(), images(), THREAT, attacks={"mine": PGD(THREAT, targeted=True)})
    with pytest.raises(TypeError, match="model must be a torch.nn.Module"):
        audit(lambda x: x, images(), THREAT)
    with pytest.raises(TypeError, match="got Splits; pass splits.test"):
        audit(net(), data.load("digits"), THREAT)


@pytest.mark.usefixtures("tiny")
@pytest.mark.filterwarnings("error")
def test_warns_of_few_images_once() -> None:
    with pytest.warns(SmallSampleWarning, match="16 images") as warned:
        audit(net(), images(), THREAT, "quick", rows=range(16))
    assert len(warned) == 1


@pytest.mark.peers
def test_breaks_as_much_as_autoattack(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = pytest.importorskip("pyautoattack")
    # black-box attacks find nothing more here, and would take most of the time
    monkeypatch.setitem(LEVELS, "standard", replace(LEVELS["standard"], square_queries=20, nes_queries=10))
    threat, few = Threat("linf", 0.09), images().subset(range(40))
    x, y = to_float(few.images), few.labels
    with torch.random.fork_rng():
        x_adv = peer.AutoAttack(net(), eps=threat.eps, seed=0).run_standard_evaluation(x, y)[0]
    theirs = int((net()(x_adv).argmax(1) == y).sum())
    ours = audit(net(), few, threat, "standard").records[0].correct[0]
    assert 10 < theirs < 30
    assert ours <= theirs
