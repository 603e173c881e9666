import copy
import functools
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from advbnn.attacks import PGD
from advbnn.attacks.identity import settings_of
from advbnn.attacks.losses import margin
from advbnn.attacks.threat import Threat
from advbnn.attacks.transfer import Transfer
from advbnn.bayes.mean_field import bayesianize
from advbnn.bayes.prediction import predict
from advbnn.data import ImageSet, to_float
from advbnn.evaluation.accuracy import Evaluation, SmallSampleWarning, evaluate
from advbnn.evaluation.audit.attack_suite import LEVELS
from advbnn.evaluation.audit.flags import FLAGS
from advbnn.evaluation.audit.history import look_back
from advbnn.evaluation.audit.worst_case import Audit, audit
from advbnn.evaluation.identity import ModelIdentity
from advbnn.evaluation.records import Records
from advbnn.report.audited import clean_in
from cheats import (
    Counting,
    Exploding,
    Hashing,
    Jittered,
    Normalising,
    Partly,
    Purifying,
    Reseeding,
    Rounded,
    Scaled,
    Softened,
    Suspicious,
    Together,
    Wavering,
)
from trained_nets import bnn, defended, digits, net

pytestmark = pytest.mark.filterwarnings("ignore::advbnn.evaluation.accuracy.SmallSampleWarning")

THREAT = Threat("linf", 0.14)
TINY = replace(LEVELS["quick"], eot=(1, 2), steps=(2, 4), restarts=2, apgd_steps=3, apgd_eot=2, selection_samples=2)
TINY = replace(TINY, query_eot=2, square_queries=8, nes_queries=12, nes_directions=2)
TINY = replace(TINY, comparison_samples=20, ensembles=2, max_weight_samples=60)


@functools.cache
def images() -> ImageSet:
    return digits().subset(range(80))


def quick(model: nn.Module, threat: Any = THREAT, **options: Any) -> Audit:
    return audit(model, images(), threat, "quick", **options)


def tiny(model: nn.Module, threat: Any = THREAT, **options: Any) -> Audit:
    """So quick that its numbers mean little."""
    shorter = functools.partial(look_back, seeds=20)
    with patch.dict(LEVELS, quick=TINY), patch("advbnn.evaluation.audit.runner.look_back", shorter):
        return quick(model, threat, **options)


def attacks_in(found: Audit) -> dict[str, Any]:
    return {one["name"]: one for one in found.records[-1].details["attacks"]}


def under(found: Audit, attack: str) -> float:
    one = attacks_in(found)[attack]
    return one["correct"][0] / one["n"][0]


def raised(found: Audit) -> set[str]:
    return {flag.name for flag in found.raised}


@pytest.mark.parametrize("name", ["adv", "adv_bnn"])
def test_a_well_trained_network_raises_no_flag(name: str) -> None:
    found = quick(defended(name), rows=range(48))
    assert raised(found) == set(), str(found)
    (record,) = found.records
    assert 0.4 < record.accuracy < 0.9 < under(found, "noise")
    if name == "adv":  # of a deterministic network, robust images are correct under every attack
        left = [one["correct"][0] + one.get("left_out", [0])[0] for one in attacks_in(found).values()]
        assert record.correct[0] <= min(left)


@pytest.mark.parametrize(
    ("make", "flags", "claim"),
    [
        (Scaled, {"gradients", "noise", "black_box", "large_eps"}, "APGD-CE"),
        (Rounded, {"gradients", "noise", "black_box", "large_eps"}, "APGD-CE"),
        (Partly, {"gradients"}, "PGD-20, step 0.007"),
        (Jittered, {"single_sample"}, "PGD-20, step 0.007"),
        (lambda net: bayesianize(copy.deepcopy(net), init_std=0.2), {"single_sample"}, "PGD-20, step 0.007"),
        (Counting, {"hidden_randomness"}, "PGD-20, step 0.007"),
        (Hashing, {"gradients", "discontinuity"}, "clean"),
    ],
    ids=["scaled", "rounded", "partly", "jittered", "weight-noise", "counting", "hashing"],
)
def test_a_cheat_is_flagged_and_its_worst_case_is_near_its_true_accuracy(
    make: Callable[[nn.Module], nn.Module], flags: set[str], claim: str
) -> None:
    model, x, y = make(net()), to_float(images().images), images().labels
    found = quick(model)
    assert flags <= raised(found), str(found)
    # an adaptive attack, on the network behind the trick
    x_adv = PGD(THREAT, steps=50)(net(), x, y, seed=5)
    truth = fmean((predict(model, x_adv, seed=seed).label == y).float().mean().item() for seed in range(10))
    assert under(found, claim) > truth + 0.15
    assert found.records[0].accuracy < truth + 0.075


