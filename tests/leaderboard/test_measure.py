"""Single measurements of the leaderboard against networks whose answers are known."""

import pytest
import torch
from torch import Tensor, nn

from advbnn.attacks import PGD
from advbnn.attacks.threat import Threat
from advbnn.data import from_tensors
from advbnn.defenses.published import BETWEEN, EVERY_PASS, AuthorsProtocol
from advbnn.evaluation.accuracy import Evaluation
from advbnn.leaderboard.measure import autoattack_between_draws, autoattack_rand, own_protocol, plateau

THREAT = Threat("linf", 0.2)
ATTACK = PGD(Threat("linf", 8 / 255), steps=4, step_size=2 / 255, random_start=False)


class Kept(nn.Module):
    """One of four pixels decides, kept until `resample`: an attack on one pixel does nothing to another."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("pixel", torch.zeros((), dtype=torch.int64), persistent=False)

    def resample(self, seed: int) -> None:
        self.pixel.copy_(torch.randint(4, ()))

    def forward(self, x: Tensor) -> Tensor:
        first = x.flatten(1)[:, self.pixel] - 0.5
        return 10 * torch.stack([first, -first], 1)


def evaluation(net: nn.Module, n: int = 100) -> Evaluation:
    data = from_tensors(torch.full((n, 1, 2, 2), 0.6), torch.zeros(n, dtype=torch.int64), classes=2, name="grey")
    return Evaluation(net, data, samples=1, exact=False, seeds=1, batch_size=5)


def test_transfer_between_draws_passes_for_robustness_and_averaging_breaks_it() -> None:
    measured = evaluation(Kept())
    (claimed,) = own_protocol(measured, AuthorsProtocol(ATTACK, BETWEEN), THREAT)
    # robust unless both draws are the same pixel, 1 of 4, in each of 20 batches
    assert abs(claimed.accuracy - 3 / 4) < 4 * (3 / 16 / 20) ** 0.5 and claimed.threat == THREAT
    (averaged,) = plateau(measured, THREAT, steps=10, eot=(20,))
    assert averaged.accuracy == 0.0 and averaged.ensembles == 20  # one draw would say little about the others


def test_the_curve_ends_where_it_is_flat() -> None:
    class Fixed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            first = x.flatten(1)[:, 0] - 0.5 + 0.0 * torch.rand(())
            return torch.stack([first, -first], 1)

    found = plateau(evaluation(Fixed()), THREAT, steps=5, eot=(1, 10, 20, 50))
    assert [record.at for record in found] == [1, 10]
    assert {record.accuracy for record in found} == {0.0}


def test_the_protocol_needs_the_norm_of_its_source() -> None:
    with pytest.raises(ValueError, match="norm"):
        own_protocol(evaluation(Kept()), AuthorsProtocol(ATTACK, EVERY_PASS), Threat("l2", 1.0))


@pytest.mark.peers
def test_autoattack_runs_as_its_package_does() -> None:
    pytest.importorskip("pyautoattack")

    class Linear(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            first = x.flatten(1)[:, 0] - 0.5 + 1e-3 * torch.randn(())
            return torch.stack([first, -first, first - 9, first - 9], 1)

    data = from_tensors(torch.full((4, 1, 2, 2), 0.6), torch.zeros(4, dtype=torch.int64), classes=4, name="grey")
    with pytest.warns(UserWarning):  # few images
        few = Evaluation(Linear(), data, samples=1, exact=False, seeds=1)
    counted, fresh = autoattack_rand(few, THREAT)
    assert counted.accuracy == fresh.accuracy == 0.0 and "AutoAttack rand" in counted.name


@pytest.mark.peers
def test_autoattack_on_one_draw_scored_on_another_measures_transfer() -> None:
    pytest.importorskip("pyautoattack")

    class Kept10(Kept):
        def forward(self, x: Tensor) -> Tensor:  # AutoAttack needs four classes
            logits = super().forward(x)
            return torch.cat([logits, logits - 9], 1)

    data = from_tensors(torch.full((30, 1, 2, 2), 0.6), torch.zeros(30, dtype=torch.int64), classes=4, name="grey")
    with pytest.warns(UserWarning):  # few images
        few = Evaluation(Kept10(), data, samples=1, exact=False, seeds=1, batch_size=1)
    (found,) = autoattack_between_draws(few, THREAT, 128)
    # wrong only where both draws are the same pixel, 1 of 4, for each of 30 images
    assert abs(found.accuracy - 3 / 4) < 4 * (3 / 16 / 30) ** 0.5
    assert plateau(few, THREAT, steps=10, eot=(20,))[0].accuracy == 0.0


def test_a_large_batch_has_as_many_draws_as_the_batches_of_the_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def attack(model: nn.Module, x: Tensor, y: Tensor, *_: object) -> tuple[Tensor, Tensor]:
        sizes.append(len(x))
        with torch.enable_grad():
            leaf = x.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(model(leaf)[:, 0].sum(), leaf)
        return x - THREAT.eps * gradient.sign(), y

    monkeypatch.setattr("advbnn.leaderboard.measure._autoattack", attack)
    n = 40 * 128
    data = from_tensors(torch.full((n, 1, 2, 2), 0.6), torch.zeros(n, dtype=torch.int64), classes=2, name="grey")
    large = Evaluation(Kept(), data, samples=1, exact=False, seeds=1, batch_size=n)
    (found,) = autoattack_between_draws(large, THREAT, 128)
    assert sizes == [128] * 40
    # wrong only where both draws are the same pixel, 1 of 4, for each of 40 batches
    assert abs(found.accuracy - 3 / 4) < 4 * (3 / 16 / 40) ** 0.5
