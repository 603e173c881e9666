"""Convolutions with a batch normalisation after them: found where they are, folded exactly, their biases hidden."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from advbnn import models
from advbnn.bayes.mean_field import bayesianize
from advbnn.defenses.rse import add_noise
from advbnn.models.conv_bn import NormalisedConvolution, fold, hidden_biases, normalised_convolutions


class Branching(nn.Module):
    """Its convolution goes to two places."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)

    def forward(self, x: Tensor) -> Tensor:
        z = self.conv(x)
        return z + self.norm(z)


class Repeating(Branching):
    """Its pair is used twice, by different inputs."""

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)) + self.norm(self.conv(2 * x))


class Deciding(Branching):
    """Its code looks at its data."""

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)) if x.sum() > 0 else x


class Remembering(Branching):
    """It keeps what it has seen, and draws a number that is no function of it."""

    seen: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.conv(x)
        return torch.rand(()) * self.norm(self.seen)


class Skipping(Branching):
    """Its convolution goes to two places in evaluation mode."""

    def forward(self, x: Tensor) -> Tensor:
        z = self.conv(x)
        return self.norm(z) if self.training else z + self.norm(z)


@pytest.mark.parametrize(
    ("name", "size", "pairs", "with_relu"),
    [
        ("vgg16", 32, 13, 13),
        ("resnet18", 32, 20, 1),
        ("preact_resnet18", 32, 8, 0),
        ("model_a", 96, 6, 6),
        ("mlp", 8, 0, 0),
    ],
)
def test_finds_the_pairs_of_the_networks(name: str, size: int, pairs: int, with_relu: int) -> None:
    found = normalised_convolutions(models.build(name, image_size=size), training=True)
    assert len(found) == pairs
    assert sum(pair.relu is not None for pair in found) == with_relu


def test_noise_before_a_layer_is_no_obstacle_and_a_hook_after_it_is() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU())
    pair = [NormalisedConvolution("0", "1", "2")]
    for candidate in (net, add_noise(net)):
        assert normalised_convolutions(candidate, training=False) == pair
    net[0].register_forward_hook(lambda module, args, output: 2 * output)
    assert normalised_convolutions(net, training=False) == []


class Reading(Branching):
    """It uses the convolution's bias a second time."""

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)) + self.conv.bias.sum()


@pytest.mark.parametrize("kind", [Branching, Repeating, Deciding, Reading])
def test_what_is_no_pair_is_left_alone(kind: type[nn.Module]) -> None:
    assert normalised_convolutions(kind(), training=True) == []


@pytest.mark.parametrize("training", [True, False])
def test_code_may_depend_on_the_mode(training: bool) -> None:
    net = Skipping().train(not training)
    assert len(normalised_convolutions(net, training=training)) == training
    assert net.training is not training


def test_looking_leaves_no_trace_in_the_network_nor_in_the_random_numbers() -> None:
    net, before = Remembering(), torch.get_rng_state()
    assert len(normalised_convolutions(net, training=True)) == 1
    assert net.seen is None
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_a_folded_convolution_does_the_work_of_both(affine: bool, bias: bool) -> None:
    torch.manual_seed(0)
    conv, norm = nn.Conv2d(3, 5, 3, bias=bias).double(), nn.BatchNorm2d(5, affine=affine).double().eval()
    for tensor in (*norm.parameters(), norm.running_mean, norm.running_var):
        tensor.data.uniform_(0.5, 2)
    x = torch.randn(2, 3, 6, 6).double()
    weight, shift = fold(conv.weight, conv.bias, norm.eps, norm.state_dict())
    torch.testing.assert_close(functional.conv2d(x, weight, shift), norm(conv(x)), rtol=1e-12, atol=1e-12)


def test_a_hidden_bias_has_no_gradient_where_rounding_would_give_it_one() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 3))
    assert hidden_biases(net) == [("0.bias", "1")]
    x, y = torch.rand(32, 1, 8, 8), torch.randint(3, (32,))
    plain = copy.deepcopy(net)
    functional.cross_entropy(plain(x), y).backward()
    assert 0 < plain[0].bias.grad.abs().max() < 1e-6  # what Adam would divide by itself
    bnn = bayesianize(net)
    functional.cross_entropy(bnn(x), y).backward()
    means, spreads = bnn.net[0].bias.grad, dict(bnn.log_std.named_parameters())["0.bias"].grad
    # zero and not missing, which an optimizer would take for a parameter to leave alone, weight decay and all
    assert torch.equal(means, torch.zeros(4)) and torch.equal(spreads, torch.zeros(4))
    assert bnn.net[1].bias.grad.abs().max() > 0


def test_a_tied_bias_keeps_the_gradient_of_its_other_place() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3))
    net[2].bias = net[0].bias
    bayesianize(net)(torch.rand(2, 1, 6, 6)).sum().backward()
    torch.testing.assert_close(net[2].bias.grad, torch.full((4,), 8.0))


def test_a_bias_is_not_hidden_from_running_statistics() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4))
    bnn = bayesianize(net)
    net[1].eval()
    bnn(torch.rand(2, 1, 5, 5)).sum().backward()
    assert net[0].bias.grad.abs().max() > 0.1