@pytest.mark.parametrize(
    ("make", "flag"),
    [
        (Softened, "probabilities"),
        (Normalising, "batch"),
        (Together, "batch"),
        (Reseeding, "hidden_randomness"),
        (Exploding, "gradients"),
        (Purifying, "gradients"),
        (Suspicious, "discontinuity"),
    ],
)
def test_an_unreliable_network_is_flagged(make: type[nn.Module], flag: str) -> None:
    assert flag in raised(tiny(make(net())))


def test_black_boxes_try_a_sample_of_the_survivors_and_all_if_they_break_one() -> None:
    with patch("advbnn.evaluation.audit.attack_suite._FEWEST_FIRST", 12):
        honest, masked = tiny(net(), replace(THREAT, eps=0.01), rows=range(60)), tiny(Rounded(net()), rows=range(60))
    for name in ("Square", "NES"):
        tried = attacks_in(honest)[name]
        assert (tried["n"], tried["first"], tried["first_lowered"]) == ([12], [12], [0])
        # at most so many are broken, or 12 of 12 would not have held with a probability of 5 %
        assert (1 - tried["at_most"][0]) ** 12 == pytest.approx(0.05)
        assert tried["left_out"][0] + 12 == honest.records[0].correct[0]
    survivors, tried = attacks_in(masked)["noise"]["correct"][0], attacks_in(masked)["Square"]
    assert "left_out" not in tried and 12 < tried["n"][0] <= survivors
    assert tried["correct"][0] < tried["n"][0]


def test_black_boxes_go_on_if_they_make_many_images_less_certain() -> None:
    with patch("advbnn.evaluation.audit.attack_suite._FEWEST_FIRST", 12):
        found = quick(Wavering(net()), Threat("linf", 0.1), samples=1)
    tried = attacks_in(found)["Square"]
    assert "left_out" not in tried and tried["n"][0] > 60
    assert found.records[0].accuracy < under(found, "APGD-CE")


def test_probabilities_are_attacked_as_their_logarithms() -> None:
    honest, soft = tiny(net()), tiny(Softened(net()))
    # rounding may flip the sign of a gradient; where one flipped pixel, of 2 eps, cannot change the label, it must not
    x, y = to_float(images().images), images().labels
    x_adv = PGD(THREAT, steps=4)(net(), x, y, seed=0).requires_grad_()
    lead = margin(net()(x_adv), y)
    (slope,) = torch.autograd.grad(lead.sum(), x_adv)
    close = int((lead.abs() <= 2 * THREAT.eps * slope.flatten(1).abs().amax(1)).sum())
    assert close < 20
    assert abs(soft.records[0].correct[0] - honest.records[0].correct[0]) <= close
    assert abs(under(soft, "PGD-4") - under(honest, "PGD-4")) * 80 <= close


def test_a_record_says_everything() -> None:
    own = PGD(THREAT, steps=1, random_start=False)
    found = tiny(bnn(), transfer_from={"plain": net()}, attacks={"mine": own}, samples=3, seeds=2)
    (record,) = found.records
    assert (record.kind, record.name, record.threat, record.samples) == ("worst_case", "quick", THREAT, 3)
    assert (record.n, record.seeds) == (80, (0, 1))
    assert record.attack == {
        "name": "audit",
        "level": settings_of(TINY),
        "transfer_from": {"plain": ModelIdentity.of(net()).sha256},
        "attacks": {"mine": settings_of(own)},
    }
    details, by_name = record.details, attacks_in(found)
    assert next(iter(by_name)) == "clean"
    named = {"noise", "PGD-20, step 0.007", "from plain", "from its mean network", "mine", "Square", "NES"}
    assert named <= set(by_name)
    assert {"role": "given", "on": "all", "attack": settings_of(own), "n": [80, 80]}.items() <= by_name["mine"].items()
    assert by_name["from plain"]["attack"]["source"] == ModelIdentity.of(net()).sha256
    assert by_name["NES"]["on"] == "survivors"
    # 20 // 3 times as many ensembles as of 20 weight samples, for each of the two seeds
    assert (record.ensembles, len(record.correct), len(record.outcomes)) == (12, 24, 2)
    assert all(record.right.mean() * 80 <= n < 80 for n in by_name["NES"]["n"])
    assert torch.isclose(record.right.mean(), torch.tensor(record.accuracy, dtype=torch.float64))
    assert all(0 <= a + b <= 80 for a, b in zip(details["certain"], details["inconclusive"], strict=True))
    assert len(details["inconclusive"]) == 2 and details["mean_weight_samples"] > 0
    assert (details["random"], details["error"], details["max_weight_samples"]) == (True, 0.01, 60)
    assert [flag.name for flag in found.flags()] == list(FLAGS)


