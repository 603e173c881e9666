"""The measurements of a defence for the leaderboard, each a record: a stopped measurement resumes."""

from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from advbnn.attacks import PGD, FixedRandomness
from advbnn.attacks.identity import settings_of
from advbnn.attacks.threat import Threat
from advbnn.bayes.protocol import posterior_mean
from advbnn.data.imageset import Examples
from advbnn.defenses.published import BETWEEN, NEVER, AuthorsProtocol, Hidden, Published
from advbnn.errors import ArgumentError, one_of
from advbnn.evaluation.accuracy import CLEAN, Evaluation
from advbnn.evaluation.audit.attack_suite import LEVELS
from advbnn.evaluation.audit.worst_case import audit
from advbnn.evaluation.batchwise import Batch
from advbnn.evaluation.options import Options
from advbnn.evaluation.records import Records
from advbnn.leaderboard.entry import SAME_RADIUS
from advbnn.leaderboard.from_records import EOT, FIXED, FLAT, MEAN, PROTOCOL
from advbnn.modules import evaluating, without_parameter_gradients
from advbnn.names import LEADERBOARD_STEPS
from advbnn.randomness import crafting_seed, derive_seed, resample, seeded_globally

EOT_SAMPLES = (1, 10, 20, 50)
SCORING_PASSES = 20
"""Forward passes that score the clean images and the points of PGD over EOT samples, of all ensembles together."""
_NORMS = {"linf": "Linf", "l2": "L2", "l1": "L1"}


def measure(
    published: Published,
    model: nn.Module,
    data: Examples,
    threat: Threat,
    *,
    level: str = "standard",
    steps: int = 20,
    only: Collection[str] = LEADERBOARD_STEPS,
    **options: Unpack[Options],
) -> Records:
    """Everything that the leaderboard states about a network, or the parts of it that `only` names.

    Args:
        published: the defence; its `samples` passes are the classifier. A classifier of one pass is never replaced by
            the exact mean over the members of a mixture.
        model: the network; a post-hoc defence is put onto it unless it is there already.
        level: of the audit.
        steps: of PGD over EOT samples.
        only: `"clean"`, the clean accuracy; `"protocol"`, the authors' own; `"audit"`, with its flags; `"eot"`, PGD
            over EOT samples until the curve is flat; `"seed"`, the attack that knows the random numbers, where the
            audit has none; `"mean"`, the mean network; and if pyautoattack is installed `"autoattack"`, AutoAttack
            `rand`, and `"between"`, AutoAttack as the sources run it that keep a draw. Where nothing is random, the
            audit is enough for all from `"eot"` on.
        options: see `Options`; `out` makes it resumable.
    """
    for name in only:
        one_of("only", name, LEADERBOARD_STEPS)
    if published.network is not None and not published.trained:
        model = published.network.wrap(model)
    options.setdefault("samples", published.samples)
    options.setdefault("exact", options["samples"] > 1)
    options.setdefault("seeds", 1)
    evaluation = Evaluation(model, data, **options)
    random, found = published.redrawn != NEVER, Records()
    if "clean" in only:
        found += evaluation.accuracy(CLEAN, None, _ensembles(evaluation, random))
    if "protocol" in only:
        found += own_protocol(evaluation, published.protocol, threat)
    if "audit" in only:
        found += audit(model, data, threat, level, **options).records
    if "eot" in only and random:
        found += plateau(evaluation, threat, steps)
    if "seed" in only and random and not LEVELS[level].known_seed_steps and not evaluation.exact:
        found += evaluation.accuracy(FIXED, FixedRandomness(threat, steps=steps, samples=evaluation.samples))
    if "mean" in only and (mean := posterior_mean(model)) is not None:
        label = f"{evaluation.plan.model.label}{MEAN}"
        alone = Evaluation(mean, data, **options | {"label": label, "samples": 1})
        found += alone.accuracy(f"PGD-{steps}", PGD(threat, steps=steps))
    installed = find_spec("pyautoattack") is not None
    if "autoattack" in only and random and installed:
        found += autoattack_rand(evaluation, threat)
    if "between" in only and published.redrawn == BETWEEN and installed:
        found += autoattack_between_draws(evaluation, threat, published.protocol.batch_size)
    return found


