from dataclasses import replace

import pytest
import torch
from torch import nn

from advbnn.attacks import PGD, Transfer
from advbnn.attacks.threat import Threat
from advbnn.evaluation.accuracy import evaluate
from advbnn.evaluation.records import Records
from advbnn.evaluation.transfer import affinity, transfer_matrix
from judged import bnn, digits, net

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


def test_affinity_is_the_papers_ratio(matrix: Records) -> None:
    def acc(**which: str) -> float:
        return matrix.only(**which).accuracy

    rho = affinity(matrix)
    clean, own, across = (
        acc(kind="clean", label="bnn"),
        acc(label="bnn", name="from bnn"),
        acc(label="bnn", name="from net"),
    )
    assert rho["net"]["bnn"] == pytest.approx((clean - across) / (clean - own))
    assert rho["net"]["net"] == rho["bnn"]["bnn"] == 1
    assert rho["net"]["bnn"] != rho["bnn"]["net"]


def test_affinity_by_hand(matrix: Records) -> None:
    counts = {
        ("net", "clean"): 100,
        ("net", "from net"): 60,
        ("net", "from bnn"): 80,
        ("bnn", "clean"): 90,
        ("bnn", "from net"): 100,
        ("bnn", "from bnn"): 90,
    }
    records = Records(replace(r, correct=(counts[r.model.label, r.name],) * 2, outcomes=()) for r in matrix)
    # an attack that does not even hurt its own target leaves nothing to divide by
    assert affinity(records) == {"net": {"net": 1.0, "bnn": None}, "bnn": {"net": 0.5, "bnn": None}}


def test_a_model_that_no_attack_moves_has_no_affinity() -> None:
    class Constant(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 5 * torch.eye(10)[0].expand(len(x), 10) + 0 * x.flatten(1).sum(1, keepdim=True)

    with pytest.warns(UserWarning, match="gradient masking"):
        records = transfer_matrix({"constant": Constant(), "net": net()}, digits(), ATTACK, **OPTIONS)
    assert affinity(records)["net"]["constant"] is None
    assert affinity(records)["constant"]["net"] == pytest.approx(0, abs=0.1)


def test_refuses_what_cannot_be_compared(matrix: Records) -> None:
    with pytest.raises(ValueError, match="two or more, by name"):
        transfer_matrix({"net": net()}, digits(), ATTACK)
    with pytest.raises(ValueError, match="leave out label"):
        transfer_matrix({"net": net(), "bnn": bnn()}, digits(), ATTACK, label="x")
    other = [replace(r, threat=Threat("linf", 0.2)) if r.name == "from net" else r for r in matrix]
    with pytest.raises(ValueError, match="affinity compares records with the same threat, got .*eps=0.2"):
        affinity(Records(other))
    other = [replace(r, data=replace(r.data, name="cifar10")) if r.model.label == "net" else r for r in matrix]
    with pytest.raises(ValueError, match="same data, got .*cifar10"):
        affinity(Records(other))
    with pytest.raises(ValueError, match="expected one record with .*clean"):
        affinity(matrix.where(kind="transfer"))
    both = Records([*matrix, *(replace(r, threat=Threat("linf", 0.2)) for r in matrix.where(kind="transfer"))])
    with pytest.raises(ValueError, match="same threat, got .*eps=0.1.*eps=0.2"):
        affinity(both)


@pytest.mark.parametrize("missing", ["from net", "from bnn"])
def test_what_was_not_measured_has_no_affinity(matrix: Records, missing: str) -> None:
    """Without its own attack a target has none at all, without another's it has none with that."""
    part = Records(r for r in matrix if (r.model.label, r.name) != ("bnn", missing))
    whole, found = affinity(matrix), affinity(part)
    lost = {"net", "bnn"} if missing == "from bnn" else {"net"}
    for source in ("net", "bnn"):
        assert found[source]["net"] == whole[source]["net"]
        assert found[source]["bnn"] == (None if source in lost else whole[source]["bnn"])


def test_refuses_an_attack_with_a_source_of_its_own() -> None:
    with pytest.raises(ValueError, match="attack must be made on each of the models in turn, got Transfer"):
        transfer_matrix({"net": net(), "bnn": bnn()}, digits(), Transfer.from_mean(bnn(), ATTACK), **OPTIONS)
