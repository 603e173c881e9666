"""Ensemble prediction: the paper's two rules, the vote, and the decomposition of uncertainty."""

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn

from advbnn.bayes.mean_field import bayesianize
from advbnn.bayes.modes import Modes
from advbnn.bayes.prediction import Ensemble, predict
from advbnn.errors import ArgumentError, ArgumentTypeError


class Scripted(nn.Module):
    """Returns the given log-probabilities, one set after another, for a batch of one."""

    def __init__(self, *rows: Sequence[float]) -> None:
        super().__init__()
        self.rows, self.calls = [torch.tensor([row]).log() for row in rows], 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.rows[(self.calls - 1) % len(self.rows)]


def bnn() -> nn.Module:
    torch.manual_seed(0)
    return bayesianize(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)), init_std=0.5)


X = torch.linspace(-1, 1, 24).reshape(6, 4)


def test_the_three_rules_by_hand() -> None:
    # two samples choose class 1 narrowly, one chooses class 0 with confidence
    rows = ((0.90, 0.05, 0.05), (0.25, 0.55, 0.20), (0.25, 0.55, 0.20))
    means = torch.tensor([[1.40 / 3, 1.15 / 3, 0.45 / 3]])
    for rule, label in (("probability", 0), ("vote", 1)):
        prediction = predict(Scripted(*rows), torch.zeros(1, 1), samples=3, rule=rule)
        assert prediction.label.item() == label
        torch.testing.assert_close(prediction.probs, means)
    # one sample all but excludes class 0, a loss that the other does not outweigh
    rows = ((0.001, 0.5, 0.499), (0.9, 0.09, 0.01))
    assert predict(Scripted(*rows), torch.zeros(1, 1), samples=2, rule="probability").label.item() == 0
    assert predict(Scripted(*rows), torch.zeros(1, 1), samples=2, rule="loss").label.item() == 1
    # a tied vote goes to the larger mean probability
    assert predict(Scripted((0.6, 0.4), (0.1, 0.9)), torch.zeros(1, 1), samples=2, rule="vote").label.item() == 1


def test_uncertainty_by_hand() -> None:
    agreeing = predict(Scripted((0.5, 0.5)), torch.zeros(1, 1), samples=4)
    assert agreeing.entropy.item() == pytest.approx(math.log(2))
    assert agreeing.mutual_information.item() == 0  # also by rounding, which would rank inputs
    opposed = predict(Scripted((1.0, 0.0), (0.0, 1.0)), torch.zeros(1, 1), samples=2)
    assert opposed.entropy.item() == pytest.approx(math.log(2))
    assert opposed.expected_entropy.item() == pytest.approx(0, abs=1e-6)
    assert opposed.mutual_information.item() == pytest.approx(math.log(2))


def test_entropy_is_the_sum_of_its_parts_and_bounded() -> None:
    p = predict(bnn(), X, samples=50, seed=0)
    torch.testing.assert_close(p.entropy, p.expected_entropy + p.mutual_information)
    assert (p.mutual_information > 0).all()
    assert (p.entropy <= math.log(3) + 1e-6).all()
    torch.testing.assert_close(p.probs.sum(-1), torch.ones(6))


def test_mode_statistics_and_random_state_are_restored() -> None:
    model = bnn().train()
    model.net[1].eval()
    before, statistics = torch.get_rng_state(), model.net[1].running_mean.clone()
    first = predict(model, X, samples=3, seed=1)
    assert model.training and not model.net[1].training
    assert torch.equal(model.net[1].running_mean, statistics)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.probs, predict(model, X, samples=3, seed=1).probs)
    assert not torch.equal(first.probs, predict(model, X, samples=3).probs)


def test_ensemble_is_the_log_of_the_mean_probability_and_deterministic_with_a_seed() -> None:
    model = bnn().eval()
    ensemble = Ensemble(model, samples=5, seed=2)
    torch.testing.assert_close(ensemble(X).exp(), predict(model, X, samples=5, seed=2).probs)
    torch.testing.assert_close(ensemble(X).softmax(-1), ensemble(X).exp())
    assert torch.equal(ensemble(X), ensemble(X))
    fresh = Ensemble(model, samples=5, seed=None)
    assert not torch.equal(fresh(X), fresh(X))


def test_ensemble_has_the_gradient_of_the_mean_probability() -> None:
    model = bnn().double().eval()
    ensemble, x = Ensemble(model, samples=3, seed=0), X.double().requires_grad_()
    ours = torch.autograd.grad(ensemble(x)[:, 0].sum(), x)[0]
    mean = torch.stack([model.run(model.sample(e), x).softmax(-1) for e in model.noise(3, seed=0)]).mean(0)
    torch.testing.assert_close(ours, torch.autograd.grad(mean[:, 0].log().sum(), x)[0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: predict(bnn(), X, samples=0), "samples"),
        (lambda: predict(bnn(), X, rule="votes"), "rule='votes'.*'vote'"),
        (lambda: predict(nn.Flatten(0), X), "logits"),
        (lambda: predict(nn.Identity(), X.long()), r"logits of a floating-point type.*int64.*float\(\)"),
        (lambda: predict(nn.Linear(4, 1), X), r"two classes.*advbnn\.regress"),
        (lambda: predict(bnn(), X.clone().index_fill_(0, torch.tensor([1, 4]), math.nan)), "x .*finite.* 2 of 6"),
    ],
)
def test_bad_arguments_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_what_is_no_network_is_refused() -> None:
    for make in (Ensemble, lambda model: predict(model, X)):
        with pytest.raises(ArgumentTypeError, match="model must be a torch.nn.Module, got int"):
            make(5)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_network_that_returns_nan_is_refused(value: float) -> None:
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.new_zeros(len(x), 3).index_fill_(0, torch.tensor([1]), value)

    with pytest.raises(ValueError, match="model returned NaN.*weights"):
        predict(Broken(), X, samples=2)