def _ensembles(evaluation: Evaluation, random: bool) -> int:
    """How often points are scored: by some passes in all, as a network with few of its own varies from draw to draw."""
    return max(1, SCORING_PASSES // evaluation.samples) if random and not evaluation.exact else 1


def own_protocol(evaluation: Evaluation, protocol: AuthorsProtocol, threat: Threat) -> Records:
    """The accuracy by the evaluation of the source, at its radius; at that of `threat` if the two differ."""
    radius = protocol.attack.threat.eps
    if protocol.attack.threat.norm != threat.norm:
        raise ArgumentError(f"threat must have the norm of the authors' protocol, {protocol.attack.threat.norm!r}")
    if abs(radius - threat.eps) > SAME_RADIUS * threat.eps:
        step = protocol.attack.step_size
        scaled = None if step is None else step * threat.eps / radius
        protocol = replace(protocol, attack=replace(protocol.attack, threat=threat, step_size=scaled))

    def work(x: Tensor, y: Tensor, batch: Batch) -> dict[str, Tensor]:
        seeds = [derive_seed(seed, "protocol", batch.number) for seed in evaluation.seed_list]
        right = [protocol.correct(evaluation.model, x, y, seed) for seed in seeds]
        return {"correct": torch.stack(right, 1)[:, None]}

    name = f"the authors' protocol: PGD-{protocol.attack.steps}"
    about: dict[str, Any] = {"kind": PROTOCOL, "attack": settings_of(protocol), "samples": protocol.passes}
    return evaluation.measure([replace(evaluation.plan, name=name, threat=threat, **about)], work)


def plateau(evaluation: Evaluation, threat: Threat, steps: int, eot: Sequence[int] = EOT_SAMPLES) -> Records:
    """PGD with gradients averaged over more and more samples, until more of them change less than `FLAT`."""
    found = Records()
    for count in eot:
        attack = PGD(threat, steps=steps, eot=count, selection_samples=evaluation.samples)
        before = found[-1].accuracy if found else None
        found += evaluation.accuracy(f"PGD-{steps}", attack, _ensembles(evaluation, True), curve=EOT, at=float(count))
        if before is not None and abs(before - found[-1].accuracy) <= FLAT:
            break
    return found


def autoattack_rand(evaluation: Evaluation, threat: Threat) -> Records:
    """AutoAttack `rand` as its package runs it: APGD-CE and APGD-DLR with EOT 20.

    Two accuracies: as the package counts, by the pass in which an attack succeeded; and by one fresh pass at the points
    that it returns. For an image that survives it returns the clean one, so the second is no bound on anything.
    """

    def correct(x: Tensor, y: Tensor, seed: int) -> list[Tensor]:
        model = evaluation.fast  # which draws a fresh state at every pass, as the network itself would not
        x_adv, labels = _autoattack(model, x, y, threat, "rand", seed)
        return [labels == y, model(x_adv).argmax(1) == y]

    scores = {"as it counts": "the pass of the attack", "its points on a fresh pass": "one fresh pass"}
    return _counted(evaluation, threat, "rand", scores, correct)


def autoattack_between_draws(evaluation: Evaluation, threat: Threat, batch_size: int) -> Records:
    """AutoAttack `standard` as the sources of defences that keep their draw run it: on one draw, scored on another.

    An image that survives on the attacked draw comes back clean, and clean it is scored on the other. `batch_size`
    images share their two draws.
    """
    model = evaluation.model

    def part(x: Tensor, y: Tensor, seed: int) -> Tensor:
        resample(model, derive_seed(seed, "attacked draw"))
        x_adv, _ = _autoattack(Hidden(model), x, y, threat, "standard", seed)
        resample(model, derive_seed(seed, "scored draw"))
        outputs: Tensor = model(x_adv)
        return outputs.argmax(1) == y

    def correct(x: Tensor, y: Tensor, seed: int) -> list[Tensor]:
        parts = zip(x.split(batch_size), y.split(batch_size), strict=True)
        return [torch.cat([part(*pair, derive_seed(seed, "part", number)) for number, pair in enumerate(parts)])]

    return _counted(evaluation, threat, "standard", {"on one draw, scored on another": "another draw"}, correct)


def _autoattack(
    model: nn.Module, x: Tensor, y: Tensor, threat: Threat, version: str, seed: int
) -> tuple[Tensor, Tensor]:
    """The points and labels that pyautoattack returns."""
    from pyautoattack import AutoAttack  # type: ignore[import-not-found, import-untyped, unused-ignore]

    settings: dict[str, Any] = {"norm": _NORMS[threat.norm], "eps": threat.eps, "version": version}
    with torch.enable_grad():
        attack = AutoAttack(model, seed=seed % 2**31, device=x.device, **settings)
        x_adv, labels = attack.run_standard_evaluation(x, y, batch_size=len(x))
    return x_adv, labels


def _counted(
    evaluation: Evaluation,
    threat: Threat,
    version: str,
    scores: dict[str, str],
    correct: Callable[[Tensor, Tensor, int], list[Tensor]],
) -> Records:
    """A record for each of the accuracies of `correct`, with the names and explanations of `scores`."""

    def work(x: Tensor, y: Tensor, batch: Batch) -> dict[str, Tensor]:
        networks, right = (evaluation.model, evaluation.fast), []
        for seed in evaluation.seed_list:
            crafting = crafting_seed(seed, batch.number)
            with ExitStack() as stack, seeded_globally(crafting, x.device), torch.no_grad():
                for network in networks:
                    stack.enter_context(evaluating(network))
                    stack.enter_context(without_parameter_gradients(network))
                right.append(torch.stack(correct(x, y, crafting), 1))
        return {"correct": torch.stack(right, 2)}

    plans = [
        replace(
            evaluation.plan,
            kind="attack",
            name=f"AutoAttack {version}, {title}",
            attack={"name": "pyautoattack.AutoAttack", "version": version, "scored by": scored},
            threat=threat,
            samples=1,
        )
        for title, scored in scores.items()
    ]
    return evaluation.measure(plans, work)