def test_the_accuracy_of_one_attack_is_what_evaluate_measures() -> None:
    own, options = PGD(THREAT, steps=3, eot=2), {"samples": 4, "seeds": (3,), "batch_size": 50}
    found = tiny(bnn(), attacks={"mine": own}, **options)
    clean, mine = evaluate(bnn(), images(), {"clean": None, "mine": own}, **options)
    assert (under(found, "clean"), under(found, "mine")) == (clean.accuracy, mine.accuracy)
    assert clean_in(found.records[0]).accuracy == clean.accuracy  # as a record of its own


def test_several_radii_give_one_accuracy_each_that_never_rises() -> None:
    threats = [Threat("linf", eps) for eps in (0.2, 0.02, 0.1)]
    found = tiny(net(), threats, attacks={"mine": PGD(threats[2], steps=3)})
    assert [record.threat.eps for record in found.records] == [0.02, 0.1, 0.2]
    assert found.records[0].correct > found.records[2].correct
    for smaller, larger in pairwise(found.records):
        assert bool((smaller.right >= larger.right).all())  # a broken image stays broken
    names = [{one["name"] for one in record.details["attacks"]} for record in found.records]
    assert ["mine" in one for one in names] == [False, True, False]
    alone = tiny(net(), threats[1])
    assert alone.records[0].correct == found.records[0].correct
    assert found.flags(0.02) == alone.flags()


@pytest.mark.parametrize("rule", ["vote", "loss"])
def test_other_rules_score_the_classifier_that_uses_them(rule: str) -> None:
    probability, other = (tiny(bnn(), samples=5, rule=used).records[0] for used in ("probability", rule))
    assert other.rule == rule
    # at most points of this network the three rules agree
    assert 0 < other.accuracy < under(Audit(Records([other])), "clean")
    assert abs(other.accuracy - probability.accuracy) < 0.1
    # a mean of logarithms cannot be tested
    assert ("certain" in other.details) == ("inconclusive" in other.details) == (rule == "vote")


@pytest.mark.parametrize(
    ("threat", "dtype"),
    [(Threat("l2", 1.0), torch.float32), (Threat("l1", 6.0), torch.float32), (THREAT, torch.bfloat16)],
)
def test_other_norms_and_dtypes_raise_no_flag_of_the_network(threat: Threat, dtype: torch.dtype) -> None:
    found = tiny(copy.deepcopy(bnn()).to(dtype), threat, samples=3)
    assert found.records[0].accuracy < under(found, "clean")
    assert not {"discontinuity", "hidden_randomness"} & raised(found)
    assert dtype != torch.float32 or not {"gradients", "batch"} & raised(found)


def test_changes_nothing_and_is_reproducible() -> None:
    model = copy.deepcopy(bnn()).train()
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    first = tiny(model, samples=3)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(part.training for part in model.modules())
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)
    assert tiny(model, samples=3) == first


