"""Mixtures of networks: which mode a call uses, and exact means over finitely many members."""

import copy
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_model, save_model
from torch import nn

from advbnn.attacks import PGD
from advbnn.attacks.threat import Threat
from advbnn.bayes.layers import Linear
from advbnn.bayes.mean_field import bayesianize
from advbnn.bayes.modes import Modes
from advbnn.bayes.prediction import Ensemble, predict
from advbnn.bayes.protocol import finite_support, members, posterior_mean
from advbnn.errors import AdvbnnError, ArgumentError
from advbnn.evaluation.attackable import attackable
from advbnn.evaluation.identity import ModelIdentity
from advbnn.evaluation.regression import regress
from advbnn.fast.acceleration import accelerate
from advbnn.randomness import seeded
from small_nets import conv_net, dense_net, filled_bank, filled_swag, images


def networks(count: int = 3) -> list[nn.Module]:
    """Plain networks with different weights; the last has another architecture."""
    torch.manual_seed(1)
    nets = [dense_net() for _ in range(count - 1)]
    for net in nets:
        for parameter in net.parameters():
            parameter.data = torch.randn_like(parameter)
    torch.manual_seed(2)
    return [net.eval() for net in (*nets, nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 3)))]


X = torch.rand(6, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(6) % 2


def test_every_call_chooses_a_mode_with_its_weight() -> None:
    nets = networks()
    modes = Modes(nets, weights=[1, 2, 5])
    assert modes.weights == (0.125, 0.25, 0.625) and len(modes) == 3 and not modes.training
    with seeded(0), torch.no_grad():
        calls = [modes(X) for _ in range(800)]
        chosen = torch.tensor([[torch.equal(call, net(X)) for net in nets] for call in calls])
    assert chosen.sum(1).eq(1).all()
    for count, weight in zip(chosen.sum(0).tolist(), modes.weights, strict=True):
        assert abs(count - 800 * weight) < 5 * math.sqrt(800 * weight * (1 - weight))  # five standard errors


@pytest.mark.parametrize("kind", ["plain", "mean-field", "bank", "swag"])
def test_a_mixture_of_one_is_its_component(kind: str) -> None:
    make = {
        "plain": conv_net,
        "mean-field": lambda: bayesianize(conv_net()),
        "bank": lambda: filled_bank(conv_net())[0],
        "swag": lambda: filled_swag(conv_net())[0],
    }[kind]
    one, x, y = make().eval(), images(), torch.arange(5) % 3
    modes = Modes([one])
    with seeded(3):
        expected = [one(x) for _ in range(3)]
    with seeded(3):
        assert all(torch.equal(modes(x), output) for output in expected)
    ours, theirs = predict(modes, x, 4, seed=0), predict(one, x, 4, seed=0)
    for name in ("probs", "label", "entropy", "mutual_information"):
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name))
    attack = PGD(Threat("linf", 0.1), steps=3)
    torch.testing.assert_close(attack(modes, x, y, seed=1), attack(one, x, y, seed=1))
    found = posterior_mean(one)
    assert (posterior_mean(modes) is None) == (found is None)
    assert posterior_mean(Modes([one, one])) is None


def test_members_expand_nested_posteriors_and_multiply_weights() -> None:
    bank, stored = filled_bank(dense_net().eval(), size=2)
    nets = networks()
    modes = Modes([bank, Modes(nets[1:], weights=[1, 3])], weights=[1, 4])
    found = members(modes)
    assert modes.support == len(found) == 4
    assert [member.weight for member in found] == pytest.approx([0.1, 0.1, 0.2, 0.6])
    for member, net in zip(found, [*stored, *nets[1:]], strict=True):
        torch.testing.assert_close(member.net(X), net(X))
    assert members(modes, at_most=3) == ()
    for other in (bayesianize(dense_net()), nn.Sequential(Linear(4, 3)), filled_swag(dense_net())[0]):
        assert members(Modes([nets[0], other])) == () and Modes([nets[0], other]).support == 0


def test_the_mean_over_members_is_the_limit_of_sampling() -> None:
    modes = Modes(networks(), weights=[1, 2, 3])
    exact, sampled = predict(modes, X), predict(modes, X, 4000, seed=0, exact_up_to=0)
    assert exact.exact and exact.samples == 3 and not sampled.exact and sampled.samples == 4000
    # a probability lies in [0, 1], so the standard error of a mean of 4,000 is at most 0.008
    assert (exact.probs - sampled.probs).abs().max() < 5 * 0.5 / math.sqrt(4000)
    spread = math.log(3)  # of an entropy
    for name in ("entropy", "expected_entropy", "mutual_information"):
        assert (getattr(exact, name) - getattr(sampled, name)).abs().max() < 5 * spread / math.sqrt(4000)


