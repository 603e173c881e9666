"""What holds for every attack: ball, box, state, seeds, splits and targets."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from advbnn.attacks.threat import Threat
from advbnn.bayes.mean_field import bayesianize
from advbnn.defenses.rse import add_noise
from every_attack import ATTACKS, CLASSES, L2, LINF, X, every, images, predicted, small_net, supported


@pytest.fixture(params=["plain", "bayesian"])
def model(request):
    net = small_net()
    return net if request.param == "plain" else bayesianize(net)


@pytest.mark.parametrize("name", ATTACKS)
@settings(max_examples=8, deadline=None)
@given(
    threat=st.builds(
        Threat,
        st.sampled_from(["linf", "l2", "l1"]),
        st.sampled_from([0.0, 8 / 255, 0.3, 2.0]),
        st.sampled_from([(0.0, 1.0), (-0.5, 1.5)]),
    ),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
    n=st.integers(1, 5),
    shape=st.sampled_from([(1, 4, 4), (3, 5, 3), (9,)]),
    targeted=st.booleans(),
    seed=st.integers(0, 100),
)
def test_ball_and_box_hold_exactly(name, threat, dtype, n, shape, targeted, seed):
    if not supported(name, threat):
        return
    (x, y), net = images(n, shape, dtype), small_net(shape, dtype)
    x_adv = ATTACKS[name](threat, targeted=targeted)(net, x, y, seed=seed)
    assert x_adv.dtype == dtype and x_adv.shape == x.shape and x_adv.device == x.device
    assert not x_adv.requires_grad
    assert threat.distance(x_adv, x).max() <= threat.eps
    delta = (x_adv - x).reshape(n, -1)
    length = {"linf": delta.abs().amax(1), "l2": delta.norm(dim=1), "l1": delta.abs().sum(1)}[threat.norm]
    assert max(length.tolist()) <= threat.eps
    assert x_adv.min() >= threat.bounds[0] and x_adv.max() <= threat.bounds[1]


@pytest.mark.parametrize(("name", "threat"), every())
def test_an_attack_raises_the_loss_and_leaves_its_arguments(name, threat, model):
    x, y = images(32)
    kept_x, kept_y = x.clone(), y.clone()
    x_adv = ATTACKS[name](threat)(model, x, y, seed=0)
    assert torch.equal(x, kept_x) and torch.equal(y, kept_y)
    mean_net = getattr(model, "net", model).eval()
    loss = nn.CrossEntropyLoss()
    assert loss(mean_net(x_adv), y) > loss(mean_net(x), y)


@pytest.mark.parametrize(("name", "threat"), every())
def test_a_targeted_attack_raises_the_targets_probability(name, threat, model):
    x, _ = images(32)
    target = torch.full((32,), 2)
    x_adv = ATTACKS[name](threat, targeted=True)(model, x, target, seed=0)
    mean_net = getattr(model, "net", model).eval()
    assert mean_net(x_adv).softmax(1)[:, 2].mean() > mean_net(x).softmax(1)[:, 2].mean()


@pytest.mark.parametrize(("name", "threat"), every())
def test_a_seed_repeats_a_run_however_the_batch_is_split(name, threat, model):
    x, y = images(5)
    whole = ATTACKS[name](threat, eot=2)(model, x, y, seed=5)
    assert torch.equal(whole, ATTACKS[name](threat, eot=2)(model, x, y, seed=5))
    split = ATTACKS[name](threat, eot=2, batch_size=2)(model, x, y, seed=5)
    torch.testing.assert_close(split, whole, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("name", "threat"), every((LINF,)))
def test_seeds_differ_and_none_is_fresh(name, threat):
    x, model = X, bayesianize(small_net())
    y = predicted(model.net)
    attack = ATTACKS[name](L2 if name == "fgsm" else threat)
    runs = [attack(model, x, y, seed=seed) for seed in (0, 1, None, None)]
    for a, b in itertools.combinations(runs, 2):
        assert not torch.equal(a, b)


class Interrupted(nn.Module):
    """Stops an attack at its third look at the model."""

    def __init__(self, model: nn.Module, error: BaseException | None) -> None:
        super().__init__()
        self.model, self.error, self.calls = model, error, 0

    def forward(self, x):
        self.calls += 1
        if self.error is not None and self.calls == 3:
            raise self.error
        return self.model(x)


@pytest.mark.parametrize(
    "error", [None, ValueError("broken"), KeyboardInterrupt()], ids=["whole", "raises", "interrupted"]
)
@pytest.mark.parametrize(("name", "threat"), every((LINF,)))
def test_nothing_of_the_model_or_of_the_random_state_is_touched(name, threat, error, model):
    inner = getattr(model, "net", model)
    inner[3].eval()  # a part that the caller keeps in evaluation mode
    inner[4].bias.requires_grad_(False)
    inner[1].weight.grad = torch.ones_like(inner[1].weight)
    wrapped = Interrupted(model, error)
    flags = [(m, m.training) for m in wrapped.modules()]
    parameters = [(p, p.requires_grad, p.grad, p.detach().clone()) for p in wrapped.parameters()]
    buffers = [(b, b.clone()) for b in wrapped.buffers()]
    state = torch.get_rng_state()
    try:
        ATTACKS[name](threat, eot=3)(wrapped, *images(), seed=None)
    except (ValueError, KeyboardInterrupt) as raised:
        assert raised is error
    else:
        assert error is None or wrapped.calls < 3
    assert torch.equal(torch.get_rng_state(), state)
    assert all(m.training == training for m, training in flags)
    for parameter, requires_grad, grad, value in parameters:
        assert parameter.requires_grad == requires_grad and parameter.grad is grad
        assert torch.equal(parameter, value)
    assert torch.equal(inner[1].weight.grad, torch.ones_like(inner[1].weight))
    assert all(torch.equal(buffer, value) for buffer, value in buffers)


@pytest.mark.parametrize("block", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", ATTACKS)
def test_it_works_where_gradients_are_off(name, block):
    (x, y), net = images(), small_net()
    expected = ATTACKS[name](LINF)(net, x, y, seed=0)
    with block():
        found = ATTACKS[name](LINF)(net, x.clone(), y.clone(), seed=0)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("name", ATTACKS)
def test_an_empty_batch_stays_empty(name):
    x, y = torch.empty(0, 1, 4, 4), torch.empty(0, dtype=torch.int64)
    assert ATTACKS[name](LINF)(small_net(), x, y).shape == x.shape


@pytest.mark.parametrize("name", ATTACKS)
def test_it_runs_on_noise_layers_and_dropout(name):
    x, y = images()
    dropout = nn.Sequential(nn.Dropout(0.3), small_net())
    noisy = add_noise(nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(64, CLASSES)))
    for random in (dropout, noisy):
        x_adv = ATTACKS[name](LINF, eot=2)(random, x, y, seed=0)
        assert torch.equal(x_adv, ATTACKS[name](LINF, eot=2)(random, x, y, seed=0))


@pytest.mark.parametrize("name", [n for n in ATTACKS if n != "cw"])
@pytest.mark.parametrize("outputs", [1, 3])
def test_regression_is_attacked_through_its_likelihood(name, outputs):
    torch.manual_seed(0)
    model = bayesianize(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, outputs)))
    x = torch.rand(9, 4)
    y = model.net(x).detach() + 0.5
    x_adv = ATTACKS[name](LINF, loss="nll", eot=2)(model, x, y, seed=0)
    assert ((model.net(x_adv) - y) ** 2).mean() > ((model.net(x) - y) ** 2).mean()
