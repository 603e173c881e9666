"""Losses against their formulas, one example at a time in plain Python."""

import math

import pytest
import torch

from advbnn.attacks.losses import TargetedDLR, cross_entropy, dlr, gaussian_nll, margin

LOGITS = torch.tensor([[2.0, -1.0, 0.5, 0.0], [0.1, 0.3, 0.2, -4.0]], dtype=torch.float64)
Y = torch.tensor([0, 3])


def test_cross_entropy():
    expected = [math.log(sum(map(math.exp, row))) - row[y] for row, y in zip(LOGITS.tolist(), Y.tolist(), strict=True)]
    assert cross_entropy(LOGITS, Y).tolist() == pytest.approx(expected)
    assert cross_entropy(LOGITS, Y, True).tolist() == pytest.approx([-e for e in expected])


def test_margin_is_positive_exactly_on_success():
    assert margin(LOGITS, Y).tolist() == pytest.approx([0.5 - 2.0, 0.3 + 4.0])
    assert margin(LOGITS, Y, True).tolist() == pytest.approx([1.5, -4.3])


def test_dlr_is_invariant_to_scale_and_shift():
    assert dlr(LOGITS, Y).tolist() == pytest.approx([-1.5 / 2.0, 4.3 / 0.2])
    torch.testing.assert_close(dlr(7 * LOGITS + 3, Y), dlr(LOGITS, Y))
    with pytest.raises(ValueError, match="loss='dlr' .*3 classes.*use loss='margin'"):
        dlr(LOGITS[:, :2], Y.clamp(max=1))


def test_targeted_dlr_knows_both_classes():
    pairs = torch.tensor([[0, 2], [3, 0]])
    objective = TargetedDLR(loss="dlr")
    expected = [(0.5 - 2.0) / (2.0 - (0.0 - 1.0) / 2), (0.1 + 4.0) / (0.3 - (0.1 - 4.0) / 2)]
    assert objective(LOGITS, pairs).tolist() == pytest.approx(expected)
    with pytest.raises(ValueError, match="targets .*4 classes.*has 3"):
        objective(LOGITS[:, :3], pairs.clamp(max=2))


def test_gaussian_likelihood():
    normal = torch.distributions.Normal(LOGITS, 1.0)
    target = torch.randn(2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = -normal.log_prob(target).sum(1) - 2 * math.log(2 * math.pi)
    torch.testing.assert_close(gaussian_nll(LOGITS, target), expected)
    torch.testing.assert_close(gaussian_nll(LOGITS[:, 0], target[:, 0]), (LOGITS - target)[:, 0] ** 2 / 2)
    with pytest.raises(ValueError, match=r"loss='nll' .*\(2,\).*\(2, 4\)"):
        gaussian_nll(LOGITS, target[:, 0])


def test_logits_of_minus_infinity_do_not_enter_the_scale():
    inf, y = math.inf, torch.tensor([0])
    pair = torch.tensor([[0, 1]])
    three, two = torch.tensor([[3.0, 2.0, 1.0, -inf, -inf]]), torch.tensor([[3.0, 2.0, -inf, -inf, -inf]])
    for logits, expected in ((three, -0.5), (two, -1.0)):
        for loss, labels in ((dlr, y), (TargetedDLR(loss="dlr"), pair)):
            leaf = logits.clone().requires_grad_()
            value = loss(leaf, labels)
            assert value.item() == pytest.approx(expected)
            (gradient,) = torch.autograd.grad(value.sum(), leaf)
            assert gradient.isfinite().all() and gradient[0, :2].abs().min() > 0
            assert not gradient[leaf == -inf].any()
