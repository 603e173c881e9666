"""The contract of random networks, for every family; and a new family that no other file knows."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_model, save_model
from torch import nn
from torch.utils.checkpoint import checkpoint

from advbnn.attacks import PGD
from advbnn.attacks.threat import Threat
from advbnn.bayes.mean_field import bayesianize
from advbnn.bayes.modes import Modes
from advbnn.bayes.prediction import predict
from advbnn.bayes.protocol import RandomNetwork, Weights, gaussian_parameters, posterior_mean, random_parts
from advbnn.bayes.sample_bank import SampleBank
from advbnn.errors import ArgumentError, InputError
from advbnn.evaluation.identity import ModelIdentity
from advbnn.fast.acceleration import accelerate, engine_of
from advbnn.randomness import seeded
from small_nets import conv_net, filled_bank, filled_swag, images
from zoo import ZOO


class RandomScale(RandomNetwork):
    """A family that exists only here: all weights times one random number."""

    def sample(self) -> Weights:
        scale = 1 + 0.1 * torch.randn(())
        return {name: scale * parameter.detach() for name, parameter in self.net.named_parameters()}


FAMILIES: dict[str, Callable[[nn.Module], RandomNetwork]] = {
    "mean-field": bayesianize,
    "bank": lambda net: filled_bank(net, size=5)[0],
    "new": RandomScale,
    "swag": lambda net: filled_swag(net, size=5)[0],
    "modes": lambda net: Modes([filled_bank(copy.deepcopy(net), size=2)[0], bayesianize(copy.deepcopy(net)), net]),
}
families = pytest.mark.parametrize("family", FAMILIES)


def outputs(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Six forward passes in a row, under a fixed seed."""
    with seeded(0), torch.no_grad():
        return torch.stack([model(x) for _ in range(6)])


@families
def test_a_call_runs_a_fresh_sample_and_a_frozen_block_one_sample(family: str) -> None:
    model, x = FAMILIES[family](conv_net()), images()
    assert len(outputs(model, x).unique(dim=0)) > 1
    state = torch.get_rng_state()
    for seed in range(3):
        with seeded(seed):
            weights = model.sample()
        with model.frozen(seed) as same:
            assert same is model
            assert torch.equal(model(x), model.run(weights, x)) and torch.equal(model(x), model(x))
            assert model.frozen_sample is not None and not model(x).requires_grad
        with model.frozen(weights=weights):
            assert torch.equal(model(x), model.run(weights, x))
    assert torch.equal(torch.get_rng_state(), state)


@families
def test_frozen_blocks_nest_and_end_when_the_block_raises(family: str) -> None:
    model, x = FAMILIES[family](conv_net()), images()
    with model.frozen(seed=0):
        outer = model(x)
        with model.frozen(seed=1):
            assert not torch.equal(model(x), outer)
        assert torch.equal(model(x), outer)
        assert copy.deepcopy(model).frozen_sample is None
    with pytest.raises(KeyError), model.frozen(seed=1):
        raise KeyError
    assert model.frozen_sample is None
    with pytest.raises(ArgumentError, match="seed or weights"), model.frozen(1, weights=model.sample()):
        pass


@pytest.mark.parametrize("kind", ZOO)
@pytest.mark.parametrize("family", ["mean-field", "bank", "swag", "modes"])
def test_copies_and_files_keep_the_network(family: str, kind: str, tmp_path: Path) -> None:
    def make() -> RandomNetwork:
        # torch uses other recurrent kernels for weights that require gradients
        return FAMILIES[family](ZOO[kind].net()).eval().requires_grad_(False)

    model, x = make(), ZOO[kind].x()
    expected = outputs(model, x)  # scratch memory exists now, and is not stored
    with model.frozen(seed=1):
        copies = {"deepcopy": copy.deepcopy(model), "pickle": pickle.loads(pickle.dumps(model))}
    copies["state dict"] = make()
    copies["state dict"].load_state_dict(model.state_dict())
    save_model(model, str(tmp_path / "weights.safetensors"))
    copies["safetensors"] = make()
    load_model(copies["safetensors"], str(tmp_path / "weights.safetensors"))
    for how, other in copies.items():
        assert torch.equal(outputs(other, x), expected), how


