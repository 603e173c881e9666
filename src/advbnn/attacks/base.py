"""What all attacks share: the call, its seeds, and leaving the model's state untouched."""

import secrets
import warnings
from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass, field

import torch
from torch import Tensor, nn

from advbnn.attacks.checks import check_inputs
from advbnn.attacks.losses import Objective
from advbnn.attacks.oracle import Oracle
from advbnn.attacks.straight_through import straight_through
from advbnn.attacks.target import Target
from advbnn.attacks.threat import Threat
from advbnn.display.progress import Listener, reporting
from advbnn.errors import MOST_EXAMPLES, ArgumentTypeError, check_types, positive_whole
from advbnn.modules import evaluating, without_parameter_gradients
from advbnn.randomness import check_seed, seeded, with_fresh_state


class GradientMaskingWarning(UserWarning):
    """Gradients are zero for most examples, so a gradient attack says nothing about robustness."""


@dataclass(frozen=True)
class AttackResult:
    """The perturbed batch, and the forward passes per example, every weight sample counted, [n]."""

    x_adv: Tensor
    queries: Tensor


@dataclass(frozen=True)
class Attack(ABC):
    """A configuration that is called on a model: `x_adv = attack(model, x, y, seed=0)`.

    The model may be random. It runs in evaluation mode; its modes, gradients and running statistics, and torch's
    random state, are restored. The same seed gives the same result on the same machine, however the batch is split,
    as long as the network's randomness does not depend on the batch size (random weights do not).

    Args:
        loss: what is maximised: `"ce"`, `"margin"`, `"dlr"`, or `"nll"` for regression.
        eot: EOT samples: weight samples that every gradient or query is averaged over. Averages over a posterior with
            few `members` are exact, with one pass of each member, if `eot` is more than 1.
        average: what is averaged over these samples: `"loss"`, `"probability"` or `"logits"`; see `Objective`.
        targeted: `y` holds the target classes instead of the true ones.
        selection_samples: separate weight samples on which candidates are compared if the network is random.
        batch_size: examples attacked at a time; all when None. Halved when memory runs out.
        progress: True for a progress bar, or a function that receives the fraction done.
    """

    threat: Threat
    _: KW_ONLY
    loss: str = "ce"
    eot: int = 1
    average: str = "loss"
    targeted: bool = False
    selection_samples: int = 20
    batch_size: int | None = field(default=None, repr=False, compare=False)
    progress: bool | Listener = field(default=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.threat, Threat):
            raise ArgumentTypeError(f"threat must be a Threat such as Threat('linf', 8/255), got {self.threat!r}")
        check_types(self)
        positive_whole("eot", self.eot)
        positive_whole("selection_samples", self.selection_samples)
        if self.batch_size is not None:
            positive_whole("batch_size", self.batch_size, most=MOST_EXAMPLES)
        _ = self.objective  # refuses unknown names

    @property
    def objective(self) -> Objective:
        """What is maximised."""
        return Objective(loss=self.loss, average=self.average, targeted=self.targeted)

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, seed: int | None = None) -> Tensor:
        """Perturbed inputs for a model that returns logits, in the allowed set around `x`.

        The seed makes the attack reproducible. Torch's global random state is never used.
        """
        return self.run(model, x, y, seed).x_adv

    def run(self, model: nn.Module, x: Tensor, y: Tensor, seed: int | None = None) -> AttackResult:
        """As calling the attack, with the number of queries."""
        y = check_inputs(model, x, y, self.threat, self.objective.classifies)
        # inference-mode tensors cannot be differentiated through, so the attack works on a copy
        with torch.inference_mode(False):
            x, y = (t.clone() if t.is_inference() else t.detach() for t in (x, y))
            with (
                evaluating(model),
                without_parameter_gradients(model),
                straight_through(model),
                reporting(self.progress, self) as report,
            ):
                return self._run_chunks(with_fresh_state(model), x, y, seed, report)

    @abstractmethod
    def _perturb(self, oracle: Oracle, x: Tensor, y: Tensor) -> Tensor:
        """The attack itself on one chunk: queries the oracle and returns perturbed inputs."""

    def _run_chunks(self, model: nn.Module, x: Tensor, y: Tensor, seed: int | None, report: Listener) -> AttackResult:
        n, x_adv, queries = len(x), x.clone(), torch.zeros(len(x), dtype=torch.int64, device=x.device)
        generator = torch.Generator().manual_seed(secrets.randbits(62) if seed is None else check_seed(seed))
        weight_seed, *seeds = torch.randint(2**62, (3,), generator=generator).tolist()
        done, zero_gradients, size = 0, 0, min(self.batch_size or n, n)
        target = Target(model, x, size)
        while done < n:
            rows = slice(done, min(done + size, n))
            oracle = Oracle(target, self.objective, (x, y), rows, seeds=seeds, report=report)
            try:
                with seeded(weight_seed, x.device):
                    perturbed = self._perturb(oracle, x[rows], y[rows])
            except RuntimeError as error:
                # the CPU allocator has no exception of its own
                memory = isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)
                if size == 1 or not memory:
                    raise
                size = (size + 1) // 2
                target = Target(model, x, size)
                continue
            zero_gradients += oracle.zero_gradients()
            x_adv[rows] = self.threat.project(perturbed.detach(), x[rows])
            queries[rows] = oracle.queries
            done = rows.stop
            report(done / n)
        if zero_gradients > n / 2:
            warnings.warn(
                f"all gradients were zero for {zero_gradients} of {n} examples: gradient masking. "
                f"{type(self).__name__} says nothing about their robustness; try loss='dlr' or 'margin', a black-box "
                "attack or Transfer",
                GradientMaskingWarning,
                stacklevel=4,
            )
        return AttackResult(x_adv, queries)


class BestPoints:
    """The candidate with the highest score for each example; initially `x` with a score of -inf."""

    def __init__(self, x: Tensor) -> None:
        dtype = torch.promote_types(x.dtype, torch.float32)
        self.x, self.score = x, torch.full((len(x),), -torch.inf, dtype=dtype, device=x.device)

    def offer(self, x: Tensor, score: Tensor, active: Tensor | None = None) -> Tensor:
        """Keep the candidates that improve the score; returns which examples improved, [n].

        There is one candidate for each example, or for each of the indices `active`.
        """
        if active is not None:
            x, score = self.x.index_copy(0, active, x), self.score.index_copy(0, active, score.to(self.score))
        better = score > self.score
        self.x = torch.where(like_rows(better, x), x, self.x)
        self.score = torch.where(better, score, self.score)
        return better

    def keep(self, rows: Tensor) -> None:
        """Only these examples, by index, stay."""
        self.x, self.score = self.x[rows], self.score[rows]


def like_rows(value: Tensor, x: Tensor) -> Tensor:
    """One number per example, [n], reshaped to broadcast over the batch `x`."""
    return value.view(-1, *[1] * (x.ndim - 1))
