"""How the modes of a posterior are trained: each an ordinary training with its own seed, in its own folder.

`"independent"`: each mode starts from its own initial weights.
`"snapshots"`: one training of `count` cycles. Each cycle runs the whole schedule, and starts from the mode before it.
`"branches"`: the first `trunk` epochs are trained once; each mode continues from there to the end of the schedule.
`"boosted"`: two modes (BAT). The second is trained without an attack, on adversarial examples of the first, and answers
one query in ten.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from advbnn.defenses.bat import WEIGHTS
from advbnn.defenses.defense import Defense
from advbnn.defenses.optimizers import LangevinSampler
from advbnn.defenses.schedules import Section
from advbnn.errors import ArgumentError, ArgumentTypeError, one_of, positive_whole, whole
from advbnn.randomness import derive_seed

HOW = ("independent", "snapshots", "branches", "boosted")
TRUNK = "trunk"
_FIRST, _SECOND = "0", "1"


@dataclass(frozen=True, kw_only=True)
class ModePlan:
    """The number of modes and how they are trained, see above; 1 is a training without modes.

    `trunk` is the number of epochs that all modes share, with `"branches"`.
    """

    count: int = 1
    how: str = "independent"
    trunk: int = 0

    def __post_init__(self) -> None:
        positive_whole("count", self.count)
        whole("trunk", self.trunk, 0)
        one_of("how", self.how, HOW)
        if self.how != HOW[0] and self.count == 1:
            raise ArgumentError(f"how={self.how!r} needs several modes, got count=1; set count, or how='independent'")
        if self.how == "branches" and self.trunk == 0:
            raise ArgumentError("how='branches' needs trunk, the epochs that all modes share, got 0; set trunk=1 or up")
        if self.how != "branches" and self.trunk > 0:
            raise ArgumentError(f"trunk={self.trunk} is for how='branches', got {self.how!r}; leave it out")
        if self.how == "boosted" and self.count != len(WEIGHTS):
            raise ArgumentError(f"how='boosted' needs count={len(WEIGHTS)}, got {self.count}; set count={len(WEIGHTS)}")

    def check(self, defense: Defense) -> None:
        """Refuse a defence whose training these modes cannot divide."""
        if self.trunk and isinstance(defense.schedule, Section):
            raise ArgumentError("modes.trunk divides a whole schedule, and schedule is a Section already")
        if self.trunk and isinstance(defense.optimizer, LangevinSampler):
            raise ArgumentError("modes.how='branches' does not fit Langevin dynamics; use 'snapshots' or 'independent'")
        if self.trunk >= defense.schedule.total_epochs:
            raise ArgumentError(
                f"modes.trunk={self.trunk} must leave epochs for the modes: give less than "
                f"{defense.schedule.total_epochs}, the length of the schedule"
            )
        if defense.swag is not None and defense.swag.start < self.trunk:
            raise ArgumentError(
                f"swag.start={defense.swag.start} is in the trunk, whose weights are not collected; set "
                f"swag.start={self.trunk} (modes.trunk) or more"
            )
        if self.how == "boosted" and defense.attack is None:
            raise ArgumentError("modes.how='boosted' needs adversarial examples; set attack, or use defense 'adv'")
        if self.how == "boosted":
            try:
                self.defense_of(_SECOND, defense)
            except ArgumentError as error:  # an objective that needs an attack
                reason = "modes.how='boosted' trains the second network without an attack"
                raise ArgumentError(f"{reason}: {error}, or another modes.how") from error

    @property
    def weights(self) -> tuple[float, ...] | None:
        """The probabilities of the modes; None for equal ones."""
        return WEIGHTS if self.how == "boosted" else None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the modes, which are those of their folders."""
        return tuple(map(str, range(self.count)))

    @property
    def trainings(self) -> tuple[str, ...]:
        """The names of all trainings in the order of their dependence: a trunk, if there is one, and the modes."""
        return (TRUNK, *self.names) if self.trunk else self.names

    def start_of(self, name: str) -> str | None:
        """The training whose final weights this one starts from; None for fresh weights."""
        if self.how == "snapshots" and name != _FIRST:
            return str(int(name) - 1)
        return TRUNK if self.trunk and name != TRUNK else None

    def attacked_for(self, name: str) -> str | None:
        """The training whose adversarial examples this one learns; None for the examples as they are."""
        return _FIRST if self.how == "boosted" and name == _SECOND else None

    def needed_by(self, name: str) -> str | None:
        """The training that has to be finished before this one."""
        return self.start_of(name) or self.attacked_for(name)

    def seed_of(self, name: str, seed: int) -> int:
        """The seed of a training, which decides its initial weights too."""
        return derive_seed(seed, TRUNK) if name == TRUNK else derive_seed(seed, "mode", int(name))

    def defense_of(self, name: str, defense: Defense) -> Defense:
        """The defence of one training: a trunk ends early, with its last weights, and a branch starts late.

        What learns adversarial examples of another mode has no attack of its own.
        """
        if self.attacked_for(name) is not None:
            return replace(defense, name="none", attack=None, radius_warmup=0)
        whole = defense.schedule
        if not self.trunk or isinstance(whole, Section):
            return defense
        if name == TRUNK:
            later = defense.awp_start >= self.trunk
            return replace(
                defense,
                schedule=Section(whole=whole, begin=0, end=self.trunk),
                averaging=None,
                early_stopping=None,
                swag=None,
                awp=None if later else defense.awp,
                awp_start=0 if later else defense.awp_start,
            )
        return replace(defense, schedule=Section(whole=whole, begin=self.trunk, end=whole.total_epochs))


def mode_plan(modes: "ModePlan | int | None") -> ModePlan:
    """The plan for a number of independent modes; a plan as it is."""
    if isinstance(modes, ModePlan):
        return modes
    given: Any = 1 if modes is None else modes
    if isinstance(given, Mapping):
        listed = ", ".join(f"{name}={value!r}" for name, value in given.items())
        raise ArgumentTypeError(f"modes must be a number or a plan, got a mapping; use training.ModePlan({listed})")
    return ModePlan(count=positive_whole("modes", given))
