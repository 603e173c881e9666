"""SWAG: its moments against the closed form, and what it stores."""

import itertools
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_model, save_model
from torch import nn

from advbnn import data
from advbnn.bayes.protocol import members
from advbnn.bayes.swag import SWAG
from advbnn.errors import ArgumentError
from advbnn.randomness import seeded
from advbnn.training.averaging import refresh_batchnorm
from small_nets import conv_net, dense_net, filled_swag, images


def flat(tensors) -> torch.Tensor:
    return torch.cat([tensor.detach().double().flatten() for tensor in tensors])


def collected(swag: SWAG, nets: list[nn.Module]) -> torch.Tensor:
    """The states of the weights, one row each, in the order of a weight sample."""
    return torch.stack([flat(dict(net.named_parameters())[name] for name in swag.sample()) for net in nets])


@pytest.mark.parametrize(("size", "rank"), [(4, 8), (9, 3)])
def test_the_stored_moments_are_those_of_the_collected_weights(size: int, rank: int) -> None:
    swag, nets = filled_swag(dense_net(), size=size, rank=rank)
    states = collected(swag, nets)
    torch.testing.assert_close(flat(swag.mean.buffers()), states.mean(0), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(flat(swag.variances().values()), states.var(0, correction=0), rtol=1e-4, atol=1e-6)
    running = states.cumsum(0) / torch.arange(1, size + 1)[:, None]
    kept = sorted(range(size), key=lambda i: i % rank)[-rank:] if size <= rank else range(size - rank, size)
    expected = {i % rank: (states - running)[i] for i in kept}
    for row, deviation in expected.items():
        found = flat(buffer[row] for buffer in swag.deviations.buffers())
        torch.testing.assert_close(found, deviation, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_samples_have_the_closed_form_covariance(scale: float) -> None:
    """Covariance scale / 2 * (diagonal + D D^T / (K - 1)), each entry within five standard errors."""
    swag, nets = filled_swag(nn.Linear(2, 2), size=6, rank=4, scale=scale)
    states, count = collected(swag, nets), 20_000
    running = states.cumsum(0) / torch.arange(1, 7)[:, None]
    deviations = (states - running)[2:]
    expected = scale / 2 * (states.var(0, correction=0).diag() + deviations.T @ deviations / 3)
    with seeded(0):
        samples = torch.stack([flat(swag.sample().values()) for _ in range(count)])
    variance = expected.diag()
    # of Gaussian samples: Var(mean) = C_ii / n, Var(C_ij) = (C_ii C_jj + C_ij^2) / n
    assert ((samples.mean(0) - states.mean(0)).abs() < 5 * (variance / count).sqrt()).all()
    error = ((variance[:, None] * variance + expected**2) / count).sqrt()
    assert ((samples.T.cov(correction=0) - expected).abs() < 5 * error).all()


def test_scale_zero_is_the_mean_network() -> None:
    swag, _ = filled_swag(conv_net(), scale=0.0)
    mean, x = swag.posterior_mean, images()
    own = [parameter.clone() for parameter in swag.net.parameters()]
    torch.testing.assert_close(swag(x), mean(x))
    assert not torch.equal(own[0], next(mean.parameters()))
    swag.load_mean()
    torch.testing.assert_close(swag.net(x), mean(x))


def test_files_keep_everything_and_collecting_goes_on(tmp_path: Path) -> None:
    swag, _ = filled_swag(dense_net().eval(), size=5, rank=3, scale=0.5)
    save_model(swag, str(tmp_path / "swag.safetensors"))
    other = SWAG(dense_net().eval(), rank=7)
    load_model(other, str(tmp_path / "swag.safetensors"))
    assert (other.rank, other.scale, other.collected) == (3, 0.5, 5) and repr(other) == repr(swag)
    for one in (swag, other):
        one.collect()
    for a, b in zip(swag.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_half_precision_is_collected_in_float32() -> None:
    swag, nets = filled_swag(nn.Linear(3, 3).bfloat16(), size=4)
    torch.testing.assert_close(flat(swag.mean.buffers()), collected(swag, nets).mean(0), rtol=1e-5, atol=1e-6)
    assert all(weight.dtype == torch.bfloat16 for weight in swag.sample().values())


def test_a_bank_of_samples_has_statistics_of_its_own() -> None:
    swag, _ = filled_swag(conv_net())
    x, before = images(40), {name: t.clone() for name, t in swag.state_dict().items()}
    kept, anew = swag.bank(3, seed=5), swag.bank(3, lambda net: refresh_batchnorm(net, [x]), seed=5)
    assert all(torch.equal(before[name], tensor) for name, tensor in swag.state_dict().items())
    with seeded(6):  # the second sample
        weights = swag.sample()
    assert all(torch.equal(weight, kept.sample(1)[name]) for name, weight in weights.items())
    for member, other in zip(members(anew), members(kept), strict=True):
        assert torch.equal(member.net[0].weight, other.net[0].weight)
        assert torch.equal(other.net[1].running_mean, swag.net[1].running_mean)
        torch.testing.assert_close(member.net[1].running_mean, member.net[0](x).mean((0, 2, 3)))


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ArgumentError, match="rank.*2"):
        SWAG(dense_net(), rank=1)
    with pytest.raises(ArgumentError, match="scale"):
        SWAG(dense_net(), scale=math.inf)
    with pytest.raises(ArgumentError, match="scale must be a number.*'a'"):
        SWAG(dense_net(), scale="a")  # type: ignore[arg-type]
    swag = SWAG(dense_net())
    with pytest.raises(ArgumentError, match="collect"):
        swag.sample()
    with pytest.raises(ArgumentError, match="collect"):
        swag.load_mean()
    assert swag.posterior_mean is None


def test_samples_need_running_statistics_of_their_own() -> None:
    """Four BatchNorm layers on digits: with the statistics of the mean weights, samples are much worse."""
    torch.manual_seed(0)
    splits = data.load("digits")
    (x, y), (x_test, y_test) = ((part.images / 255, part.labels) for part in (splits.train, splits.test))
    widths = (64, 32, 32, 32, 32)
    layers = [(nn.Linear(a, b, bias=False), nn.BatchNorm1d(b), nn.ReLU()) for a, b in itertools.pairwise(widths)]
    net = nn.Sequential(nn.Flatten(), *itertools.chain(*layers), nn.Linear(32, 10))
    swag, optimizer = SWAG(net, rank=10, scale=4.0), torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step in range(200):
        rows = torch.randint(len(x), (64,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
        optimizer.step()
        if step >= 100 and step % 5 == 4:
            swag.collect()
    swag.load_mean()
    refresh_batchnorm(net, [x])
    swag.eval()

    def mean_loss(refresh) -> float:
        losses = [nn.functional.cross_entropy(one.net(x_test), y_test) for one in members(swag.bank(10, refresh))]
        return sum(losses).item() / len(losses)

    assert mean_loss(None) > 1.5 * mean_loss(lambda sample: refresh_batchnorm(sample, [x]))
