"""The bank of samples as a random network."""

import copy
import pickle

import pytest
import torch
from safetensors.torch import load_model, save_model
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from advbnn.bayes.prediction import Ensemble, predict
from advbnn.bayes.sample_bank import SampleBank
from advbnn.randomness import seeded
from small_nets import dense_net
from zoo import ZOO


def randomise(net: nn.Module) -> None:
    with torch.no_grad():
        for tensor in (*net.parameters(), *(b for b in net.buffers() if b.is_floating_point())):
            tensor.copy_(torch.rand_like(tensor) + 0.1)


def filled_bank(net: nn.Module, size: int = 3) -> tuple[SampleBank, list[nn.Module]]:
    """A bank and, as plain networks, the samples in it."""
    bank, twins = SampleBank(net), []
    for _ in range(size):
        randomise(net)
        bank.add()
        twins.append(copy.deepcopy(net))
    randomise(net)
    return bank, twins


@pytest.mark.parametrize("kind", ZOO)
def test_each_sample_is_the_stored_network_bit_for_bit(kind: str, tmp_path) -> None:
    case = ZOO[kind]
    # torch chooses other recurrent kernels for weights that ask for gradients, and stored samples never ask
    bank, twins = filled_bank(case.net().eval().requires_grad_(False))
    x = case.x()
    own = {name: p.clone() for name, p in bank.net.state_dict().items()}

    save_model(bank, str(tmp_path / "bank.safetensors"))
    stored = SampleBank(case.net().eval().requires_grad_(False))
    load_model(stored, str(tmp_path / "bank.safetensors"))
    loaded = SampleBank(case.net().eval().requires_grad_(False))
    loaded.load_state_dict(bank.state_dict())
    with bank.frozen(index=0):
        copies = [bank, stored, loaded, copy.deepcopy(bank), pickle.loads(pickle.dumps(bank))]
    for one in copies:
        assert len(one) == 3
        for index, twin in enumerate(twins):
            with one.frozen(index=index):
                assert torch.equal(one(x), twin(x))
    assert all(torch.equal(own[name], value) for name, value in bank.net.state_dict().items())


def test_every_call_chooses_anew_from_the_default_generator() -> None:
    bank, twins = filled_bank(dense_net().eval(), size=4)
    x = torch.rand(2, 4)
    outputs = [twin(x) for twin in twins]
    with seeded(0):
        calls = [bank(x) for _ in range(400)]
        after = torch.rand(())
    with seeded(0):
        assert all(torch.equal(bank(x), call) for call in calls)
        assert torch.equal(torch.rand(()), after)
    chosen = torch.tensor([[torch.equal(call, output) for output in outputs] for call in calls])
    assert chosen.sum(1).eq(1).all()
    assert chosen.sum(0).min() > 100 - 5 * (400 * 0.25 * 0.75) ** 0.5  # uniform within 5 standard errors


def test_frozen_is_one_network_and_nests() -> None:
    bank, twins = filled_bank(dense_net().eval(), size=5)
    x = torch.rand(2, 4)
    for seed in range(5):
        with seeded(seed):
            first = bank(x)
        state = torch.get_rng_state()
        with bank.frozen(seed):
            assert torch.equal(bank(x), first) and torch.equal(bank(x), first)
        assert torch.equal(torch.get_rng_state(), state)
    with bank.frozen(index=1) as same:
        assert same is bank
        with bank.frozen(index=2):
            assert torch.equal(bank(x), twins[2](x))
        assert torch.equal(bank(x), twins[1](x))
        assert bank._frozen is not None and copy.deepcopy(bank)._frozen is None
    with pytest.raises(RuntimeError, match="inside"), bank.frozen(index=1):
        raise RuntimeError("inside")
    assert bank._frozen is None


