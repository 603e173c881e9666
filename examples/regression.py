"""Regression with uncertainty: the mean, what the weights leave open, and the noise, clean and under attack."""

import os

import torch
from torch import nn

import advbnn
from advbnn.bayes.likelihoods import Gaussian

SHORT = bool(os.environ.get("ADVBNN_EXAMPLE"))

generator = torch.Generator().manual_seed(0)
x = torch.rand(600, 3, generator=generator)
y = x.square().sum(1, keepdim=True) + 0.1 * torch.randn(600, 1, generator=generator)
data = advbnn.data.Splits(advbnn.data.from_tensors(x[:400], y[:400]), advbnn.data.from_tensors(x[400:], y[400:]))

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 1))
attack = advbnn.attacks.PGD(advbnn.Threat("linf", 0.05), loss="nll", steps=3)
how = advbnn.defense(
    "adv_bnn",
    attack=attack,
    objective={"likelihood": Gaussian(noise_std=0.3, learned=True)},
    batch_size=50,
    schedule={"epochs": 10 if SHORT else 60},
)
result = advbnn.fit(net, data, how, seed=0)

found = advbnn.regress(result.model, x[400:403], noise_std=result.noise_std)
for truth, mean, weights, std in zip(y[400:403], found.mean, found.weights_std, found.std, strict=True):
    print(f"{truth.item():.2f}: predicted {mean.item():.2f} +- {std.item():.2f}, of it weights {weights.item():.2f}")
for name, perturb in {"clean": None, "attacked": attack}.items():
    score = advbnn.score_regression(result.model, data.test, perturb, noise_std=result.noise_std)
    print(f"{name}: mean squared error {score.mse.value:.3f}, negative log-likelihood {score.nll.value:.3f}")
