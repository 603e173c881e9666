"""What holds for every attack: ball, box, state, seeds, splits, targets, and how bad input is refused."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from advbnn import attacks
from advbnn.noise import add_noise
from advbnn.posterior import bayesianize
from advbnn.threat import Threat

LINF, L2, L1 = Threat("linf", 0.1), Threat("l2", 0.5), Threat("l1", 2.0)

# one line an attack, with as little work as shows it in full
ATTACKS = {
    "fgsm": lambda threat, **options: attacks.FGSM(threat, **options),
    "bim": lambda threat, **options: attacks.BIM(threat, steps=3, **options),
    "pgd": lambda threat, **options: attacks.PGD(threat, steps=3, **options),
    "pgd-best": lambda threat, **options: attacks.PGD(
        threat, steps=3, restarts=2, pick="best", momentum=0.9, schedule="cosine", selection_samples=3, **options
    ),
    "sgd": lambda threat, **options: attacks.SGD(threat, steps=3, **options),
    "apgd": lambda threat, **options: attacks.APGD(threat, steps=6, restarts=2, selection_samples=3, **options),
    "cw": lambda threat, **options: attacks.CW(
        threat, steps=4, search_steps=3, first_c=1.0, learning_rate=0.1, selection_samples=3, **options
    ),
    "square": lambda threat, **options: attacks.Square(threat, queries=60, selection_samples=3, **options),
    "nes": lambda threat, **options: attacks.NES(threat, queries=70, directions=8, selection_samples=3, **options),
    "spsa": lambda threat, **options: attacks.SPSA(threat, queries=70, directions=8, selection_samples=3, **options),
    "zoo": lambda threat, **options: attacks.ZOO(threat, queries=70, directions=8, selection_samples=3, **options),
}
CLASSES = 5


def small_net(shape=(1, 4, 4), dtype=torch.float32) -> nn.Module:
    """Smooth, so that no gradient is exactly zero, and in training mode with statistics worth keeping."""
    torch.manual_seed(0)
    size = math.prod(shape)
    layers = [nn.Flatten(), nn.Linear(size, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Linear(12, CLASSES)]
    net = nn.Sequential(*layers)
    net[2].running_var.uniform_(0.5, 1.5)
    return net.to(dtype)


def images(n=6, shape=(1, 4, 4), dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(n, *shape, generator=generator).to(dtype)
    return x, torch.randint(CLASSES, (n,), generator=generator)


def supported(name: str, threat: Threat) -> bool:
    return not (name == "cw" and threat.norm == "l1")


def every(threats=(LINF, L2, L1)):
    pairs = itertools.product(ATTACKS, threats)
    return [pytest.param(n, t, id=f"{n}-{t.norm}") for n, t in pairs if supported(n, t)]


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


class Hungry(nn.Module):
    """Runs out of memory above a size of batch."""

    def __init__(self, net: nn.Module, limit: int, error: Exception) -> None:
        super().__init__()
        self.net, self.limit, self.error, self.sizes = net, limit, error, []

    def forward(self, x):
        self.sizes.append(len(x))
        if len(x) > self.limit:
            raise self.error
        return self.net(x)


OUT_OF_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: you tried"),
]


@pytest.mark.parametrize("error", OUT_OF_MEMORY)
def test_the_batch_is_halved_when_memory_runs_out(error):
    x, y = images(11)
    attack = attacks.PGD(LINF, steps=3)
    net = small_net()
    hungry = Hungry(net, 3, error)
    torch.testing.assert_close(attack(hungry, x, y, seed=0), attack(net, x, y, seed=0), atol=1e-6, rtol=0)
    assert max(hungry.sizes[2:]) <= 6 and hungry.sizes[-1] <= 3
    with pytest.raises(type(error), match="memory"):
        attack(Hungry(net, 0, error), x, y)


def test_other_errors_are_not_mistaken_for_a_lack_of_memory():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        attacks.FGSM(LINF)(small_net((9,)), *images())


def test_progress_grows_to_one_over_all_chunks(capsys):
    shares = []
    attack = attacks.PGD(LINF, steps=4, restarts=2, batch_size=2, progress=shares.append)
    attack(small_net(), *images(5), seed=0)
    assert shares == sorted(shares) and shares[0] > 0 and shares[-1] == pytest.approx(1)
    attacks.PGD(LINF, steps=2, progress=True)(small_net(), *images())
    assert "PGD" in capsys.readouterr().out
    assert attack == attacks.PGD(LINF, steps=4, restarts=2) and "progress" not in repr(attack)


class ConvolutionMasks(TorchDispatchMode):
    """Notes which gradients every convolution's backward pass was asked for: (input, weight, bias)."""

    def __init__(self) -> None:
        super().__init__()
        self.masks = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.convolution_backward.default:
            self.masks.append(tuple(args[10]))
        return func(*args, **(kwargs or {}))


