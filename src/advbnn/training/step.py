"""One training step of Algorithm 1 in its readable, eager form: attack the batch, sample weights, update.

All randomness of a step follows from `step_seed(...)`, so that a step can be repeated, and a run resumed, exactly.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from advbnn.attacks import PGD
from advbnn.attacks.base import Attack
from advbnn.attacks.oracle import Oracle
from advbnn.attacks.straight_through import straight_through_parts
from advbnn.bayes.likelihoods import Categorical, Likelihood
from advbnn.defenses.defense import Defense
from advbnn.defenses.published import Hidden
from advbnn.machine.processes import ALONE, World
from advbnn.modules import evaluating, without_parameter_gradients
from advbnn.randomness import derive_seed, offers_resample, resample, seeded
from advbnn.training.averaging import WeightAverage, restored
from advbnn.training.awp import perturbed
from advbnn.training.objective import Loss, RobustLoss


def step_seed(seed: int, epoch: int, step: int, rank: int = 0) -> int:
    """The seed of all noise in one step of one process."""
    return derive_seed(derive_seed(derive_seed(seed, "epoch", epoch), "step", step), "rank", rank)


@dataclass(frozen=True)
class StepRecord:
    """The numbers of one step on this shard, as in `Loss`, and of its clean inputs, if measured.

    They are scalars on the device: a loop that does not read them never synchronizes.
    """

    loss: Tensor
    nll: Tensor
    kl: Tensor
    score: Tensor
    clean_score: Tensor | None
    examples: int


class EagerStep:
    """Lines 6 to 12 of Algorithm 1, called for each batch.

    Gradients are averaged over `processes`. `why_eager` says why it takes the place of a fast step, if it does.
    """

    def __init__(
        self,
        loss: RobustLoss,
        optimizer: torch.optim.Optimizer,
        defense: Defense,
        processes: World = ALONE,
        why_eager: str | None = None,
    ) -> None:
        self.loss, self.optimizer, self.defense = loss, optimizer, defense
        self.processes, self.why_eager = processes, why_eager
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
        attack: PGD | None = None,
        perturb_weights: bool = True,
        teacher: WeightAverage | None = None,
    ) -> StepRecord:
        """Update the model on one batch.

        Args:
            seed: decides all noise of attack, weights and optimizer.
            kl_factor: multiplies alpha / N; see `schedules.kl_factor`.
            share: the weight of this shard's examples; see `RobustLoss`.
            measure_clean: also score clean inputs, in evaluation mode.
            attack: instead of that of the defence.
            perturb_weights: apply the adversarial weight perturbation of the defence, if it has one.
            teacher: the average of `loss.learned` for the consistency term of `defense.averaging`.
        """
        x_adv = attacked(self.loss.model, self.defense, x, y, derive_seed(seed, "attack"), attack)
        consistency: tuple[Tensor, float] | tuple[()] = ()
        if teacher is not None and self.defense.averaging is not None:
            with seeded(derive_seed(seed, "teacher"), x.device):
                outputs = teacher.outputs(self.loss.learned, self.loss.model, x_adv)
            consistency = (outputs, self.defense.averaging.consistency)
        update_seed = derive_seed(seed, "update")
        resample(self.loss.model, derive_seed(seed, "updated draw"), after_attack=self.defense.attack is not None)
        self.optimizer.zero_grad()  # an interrupted step, or the caller, may have left gradients

        def ascent_loss() -> Tensor:  # with the noise of the update
            with seeded(update_seed, x.device):
                return cast(Loss, self.loss(x, x_adv, y, kl_factor, share, *consistency)).total

        awp = self.defense.awp if perturb_weights else None
        weights = nullcontext() if awp is None else perturbed(self.loss.model, ascent_loss, awp)
        with weights, seeded(update_seed, x.device):
            loss: Loss = self.loss(x, x_adv, y, kl_factor, share, *consistency)
            loss.total.backward()
        self.processes.average_(p.grad for p in self.parameters if p.grad is not None)
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
        return EagerStep(self.loss, optimizer, self.defense, self.processes, self.why_eager)

    @torch.no_grad()
    def _clean_score(self, x: Tensor, y: Tensor, seed: int) -> Tensor:
        with evaluating(self.loss.model), seeded(derive_seed(seed, "clean"), x.device):
            return self.loss.objective.likelihood.score(self.loss.model(x), y).sum()


def attacked(model: nn.Module, defense: Defense, x: Tensor, y: Tensor, seed: int, attack: PGD | None = None) -> Tensor:
    """The inputs of an update of `model`, in training mode: perturbed by the attack, or that of the defence, if any."""
    attack, objective = attack or defense.attack, defense.objective
    if attack is None:
        return x
    resample(model, derive_seed(seed, "kept draw"))
    with _in_attack_mode(model, defense.attack_mode) as seen:
        if objective.trades is not None:
            with torch.no_grad(), evaluating(seen), seeded(derive_seed(seed, "trades"), x.device):
                outputs = seen(x)
            return _maximised(attack, seen, objective.likelihood.kl, outputs, x, seed)
        if mixed(y, objective.likelihood):
            return _maximised(attack, seen, _cross_entropy, y, x, seed)
        return attack(seen, x, y, seed)


def mixed(y: Tensor, likelihood: Likelihood) -> bool:
    """Whether the labels are probabilities of classes instead of their numbers."""
    return isinstance(likelihood, Categorical) and y.is_floating_point()


def _cross_entropy(probabilities: Tensor, outputs: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, probabilities, reduction="none")


@contextmanager
def _in_attack_mode(model: nn.Module, mode: str) -> Iterator[nn.Module]:
    """The model for the attack; in mode "train" it uses batch statistics, and its buffers are restored afterwards.

    Randomness that the network keeps is drawn once for all steps, and gradients are those of the network itself: the
    published defences are trained so.
    """
    if mode == "eval":
        if not offers_resample(model) and not straight_through_parts(model):
            yield model
            return
        with evaluating(model), without_parameter_gradients(model):
            yield Hidden(model)
        return
    with restored(model.buffers()), without_parameter_gradients(model):
        yield Hidden(model)


class _TermLogits(nn.Module):
    """Logits (0, term(target, f(x'))), whose margin over class 0 is the term: a loss that is no function of labels."""

    def __init__(self, model: nn.Module, term: Callable[[Tensor, Tensor], Tensor], targets: Tensor) -> None:
        super().__init__()
        self.model, self.term, self.targets = model, term, targets
        self.first = 0  # the row of `targets` for the first input

    def forward(self, x: Tensor) -> Tensor:
        term = self.term(self.targets[self.first :][: len(x)], self.model(x))
        return torch.stack([torch.zeros_like(term), term], dim=1)


@dataclass(frozen=True, kw_only=True)
class _TermAttack(Attack):
    """PGD on `_TermLogits`, which needs the rows of a part when memory forces an attack to work in parts."""

    attack: PGD
    logits: _TermLogits

    def _perturb(self, oracle: Oracle, x: Tensor, y: Tensor) -> Tensor:
        self.logits.first = oracle.rows.start
        return self.attack._perturb(oracle, x, y)


def _maximised(
    attack: PGD, model: nn.Module, term: Callable[[Tensor, Tensor], Tensor], targets: Tensor, x: Tensor, seed: int
) -> Tensor:
    """The attack on `term(target, output)` of each example: the KL of TRADES, or the loss of mixed labels."""
    logits = _TermLogits(model, term, targets)
    attack = replace(attack, loss="margin", average="loss")
    same = {name: getattr(attack, name) for name in ("loss", "selection_samples", "batch_size")}
    ascent = _TermAttack(attack.threat, attack=attack, logits=logits, **same)
    return ascent(logits, x, torch.zeros(len(x), dtype=torch.int64, device=x.device), seed)
