"""The Triton kernels against the same computations in torch; on a CPU they run in Triton's interpreter."""

import os

import pytest
import torch

from advbnn.bayes.sampling import rand_layer
from advbnn.fast.philox import normals

pytest.importorskip("triton", reason="Triton is not installed")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("no GPU: set TRITON_INTERPRET=1 to interpret the kernels", allow_module_level=True)

from advbnn.fast import triton_kernels  # noqa: E402  only where Triton is

START, STREAM = 1000, 3


def parameters(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    mu, s = (torch.randn(shape, generator=generator).to(DEVICE) for _ in range(2))
    if len(shape) == 4:
        mu, s = (t.contiguous(memory_format=torch.channels_last) for t in (mu, s))
    return mu, 0.3 * s


def noise_like(mu: torch.Tensor, seed: int) -> torch.Tensor:
    """The noise of `mu` in memory order."""
    eps = normals(mu.numel(), seed=seed, stream=STREAM, start=START, device=DEVICE)
    return torch.empty_like(mu).set_(eps.untyped_storage(), 0, mu.shape, mu.stride())


@pytest.mark.parametrize("shape", [(1,), (5000,), (8, 3, 3, 3), (33, 70)])
@pytest.mark.parametrize("seed", [5, 2**40 + 5])
def test_sample_is_mean_plus_std_times_the_philox_noise(shape: tuple[int, ...], seed: int) -> None:
    mu, s = parameters(*shape)
    key = torch.tensor([seed], device=DEVICE)
    w = triton_kernels.sample(mu, s, seed=key, stream=STREAM, start=START, dtype=torch.float32)
    assert w.stride() == mu.stride()
    torch.testing.assert_close(w, mu + s.exp() * noise_like(mu, seed), rtol=1e-5, atol=1e-5)


def test_sample_rounds_to_the_type_of_the_computation() -> None:
    mu, s = parameters(1000)
    key = torch.tensor([1], device=DEVICE)
    full, half = (
        triton_kernels.sample(mu, s, seed=key, stream=0, start=0, dtype=d) for d in (torch.float32, torch.bfloat16)
    )
    assert half.dtype == torch.bfloat16
    # to one unit in the last place: the interpreter truncates where a GPU rounds
    torch.testing.assert_close(half.float(), full, rtol=2**-7, atol=0)


@pytest.mark.parametrize("shape", [(5000,), (8, 3, 3, 3)])
def test_backward_equals_rand_layer_with_the_same_noise(shape: tuple[int, ...]) -> None:
    mu, s = parameters(*shape)
    place = {"seed": torch.tensor([9], device=DEVICE), "stream": STREAM, "start": START}
    prior = {"prior_std": 0.3, "prior_mean": 0.5}
    factor = torch.tensor([2.0], device=DEVICE)
    grad = torch.randn_like(mu)
    ours = torch.empty_like(mu), torch.empty_like(s)
    triton_kernels.sample_backward(grad, mu, s, *ours, **place, **prior, weight=0.01, factor=factor, add=False)
    leaves = mu.clone().requires_grad_(), s.clone().requires_grad_()
    sample = rand_layer(*leaves, noise_like(mu, 9), weight=0.02, **prior)
    reference = torch.autograd.grad(sample, leaves, grad)
    torch.testing.assert_close(ours, reference, rtol=1e-4, atol=1e-4)
    # a second sample adds its gradient, without a second KL
    triton_kernels.sample_backward(grad, mu, s, *ours, **place, **prior, weight=0.0, factor=factor, add=True)
    plain = rand_layer(*leaves, noise_like(mu, 9), weight=0.0, **prior)
    twice = [a + b for a, b in zip(reference, torch.autograd.grad(plain, leaves, grad), strict=True)]
    torch.testing.assert_close(list(ours), twice, rtol=1e-4, atol=1e-4)


def test_scaled_samples_scale_each_row_of_matrices_with_scales() -> None:
    # the last two begin in the middle of a counter of the noise
    rows = [(8, 27, 0), (1, 301, -1), (5, 4608, 8), (3, 2, 13)]
    sizes = [count * length for count, length, _ in rows]
    mu, s = parameters(sum(sizes))
    scale = torch.linspace(-2, 3, 16, device=DEVICE)
    key = torch.tensor([5], device=DEVICE)
    blocks = triton_kernels.blocks_of(rows, torch.device(DEVICE))
    place = {"seed": key, "stream": STREAM, "start": START, "dtype": torch.float32}
    scaled = triton_kernels.sample_scaled(mu, s.exp(), scale, blocks, **place).split(sizes)
    plain = triton_kernels.sample(mu, s, **place).split(sizes)
    for ours, theirs, (count, length, first) in zip(scaled, plain, rows, strict=True):
        factors = 1 if first < 0 else scale[first : first + count].repeat_interleave(length)
        torch.testing.assert_close(ours, theirs * factors, rtol=1e-5, atol=1e-5)


def test_the_noise_is_normal() -> None:
    mu = torch.zeros(200_000, device=DEVICE)
    w = triton_kernels.sample(
        mu, mu, seed=torch.tensor([7], device=DEVICE), stream=1, start=0, dtype=torch.float32
    ).cpu()
    from scipy import stats

    assert stats.kstest(w.numpy(), "norm").pvalue > 0.001
    assert abs(torch.corrcoef(w.view(-1, 2).T)[0, 1]) < 5 / 100_000**0.5
