"""One image, one network, one attack: everything that the playground shows of them."""

import functools
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from advbnn.attacks import registry
from advbnn.attacks.threat import Threat
from advbnn.bayes.outputs import passes_needed
from advbnn.bayes.prediction import Prediction, predict, sampled_log_probs
from advbnn.evaluation.abstention import threshold
from advbnn.evaluation.intervals import mean_interval
from advbnn.modules import device_of, dtype_of, evaluating
from advbnn.randomness import crafting_seed, with_fresh_state

ATTACKS = {
    "pgd": "PGD",
    "apgd": "APGD",
    "apgd-dlr": "APGD, DLR loss",
    "fgsm": "FGSM, a single step",
    "evasive": "PGD that evades abstention",
    "overconfident": "Lower the entropy",
    "underconfident": "Raise the entropy",
}
"""Attacks of the registry that take seconds on one image, with their titles."""

_BATCH = 250


@dataclass(frozen=True, kw_only=True, eq=False)
class Network:
    """A classifier of the playground, with so many weight samples for every prediction.

    `reference` are images that it was not trained on, [n, ...] in [0, 1]: its abstention is calibrated on them.
    """

    label: str
    model: nn.Module
    reference: Tensor
    samples: int = 20

    @functools.cached_property
    def entropies(self) -> Tensor:
        """The entropy of the prediction for each reference image, [n]."""
        return torch.cat([self.predict(x).entropy for x in self.reference.split(_BATCH)])

    @functools.cached_property
    def deterministic(self) -> bool:
        """Whether the network is not random; one weight sample would not show it."""
        with evaluating(self.model):
            return passes_needed(with_fresh_state(self.model), self._prepared(self.reference[:2]), samples=20) == 1

    def predict(self, x: Tensor) -> Prediction:
        """The prediction for a batch, always of the ensemble that `advbnn predict` has by default."""
        return predict(self.model, self._prepared(x), self.samples, seed=0)

    def sample_probs(self, image: Tensor) -> Tensor:
        """The probabilities of each weight sample for an image, [samples, classes]."""
        return sampled_log_probs(self.model, self._prepared(image[None]), self.samples, seed=0)[:, 0].exp()

    def attacked(self, image: Tensor, label: int, attack: str, threat: Threat, eot: int = 1) -> Tensor:
        """The image after an attack of the registry, which uses other weight samples than predictions do."""
        if threat.eps == 0:
            return image
        options = {"eot": eot} if "eot" in registry.ATTACKS[attack].options else {}
        made = registry.make_attack(attack, threat, self.model, **options)
        x = self._prepared(image[None])
        x_adv = made(self.model, x, torch.tensor([label], device=x.device), seed=crafting_seed(0, 0))
        return x_adv[0].to(image).detach()

    def _prepared(self, x: Tensor) -> Tensor:
        return x.to(device_of(self.model, x.device), dtype_of(self.model))


@dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    """What a network says about one image.

    Attributes:
        samples: the probability of each class by each weight sample, [samples, classes].
        mean: the mean over weight samples, which decides, [classes].
        interval: the 95 % interval of each mean, from the standard error over weight samples, [classes, 2].
        entropy: of the mean, in nats; `mutual_information` is the part that is disagreement between weight samples.
        abstains: whether the entropy is above the threshold.
        deterministic: whether all samples are the same, as of a network without random weights.
    """

    label: int
    samples: Tensor
    mean: Tensor
    interval: Tensor
    entropy: float
    mutual_information: float
    abstains: bool
    deterministic: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Trial:
    """A network before and after an attack on one image.

    Attributes:
        truth: the true class, if it is known.
        image, attacked: [channels, height, width] in [0, 1].
        threshold: the entropy above which the network abstains, in nats.
    """

    network: str
    truth: int | None
    image: Tensor
    attacked: Tensor
    before: Answer
    after: Answer
    threshold: float


def trial(
    network: Network,
    image: Tensor,
    threat: Threat,
    *,
    attack: str = "pgd",
    eot: int = 10,
    truth: int | None = None,
    coverage: float = 0.9,
) -> Trial:
    """Attack one image [channels, height, width], and ask the network before and after.

    Args:
        truth: the class that the attack leads away from; the network's own prediction if None.
        coverage: the share of clean reference images that are classified. It abstains above the entropy of these.
    """
    limit = threshold(network.entropies, coverage)
    before = _answer(network, image, limit)
    label = before.label if truth is None else truth
    attacked = network.attacked(image, label, attack, threat, eot)
    return Trial(
        network=network.label,
        truth=truth,
        image=image,
        attacked=attacked,
        before=before,
        after=_answer(network, attacked, limit),
        threshold=limit,
    )


def _answer(network: Network, image: Tensor, limit: float) -> Answer:
    found, samples = network.predict(image[None]), network.sample_probs(image).double().cpu()
    mean = found.probs[0].double().cpu()
    # a mean over all members of a posterior has no sampling error
    certain = found.exact or network.deterministic
    ends = [(m, m) if certain else mean_interval(p) for m, p in zip(mean.tolist(), samples.T, strict=True)]
    entropy = found.entropy[0].item()
    return Answer(
        label=int(found.label[0]),
        samples=samples,
        mean=mean,
        interval=torch.tensor(ends, dtype=torch.float64).clamp(0, 1),
        entropy=entropy,
        mutual_information=found.mutual_information[0].item(),
        abstains=entropy > limit,
        deterministic=network.deterministic,
    )
