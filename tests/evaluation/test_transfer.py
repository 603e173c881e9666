"""The transfer matrix pair by pair against `evaluate`, and affinity by hand."""

from dataclasses import replace

import pytest
from torch import nn

from advbnn import Modes
from advbnn.attacks import PGD, Transfer
from advbnn.attacks.threat import Threat
from advbnn.evaluation.accuracy import evaluate
from advbnn.evaluation.records import Records
from advbnn.evaluation.transfer import affinity, transfer_matrix
from trained_nets import bnn, digits, net

ATTACK = PGD(Threat("linf", 0.1), steps=3)
OPTIONS = {"samples": 3, "seeds": 2, "batch_size": 60}


@pytest.fixture(scope="module")
def matrix() -> Records:
    return transfer_matrix({"net": net(), "bnn": bnn()}, digits(), ATTACK, **OPTIONS)


def test_every_pair_is_what_evaluate_gives(matrix: Records) -> None:
    assert len(matrix) == 2 + 4
    assert matrix.only(kind="clean", label="bnn") == evaluate(bnn(), digits(), **OPTIONS, label="bnn")[0]
    own = matrix.only(label="bnn", name="from bnn")
    assert own.correct == evaluate(bnn(), digits(), ATTACK, **OPTIONS)[0].correct
    across = matrix.only(label="bnn", name="from net")
    assert across.correct == evaluate(bnn(), digits(), Transfer(net(), ATTACK), **OPTIONS)[0].correct
    assert across.source.label == "net"
    assert across.source == matrix.only(kind="clean", label="net").model


def test_targets_may_be_exact_means_and_sampled_networks() -> None:
    modes = Modes([net(), nn.Sequential(nn.Flatten(), nn.Linear(64, 10))]).eval()
    found = transfer_matrix({"modes": modes, "bnn": bnn()}, digits(), replace(ATTACK, eot=2), **OPTIONS)
    assert {(r.model.label, r.samples, r.exact) for r in found} == {("modes", 2, True), ("bnn", 3, False)}
    assert set(affinity(found)) == {"modes", "bnn"}
    mixed = [replace(r, samples=5) if r.model.label == "bnn" and r.name == "from modes" else r for r in found]
    with pytest.raises(ValueError, match="samples.*bnn: 5"):
        affinity(Records(mixed))


COUNTS = {"net": {"clean": 100, "from net": 60, "from bnn": 80}, "bnn": {"clean": 90, "from net": 80, "from bnn": 40}}


def with_counts(records: Records, counts: dict[str, dict[str, int]]) -> Records:
    return Records(replace(r, correct=(counts[r.model.label][r.name],) * 2, outcomes=()) for r in records)


def test_affinity_by_hand(matrix: Records) -> None:
    assert affinity(with_counts(matrix, COUNTS)) == {"net": {"net": 1.0, "bnn": 0.2}, "bnn": {"net": 0.5, "bnn": 1.0}}
    # an attack that does not even hurt its own target leaves nothing to divide by
    unhurt = {**COUNTS, "bnn": {"clean": 90, "from net": 100, "from bnn": 90}}
    assert affinity(with_counts(matrix, unhurt)) == {"net": {"net": 1.0, "bnn": None}, "bnn": {"net": 0.5, "bnn": None}}


def test_refuses_what_cannot_be_compared(matrix: Records) -> None:
    with pytest.raises(ValueError, match="models .*two"):
        transfer_matrix({"net": net()}, digits(), ATTACK)
    with pytest.raises(ValueError, match="label"):
        transfer_matrix({"net": net(), "bnn": bnn()}, digits(), ATTACK, label="x")
    with pytest.raises(ValueError, match="attack .*Transfer"):
        transfer_matrix({"net": net(), "bnn": bnn()}, digits(), Transfer(net(), ATTACK), **OPTIONS)
    other = [replace(r, data=replace(r.data, name="cifar10")) if r.model.label == "net" else r for r in matrix]
    with pytest.raises(ValueError, match="data.*cifar10"):
        affinity(Records(other))
    with pytest.raises(ValueError, match="one record with .*clean"):
        affinity(matrix.where(kind="transfer"))
    both = Records([*matrix, *(replace(r, threat=Threat("linf", 0.2)) for r in matrix.where(kind="transfer"))])
    with pytest.raises(ValueError, match="threat.*eps=0.1.*eps=0.2"):
        affinity(both)


@pytest.mark.parametrize("missing", ["from net", "from bnn"])
def test_what_was_not_measured_has_no_affinity(matrix: Records, missing: str) -> None:
    """Without its own attack a target has no affinity; without that of a source, none with this source."""
    part = Records(r for r in matrix if (r.model.label, r.name) != ("bnn", missing))
    whole, found = affinity(matrix), affinity(part)
    lost = {"net", "bnn"} if missing == "from bnn" else {"net"}
    for source in ("net", "bnn"):
        assert found[source]["net"] == whole[source]["net"]
        assert found[source]["bnn"] == (None if source in lost else whole[source]["bnn"])
