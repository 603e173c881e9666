"""One training step of Algorithm 1: perturb the batch, draw weights, update. The readable, eager form.

All randomness of a step follows one number, `step_seed(...)`: a step can be repeated, and a run resumed, exactly.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from advbnn.attacks import PGD
from advbnn.attacks.base import Attack
from advbnn.attacks.oracle import Oracle
from advbnn.bayes.likelihoods import Likelihood
from advbnn.defenses.defense import Defense
from advbnn.modules import evaluating, without_parameter_gradients
from advbnn.randomness import derive_seed, seeded
from advbnn.training.awp import perturbed
from advbnn.training.objective import Loss, RobustLoss


def step_seed(seed: int, epoch: int, step: int, rank: int = 0) -> int:
    """The seed of all noise in one step of one process, by hashing the four: no two steps share a stream."""
    return derive_seed(derive_seed(derive_seed(seed, "epoch", epoch), "step", step), "rank", rank)


@dataclass(frozen=True)
class StepRecord:
    """What a step did, as scalars on the device: reading none of them, a loop never waits for it.

    Attributes:
        loss: the objective, of a shard by itself.
        nll: its data term.
        kl: KL(q || p), without its weight.
        score: correctly classified examples of the batch that the update saw, perturbed or not; in regression the sum
            of squared errors.
        clean_score: the same for the inputs as they are; None where it was not asked for.
        examples: the size of the batch.
    """

    loss: Tensor
    nll: Tensor
    kl: Tensor
    score: Tensor
    clean_score: Tensor | None
    examples: int


class EagerStep:
    """Lines 6 to 12 of Algorithm 1, called with one batch after the other.

    Args:
        loss: the robust ELBO of the model.
        optimizer: of all that is learned.
        defense: attack, clipping and the rest.
        update: what the update calls in place of `loss`: the same, wrapped to share gradients among processes. The
            attack needs no sharing and calls the model itself.
    """

    def __init__(
        self,
        loss: RobustLoss,
        optimizer: torch.optim.Optimizer,
        defense: Defense,
        update: nn.Module | None = None,
    ) -> None:
        self.loss, self.optimizer, self.defense = loss, optimizer, defense
        self.update = loss if update is None else update
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]

    def __call__(
        self,
        x: Tensor,
        y: Tensor,
        seed: int,
        *,
        kl_factor: float | Tensor = 1.0,
        share: float = 1.0,
        measure_clean: bool = False,
    ) -> StepRecord:
        """Update the model on one batch.

        Args:
            x: inputs, on the device of the model.
            y: targets.
            seed: decides all noise: the attack's, and the weights'.
            kl_factor: multiplies alpha / N; see `schedules.kl_factor`.
            share: the weight of this shard's examples; see `RobustLoss`.
            measure_clean: also run the network on `x` as it is, in evaluation mode.
        """
        x_adv = attacked(self.loss.model, self.defense, x, y, derive_seed(seed, "attack"))
        update_seed = derive_seed(seed, "update")
        self.optimizer.zero_grad()  # of what an interrupted step, or the network's owner, has left there
        perturbing = self._weights_perturbed(x, x_adv, y, update_seed, kl_factor, share)
        with perturbing, seeded(update_seed, x.device):
            loss: Loss = self.update(x, x_adv, y, kl_factor, share)
            loss.total.backward()
        if self.defense.clip is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.defense.clip)
        with seeded(derive_seed(seed, "optimizer"), x.device):
            self.optimizer.step()
        self.optimizer.zero_grad()
        return StepRecord(
            loss=loss.total.detach() + (1 - share) * loss.nll,
            nll=loss.nll,
            kl=loss.kl,
            score=loss.score,
            clean_score=self._clean_score(x, y, seed) if measure_clean else None,
            examples=len(x),
        )

    def with_optimizer(self, optimizer: torch.optim.Optimizer) -> "EagerStep":
        """The same step with another optimizer."""
        return EagerStep(self.loss, optimizer, self.defense, self.update)

    def _weights_perturbed(
        self, x: Tensor, x_adv: Tensor, y: Tensor, seed: int, kl_factor: float | Tensor, share: float
    ) -> AbstractContextManager[None]:
        """Within the block the weights are the worst nearby (AWP), for the noise of the update itself."""
        if self.defense.awp is None:
            return nullcontext()

        def loss() -> Tensor:
            with seeded(seed, x.device):
                total: Tensor = self.loss(x, x_adv, y, kl_factor, share).total
            return total

        return perturbed(self.loss.model, loss, self.defense.awp)

    @torch.no_grad()
    def _clean_score(self, x: Tensor, y: Tensor, seed: int) -> Tensor:
        with evaluating(self.loss.model), seeded(derive_seed(seed, "clean"), x.device):
            return self.loss.objective.likelihood.score(self.loss.model(x), y).sum()


def attacked(model: nn.Module, defense: Defense, x: Tensor, y: Tensor, seed: int) -> Tensor:
    """A batch as the update of a defence sees it: perturbed, if it has an attack, in the mode and by the loss it names.

    Args:
        model: the network, in training mode.
        defense: its attack, the mode of the attack and the objective.
        x: inputs, on the device of the model.
        y: targets.
        seed: decides all noise of the attack.
    """
    attack, objective = defense.attack, defense.objective
    if attack is None:
        return x
    with _batch_statistics(model, defense.attack_mode) as seen:
        if objective.trades is None:
            return attack(seen, x, y, seed)
        return _trades_attack(attack, seen, objective.likelihood, x, seed)


class _OutOfReach(nn.Module):
    """A network whose mode an attack cannot switch, because it does not see it as a part."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._model = (model,)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self._model[0](x)
        return outputs