@families
def test_every_family_is_predicted_attacked_identified_and_accelerated(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x, y = FAMILIES[family](conv_net()).eval(), images(), torch.arange(5) % 3
    with seeded(2):
        expected = torch.stack([model.run(model.sample(), x).softmax(-1) for _ in range(4)]).mean(0)
    torch.testing.assert_close(predict(model, x, 4, seed=2, exact_up_to=0).probs, expected)
    attack = PGD(Threat("linf", 0.1), steps=2)
    assert torch.equal(attack(model, x, y, seed=0), attack(model, x, y, seed=0))
    found = {ModelIdentity.of(model).sha256}
    for seed in range(2):
        with model.frozen(seed):
            found.add(ModelIdentity.of(model).sha256)
    assert len(found) == 3

    torch_compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda run, *, options, **how: torch_compile(run, backend="eager", **how))
    fast = accelerate(model, "compile")
    torch.testing.assert_close(outputs(fast, x), outputs(model, x), rtol=1e-4, atol=1e-5)
    assert engine_of(fast) == "compile"


def test_capabilities_of_the_families() -> None:
    bnn = bayesianize(conv_net())
    assert posterior_mean(bnn) is bnn.net
    assert posterior_mean(filled_bank(conv_net())[0]) is posterior_mean(conv_net()) is None
    model = nn.ModuleDict({"a": bnn, "b": filled_bank(conv_net())[0], "c": conv_net()})
    assert random_parts(model) == [("a", model["a"]), ("b", model["b"])]
    assert [p.name for p in gaussian_parameters(model)] == [f"a.{name}" for name, _, _ in bnn.posterior()]


def test_networks_that_are_random_already_are_refused() -> None:
    for wrap in (bayesianize, SampleBank):
        with pytest.raises(ArgumentError, match="converted already"):
            wrap(bayesianize(nn.Linear(2, 2)))
        with pytest.raises(ArgumentError, match="part '1'"):
            wrap(nn.Sequential(nn.Linear(2, 2), SampleBank(nn.Linear(2, 2))))
        with pytest.raises(TypeError, match="net must be"):
            wrap("vgg16")  # type: ignore[arg-type]


class Block(nn.Module):
    """A block that recomputes its activations in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.use_checkpoint = nn.Linear(3, 3), True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.layer, x, use_reentrant=False) if self.use_checkpoint else self.layer(x)


def test_activation_checkpointing_is_refused_inside_and_right_around() -> None:
    net = nn.Sequential(Block(), nn.Tanh(), nn.Linear(3, 2))
    for wrap in (bayesianize, SampleBank):
        with pytest.raises(ArgumentError, match=r"part '0' has use_checkpoint=True.*checkpoint\(bnn"):
            wrap(net)
    net[0].use_checkpoint = False
    bnn, x = bayesianize(net), torch.rand(2, 3, requires_grad=True)
    with seeded(0):
        checkpoint(bnn, x, use_reentrant=False).sum().backward()
    grads = [p.grad.clone() for p in bnn.parameters()]
    bnn.zero_grad()
    with seeded(0):
        bnn(x).sum().backward()
    for ours, p in zip(grads, bnn.parameters(), strict=True):
        torch.testing.assert_close(ours, p.grad)


def test_inputs_that_do_not_fit_are_explained_at_the_call() -> None:
    with pytest.raises(InputError, match=r"input.*torch.float32.*torch.float64"):
        bayesianize(conv_net())(images().double())
    with pytest.raises(RuntimeError, match="shapes .*multiplied"):  # no explanation fits
        bayesianize(nn.Sequential(nn.Embedding(5, 3), nn.Linear(4, 2)))(torch.zeros(1, 1, dtype=torch.long))