def test_predict_and_ensemble_average_over_the_samples() -> None:
    bank, twins = filled_bank(dense_net(), size=3)
    x = torch.rand(6, 4)
    for twin in twins:
        twin.eval()
    mean = torch.stack([twin(x).softmax(-1) for twin in twins]).mean(0)
    prediction = predict(bank, x, samples=500, seed=0)
    torch.testing.assert_close(prediction.probs, mean, atol=0.05, rtol=0)
    assert bank.training and bank.net[1].training
    bank.eval()
    assert torch.equal(Ensemble(bank, samples=5)(x), Ensemble(bank, samples=5)(x))


def test_input_gradients_are_those_of_the_sample_and_weights_get_none() -> None:
    bank, twins = filled_bank(dense_net().eval())
    x = torch.rand(2, 4, requires_grad=True)
    with bank.frozen(index=1):
        (gradient,) = torch.autograd.grad(bank(x).sum(), x)
    (expected,) = torch.autograd.grad(twins[1](x).sum(), x)
    assert torch.equal(gradient, expected)
    bank(x).sum().backward()
    assert all(p.grad is None for p in bank.parameters())
    assert list(bank.parameters()) == list(bank.net.parameters())


def test_training_mode_uses_the_batch_and_leaves_stored_statistics_alone() -> None:
    bank, twins = filled_bank(dense_net())
    before = {name: value.clone() for name, value in bank.state_dict().items()}
    x = torch.rand(8, 4)
    with bank.frozen(index=2):
        torch.testing.assert_close(bank(x), twins[2].train()(x))
    assert all(torch.equal(before[name], value) for name, value in bank.state_dict().items())


def test_a_bank_loads_exactly_what_was_saved() -> None:
    small, large = filled_bank(dense_net(), size=2)[0], filled_bank(dense_net(), size=4)[0]
    saved = {name: value.clone() for name, value in small.state_dict().items()}
    large.load_state_dict(saved)
    assert len(large) == 2
    assert all(torch.equal(saved[name], value) for name, value in large.state_dict().items())
    inside = nn.ModuleDict({"bank": SampleBank(dense_net())})
    inside.load_state_dict({f"bank.{name}": value for name, value in saved.items()})
    assert len(inside["bank"]) == 2
    assert "stored=2" in repr(small)


def test_a_bank_follows_its_type_and_takes_samples_of_other_networks() -> None:
    bank, _ = filled_bank(dense_net().eval())
    assert bank.double()(torch.rand(2, 4, dtype=torch.float64)).dtype == torch.float64
    other = dense_net().double().eval()
    bank.add(other)
    x = torch.rand(2, 4, dtype=torch.float64)
    with bank.frozen(index=3):
        assert torch.equal(bank(x), other(x))


class Checkpointed(nn.Module):
    """A network that saves memory by running its body twice."""

    def __init__(self) -> None:
        super().__init__()
        self.body = dense_net(norm=False)

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.body, x, use_reentrant=False)


def test_what_a_bank_cannot_do_is_refused() -> None:
    x = torch.rand(2, 4)
    with pytest.raises(TypeError, match="net"):
        SampleBank("vgg16")  # type: ignore[arg-type]
    bank = SampleBank(dense_net())
    with pytest.raises(ValueError, match="no sample"):
        bank(x)
    with pytest.raises(ValueError, match="no sample"), bank.frozen(0):
        pass
    with pytest.raises(ValueError, match=r"'1\.bias'"):
        bank.add(dense_net(norm=False))
    bank.add()
    with pytest.raises(ValueError, match="index"):
        bank.sample(1)
    with pytest.raises(ValueError, match="not both"), bank.frozen(0, index=0):
        pass
    checkpointed = SampleBank(Checkpointed())
    checkpointed.add()
    with pytest.raises(RuntimeError, match="checkpointing"):
        checkpointed(x)


@pytest.mark.parametrize("training", [True, False])
def test_a_new_sample_is_in_the_mode_of_the_bank(training: bool) -> None:
    bank = SampleBank(nn.Sequential(nn.Linear(2, 2), nn.Tanh())).train(training)
    bank.add()
    assert all(part.training is training for part in bank.modules())
