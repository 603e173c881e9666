"""Other libraries with the same budget on the same networks, and on random networks without changes."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from advbnn import attacks
from advbnn.attacks.threat import Threat
from advbnn.bayes.prediction import Ensemble, predict

pytestmark = pytest.mark.peers

LINF, FAR, L2 = Threat("linf", 0.1), Threat("linf", 0.3), Threat("l2", 0.6)
N = 100


def peer(name):
    return pytest.fixture(lambda: pytest.importorskip(name), scope="module", name=name.partition(".")[0])


foolbox, art, torchattacks, pyautoattack = map(peer, ("foolbox", "art.attacks.evasion", "torchattacks", "pyautoattack"))


@pytest.fixture(scope="module")
def batch(digits):
    return digits.x[:N], digits.y[:N]


def survivors(model, x_adv, y, samples=1) -> int:
    return int(right(model, x_adv, y, samples).sum())


def right(model, x_adv, y, samples=1, seed=77):
    return predict(model, x_adv, samples, seed).label == y


def assert_no_weaker(ours, theirs):
    """On the same images: the images that only the peer breaks exceed the others by two standard errors at most."""
    lost, won = int((ours & ~theirs).sum()), int((theirs & ~ours).sum())
    assert lost - won <= 1 + 2 * math.sqrt(lost + won), (lost, won)


def with_foolbox(foolbox, attack, model, x, y, eps):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return attack(foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu"), x, y, epsilons=eps)[1]


def with_art(art, model, x, y, **options):
    classification = pytest.importorskip("art.estimators.classification")
    classifier = classification.PyTorchClassifier(
        model, nn.CrossEntropyLoss(), (1, 8, 8), 10, clip_values=(0.0, 1.0), device_type="cpu"
    )
    attack = art.ProjectedGradientDescentPyTorch(classifier, batch_size=N, verbose=False, **options)
    found = attack.generate(x.numpy(), nn.functional.one_hot(y, 10).numpy().astype(np.float32))
    return torch.from_numpy(found)


@pytest.mark.parametrize("threat", [LINF, L2], ids=lambda t: t.norm)
def test_fgsm_and_pgd_find_the_points_of_foolbox(foolbox, net, batch, threat):
    kinds = {"linf": ("LinfFastGradientAttack", "LinfPGD"), "l2": ("L2FastGradientAttack", "L2PGD")}[threat.norm]
    fgsm, pgd = (getattr(foolbox.attacks, kind) for kind in kinds)
    expected = with_foolbox(foolbox, fgsm(random_start=False), net, *batch, threat.eps)
    assert_same_points(attacks.FGSM(threat)(net, *batch), expected)
    peer = pgd(abs_stepsize=threat.eps / 5, steps=10, random_start=False)
    expected = with_foolbox(foolbox, peer, net, *batch, threat.eps)
    assert_same_points(pgd_of(threat)(net, *batch), expected)


def pgd_of(threat):
    return attacks.PGD(threat, steps=10, relative_step_size=0.2, random_start=False)


@pytest.mark.parametrize(("threat", "norm"), [(LINF, np.inf), (L2, 2)], ids=["linf", "l2"])
def test_pgd_agrees_with_art(art, net, batch, threat, norm):
    expected = with_art(art, net, *batch, norm=norm, eps=threat.eps, eps_step=threat.eps / 5, max_iter=10)
    found = pgd_of(threat)(net, *batch)
    if threat.norm == "linf":
        # in l2 ART cuts the box before the ball, so that its points are others
        assert_same_points(found, expected)
    assert_no_weaker(right(net, found, batch[1]), right(net, expected, batch[1]))


def assert_same_points(found, expected):
    """Equal to float tolerance, but for pixels where rounding decided the sign of a gradient near zero."""
    apart = (found - expected).abs().flatten(1)
    assert (apart > 1e-4).float().mean() < 0.01, apart.max()


def test_cw_is_as_near_as_foolbox(foolbox, net, batch):
    x, y = (t[:25] for t in batch)
    budget = {"steps": 40, "confidence": 0.0}
    peer = foolbox.attacks.L2CarliniWagnerAttack(
        binary_search_steps=4, stepsize=0.05, initial_const=1.0, abort_early=False, **budget
    )
    expected = with_foolbox(foolbox, peer, net, x, y, None)
    ours = attacks.CW(Threat("l2", math.inf), search_steps=4, learning_rate=0.05, first_c=1.0, **budget)
    found = ours(net, x, y)
    assert_no_weaker(right(net, found, y), right(net, expected, y))
    near, far = L2.distance(found, x), L2.distance(expected, x)
    both = ~right(net, expected, y) & ~right(net, found, y)
    assert near[both].mean() <= far[both].mean() * 1.05
    bounded = attacks.CW(L2, search_steps=4, learning_rate=0.05, first_c=1.0, **budget)(net, x, y)
    assert_no_weaker(right(net, bounded, y), (far > L2.eps) | right(net, expected, y))


@pytest.mark.parametrize("threat", [LINF, L2], ids=lambda t: t.norm)
def test_apgd_is_as_strong_as_autoattacks(pyautoattack, net, batch, threat):
    from pyautoattack.autopgd_base import APGDAttack

    norm = {"linf": "Linf", "l2": "L2"}[threat.norm]
    for loss in ("ce", "dlr"):
        peer = APGDAttack(net, n_iter=20, norm=norm, eps=threat.eps, loss=loss, device="cpu", seed=0)
        found = attacks.APGD(threat, steps=20, loss=loss)(net, *batch, seed=0)
        assert_no_weaker(right(net, found, batch[1]), right(net, peer.perturb(*batch), batch[1]))


def test_targeted_apgd_is_as_strong_as_autoattacks(pyautoattack, net, batch):
    from pyautoattack.autopgd_base import APGDAttack_targeted

    peer = APGDAttack_targeted(net, n_iter=10, norm="Linf", eps=LINF.eps, n_target_classes=9, device="cpu", seed=0)
    found = attacks.APGD(LINF, steps=10, loss="dlr", targets=9)(net, *batch, seed=0)
    assert_no_weaker(right(net, found, batch[1]), right(net, peer.perturb(*batch), batch[1]))


@pytest.mark.parametrize("kind", ["bayesian", "ensemble"])
class TestOthersAttackRandomNetworksUnchanged:
    """Each lowers the accuracy of a `Bayesian` and of an `Ensemble`."""

    @pytest.fixture
    def model(self, kind, bnn):
        return bnn if kind == "bayesian" else Ensemble(bnn, samples=3).eval()

    @pytest.fixture
    def few(self, digits):
        return digits.x[:30], digits.y[:30]

    def check(self, model, x_adv, few):
        x, y = few
        assert FAR.distance(x_adv, x).max() <= FAR.eps + 1e-6
        assert survivors(model, x_adv, y, 20) < survivors(model, x, y, 20) - 5

    def test_foolbox(self, foolbox, model, few):
        peer = foolbox.attacks.LinfPGD(steps=8, rel_stepsize=0.3)
        self.check(model, with_foolbox(foolbox, peer, model, *few, FAR.eps), few)

    def test_art(self, art, model, few):
        self.check(model, with_art(art, model, *few, eps=FAR.eps, eps_step=FAR.eps * 0.3, max_iter=8), few)

    def test_torchattacks(self, torchattacks, model, few):
        self.check(model, torchattacks.PGD(model, eps=FAR.eps, alpha=FAR.eps * 0.3, steps=8)(*few), few)

    def test_pyautoattack(self, pyautoattack, model, few):
        peer = pyautoattack.AutoAttack(model, version="custom", attacks=["apgd-ce"], eps=FAR.eps, seed=0)
        peer.apgd.n_iter, peer.apgd.n_restarts = 8, 1
        self.check(model, peer.run_standard_evaluation(*few)[0], few)


EOT, STEPS = 20, 5


class SameSamples(nn.Module):
    """The i-th pass with a gradient uses the weight sample of seed i, whichever library attacks."""

    def __init__(self, bnn) -> None:
        super().__init__()
        self.bnn, self.passes = bnn, 0

    def forward(self, x):
        if not torch.is_grad_enabled():
            return self.bnn(x)
        self.passes += 1
        with self.bnn.frozen(self.passes):
            return self.bnn(x)


def test_averaged_pgd_finds_the_points_of_torchattacks(torchattacks, bnn, batch):
    batch = batch[0][:50], batch[1][:50]
    options = {"eps": LINF.eps, "alpha": LINF.eps / 4, "steps": STEPS, "eot_iter": EOT}
    expected = torchattacks.EOTPGD(SameSamples(bnn).eval(), random_start=False, **options)(*batch)
    ours = attacks.PGD(LINF, steps=STEPS, relative_step_size=0.25, random_start=False, eot=EOT)
    found = ours(SameSamples(bnn), *batch)
    assert_same_points(found, expected)
    assert_no_weaker(right(bnn, found, batch[1], 50), right(bnn, expected, batch[1], 50))


def test_averaged_pgd_is_as_strong_as_autoattack_for_random_networks(pyautoattack, bnn, batch):
    batch = batch[0][:50], batch[1][:50]
    with torch.random.fork_rng():
        peer = pyautoattack.AutoAttack(bnn, version="rand", eps=LINF.eps, seed=0)
        assert peer.apgd.eot_iter == EOT
        peer.apgd.n_iter = STEPS
        expected = peer.run_standard_evaluation(*batch)[0]
    found = attacks.PGD(LINF, steps=STEPS, eot=EOT)(bnn, *batch, seed=0)
    assert_no_weaker(right(bnn, found, batch[1], 50), right(bnn, expected, batch[1], 50))


@pytest.mark.parametrize("threat", [LINF, L2], ids=lambda t: t.norm)
def test_fab_breaks_as_many_as_autoattacks(pyautoattack, net, batch, threat):
    from pyautoattack.fab_pt import FABAttack_PT

    batch, norm = (batch[0][:50], batch[1][:50]), {"linf": "Linf", "l2": "L2"}[threat.norm]
    options = {"norm": norm, "n_iter": 20, "eps": threat.eps, "n_target_classes": 9, "targeted": True}
    with torch.random.fork_rng():
        peer = FABAttack_PT(net, n_restarts=1, seed=0, device="cpu", verbose=False, **options)
        expected = peer.perturb(*batch)
    found = attacks.FAB(threat, steps=20)(net, *batch, seed=0)
    assert_no_weaker(right(net, found, batch[1]), right(net, expected, batch[1]))


def test_fab_is_as_near_as_autoattacks(pyautoattack, net, batch):
    from pyautoattack.fab_pt import FABAttack_PT

    x, y = (t[:40] for t in batch)
    with torch.random.fork_rng():
        # beyond its radius, which it uses for restarts only, the peer hands back the image itself
        peer = FABAttack_PT(
            net, norm="L2", n_iter=30, n_restarts=1, n_target_classes=9, targeted=True, eps=5.0, seed=0, device="cpu"
        )
        expected = peer.perturb(x, y)
    found = attacks.FAB(Threat("l2", math.inf), steps=30)(net, x, y, seed=0)
    both = ~right(net, expected, y) & ~right(net, found, y) & right(net, x, y)
    assert both.sum() >= 30
    near, far = L2.distance(found, x)[both], L2.distance(expected, x)[both]
    assert near.mean() <= 1.1 * far.mean()
