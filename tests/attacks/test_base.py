"""What holds for every attack: ball and box, seeds, splits, restored state, and refused arguments."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import every_attack
from advbnn import attacks
from advbnn.attacks.threat import Threat
from advbnn.bayes.mean_field import bayesianize
from advbnn.defenses.rse import add_noise
from every_attack import (
    ATTACKS,
    CLASSES,
    CLASSIFIERS_ONLY,
    GRADIENT_ATTACKS,
    L2,
    LINF,
    X,
    Y,
    every,
    images,
    norms,
    predicted,
    small_net,
)


@pytest.fixture(params=["plain", "bayesian"])
def model(request):
    net = small_net()
    return net if request.param == "plain" else bayesianize(net)


@pytest.mark.filterwarnings("ignore:eps=2 allows every point")
@pytest.mark.parametrize("name", ATTACKS)
@settings(max_examples=8, deadline=None)
@given(
    data=st.data(),
    eps=st.sampled_from([0.0, 8 / 255, 0.3, 2.0]),
    bounds=st.sampled_from([(0.0, 1.0), (-0.5, 1.5)]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
    n=st.integers(1, 5),
    shape=st.sampled_from([(1, 4, 4), (3, 5, 3), (9,)]),
    targeted=st.booleans(),
    seed=st.integers(0, 100),
)
def test_ball_and_box_hold_exactly(name, data, eps, bounds, dtype, n, shape, targeted, seed):
    threat = Threat(data.draw(st.sampled_from(norms(name))), eps, bounds)
    (x, y), net = images(n, shape, dtype), small_net(shape, dtype)
    x_adv = ATTACKS[name](threat, targeted=targeted)(net, x, y, seed=seed)
    assert not x_adv.requires_grad
    every_attack.assert_within(x_adv, x, threat)


@pytest.mark.parametrize(("name", "threat"), every())
def test_an_attack_raises_the_loss_and_leaves_its_arguments(name, threat, model):
    x, y = images(32)
    kept_x, kept_y = x.clone(), y.clone()
    x_adv = ATTACKS[name](threat)(model, x, y, seed=0)
    assert torch.equal(x, kept_x) and torch.equal(y, kept_y)
    mean_net, loss = getattr(model, "net", model).eval(), nn.CrossEntropyLoss()
    assert loss(mean_net(x_adv), y) > loss(mean_net(x), y)


@pytest.mark.parametrize(("name", "threat"), [case for case in every((LINF,)) if case.values[0] != "hopskipjump"])
def test_a_targeted_attack_raises_the_targets_probability(name, threat, model):
    (x, _), target = images(32), torch.full((32,), 2)
    x_adv = ATTACKS[name](threat, targeted=True)(model, x, target, seed=0)
    mean_net = getattr(model, "net", model).eval()
    assert mean_net(x_adv).softmax(1)[:, 2].mean() > mean_net(x).softmax(1)[:, 2].mean()


@pytest.mark.parametrize(("name", "threat"), every())
@pytest.mark.parametrize("convert", [lambda net: net, bayesianize], ids=["plain", "bayesian"])
def test_a_seed_reproduces_a_run_however_the_batch_is_split(name, threat, convert):
    # in float64, where the rounding of other batch sizes does not flip the sign of a gradient
    (x, y), model = images(5, dtype=torch.float64), convert(small_net(dtype=torch.float64))
    whole = ATTACKS[name](threat, eot=2)(model, x, y, seed=5)
    assert torch.equal(whole, ATTACKS[name](threat, eot=2)(model, x, y, seed=5))
    split = ATTACKS[name](threat, eot=2, batch_size=2)(model, x, y, seed=5)
    torch.testing.assert_close(split, whole, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("name", "threat"), every((LINF,)))
def test_seeds_differ_and_none_is_fresh(name, threat):
    model = bayesianize(small_net())
    attack, y = ATTACKS[name](L2 if name == "fgsm" else threat), predicted(model.net)
    runs = [attack(model, X, y, seed=seed) for seed in (0, 1, None, None)]
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(runs, 2))


class Interrupted(nn.Module):
    """Stops an attack at its third query."""

    def __init__(self, model: nn.Module, error: BaseException | None) -> None:
        super().__init__()
        self.model, self.error, self.calls = model, error, 0

    def forward(self, x):
        self.calls += 1
        if self.error is not None and self.calls == 3:
            raise self.error
        return self.model(x)


@pytest.mark.parametrize("error", [None, KeyboardInterrupt()], ids=["whole", "interrupted"])
@pytest.mark.parametrize("name", ATTACKS)
def test_the_model_and_the_random_state_are_restored(name, error, model):
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
        ATTACKS[name](LINF, eot=3)(wrapped, *images(), seed=None)
    except KeyboardInterrupt as raised:
        assert raised is error
    else:
        assert error is None or wrapped.calls < 3
    assert torch.equal(torch.get_rng_state(), state)
    assert all(m.training == training for m, training in flags)
    for parameter, requires_grad, grad, value in parameters:
        assert parameter.requires_grad == requires_grad and parameter.grad is grad and torch.equal(parameter, value)
    assert torch.equal(inner[1].weight.grad, torch.ones_like(inner[1].weight))
    assert all(torch.equal(buffer, value) for buffer, value in buffers)


@pytest.mark.parametrize("name", ATTACKS)
def test_it_works_where_gradients_are_off(name):
    (x, y), net = images(), small_net()
    expected = ATTACKS[name](LINF)(net, x, y, seed=0)
    for block in (torch.no_grad, torch.inference_mode):
        with block():
            assert torch.equal(ATTACKS[name](LINF)(net, x.clone(), y.clone(), seed=0), expected)


@pytest.mark.parametrize("name", ATTACKS)
def test_it_runs_on_noise_layers_dropout_and_an_empty_batch(name):
    x, y = images()
    dropout = nn.Sequential(nn.Dropout(0.3), small_net())
    noisy = add_noise(nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(64, CLASSES)))
    for random in (dropout, noisy):
        x_adv = ATTACKS[name](LINF, eot=2)(random, x, y, seed=0)
        assert torch.equal(x_adv, ATTACKS[name](LINF, eot=2)(random, x, y, seed=0))
    assert ATTACKS[name](LINF)(dropout, x[:0], y[:0]).shape == (0, 1, 4, 4)


@pytest.mark.parametrize("name", [n for n in ATTACKS if n not in CLASSIFIERS_ONLY])
@pytest.mark.parametrize("outputs", [1, 3])
def test_regression_is_attacked_through_its_likelihood(name, outputs):
    torch.manual_seed(0)
    model = bayesianize(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, outputs)))
    x = torch.rand(9, 4)
    y = model.net(x).detach() + 0.5
    x_adv = ATTACKS[name](LINF, loss="nll", eot=2)(model, x, y, seed=0)
    assert ((model.net(x_adv) - y) ** 2).mean() > ((model.net(x) - y) ** 2).mean()


class Changed(nn.Module):
    """The small network with its outputs changed."""

    def __init__(self, change) -> None:
        super().__init__()
        self.net, self.change = small_net(), change

    def forward(self, x):
        return self.change(self.net(x))


NET = small_net()
BAD_CALLS = {
    "outside": ((NET, X * 2, Y), ValueError, r"x .*outside bounds .*scale"),
    "integers": ((NET, (X * 255).byte(), Y), TypeError, r"x .*uint8.* / 255"),
    "nan": ((NET, X * math.nan, Y), ValueError, "x .*NaN"),
    "scalar": ((NET, X[0, 0, 0, 0], Y), ValueError, r"x .*x\[None\]"),
    "no model": ((lambda x: x, X, Y), TypeError, "model .*nn.Module"),
    "large label": ((NET, X, Y + 3), ValueError, "y .*5 classes"),
    "negative label": ((NET, X, torch.full_like(Y, -1)), ValueError, "y .*-1"),
    "one-hot": ((NET, X, nn.functional.one_hot(Y, CLASSES)), ValueError, r"y .*argmax\(1\)"),
    "few labels": ((NET, X, Y[:2]), ValueError, r"y .*6 inputs.*\(2,\)"),
    "real labels": ((NET, X, Y.float()), TypeError, r"y .*float32.*long\(\)"),
    "tuple": ((Changed(lambda z: (z, z)), X, Y), TypeError, "model .*tuple"),
    "probabilities": ((Changed(lambda z: z.softmax(1)), X, Y), ValueError, "model .*probabilities.*remove the softmax"),
    "vector": ((Changed(lambda z: z[:, 0]), X, Y), ValueError, r"model .*\[n, classes\].*\(6,\)"),
    "mean": ((Changed(lambda z: z.mean(0, keepdim=True)), X, Y), ValueError, "model .*1 rows for 6 inputs"),
    "nan out": ((Changed(lambda z: z / 0 * 0), X, Y), ValueError, "model .*NaN"),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_bad_calls_are_refused_with_the_remedy(case):
    arguments, error, message = BAD_CALLS[case]
    with pytest.raises(error, match=message):
        attacks.PGD(LINF, steps=1)(*arguments)


def test_regression_targets_are_finite_and_real():
    for y, error in ((torch.full((6, CLASSES), math.nan), ValueError), (Y, TypeError)):
        with pytest.raises(error, match="y "):
            attacks.PGD(LINF, loss="nll")(NET, X, y)


def test_other_errors_are_not_mistaken_for_a_lack_of_memory():
    with pytest.raises(RuntimeError, match="shapes .*multiplied"):
        attacks.FGSM(LINF)(small_net((9,)), *images())


@pytest.mark.parametrize("name", GRADIENT_ATTACKS)
def test_missing_and_zero_gradients_are_reported(name):
    with pytest.raises(ValueError, match="gradient.*black-box"):
        ATTACKS[name](LINF)(Changed(torch.Tensor.detach), X, predicted(NET))
    flat, steep = Changed(torch.round), Changed(lambda z: z.round() + z)
    with pytest.warns(attacks.GradientMaskingWarning, match="6 of 6 .*gradient masking"):
        ATTACKS[name](LINF)(flat, X, predicted(flat))
    ATTACKS[name](LINF)(steep, X, predicted(steep))  # warnings are errors here


@pytest.mark.parametrize("step", [1, 3])
def test_a_gradient_of_nan_is_refused_with_its_step(step):
    class NaNFrom(Changed):
        calls = 0

        def forward(self, x):
            self.calls += 1
            bad = (x - x).abs().sqrt() if self.calls >= step else 0  # its gradient is NaN, its value 0
            return self.net(x + bad)

    with pytest.raises(ValueError, match=f"step {step} .*6 of 6"):
        attacks.PGD(LINF, steps=4)(NaNFrom(None), *images())


@pytest.mark.parametrize("name", ["Square", "APGD", "PGD"])
def test_outputs_of_nan_within_the_ball_are_refused(name):
    clean = {image.numpy().tobytes() for image in X.float()}

    class NaNElsewhere(Changed):
        def forward(self, x):
            moved = torch.tensor([image.numpy().tobytes() not in clean for image in x.detach().float()])
            return self.net(x).masked_fill(moved[:, None], torch.nan)

    options = {"pick": "best", "random_start": False} if name == "PGD" else {}
    model = NaNElsewhere(None)
    with pytest.raises(ValueError, match="model returned NaN"):
        getattr(attacks, name)(LINF, **options)(model, X, predicted(model))


@pytest.mark.parametrize("option", ["eot", "selection_samples", "batch_size"])
def test_counts_are_positive_whole_numbers(option):
    for value in (0, 2.5, True):
        with pytest.raises(ValueError, match=f"{option} .*{value}"):
            attacks.FGSM(LINF, **{option: value})


def test_a_threat_and_known_names_are_needed():
    with pytest.raises(TypeError, match=r"threat .*Threat\('linf', 8/255\)"):
        attacks.PGD(0.1)
    for options, message in (
        ({"loss": "cd"}, "loss='cd' .*'ce'"),
        ({"average": "loses"}, "average='loses' .*'loss'"),
        ({"average": "probability", "loss": "nll"}, "average='probability' .*classifier"),
    ):
        with pytest.raises(ValueError, match=message):
            attacks.FGSM(LINF, **options)


def test_a_radius_that_holds_every_image_is_questioned():
    (x, y), net = images(2, (1, 4, 4)), small_net((1, 4, 4))
    with pytest.warns(UserWarning, match="eps=8 .*8/255"):
        attacks.FGSM(Threat("linf", 8))(net, x, y)
    for threat in (Threat("linf", 1.0), Threat("l2", 8.0), Threat("linf", 8.0, bounds=(0.0, 255.0))):
        attacks.FGSM(threat)(net, x, y)
