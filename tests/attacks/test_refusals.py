"""Bad input, useless gradients and wrong options: how every attack says so."""

import math

import pytest
import torch
from torch import nn

from advbnn import attacks
from every_attack import ATTACKS, CLASSES, GRADIENT_ATTACKS, LINF, X, Y, images, predicted, small_net


def test_other_errors_are_not_mistaken_for_a_lack_of_memory():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        attacks.FGSM(LINF)(small_net((9,)), *images())


class Wrong(nn.Module):
    """Answers with something that is not logits."""

    def __init__(self, change) -> None:
        super().__init__()
        self.net, self.change = small_net(), change

    def forward(self, x):
        return self.change(self.net(x))


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


@pytest.mark.parametrize("name", [n for n in ATTACKS if n != "cw"])
def test_a_target_that_is_no_number_is_not_blamed_on_the_model(name):
    with pytest.raises(ValueError, match="y holds NaN or infinity"):
        ATTACKS[name](LINF, loss="nll")(NET, X, torch.full((len(X), CLASSES), math.nan))


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