@pytest.mark.parametrize("begun", [1, 6, 12])
def test_finished_attacks_survive_an_interruption(begun: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    craft, crafted = Evaluation.craft, []

    def counting(self: Evaluation, *args: Any) -> Tensor:
        crafted.append(args[0])
        if len(crafted) == begun:
            raise KeyboardInterrupt
        return craft(self, *args)

    whole = tiny(bnn(), samples=3)
    monkeypatch.setattr(Evaluation, "craft", counting)
    with pytest.raises(KeyboardInterrupt):
        tiny(bnn(), out=tmp_path / "records.json", samples=3)
    assert tiny(bnn(), out=tmp_path / "records.json", samples=3) == whole
    assert Audit(Records.load(tmp_path / "records.json")) == whole
    assert [file.name for file in tmp_path.iterdir()] == ["records.json"]
    # each ran once, except the interrupted one; the sanity attack comes last
    ran = [one for one in attacks_in(whole).values() if one["role"] != "clean" and sum(one["n"])]
    assert len(crafted) == len(ran) + 1 + 1


def test_the_running_attack_is_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("advbnn.display.progress.SECONDS_BETWEEN_LINES", 0.0)
    tiny(net(), label="plain", progress=True)
    shown = capsys.readouterr().err
    assert "plain: quick: 0 of 1 batches" in shown
    assert "seed 0, radius 1 of 1, attack 1 of 9: noise, 100%" in shown


def test_is_found_among_other_records_and_printed() -> None:
    found = tiny(Scaled(net()), label="cheat")
    for words in ("cheat, 80 images", "linf 0.14, quick: ", "95 % interval", FLAGS["gradients"].title):
        assert words in str(found)
    assert str(tiny(net(), Threat(eps=0.01))).endswith("No flag is raised.")
    others = evaluate(net(), images(), samples=1, seeds=1)
    assert Audit(others + found.records) == found
    renamed = replace(found.records[0], model=replace(found.records[0].model, label="other"))
    for records, listed in ((others, "none"), (Records([*found.records, renamed]), "cheat .*, other ")):
        with pytest.raises(ValueError, match=f"records .*{listed}"):
            Audit(records)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"threat": [THREAT, THREAT]}, ValueError, "differ only in their radius"),
        ({"threat": [THREAT, Threat("l2", 0.2)]}, ValueError, "differ only in their radius"),
        ({"threat": Threat("linf", 0.0)}, ValueError, "positive and finite radius.*eps=0.0"),
        ({"threat": ["linf"]}, TypeError, "threat must be a Threat.*got 'linf'"),
        ({"level": "quik"}, ValueError, "level='quik'.*'quick'"),
        ({"rule": "median"}, ValueError, "rule='median'.*'vote'"),
        ({"transfer_from": {"x": "y"}}, TypeError, "transfer_from.*'x' is str"),
        ({"attacks": {"mine": PGD(Threat("linf", 0.1))}}, ValueError, "'mine' has .*eps=0.1.*eps=0.14"),
    ],
)
def test_refuses_what_it_cannot_audit(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        audit(**{"model": net(), "data": images(), "threat": THREAT} | arguments)


@pytest.mark.filterwarnings("error")
def test_warns_of_few_images_once() -> None:
    with pytest.warns(SmallSampleWarning, match="16 images.*100") as warned:
        tiny(net(), rows=range(16))
    assert len(warned) == 1


@pytest.mark.peers
def test_breaks_as_much_as_autoattack(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = pytest.importorskip("pyautoattack")
    # black-box attacks find nothing more here, and would take most of the time
    few_queries = {"square_queries": 20, "nes_queries": 10, "label_queries": 20}
    monkeypatch.setitem(LEVELS, "standard", replace(LEVELS["standard"], **few_queries))
    threat, few = Threat("linf", 0.09), images().subset(range(40))
    x, y = to_float(few.images), few.labels
    with torch.random.fork_rng():
        x_adv = peer.AutoAttack(net(), eps=threat.eps, seed=0).run_standard_evaluation(x, y)[0]
    theirs = int((net()(x_adv).argmax(1) == y).sum())
    ours = audit(net(), few, threat, "standard").records[0].correct[0]
    assert 5 < theirs < 35
    assert ours <= theirs + 1  # one image may depend on the random starts


def test_finished_audits_are_kept_and_guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transfer = Transfer(net(), PGD(THREAT, steps=1))
    options = {"out": tmp_path / "records.json", "attacks": {"mine": transfer}}
    first = quick(net(), **options)
    assert Audit(Records.load(options["out"])) == first
    monkeypatch.setattr(PGD, "__call__", None)
    assert quick(net(), **options) == first
    other = copy.deepcopy(net())
    with torch.no_grad():
        next(other.parameters()).add_(0.01)
    for changes, name in (
        ({"transfer_from": {"itself": net()}}, "attack.transfer_from.itself"),
        ({"attacks": {"mine": replace(transfer, source=other)}}, "attack.attacks.mine.source"),
    ):
        with pytest.raises(ValueError, match=f"finished record 'quick'.*{name} was"):
            quick(net(), **options | changes)
