"""What the playground computes agrees with predictions, attacks and abstention of the library."""

import math

import pytest
import torch

from advbnn.attacks import PGD, registry
from advbnn.attacks.threat import Threat
from advbnn.bayes.modes import Modes
from advbnn.bayes.prediction import predict, sampled_log_probs
from advbnn.data import to_float
from advbnn.evaluation.abstention import cutoff
from advbnn.names import NORMS
from advbnn.play.trial import ATTACKS, Network, trial
from advbnn.randomness import crafting_seed
from trained_nets import bnn, digits, net

IMAGES = to_float(digits().images)
THREAT = Threat("linf", 0.2)


def network(samples: int = 8) -> Network:
    return Network(label="bnn", model=bnn(), reference=IMAGES, samples=samples)


def test_samples_mean_and_uncertainty_are_those_of_the_library() -> None:
    found = trial(network(), IMAGES[3], THREAT, truth=3)
    for image, answer in ((found.image, found.before), (found.attacked, found.after)):
        expected = predict(bnn(), image[None], 8, 0)
        samples = sampled_log_probs(bnn(), image[None], 8, 0)[:, 0].exp().double()
        torch.testing.assert_close(answer.samples, samples)
        torch.testing.assert_close(answer.mean, answer.samples.mean(0), atol=1e-6, rtol=1e-5)
        assert answer.label == int(expected.label) == int(answer.mean.argmax())
        assert answer.entropy == pytest.approx(expected.entropy.item(), abs=1e-5)
        assert answer.mutual_information == pytest.approx(expected.mutual_information.item(), abs=1e-5)
        assert not answer.deterministic


def test_the_interval_is_that_of_the_mean_over_samples() -> None:
    answer = trial(network(), IMAGES[3], THREAT).before
    error = 1.959964 * answer.samples.std(0) / math.sqrt(8)
    expected = torch.stack([answer.mean - error, answer.mean + error], 1).clamp(0, 1)
    torch.testing.assert_close(answer.interval, expected, atol=1e-5, rtol=1e-4)


def test_a_deterministic_network_has_one_answer() -> None:
    plain = Network(label="plain", model=net(), reference=IMAGES, samples=5)
    answer = trial(plain, IMAGES[0], THREAT).before
    assert answer.deterministic and answer.mutual_information == pytest.approx(0, abs=1e-6)
    torch.testing.assert_close(answer.interval[:, 0], answer.interval[:, 1], atol=1e-6, rtol=0)


def test_a_single_sample_has_an_interval_if_the_network_is_random() -> None:
    alone, random = (
        trial(Network(label="x", model=model, reference=IMAGES, samples=1), IMAGES[0], THREAT).before
        for model in (net(), bnn())
    )
    assert alone.deterministic and torch.equal(alone.interval[:, 0], alone.mean)
    assert not random.deterministic and random.interval.tolist() == [[0.0, 1.0]] * 10  # one sample says nothing of it


def test_the_mean_over_all_members_has_no_interval() -> None:
    two = Modes([net(), net()])
    answer = trial(Network(label="modes", model=two, reference=IMAGES, samples=5), IMAGES[0], THREAT).before
    assert torch.equal(answer.interval[:, 0], answer.interval[:, 1])
    torch.testing.assert_close(answer.mean, predict(net(), IMAGES[:1]).probs[0].double())


def test_the_attack_is_that_of_the_library_on_other_weights_than_the_prediction() -> None:
    found = trial(network(), IMAGES[3], THREAT, eot=2, truth=3)
    expected = PGD(THREAT, eot=2)(bnn(), IMAGES[3:4], torch.tensor([3]), seed=crafting_seed(0, 0))[0]
    torch.testing.assert_close(found.attacked, expected)
    change = (found.attacked - found.image).abs().max().item()
    assert 0 < change <= 0.2 + 1e-6
    assert crafting_seed(0, 0) != 0


def test_an_attack_without_a_true_class_leads_away_from_the_prediction() -> None:
    row = int((predict(net(), IMAGES).label != digits().labels).nonzero()[0])
    plain = Network(label="plain", model=net(), reference=IMAGES, samples=1)
    found = trial(plain, IMAGES[row], THREAT)
    expected = trial(plain, IMAGES[row], THREAT, truth=found.before.label)
    assert found.truth is None
    torch.testing.assert_close(found.attacked, expected.attacked)


def test_a_radius_of_zero_changes_nothing() -> None:
    found = trial(network(), IMAGES[3], Threat("linf", 0))
    assert torch.equal(found.attacked, found.image)
    assert found.before.entropy == found.after.entropy


@pytest.mark.parametrize("coverage", [0.5, 0.9, 1.0])
def test_it_abstains_by_the_rule_of_the_library(coverage: float) -> None:
    one = network()
    expected = cutoff(bnn(), digits(), coverage, 8, 0)
    answers = [trial(one, image, Threat("linf", 0), coverage=coverage) for image in IMAGES[:6]]
    assert answers[0].threshold == pytest.approx(expected.entropy, abs=1e-5)
    entropies = predict(bnn(), IMAGES[:6], 8, 0).entropy
    clear = (entropies - expected.entropy).abs() > 1e-4
    for answer, entropy, sure in zip(answers, entropies.tolist(), clear.tolist(), strict=True):
        assert not sure or answer.before.abstains == (entropy > expected.entropy)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_attacks_of_the_page_stay_within_the_radius(norm: str) -> None:
    small = Network(label="bnn", model=bnn(), reference=IMAGES[:2], samples=2)
    for attack in {*ATTACKS} - {"apgd", "apgd-dlr"}:  # which take seconds
        found = trial(small, IMAGES[1], Threat(norm, 0.1), attack=attack, eot=1, truth=1)
        change = (found.attacked - found.image).flatten()
        assert 0 < change.norm(p=math.inf if norm == "linf" else 2).item() <= 0.1 + 1e-5


def test_the_attacks_of_the_page_are_for_every_norm() -> None:
    for attack in ATTACKS:
        assert "eot" in registry.ATTACKS[attack].options and registry.ATTACKS[attack].norms == NORMS