def test_exact_predictions_by_hand() -> None:
    nets, weights = networks(), torch.tensor([1, 2, 3]) / 6
    modes = Modes(nets, weights=weights.tolist())
    probs = torch.stack([net(X).softmax(-1) for net in nets]).detach()
    mean = (weights[:, None, None] * probs).sum(0)
    found = predict(modes, X)
    torch.testing.assert_close(found.probs, mean)
    entropies = -(probs * probs.log()).sum(-1)
    torch.testing.assert_close(found.expected_entropy, (weights[:, None] * entropies).sum(0))
    torch.testing.assert_close(found.entropy, -(mean * mean.log()).sum(-1))
    torch.testing.assert_close(Ensemble(modes)(X).exp(), mean)
    by_loss = (weights[:, None, None] * probs.log()).sum(0).argmax(-1)
    assert torch.equal(predict(modes, X, rule="loss").label, by_loss)
    votes = (weights[:, None, None] * nn.functional.one_hot(probs.argmax(-1), 3)).sum(0)
    chosen = predict(modes, X, rule="vote").label
    torch.testing.assert_close(votes.gather(1, chosen[:, None])[:, 0], votes.amax(1))


def test_weighted_votes_are_decided_by_weight_then_probability() -> None:
    def sure(label: int, logit: float) -> nn.Module:
        net = nn.Linear(4, 3)
        net.weight.data.zero_()
        net.bias.data = logit * nn.functional.one_hot(torch.tensor(label), 3).float()
        return net

    x = torch.zeros(1, 4)
    assert predict(Modes([sure(0, 9), sure(1, 2), sure(1, 2)], weights=[3, 1, 1]), x, rule="vote").label == 0
    assert predict(Modes([sure(0, 9), sure(1, 2), sure(1, 2)], weights=[2, 1, 1]), x, rule="vote").label == 0
    assert predict(Modes([sure(0, 2), sure(1, 9), sure(1, 9)], weights=[2, 1, 1]), x, rule="vote").label == 1
    assert predict(Modes([sure(0, 9), sure(1, 2), sure(1, 2)]), x, rule="vote").label == 1


def test_random_layers_inside_of_components_are_not_said_to_be_frozen() -> None:
    mixed = Modes([nn.Sequential(nn.Flatten(), Linear(64, 3)) for _ in range(2)]).eval()
    for modes in (mixed, Modes([mixed])):
        with pytest.raises(ArgumentError, match="random layers.*bayesianize"), modes.frozen(seed=0):
            pass
    whole = Modes([bayesianize(dense_net()) for _ in range(2)]).eval()
    with whole.frozen(seed=0):
        assert torch.equal(whole(torch.ones(2, 4)), whole(torch.ones(2, 4)))


def test_members_with_noise_of_their_own_are_sampled() -> None:
    nets = networks()
    noisy = nn.Sequential(nets[0], nn.Dropout(0.5)).eval()
    noisy[1].train()  # at test time too
    found = predict(Modes([noisy, nets[1]]), X, 7, seed=0)
    assert not found.exact and found.samples == 7


def test_the_exact_mean_has_the_exact_gradient() -> None:
    nets = networks()
    x = X.clone().requires_grad_()
    (ours,) = torch.autograd.grad(Ensemble(Modes(nets))(x)[:, 0].sum(), x)
    mean = torch.stack([net(x).softmax(-1) for net in nets]).mean(0)
    (expected,) = torch.autograd.grad(mean[:, 0].log().sum(), x)
    torch.testing.assert_close(ours, expected)


def test_regression_uses_all_members() -> None:
    nets = networks()
    modes = Modes(nets, weights=[1, 1, 2])
    outputs, weights = torch.stack([net(X) for net in nets]).detach(), torch.tensor([0.25, 0.25, 0.5])[:, None, None]
    found = regress(modes, X, samples=5)
    mean = (weights * outputs).sum(0)
    torch.testing.assert_close(found.mean, mean)
    torch.testing.assert_close(found.weights_std, (weights * (outputs - mean) ** 2).sum(0).sqrt())


def test_accelerated_modes_have_the_same_calls_and_members(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda run, *, options, **how: compile_(run, backend="eager", **how))
    bank = filled_bank(conv_net(), size=2)[0]
    modes, x = Modes([conv_net(), bank], weights=[1, 3]).eval(), images()
    fast = accelerate(modes, "compile")
    assert accelerate(fast) is fast and accelerate(modes, "eager") is modes
    with seeded(0), torch.no_grad():
        expected = [modes(x) for _ in range(8)]
    with seeded(0), torch.no_grad():
        for output in expected:
            torch.testing.assert_close(fast(x), output, rtol=1e-4, atol=1e-5)
    ours, theirs = members(fast), members(modes)
    assert [member.weight for member in ours] == [member.weight for member in theirs]
    assert members(fast)[2].net is ours[2].net  # its fast passes are kept
    torch.testing.assert_close(predict(fast, x).probs, predict(modes, x).probs, rtol=1e-4, atol=1e-5)
    with modes.frozen(seed=1):
        assert torch.equal(fast(x), modes(x))


