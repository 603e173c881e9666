"""Attacks tell how far they are, and evaluations that show progress listen to them."""

from dataclasses import replace

import pytest
from torch import Tensor, nn

from advbnn import attacks
from advbnn.attacks import APGD, CW, PGD, Attack, AttackResult, Square, Transfer
from advbnn.attacks.threat import Threat
from advbnn.bayes.mean_field import bayesianize
from advbnn.evaluation.accuracy import evaluate
from advbnn.progress import listening
from every_attack import ATTACKS, CLASSES, LINF, X, every, images, predicted, small_net
from judged import digits, net

THREAT = Threat("linf", 0.1)
ATTACK = PGD(THREAT, steps=3)


@pytest.fixture(params=["plain", "bayesian"])
def model(request):
    net = small_net()
    return net if request.param == "plain" else bayesianize(net)


@pytest.mark.parametrize(("name", "threat"), every())
def test_every_attack_tells_how_far_it_is(model, name, threat):
    shares = []
    ATTACKS[name](threat, progress=shares.append)(model, X, predicted(small_net()), seed=0)
    assert shares == sorted(set(shares)) and shares[-1] == 1
    assert name == "fgsm" or len({share for share in shares if 0 < share < 1}) >= 2


def test_an_attack_with_nothing_to_do_says_that_it_is_done():
    shares = []
    wrong = (predicted(small_net()) + 1) % CLASSES
    attacks.APGD(LINF, steps=3, progress=shares.append)(small_net(), X, wrong, seed=0)
    assert shares == [1]


def test_who_listens_is_told_by_attacks_that_tell_nobody_else():
    told, of_its_own = [], []
    with listening(told.append):
        attacks.PGD(LINF, steps=2)(small_net(), *images(), seed=0)
        attacks.PGD(LINF, steps=2, progress=of_its_own.append)(small_net(), *images(), seed=0)
    attacks.PGD(LINF, steps=4)(small_net(), *images(), seed=0)
    assert told == of_its_own == [0.5, 1]


def test_progress_grows_to_one_over_all_chunks(capsys):
    shares = []
    attack = attacks.PGD(LINF, steps=4, restarts=2, batch_size=2, progress=shares.append)
    attack(small_net(), *images(5), seed=0)
    assert shares == sorted(shares) and shares[0] > 0 and shares[-1] == pytest.approx(1)
    attacks.PGD(LINF, steps=2, progress=True)(small_net(), *images())
    assert "PGD" in capsys.readouterr().out
    assert attack == attacks.PGD(LINF, steps=4, restarts=2) and "progress" not in repr(attack)


@pytest.mark.parametrize(
    "attack",
    [
        ATTACK,
        APGD(THREAT, steps=3),
        CW(THREAT, steps=3, search_steps=2, first_c=1.0),
        Square(THREAT, queries=20),
        Transfer(net(), ATTACK),
    ],
    ids=lambda attack: type(attack).__name__,
)
def test_shows_how_far_an_attack_is_within_its_batch(
    attack: Attack, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("advbnn.progress.SECONDS_BETWEEN_LINES", 0.0)
    shown = evaluate(net(), digits(), {"it": attack}, samples=1, seeds=2, label="plain", progress=True)
    lines = capsys.readouterr().err.splitlines()
    for seed in (0, 1):
        start = f"plain: it: 0 of 1 batches, now at seed {seed}, "
        shares = [int(line.removeprefix(start).removesuffix("%")) for line in lines if line.startswith(start)]
        assert shares == sorted(shares) and shares[-1] == 100
        assert any(0 < share < 100 for share in shares)
    assert evaluate(net(), digits(), {"it": attack}, samples=1, seeds=2, label="plain") == shown
    assert capsys.readouterr().err == ""


class OfItsOwnMaking(PGD):
    """Cannot be built by what a dataclass asks of its fields, and keeps count."""

    def __init__(self) -> None:
        super().__init__(THREAT, steps=3)
        object.__setattr__(self, "batches", [])

    def run(self, model: nn.Module, x: Tensor, y: Tensor, seed: int | None = None) -> AttackResult:
        self.batches.append(len(x))
        return super().run(model, x, y, seed)


def test_an_attack_that_is_followed_is_the_very_one_that_was_given(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("advbnn.progress.SECONDS_BETWEEN_LINES", 0.0)
    own = OfItsOwnMaking()
    evaluate(net(), digits(), {"own": own}, samples=1, seeds=1, progress=True)
    assert sum(own.batches) == len(digits())
    twice = Transfer(net(), Transfer(net(), ATTACK))
    evaluate(net(), digits(), {"twice": twice}, samples=1, seeds=1, progress=True)
    assert "100%" in capsys.readouterr().err


def test_an_attack_that_tells_somebody_else_of_its_progress_goes_on_to_do_so() -> None:
    shares: list[float] = []
    evaluate(net(), digits(), replace(ATTACK, progress=shares.append), samples=1, seeds=1, progress=True)
    assert shares[-1] == 1
