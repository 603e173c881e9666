"""The bank of weight samples as a random network."""

import pytest
import torch
from torch import nn

from advbnn.bayes.sample_bank import SampleBank
from advbnn.randomness import seeded
from small_nets import dense_net, filled_bank
from zoo import ZOO


@pytest.mark.parametrize("kind", ZOO)
def test_each_sample_is_the_stored_network_bit_for_bit(kind: str) -> None:
    case = ZOO[kind]
    # torch uses other recurrent kernels for weights that require gradients
    bank, nets = filled_bank(case.net().eval().requires_grad_(False))
    x, own = case.x(), {name: p.clone() for name, p in bank.net.state_dict().items()}
    for index, net in enumerate(nets):
        with bank.frozen(weights=bank.sample(index)):
            assert torch.equal(bank(x), net(x))
    assert all(torch.equal(own[name], value) for name, value in bank.net.state_dict().items())


@pytest.mark.parametrize("kind", ZOO)
def test_members_are_the_stored_networks_and_share_their_memory(kind: str) -> None:
    case = ZOO[kind]
    bank, nets = filled_bank(case.net().eval().requires_grad_(False))
    x, members = case.x(), bank.members()
    assert [member.weight for member in members] == pytest.approx([1 / len(nets)] * len(nets))
    for member, net in zip(members, nets, strict=True):
        torch.testing.assert_close(member.net(x), net(x))
    stored = {tensor.data_ptr() for tensor in bank.samples.buffers()}
    assert {p.data_ptr() for p in members[0].net.parameters()} <= stored


def test_every_call_chooses_uniformly_with_the_default_generator() -> None:
    bank, nets = filled_bank(dense_net().eval(), size=4)
    x = torch.rand(2, 4)
    with seeded(0):
        calls = [bank(x) for _ in range(400)]
    with seeded(0):
        assert all(torch.equal(bank(x), call) for call in calls)
    chosen = torch.tensor([[torch.equal(call, output) for output in (net(x) for net in nets)] for call in calls])
    assert chosen.sum(1).eq(1).all()
    assert chosen.sum(0).min() > 100 - 5 * (400 * 0.25 * 0.75) ** 0.5  # within 5 standard errors


def test_input_gradients_are_those_of_the_sample_and_weights_get_none() -> None:
    bank, nets = filled_bank(dense_net().eval())
    x = torch.rand(2, 4, requires_grad=True)
    with bank.frozen(weights=bank.sample(1)):
        (gradient,) = torch.autograd.grad(bank(x).sum(), x)
    assert torch.equal(gradient, torch.autograd.grad(nets[1](x).sum(), x)[0])
    bank(x).sum().backward()
    assert all(p.grad is None for p in bank.parameters())
    assert list(bank.parameters()) == list(bank.net.parameters())


def test_training_mode_uses_the_batch_and_leaves_stored_statistics_alone() -> None:
    bank, nets = filled_bank(dense_net())
    assert all(part.training for part in bank.modules())
    before = {name: value.clone() for name, value in bank.state_dict().items()}
    x = torch.rand(8, 4)
    torch.testing.assert_close(bank.run(bank.sample(2), x), nets[2].train()(x))
    assert all(torch.equal(before[name], value) for name, value in bank.state_dict().items())


def test_a_bank_loads_exactly_what_was_saved() -> None:
    small, large = filled_bank(dense_net(), size=2)[0], filled_bank(dense_net(), size=4)[0]
    saved = {name: value.clone() for name, value in small.state_dict().items()}
    large.load_state_dict(saved)
    assert len(large) == 2 and "stored=2" in repr(large)
    assert all(torch.equal(saved[name], value) for name, value in large.state_dict().items())
    inside = nn.ModuleDict({"bank": SampleBank(dense_net())})
    inside.load_state_dict({f"bank.{name}": value for name, value in saved.items()})
    assert len(inside["bank"]) == 2


def test_a_bank_follows_its_type_and_takes_samples_of_other_networks() -> None:
    bank, _ = filled_bank(dense_net().eval())
    x, other = torch.rand(2, 4, dtype=torch.float64), dense_net().double().eval()
    assert bank.double()(x).dtype == torch.float64
    bank.add(other)
    assert torch.equal(bank.run(bank.sample(3), x), other(x))


def test_missing_samples_and_other_networks_are_refused() -> None:
    bank = SampleBank(dense_net())
    with pytest.raises(ValueError, match=r"no sample.*bank\.add"):
        bank(torch.rand(2, 4))
    with pytest.raises(ValueError, match=r"net.*'1\.bias'"):
        bank.add(dense_net(norm=False))
    bank.add()
    with pytest.raises(ValueError, match="index"):
        bank.sample(1)
