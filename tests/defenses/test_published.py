"""What every published defence promises: when its randomness changes, what shares it, and that it can be wrapped."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from advbnn import models
from advbnn.attacks import PGD
from advbnn.attacks.base import GradientMaskingWarning
from advbnn.attacks.threat import Threat
from advbnn.bayes.modes import Modes
from advbnn.defenses.profiles import defense
from advbnn.defenses.published import BETWEEN, EVERY_PASS, NEVER, AuthorsProtocol, Published
from advbnn.defenses.registry import ONE_NETWORK, PUBLISHED
from advbnn.randomness import resample, seeded

ALL = pytest.mark.parametrize("entry", ONE_NETWORK.values(), ids=list(ONE_NETWORK))


def wrapped(entry: Published) -> nn.Module:
    with seeded(0):
        net = models.build("resnet18", classes=10, image_size=32, channels=3)
        model = entry.network.wrap(net)
        model.train()
        model(torch.rand(4, 3, 32, 32))  # running statistics and quantisation ranges
    return model.eval()


def passes(model: nn.Module, x: Tensor, times: int = 2) -> list[Tensor]:
    with torch.no_grad(), seeded(1):
        return [model(x) for _ in range(times)]


@ALL
def test_randomness_changes_when_the_entry_says(entry: Published) -> None:
    model, x = wrapped(entry), torch.rand(2, 3, 32, 32)
    fresh_draws = []
    for seed in range(6):  # two choices of few may be equal
        resample(model, seed)
        fresh_draws.append(passes(model, x, 1)[0])
    repeated = passes(model, x, 6)
    assert any(not torch.equal(repeated[0], one) for one in repeated[1:]) == (entry.redrawn == EVERY_PASS)
    assert any(not torch.equal(fresh_draws[0], one) for one in fresh_draws[1:]) == (entry.redrawn == BETWEEN)
    resample(model, 0)
    torch.testing.assert_close(passes(model, x, 1)[0], fresh_draws[0])


@ALL
def test_a_batch_shares_one_draw_where_the_entry_says(entry: Published) -> None:
    model, image = wrapped(entry), torch.rand(1, 3, 32, 32)
    (outputs,) = passes(model, image.expand(3, -1, -1, -1), 1)
    # batched kernels may round rows differently; noise is far larger
    scale = outputs.abs().max()
    assert ((outputs - outputs[:1]).abs().max() < 1e-4 * scale) == entry.shared


@ALL
def test_wrapping_keeps_the_network_and_is_done_once(entry: Published) -> None:
    net = models.build("resnet18", classes=10, image_size=32, channels=3)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    model = entry.network.wrap(net)
    assert entry.network.wrap(model) is model
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())


@ALL
def test_weights_load_into_a_new_network_and_learn(entry: Published) -> None:
    model = wrapped(entry)
    other = entry.network.wrap(models.build("resnet18", classes=10, image_size=32, channels=3)).eval()
    other.load_state_dict(model.state_dict())
    x = torch.rand(2, 3, 32, 32)
    resample(model, 3), resample(other, 3)
    torch.testing.assert_close(passes(other, x, 1), passes(model, x, 1))
    with seeded(0):
        model.train()(x).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


# the mean over channels of the standard deviation that the source divides by
STDS = {
    **dict.fromkeys(("ctrw", "dcs", "double_win", "pni", "rna", "rpf"), 0.251),
    **dict.fromkeys(("learn2perturb", "wca"), 0.201),
}


@pytest.mark.parametrize("name", STDS)
def test_the_input_is_normalised_where_the_source_does_so(name: str) -> None:
    entry, net = PUBLISHED[name], models.build("resnet18")
    assert (entry.network.mean, entry.network.std) == (0.473, STDS[name])
    plain = replace(entry.network, mean=0.0, std=1.0)
    with seeded(0):
        raw = plain.wrap(net).eval()
    with seeded(0):
        normalised = entry.network.wrap(net).eval()
    normalised.net.load_state_dict(raw.state_dict())
    resample(raw, 0), resample(normalised, 0)
    x = torch.rand(2, 3, 32, 32)
    expected = passes(raw, (x - entry.network.mean) / entry.network.std, 1)
    torch.testing.assert_close(passes(normalised, x, 1), expected)
    # weights that were trained without it do not load
    with pytest.raises(RuntimeError, match="normalize"):
        normalised.load_state_dict(raw.state_dict())


@ALL
def test_a_recipe_names_it_and_builds_it(entry: Published) -> None:
    recipe = defense(entry.name, "cifar10")
    baseline = defense("adv" if entry.trained else "none", "cifar10", "common")
    changed = {name: getattr(baseline, name) for name in ("name", "network", "objective", "attack_mode")}
    assert replace(recipe, **changed) == baseline
    # as the sources of those that keep a draw, which has statistics of its own
    assert recipe.attack_mode == ("train" if entry.redrawn == BETWEEN else "eval")
    assert (recipe.objective == baseline.objective) == (entry.name != "ig_bnn")  # a loss of its own
    assert recipe.network == entry.network
    if entry.name != "resize_pad":  # the small network takes one size
        model = defense(entry.name, "digits").build(classes=10, shape=(1, 8, 8)).eval()
        assert model(torch.rand(2, 1, 8, 8)).shape == (2, 10)


@pytest.mark.parametrize("entry", PUBLISHED.values(), ids=lambda entry: entry.name)
def test_a_baseline_has_no_randomness_and_the_attack_of_its_defences(entry: Published) -> None:
    if not entry.baseline:
        assert entry.redrawn == NEVER
        return
    baseline = PUBLISHED[entry.baseline]
    assert baseline.redrawn == NEVER and not baseline.baseline
    assert (baseline.trained, baseline.attack_mode) == (entry.trained, entry.attack_mode)


def test_the_page_lists_all_and_its_examples_run() -> None:
    text = (Path(__file__).parents[2] / "docs" / "defenses.md").read_text(encoding="utf-8")
    for entry in PUBLISHED.values():
        assert f"| `{entry.name}` |" in text and entry.paper in text and entry.code in text
    scope: dict[str, Any] = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", text, re.S)), scope)
    assert scope["right"].shape == (2,)


class Coin(nn.Module):
    """Right on a kept heads, wrong on tails; its gradient moves the input only for the face it shows."""

    def __init__(self) -> None:
        super().__init__()
        self.face = 0

    def resample(self, seed: int) -> None:
        self.face = seed % 2

    def forward(self, x: Tensor) -> Tensor:
        first = x.flatten(1)[:, self.face] - 0.5
        return torch.stack([first, -first], 1)


def test_a_kept_draw_is_attacked_and_another_one_scored() -> None:
    x, y = torch.full((8, 1, 1, 2), 0.6), torch.zeros(8, dtype=torch.int64)
    attack = PGD(Threat("linf", 0.2), steps=5, step_size=0.1, random_start=False)
    right = {seed: AuthorsProtocol(attack, BETWEEN).correct(Coin(), x, y, seed).all().item() for seed in range(20)}
    # robust exactly where the two draws differ
    assert set(right.values()) == {True, False}
    fresh = AuthorsProtocol(attack, EVERY_PASS, predicted_labels=True)
    wrong_label = torch.ones(8, dtype=torch.int64)
    # every prediction is wrong, and moving away from it makes the image right
    assert fresh.correct(Coin(), x, wrong_label, 0).all() or fresh.correct(Coin(), x, wrong_label, 1).all()


def test_a_batch_of_the_source_shares_its_draws() -> None:
    x, y = torch.full((40, 1, 1, 2), 0.6), torch.zeros(40, dtype=torch.int64)
    attack = PGD(Threat("linf", 0.2), steps=5, step_size=0.1, random_start=False)
    right = AuthorsProtocol(attack, BETWEEN, batch_size=2).correct(Coin(), x, y, 0).view(20, 2)
    assert torch.equal(right[:, 0], right[:, 1])
    assert abs(right[:, 0].double().mean().item() - 0.5) < 4 * (0.25 / 20) ** 0.5  # two faces differ half of the time


class Saturated(nn.Module):
    """Without a gradient of its own; an attack that is given the soft form finds the way."""

    def forward(self, x: Tensor) -> Tensor:
        return (x > 0.5).to(x.dtype) + 0 * x

    def straight_through(self, x: Tensor) -> Tensor:
        return x


def test_the_gradients_of_a_protocol_are_those_of_the_source() -> None:
    readout = nn.Sequential(nn.Flatten(), Saturated(), nn.Linear(1, 2))
    with torch.no_grad():
        readout[2].weight.copy_(torch.tensor([[4.0], [0.0]]))
        readout[2].bias.copy_(torch.tensor([-2.0, 0.0]))
    x, y = torch.full((4, 1, 1, 1), 0.6), torch.zeros(4, dtype=torch.int64)
    attack = PGD(Threat("linf", 0.2), steps=5, step_size=0.1, random_start=False)
    with pytest.warns(GradientMaskingWarning):
        assert AuthorsProtocol(attack).correct(readout, x, y, 0).all()
    assert (readout(attack(readout, x, y, 0)).argmax(1) == 1).all()  # by the soft form


def test_a_mixture_is_asked_anew_for_each_image_or_averaged_exactly() -> None:
    def says(first: float) -> nn.Module:
        net = nn.Sequential(nn.Flatten(), nn.Linear(1, 2)).eval()
        with torch.no_grad():
            net[1].weight.copy_(torch.tensor([[1e-3], [0.0]]))
            net[1].bias.copy_(torch.tensor([first, 0.0]))
        return net

    mixture, n = Modes([says(2.0), says(-20.0)], weights=(0.9, 0.1)), 2000
    x, y = torch.rand(n, 1, 1, 1), torch.zeros(n, dtype=torch.int64)
    attack = PGD(Threat("linf", 0.1), steps=1, step_size=0.1)
    once = AuthorsProtocol(attack).correct(mixture, x, y, 0).double().mean().item()
    assert abs(once - 0.9) < 5 * (0.9 * 0.1 / n) ** 0.5
    # 0.9 sigmoid(2) + 0.1 sigmoid(-20) = 0.79 for the first class
    assert AuthorsProtocol(attack, passes=2).correct(mixture, x, y, 0).all()


def test_protocols_are_those_of_the_sources() -> None:
    protocols = {name: entry.protocol for name, entry in PUBLISHED.items()}
    kept = {name for name, protocol in protocols.items() if protocol.redrawn == BETWEEN}
    assert kept == {"rna", "rpf", "ctrw", "double_win", "dcs"}
    assert [name for name, protocol in protocols.items() if protocol.predicted_labels] == ["ig_bnn"]
    # the fast gradient sign method starts at the image, as do the attacks of BAT and of this paper's authors
    starts_at_the_image = {name for name, protocol in protocols.items() if not protocol.attack.random_start}
    assert starts_at_the_image == {"sap", "bat", "adv_bnn", "rse"}
    assert [name for name, protocol in protocols.items() if protocol.attack.pick == "first"] == ["double_win"]
    # all that keep their draw have batches of 128 images
    assert {protocols[name].batch_size for name in kept} == {128}
    averaged = {name: protocol.attack.eot for name, protocol in protocols.items() if protocol.attack.eot > 1}
    assert averaged == {"sap": 100, "wca": 50, "bat": 2, "modes": 3}
