"""The measurements behind the paper's tables and figures, one class each.

A new measurement is one more class here, added to `MEASUREMENTS`.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from advbnn.attacks import PGD
from advbnn.evaluation.accuracy import CLEAN, Evaluation
from advbnn.evaluation.audit.attack_suite import LEVELS
from advbnn.evaluation.audit.worst_case import audit
from advbnn.evaluation.curves import ensemble_curve, radius_curve, steps_curve
from advbnn.evaluation.lipschitz import lipschitz_records
from advbnn.evaluation.transfer import transfer_matrix
from advbnn.paper.measurement import Budget, Measurement, Point, Request, Session
from advbnn.paper.protocol import AUTHORS, RANDOM, Protocol

NO_AUDIT = "none"
_STEPS = 20


class Radius(Measurement):
    """Accuracy against the radius of the paper's attack: Table 1 and Figure 2."""

    what = "radius"
    experiments: ClassVar[tuple[str, ...]] = ("table1", "fig2")

    @classmethod
    def requested(cls, request: Request) -> list[Self]:
        table = (0.0, *request.protocol.table_radii)
        radii = request.protocol.radii if "fig2" in request.names else table
        return [cls(runs=(run,), radii=radii) for run in request.runs]

    @staticmethod
    def attack(protocol: Protocol) -> tuple[str, PGD, int | None]:
        """The name of the attack, the attack at any radius, and its number of images."""
        return AUTHORS, protocol.authors_attack(1.0), protocol.images

    def points(self, protocol: Protocol) -> set[Point]:
        return {(self.attack(protocol)[0], "radius", eps, eps) for eps in self.radii}

    def run(self, session: Session) -> None:
        name, attack, limit = self.attack(session.protocol)
        model = session.models[self.network.label]
        radius_curve(model, session.splits.test, attack, self.radii, name=name, **session.on(limit))

    def cost(self, budget: Budget) -> float:
        _, attack, limit = self.attack(budget.protocol)
        gradients = _STEPS * attack.eot * sum(eps > 0 for eps in self.radii)
        return budget.images(limit) * budget.seconds(self.network, gradients, len(self.radii))


class Averaged(Radius):
    """The same with gradients averaged over weight samples (EOT), for random networks."""

    what, experiments = "averaged", ("table1",)

    @classmethod
    def requested(cls, request: Request) -> list[Self]:
        random = [run for run in request.runs if run.defense in RANDOM]
        return [cls(runs=(run,), radii=request.protocol.table_radii) for run in random]

    @staticmethod
    def attack(protocol: Protocol) -> tuple[str, PGD, int | None]:
        return protocol.averaged, protocol.averaged_attack(1.0), protocol.averaged_images


@dataclass(frozen=True, kw_only=True)
class Audit(Measurement):
    """The worst case over a suite of attacks, of a level of thoroughness."""

    what, experiments = "audit", ("table1",)
    level: str

    @classmethod
    def requested(cls, request: Request) -> list[Self]:
        runs, radii = request.runs if request.audit != NO_AUDIT else (), request.protocol.audit_radii
        return [cls(runs=(run,), radii=radii, level=request.audit) for run in runs]

    def points(self, protocol: Protocol) -> set[Point]:
        return {(self.level, "", 0.0, eps) for eps in self.radii}

    def run(self, session: Session) -> None:
        protocol, model = session.protocol, session.models[self.network.label]
        threats = [protocol.authors_attack(eps).threat for eps in self.radii]
        audit(model, session.splits.test, threats, self.level, **session.on(protocol.audit_images))

    def cost(self, budget: Budget) -> float:
        """A rough estimate; half of the images are taken to survive the first attacks."""
        how, random = LEVELS[self.level], self.network.defense in RANDOM
        grid = sum(how.steps) * (sum(how.eot) if random else 1)
        authors = _STEPS * (1 + how.eot[-1] if random else 1)
        apgd = how.apgd_steps * (how.apgd_eot if random else 1)
        gradients = grid + authors + how.restarts * how.steps[0] + apgd * (1 + 0.5 * how.targets)
        forwards = how.query_eot * (how.square_queries + 0.5 * how.nes_queries) + 15 * 50
        cost, images = budget.costs[self.network.defense], budget.images(budget.protocol.audit_images)
        return images * len(self.radii) * (gradients * cost.gradient + forwards * cost.forward)


class Transfer(Measurement):
    """Adversarial examples of each network tried on every other: Figure 3."""

    what, experiments = "transfer", ("fig3",)
    name = what

    @classmethod
    def requested(cls, request: Request) -> list[Self]:
        if len(request.first) < 2:
            request.left_out.append("fig3: needs at least two defences")
            return []
        return [cls(runs=tuple(request.first.values()), radii=(request.protocol.transfer_radius,))]

    def points(self, protocol: Protocol) -> set[Point]:
        return {(CLEAN, "", 0.0, 0.0), *((f"from {run.label}", "", 0.0, self.radii[0]) for run in self.runs)}

    def run(self, session: Session) -> None:
        options = session.on(session.protocol.images)
        del options["label"]
        transfer_matrix(session.models, session.splits.test, session.protocol.authors_attack(self.radii[0]), **options)

    def cost(self, budget: Budget) -> float:
        images, count = budget.images(budget.protocol.images), len(self.runs)
        return images * sum(budget.seconds(run, _STEPS, count + 1) for run in self.runs)