def test_files_make_room_and_keep_the_weights(tmp_path: Path) -> None:
    nets = [dense_net().eval() for _ in range(3)]
    for net in nets:
        for parameter in net.parameters():
            parameter.data = torch.randn_like(parameter)
    modes = Modes(nets, weights=[1, 1, 7])
    save_model(modes, str(tmp_path / "modes.safetensors"))
    for room in (1, 5):
        other = Modes([copy.deepcopy(nets[0]) for _ in range(room)])
        load_model(other, str(tmp_path / "modes.safetensors"))
        assert other.weights == modes.weights and len(other) == 3
        assert torch.equal(predict(other, X).probs, predict(modes, X).probs)
        assert ModelIdentity.of(other) == ModelIdentity.of(modes)
    assert ModelIdentity.of(modes).kind == "Modes(3 x Sequential)"
    assert ModelIdentity.of(modes).sha256 != ModelIdentity.of(Modes(nets)).sha256


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Modes([]), "networks"),
        (lambda: Modes(["a.safetensors"]), "networks.*load"),
        (lambda: Modes(networks(), weights=[1, 2]), "weights.*3"),
        (lambda: Modes(networks(), weights=[1, 2, 0]), "weights.*positive"),
        (lambda: Modes(networks()[2]), r"networks.*Modes\(\[net\]\)"),  # a Sequential, whose layers are no modes
        (lambda: Modes(None), "networks.*list"),
        (lambda: Modes(networks(), weights=["a", 1, 2]), "weights.*number"),
        (lambda: Modes(networks(), weights=3), "weights.*number"),
        (lambda: Modes(networks()).sample(3), "mode.*at most 2"),
        (lambda: predict(Modes(networks()), X, exact_up_to=-1), "exact_up_to"),
        (lambda: predict(Modes([*networks(), nn.Linear(4, 2)]), X), r"networks.*\[6, 3\].*\[6, 2\].*same classes"),
        (lambda: regress(Modes([*networks(), nn.Linear(4, 2)]), X), "networks.*same classes"),
        (
            lambda: PGD(Threat("linf", 0.1), eot=2)(Modes([*networks(), nn.Linear(4, 2)]), X, Y),
            "networks.*same classes",
        ),
    ],
)
def test_bad_arguments_are_refused(call, message: str) -> None:
    with pytest.raises(AdvbnnError, match=message):
        call()


def test_the_members_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, made = [], Modes.members
    monkeypatch.setattr(Modes, "members", lambda self: (calls.append(self), made(self))[1])
    modes = Modes([dense_net(), dense_net()]).eval()
    predict(modes, X)
    Ensemble(modes)(X)
    assert len(calls) == 2  # those of a bank are copies


class Noisy(nn.Module):
    """Adds random numbers that torch's default generator does not make."""

    def __init__(self, draw: Callable[[torch.Size], torch.Tensor]) -> None:
        super().__init__()
        self.net, self.draw = dense_net(), draw

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x) + self.draw(x[:, :3].shape)


GENERATOR = torch.Generator().manual_seed(0)


@pytest.mark.parametrize(
    "draw",
    [lambda shape: torch.from_numpy(np.random.randn(*shape)).float(), lambda s: torch.randn(s, generator=GENERATOR)],
    ids=["numpy", "own generator"],
)
def test_members_that_are_random_without_torch_are_sampled(draw: Callable[[torch.Size], torch.Tensor]) -> None:
    noisy = Modes([Noisy(draw), dense_net()]).eval()
    found = predict(noisy, X, samples=40)
    assert not found.exact and found.samples == 40 and found.mutual_information.max() > 0.01
    assert finite_support(noisy, X) == ()
    ensemble = Ensemble(noisy, samples=3)
    assert not torch.equal(ensemble(X), ensemble(X))
    with pytest.raises(ArgumentError, match="samples"):
        Ensemble(noisy, samples=None)(X)
    assert predict(Modes([dense_net().eval()]), X).exact


def test_a_member_that_returns_probabilities_is_refused_wherever_it_stands() -> None:
    plain, softened = dense_net().eval(), nn.Sequential(dense_net(), nn.Softmax(1)).eval()
    for nets in ([plain, softened], [softened, plain]):
        with pytest.raises(ArgumentError, match="probabilities"):
            predict(Modes(nets), X)
        with pytest.raises(ArgumentError, match="probabilities"):
            Ensemble(Modes(nets))(X)
        with pytest.raises(ArgumentError, match="probabilities"):
            attackable(Modes(nets), X)


def test_networks_that_do_not_fit_together() -> None:
    with pytest.raises(ArgumentError, match=r"float32 and torch.float64.*net.float\(\)"):
        Modes([dense_net(), dense_net().double()])
    assert len(Modes([nn.Flatten(), dense_net().double()])) == 2  # a network without weights takes any type