def test_a_class_may_be_impossible() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.Threshold(1e9, -math.inf))
    masked = torch.tensor([0.0, 1.0, -math.inf])

    class Masked(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return masked.expand(len(x), 3)

    assert predict(Masked(), X, samples=2).probs[:, 2].eq(0).all()
    with pytest.raises(ValueError, match="NaN"):  # no class is possible
        predict(net, X, samples=1)


def test_floating_point_images_of_0_to_255_are_questioned() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    images = torch.rand(2, 1, 2, 2)
    with pytest.warns(UserWarning, match="x .*255"):
        predict(net, 255 * images, samples=1)
    for fine in (images, 20 * (images - 0.5), images / 0.229):  # also when it is normalised
        predict(net, fine, samples=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_refuses_probabilities_whose_softmax_it_would_take(dtype: torch.dtype) -> None:
    model = nn.Sequential(bnn(), nn.Softmax(1)).to(dtype)
    with pytest.raises(ValueError, match="probabilities.*softmax"):
        predict(model, X.to(dtype), samples=3)
    with pytest.raises(ValueError, match="probabilities"):
        Ensemble(model.eval(), samples=3)(X.to(dtype))
    logs = nn.Sequential(model[0], nn.LogSoftmax(1))
    found, expected = (predict(net, X.to(dtype), 3, seed=0).probs for net in (logs, model[0]))
    # rounding logits of size L by eps changes a probability by up to L eps
    torch.testing.assert_close(found, expected, rtol=0, atol=20 * torch.finfo(dtype).eps)


def test_inputs_may_be_tokens_or_none_at_all() -> None:
    tokens = torch.arange(6).reshape(2, 3)
    assert predict(nn.Sequential(nn.Embedding(6, 2), nn.Flatten()), tokens, samples=1).probs.shape == (2, 6)
    assert predict(bnn(), X[:0], samples=2).probs.shape == (0, 3)


def test_dropout_in_training_mode_inside_an_evaluated_network_is_randomness() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 3))
    x = torch.rand(4, 3, 2, 2)
    assert predict(net.train(), x, samples=5, seed=0).mutual_information.max() < 1e-6  # in evaluation mode, as a whole
    net.eval()
    net[3].train()
    assert predict(net, x, samples=5, seed=0).mutual_information.min() > 1e-6
    assert [part.training for part in net] == [False, False, False, True, False]


def test_a_network_that_changes_its_inputs_is_refused() -> None:
    class Normalised(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sub_(0.3).div_(0.3)

    model = nn.Sequential(Normalised(), nn.Linear(4, 3))
    with pytest.raises(ArgumentError, match="in place"):
        predict(model, X.clone())
    with torch.inference_mode():
        predict(nn.Linear(4, 3), X.clone())  # its changes are not counted


def test_a_function_is_no_model() -> None:
    with pytest.raises(ArgumentTypeError, match=r"model must be a torch.nn.Module"):
        predict(lambda x: x, X)  # type: ignore[arg-type]


class Suspicious(nn.Module):
    """Adds noise to inputs whose mean is positive."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = x.mean(1) > 0
        return self.net(torch.where(chosen[:, None], x + torch.randn_like(x), x) if chosen.any() else x)


def test_a_network_that_is_random_for_some_inputs_is_sampled_for_all() -> None:
    model = Suspicious()
    found = predict(model, X, samples=5, seed=0)  # the first inputs are negative
    assert found.samples == 5 and found.mutual_information[-1] > 0 and found.mutual_information[0] == 0
    flipped = predict(model, X.flip(0), samples=5, seed=0)
    assert flipped.samples == 5 and flipped.mutual_information[0] > 0


def test_small_logits_are_told_apart_and_half_precision_sums_to_one() -> None:
    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    expected = net(X).argmax(1)
    with torch.no_grad():
        net.weight *= 1e-8
        net.bias *= 1e-8
    assert torch.equal(predict(net, X, samples=20).label, expected)
    for rule in ("loss", "vote"):
        assert torch.equal(predict(net, X, rule=rule).label, expected)
    for model in (bnn(), Modes([nn.Linear(4, 3) for _ in range(10)])):
        half = predict(model.bfloat16(), X.bfloat16(), samples=50)
        assert half.probs.dtype == torch.float32
        torch.testing.assert_close(half.probs.sum(1), torch.ones(len(X)))


def test_a_weight_sample_whose_logits_look_like_probabilities_by_chance_is_not_refused() -> None:
    alike, other = ([math.exp(z) for z in logits] for logits in ((0.25, 0.75), (1.0, 3.0)))
    assert predict(Scripted(alike, other), X[:1], samples=2).samples == 2
    assert Ensemble(Scripted(alike, other), samples=2)(X[:1]).shape == (1, 2)
    with pytest.raises(ArgumentError, match="probabilities"):
        predict(Scripted(alike, alike[::-1]), X[:1], samples=2)


def test_a_single_image_whose_logits_look_like_probabilities_by_chance_is_not_refused() -> None:
    net, x = nn.Linear(2, 2, bias=False), torch.tensor([[0.25, 0.5]])
    with torch.no_grad():
        net.weight.copy_(torch.diag(torch.tensor([1.0, 1.5])))
    assert net(x).sum() == 1
    assert predict(net, x).label == 1
    assert predict(Modes([net, nn.Linear(2, 2)]), x).exact
    with pytest.raises(ArgumentError, match="probabilities"):
        predict(Modes([nn.Sequential(net, nn.Softmax(1)), net]), x)