class Ensemble(Measurement):
    """Accuracy of Adv-BNN against the number of weight samples: Figure 4, left."""

    what, experiments = "ensemble", ("fig4",)

    @classmethod
    def requested(cls, request: Request) -> list[Self]:
        runs = request.chosen("fig4", "adv_bnn")
        return [cls(runs=(run,), radii=(0.0, *request.protocol.study_radii)) for run in runs]

    def points(self, protocol: Protocol) -> set[Point]:
        names = {eps: AUTHORS if eps else CLEAN for eps in self.radii}
        return {(names[eps], "ensemble", float(size), eps) for eps in names for size in protocol.sizes}

    def run(self, session: Session) -> None:
        protocol, model = session.protocol, session.models[self.network.label]
        options = session.on(protocol.study_images)
        del options["samples"]
        for eps in self.radii:
            name, attack = (AUTHORS, protocol.authors_attack(eps)) if eps else (CLEAN, None)
            ensemble_curve(model, session.splits.test, attack, protocol.sizes, name=name, **options)

    def cost(self, budget: Budget) -> float:
        cost, images = budget.costs[self.network.defense], budget.images(budget.protocol.study_images)
        gradients, forwards = _STEPS * (len(self.radii) - 1), len(self.radii) * max(budget.protocol.sizes)
        return images * (gradients * cost.gradient + forwards * cost.forward)


class Steps(Measurement):
    """Accuracy of Adv-BNN against the number of attack steps: Figure 4, right."""

    what, experiments = "steps", ("fig4",)

    @classmethod
    def requested(cls, request: Request) -> list[Self]:
        return [cls(runs=(run,), radii=request.protocol.study_radii) for run in request.chosen("fig4", "adv_bnn")]

    def points(self, protocol: Protocol) -> set[Point]:
        return {(AUTHORS, "steps", float(count), eps) for eps in self.radii for count in protocol.steps}

    def run(self, session: Session) -> None:
        protocol, model = session.protocol, session.models[self.network.label]
        options = session.on(protocol.study_images)
        for eps in self.radii:
            attack = protocol.authors_attack(eps)
            steps_curve(model, session.splits.test, attack, protocol.steps, name=AUTHORS, **options)

    def cost(self, budget: Budget) -> float:
        steps, images = budget.protocol.steps, budget.images(budget.protocol.study_images)
        return images * len(self.radii) * budget.seconds(self.network, sum(steps), len(steps))


class Lipschitz(Measurement):
    """The local Lipschitz value on training and test images: Section 3."""

    what, experiments = "lipschitz", ("lipschitz",)

    @classmethod
    def requested(cls, request: Request) -> list[Self]:
        runs = request.chosen("lipschitz", "adv", "adv_bnn")
        attacks = [run.config.defense.attack for run in runs]
        return [cls(runs=(run,), radii=(attacks[0].threat.eps,)) for run in runs if attacks[0] is not None]

    def points(self, protocol: Protocol) -> set[Point]:
        return {(part, "", 0.0, self.radii[0]) for part in ("train", "test")}

    def run(self, session: Session) -> None:
        protocol, model = session.protocol, session.models[self.network.label]
        attack, options = protocol.authors_attack(self.radii[0]), session.on(protocol.study_images)
        lipschitz_records(model, session.splits, attack, **options)

    def cost(self, budget: Budget) -> float:
        images = budget.images(budget.protocol.study_images)
        return 2 * images * budget.seconds(self.network, _STEPS + budget.samples(self.network), 2)


class Alpha(Measurement):
    """Accuracy of Adv-BNN trained with a smaller weight alpha of the KL: the caption of Table 1."""

    what, experiments = "alpha", ("alpha",)

    @classmethod
    def requested(cls, request: Request) -> list[Self]:
        runs = request.chosen("alpha", "adv_bnn")
        for config in [run.config for run in runs]:
            for factor in request.protocol.alpha_factors:
                runs.append(request.experiment.run("adv_bnn", config.seed, factor, config.root, config.engine))
        return [cls(runs=(run,), radii=(request.protocol.study_radii[1],)) for run in runs]

    @property
    def label(self) -> str:
        return self.network.defense

    def points(self, protocol: Protocol) -> set[Point]:
        alpha, radius = self.network.config.defense.objective.alpha, self.radii[0]
        radii = {CLEAN: 0.0, AUTHORS: radius, protocol.averaged: radius}
        return {(name, "alpha", alpha, eps) for name, eps in radii.items()}

    def run(self, session: Session) -> None:
        protocol, model, test = session.protocol, session.models[self.network.label], session.splits.test
        point: dict[str, Any] = {"curve": "alpha", "at": self.network.config.defense.objective.alpha}
        evaluation = Evaluation(model, test, **session.on(protocol.images, label=self.label))
        evaluation.accuracy(CLEAN, None, **point)
        evaluation.accuracy(AUTHORS, protocol.authors_attack(self.radii[0]), **point)
        fewer = Evaluation(model, test, **session.on(protocol.averaged_images, label=self.label))
        fewer.accuracy(protocol.averaged, protocol.averaged_attack(self.radii[0]), **point)

    def cost(self, budget: Budget) -> float:
        protocol = budget.protocol
        averaged = budget.images(protocol.averaged_images) * budget.seconds(self.network, _STEPS * protocol.eot)
        return budget.images(protocol.images) * budget.seconds(self.network, _STEPS, 2) + averaged


MEASUREMENTS: tuple[type[Measurement], ...] = (Radius, Averaged, Audit, Transfer, Ensemble, Steps, Lipschitz, Alpha)
"""In the order in which they are planned."""
