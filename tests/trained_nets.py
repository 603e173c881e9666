"""Small networks trained on digits, for tests of evaluation; made once in a process."""

import functools

import torch
from torch import nn

from advbnn import data, models
from advbnn.bayes.mean_field import Bayesian, bayesianize
from advbnn.data import ImageSet, to_float
from advbnn.defenses.profiles import defense
from advbnn.defenses.schedules import OneCycle
from advbnn.randomness import seeded
from advbnn.training.loop import fit


@functools.cache
def digits() -> ImageSet:
    """120 test images: just enough for an evaluation without a warning."""
    return data.load("digits").test.subset(range(120))


@functools.cache
def net() -> nn.Module:
    """A deterministic network."""
    train = data.load("digits").train
    x, y = to_float(train.images), train.labels
    with seeded(0):
        model = models.build("mlp", classes=10, image_size=8, channels=1)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(150):
            rows = torch.randint(len(x), (128,))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    return model.eval()


@functools.cache
def defended(name: str) -> nn.Module:
    """A short training of a defence."""
    method = defense(name, "digits", schedule=OneCycle(epochs=6))
    return fit(method.build(classes=10, shape=(1, 8, 8), seed=0), data.load("digits"), method).model.eval()


@functools.cache
def bnn() -> Bayesian:
    """The same network with noise on every weight, enough for weight samples to disagree."""
    return bayesianize(net(), init_std=0.15).eval()


@functools.cache
def blank() -> Bayesian:
    """A random network that was never trained, for processes that are started only to see whether they agree."""
    with seeded(0):
        return bayesianize(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), init_std=0.15).eval()
