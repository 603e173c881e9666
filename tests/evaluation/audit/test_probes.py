import copy

import pytest
import torch
from torch import Tensor, nn

from advbnn.attacks.threat import Threat
from advbnn.bayes.mean_field import bayesianize
from advbnn.data import to_float
from advbnn.evaluation.attackable import Attackable, attackable
from advbnn.evaluation.audit.probes import moved, probe
from cheats import Counting, Exploding, Hashing, Normalising, Purifying, Reseeding, Rounded, Scaled
from trained_nets import digits, net

X, Y = to_float(digits().images[:40]), digits().labels[:40]
THREAT = Threat("linf", 0.1)


def probed(model: nn.Module, threat: Threat = THREAT) -> dict[str, Tensor]:
    found = probe(attackable(model, X), X, Y, threat, samples=5, seed=3)
    three = {"zero_gradient", "infinite_gradient", "explained"}  # points of each image
    assert all(values.shape == ((40, 3) if name in three else (40,)) for name, values in found.items())
    return found


@pytest.mark.parametrize(
    ("std", "threat"),
    [(0.0, THREAT), (0.1, Threat("l2", 0.8)), (0.1, Threat("l1", 5.0)), (0.1, Threat("linf", 0.1, (-9.0, 9.0)))],
)
def test_a_sound_network_passes(std: float, threat: Threat) -> None:
    found = probed(bayesianize(net(), init_std=std) if std else net(), threat)
    for name in ("zero_gradient", "infinite_gradient", "reseeds"):
        assert not found[name].any()
    assert found["explained"].median() > 0.9
    assert (found["repeat"] == 0).all()
    assert found["tiny_change"].max() < 1e-3
    assert found["batch"].max() < 1e-4
    assert torch.equal(found["evaluation_right"], found["training_right"])
    assert (found["cosine"].mean() > 0.999) == (std == 0)
    assert found["cosine"].max() <= 1 + 1e-9


def test_the_cosine_is_the_mean_over_pairs_of_weight_samples() -> None:
    class Choice(nn.Module):
        """A linear network whose weights are one of two orthogonal pairs."""

        def forward(self, x: Tensor) -> Tensor:
            which = int(torch.randint(2, ()))
            chosen.append(which)
            score = x.flatten(1)[:, 10 + which]
            return torch.stack([score, -score, -10 + 0 * score], 1)

    chosen: list[int] = []
    found = probe(Attackable(Choice()), X, torch.zeros(40, dtype=torch.int64), THREAT, 5, seed=3)
    first = torch.tensor(chosen[1:9])  # after the pass that looks for points nearby
    expected = ((first[:, None] == first[None]).double().sum() - 8) / 56
    assert 0 < expected < 1
    torch.testing.assert_close(found["cosine"], expected.expand(40))


@pytest.mark.parametrize(
    ("cheat", "name", "least", "most"),
    [
        (Scaled, "zero_gradient", 0.8, 1.0),
        (Rounded, "zero_gradient", 1.0, 1.0),
        (Exploding, "infinite_gradient", 1.0, 1.0),
        (Reseeding, "reseeds", 1.0, 1.0),
        (Counting, "repeat", 0.01, 1.0),
        (Hashing, "tiny_change", 0.01, 1.0),
        (Hashing, "repeat", 0.0, 0.0),
        (Hashing, "explained", -1.0, 0.5),
        (Normalising, "batch", 0.001, 1.0),
    ],
)
def test_sees_what_is_wrong(cheat: type[nn.Module], name: str, least: float, most: float) -> None:
    values = probed(cheat(net()))[name]
    middle = values.float().mean() if values.dtype == torch.bool else values.median()
    assert least <= middle <= most


def test_sees_a_gradient_that_only_perturbed_images_lack() -> None:
    at_image, at_random, after_step = probed(Purifying(net()))["zero_gradient"].double().mean(0)
    assert at_image < 0.2 and at_random > 0.8 and after_step > 0.3


def test_compares_the_modes_and_keeps_the_running_statistics() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.net = nn.BatchNorm2d(1), copy.deepcopy(net())

        def forward(self, x: Tensor) -> Tensor:
            self.norm(x)
            return self.net(x) if self.training else -self.net(x)

    model = Two().eval()
    before = copy.deepcopy(model.state_dict())
    found = probed(model)
    assert found["training_right"].float().mean() > 0.9
    assert found["evaluation_right"].float().mean() < 0.1
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("several", [lambda outputs: (outputs, outputs), lambda outputs: torch.stack([outputs] * 3, 1)])
def test_other_outputs_in_training_mode_are_not_compared(several) -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = copy.deepcopy(net())

        def forward(self, x: Tensor) -> Tensor:
            return several(self.net(x)) if self.training else self.net(x)

    found = probed(Heads().eval())
    assert torch.equal(found["training_right"], found["evaluation_right"])


def test_few_images_say_nothing_about_training_mode() -> None:
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10)).eval()
    found = probe(Attackable(model), X[:1], Y[:1], THREAT, 5, seed=0)
    assert torch.equal(found["training_right"], found["evaluation_right"])
    assert found["training_right"] is not found["evaluation_right"]  # each can be stored


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1, 100])
def test_a_tiny_change_is_its_step_or_the_smallest_of_the_dtype(dtype: torch.dtype, scale: int) -> None:
    x, step = scale * X.to(dtype), 2.0**-20
    change = (moved(x, scale / 2, step).double() - x.double()).abs()
    assert (change > 0).all()
    assert (change <= torch.maximum(2 * x.double() * torch.finfo(dtype).eps, torch.tensor(1.01 * step))).all()


def test_rounding_is_not_a_discontinuity() -> None:
    coarse = probe(Attackable(copy.deepcopy(net()).bfloat16()), X.bfloat16(), Y, THREAT, 5, seed=3)
    assert coarse["tiny_change"].isnan().all()
    with torch.autocast("cpu", torch.bfloat16):
        assert probed(net())["tiny_change"].isnan().all()