def conv_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 2), nn.Flatten(), nn.Linear(4, CLASSES)
    )


@pytest.mark.parametrize("convert", [lambda net: net, bayesianize], ids=["plain", "bayesian"])
@pytest.mark.parametrize("name", ATTACKS)
def test_no_weight_gradient_is_computed(name, convert):
    model = convert(conv_net())
    with ConvolutionMasks() as seen:
        ATTACKS[name](LINF, eot=2)(model, *images(), seed=0)
    if seen.masks:
        assert set(seen.masks) == {(True, False, False)}
    else:
        assert not name.startswith(("fgsm", "bim", "pgd", "sgd", "apgd", "cw"))


@pytest.mark.parametrize("convert", [lambda net: net, bayesianize], ids=["plain", "bayesian"])
def test_no_weight_gradient_is_computed_by_a_compiled_model(convert):
    """A compiler builds the backward pass for all that asks for a gradient when the model is first called."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    masks = []

    def look(graph, inputs):
        masks.extend(
            tuple(node.args[10])
            for node in graph.graph.nodes
            if node.target is torch.ops.aten.convolution_backward.default
        )
        return make_boxed_func(graph.forward)

    torch._dynamo.reset()
    model = torch.compile(convert(conv_net()), backend=aot_autograd(fw_compiler=look, bw_compiler=look))
    attacks.PGD(LINF, steps=2)(model, *images(), seed=0)
    torch._dynamo.reset()
    assert masks and set(masks) == {(True, False, False)}


class Wrong(nn.Module):
    """Answers with something that is not logits."""

    def __init__(self, change) -> None:
        super().__init__()
        self.net, self.change = small_net(), change

    def forward(self, x):
        return self.change(self.net(x))


X, Y = images()
NET = small_net()
BAD_CALLS = {
    "outside": ((NET, X * 2, Y), ValueError, r"outside bounds \(0, 1\) by 0\.\d+; scale x into the bounds"),
    "below": ((NET, X - 0.5, Y), ValueError, r"x lies in \[-0\.4.*outside bounds"),
    "integers": ((NET, (X * 255).byte(), Y), TypeError, r"torch.uint8; images of 0 to 255 become x.float\(\) / 255"),
    "nan": ((NET, X * math.nan, Y), ValueError, "x holds NaN"),
    "scalar": ((NET, X[0, 0, 0, 0], Y), ValueError, r"batch \[n, ...\]"),
    "array": ((NET, X.numpy(), Y), TypeError, "x must be a tensor, got ndarray"),
    "no model": ((lambda x: x, X, Y), TypeError, "model must be a torch.nn.Module"),
    "large label": ((NET, X, Y + 3), ValueError, "y holds the label .*, but the model has 5 classes"),
    "negative label": ((NET, X, torch.full_like(Y, -1)), ValueError, "y holds the label -1"),
    "one-hot": ((NET, X, nn.functional.one_hot(Y, CLASSES)), ValueError, r"one-hot rows: y.argmax\(1\)"),
    "few labels": ((NET, X, Y[:2]), ValueError, r"one label for each of the 6 inputs, got shape \(2,\)"),
    "list": ((NET, X, Y.tolist()), ValueError, "y must be a tensor .* got list"),
    "real labels": ((NET, X, Y.float()), TypeError, "integer type, got torch.float32"),
    "tuple": ((Wrong(lambda z: (z, z)), X, Y), TypeError, "one tensor, got a tuple"),
    "probabilities": (
        (Wrong(lambda z: z.softmax(1)), X, Y),
        ValueError,
        "returned probabilities .* remove the softmax",
    ),
    "vector": ((Wrong(lambda z: z[:, 0]), X, Y), ValueError, r"logits of shape \[n, classes\], got \(6,\)"),
    "mean": ((Wrong(lambda z: z.mean(0, keepdim=True)), X, Y), ValueError, "1 rows for 6 inputs"),
    "nan out": ((Wrong(lambda z: z / 0 * 0), X, Y), ValueError, "model returned NaN"),
}


@pytest.mark.parametrize("case", BAD_CALLS)
@pytest.mark.parametrize("name", ATTACKS)
def test_bad_calls_are_refused_with_the_remedy(name, case):
    arguments, error, message = BAD_CALLS[case]
    with pytest.raises(error, match=message):
        ATTACKS[name](LINF)(*arguments)


def predicted(model: nn.Module):
    """Labels that no attack can take for successes from the start."""
    return model.eval()(X).argmax(1)


GRADIENT_ATTACKS = [n for n in ATTACKS if n.startswith(("fgsm", "bim", "pgd", "sgd", "apgd", "cw"))]


@pytest.mark.parametrize("name", GRADIENT_ATTACKS)
def test_a_model_without_a_gradient_is_refused(name):
    with pytest.raises(ValueError, match="no gradient with respect to x.*black-box"):
        ATTACKS[name](LINF)(Wrong(torch.Tensor.detach), X, predicted(NET))


class NaNAfter(nn.Module):
    """Its gradient, not its output, is NaN from the given call on."""

    def __init__(self, call: int) -> None:
        super().__init__()
        self.net, self.call, self.calls = small_net(), call, 0

    def forward(self, x):
        self.calls += 1
        bad = (x - x).abs().sqrt() if self.calls >= self.call else 0
        return self.net(x + bad)


@pytest.mark.parametrize("step", [1, 3])
def test_a_gradient_of_nan_is_refused_with_its_step(step):
    with pytest.raises(ValueError, match=f"the gradient at step {step} is NaN or infinite for 6 of 6 examples"):
        attacks.PGD(LINF, steps=4)(NaNAfter(step), *images())


class Saturated(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.net, self.scale = small_net(), scale

    def forward(self, x):
        return torch.round(self.net(x)) + self.scale * self.net(x)


@pytest.mark.parametrize("name", GRADIENT_ATTACKS)
def test_vanishing_gradients_are_called_masking(name):
    with pytest.warns(attacks.GradientMaskingWarning, match="6 of 6 examples: gradient masking"):
        ATTACKS[name](LINF)(Saturated(0.0), X, predicted(Saturated(0.0)))
    ATTACKS[name](LINF)(Saturated(1.0), X, predicted(Saturated(1.0)))  # warnings are errors here


BAD_OPTIONS = [
    ({"eot": 0}, "eot must be a whole number of at least 1, got 0"),
    ({"eot": 2.5}, "eot must be a whole number"),
    ({"loss": "cd"}, "loss='cd' is unknown: .*'ce'"),
    ({"average": "loses"}, "average='loses' is unknown: .* did you mean 'loss'"),
    ({"average": "probability", "loss": "nll"}, "needs a classifier"),
    ({"steps": 0}, "steps must be a whole number of at least 1"),
    ({"restarts": -1}, "restarts must be"),
    ({"selection_samples": 0}, "selection_samples must be"),
    ({"batch_size": 0}, "batch_size must be"),
    ({"schedule": "cosin"}, "did you mean 'cosine'"),
    ({"pick": "first"}, "pick='first' is unknown"),
    ({"step_size": 0.1, "relative_step_size": 0.2}, "not both"),
    ({"step_size": -0.1}, "step_size must be positive, got -0.1"),
    ({"momentum": -1}, "momentum must be 0 or more"),
]


@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS, ids=lambda o: "-".join(o) if isinstance(o, dict) else "")
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        attacks.PGD(LINF, **options)


def test_a_threat_is_needed():
    with pytest.raises(TypeError, match=r"threat must be a Threat such as Threat\('linf', 8/255\), got 0.1"):
        attacks.PGD(0.1)


def test_queries_count_every_draw():
    x, y = images()
    bnn = bayesianize(small_net())
    cost = {
        attacks.PGD(LINF, steps=5): 5,
        attacks.PGD(LINF, steps=5, eot=4): 20,
        attacks.PGD(LINF, steps=5, eot=4, average="probability"): 40,
        attacks.PGD(LINF, steps=5, eot=4, restarts=2, selection_samples=7): 2 * (20 + 7),
    }
    for attack, expected in cost.items():
        assert attack.run(bnn, x, y).queries.tolist() == [expected] * 6
    # one pass says all there is to know about a deterministic network
    assert attacks.PGD(LINF, steps=5, eot=4).run(small_net(), x, y).queries.tolist() == [5] * 6