@contextmanager
def _batch_statistics(model: nn.Module, mode: str) -> Iterator[nn.Module]:
    """The model as the attack shall see it; in mode "train" it normalises by the batch, and forgets it afterwards."""
    if mode == "eval":
        yield model
        return
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        with without_parameter_gradients(model):
            yield _OutOfReach(model)
    finally:
        for buffer, value in kept:
            buffer.copy_(value)


class _Divergence(nn.Module):
    """Logits (0, KL(p(. | x) || p(. | x'))): their margin over class 0 is the divergence that TRADES maximises.

    Attributes:
        first: the row of `outputs` that belongs to the first input.
    """

    def __init__(self, model: nn.Module, likelihood: Likelihood, outputs: Tensor) -> None:
        super().__init__()
        self.model, self.likelihood, self.outputs = model, likelihood, outputs
        self.first = 0

    def forward(self, x: Tensor) -> Tensor:
        divergence = self.likelihood.kl(self.outputs[self.first :][: len(x)], self.model(x))
        return torch.stack([torch.zeros_like(divergence), divergence], dim=1)


@dataclass(frozen=True, kw_only=True)
class _OnDivergence(Attack):
    """An attack that tells the divergence which rows it is at: where memory runs out, they come in parts."""

    attack: PGD
    game: _Divergence

    def _perturb(self, oracle: Oracle, x: Tensor, y: Tensor) -> Tensor:
        self.game.first = oracle.rows.start
        return self.attack._perturb(oracle, x, y)


def _trades_attack(attack: PGD, model: nn.Module, likelihood: Likelihood, x: Tensor, seed: int) -> Tensor:
    with torch.no_grad(), evaluating(model), seeded(derive_seed(seed, "trades"), x.device):
        outputs = model(x)
    labels = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    game = _Divergence(model, likelihood, outputs)
    attack = replace(attack, loss="margin", average="loss")
    ascent = _OnDivergence(
        attack.threat,
        loss="margin",
        selection_samples=attack.selection_samples,
        batch_size=attack.batch_size,
        attack=attack,
        game=game,
    )
    return ascent(game, x, labels, seed)
