"""Accuracy of a random classifier under attack, with its uncertainty.

The classifier is the largest mean probability over S weight samples (eq. 18). Attacks use other weight samples than the
classifier. Every accuracy becomes a `Record`.
"""

import functools
import hashlib
import json
import shutil
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from advbnn.attacks.arc import ARC
from advbnn.attacks.base import Attack
from advbnn.attacks.bpda import BPDA
from advbnn.attacks.fixed_randomness import FixedRandomness
from advbnn.attacks.identity import settings_of
from advbnn.attacks.transfer import Transfer
from advbnn.bayes.prediction import Prediction, exact_prediction, predict, prediction_of, sampled_log_probs
from advbnn.bayes.protocol import EXACT_UP_TO, finite_support, members
from advbnn.data.augment import to_float
from advbnn.data.imageset import Examples, row_numbers
from advbnn.display.progress import Listener
from advbnn.errors import ArgumentError, unknown
from advbnn.evaluation.attackable import accelerated, inside
from advbnn.evaluation.batchwise import Batch, Work, batchwise, gather
from advbnn.evaluation.checks import Perturbation, check_allowed, check_attack, check_classification, check_rows
from advbnn.evaluation.crafting import craft
from advbnn.evaluation.finite_support import correct_ensembles
from advbnn.evaluation.identity import DataIdentity, ModelIdentity, precision_of, versions_on
from advbnn.evaluation.options import Options, seed_list, with_defaults
from advbnn.evaluation.outcomes import pack
from advbnn.evaluation.records import ELSEWHERE, Plan, Record, Records, check_same_settings
from advbnn.fast.acceleration import computes_in_bf16, engine_of, rough_gradients
from advbnn.fast.fallback import Fallback
from advbnn.machine.processes import world
from advbnn.machine.threads import few_threads
from advbnn.modules import device_of, dtype_of, explain_input_errors
from advbnn.randomness import crafting_seed, derive_seed, scoring_seed

CLEAN = "clean"

Attacks = Perturbation | None | str | Mapping[str, Perturbation | None]
Details = Callable[[dict[str, Tensor]], Sequence[Mapping[str, Any]]]


class SmallSampleWarning(UserWarning):
    """There are so few images that the interval of an accuracy is too wide to be useful."""


class SingleMemberWarning(UserWarning):
    """An attack on a mixture takes one member per step, where the exact mean over all is attacked better."""


def evaluate(model: nn.Module, data: Examples, attacks: Attacks = None, **options: Unpack[Options]) -> Records:
    """The accuracy of the ensemble, clean and under attack: one record per attack.

    Args:
        model: any module that returns logits, random or not. Its mode and torch's random state are restored.
        data: the examples, such as `advbnn.data.load("digits").test`.
        attacks: one attack, or attacks by name; None or `"clean"` for the clean accuracy.
        options: `samples=20`, `seeds=3`, `rows`, `label`, `out`, `overwrite`, `progress`, `batch_size=250`, `rule`,
            `exact`, `engine`, `precision`, `gradients` and `command`; see `Options`.
    """
    evaluation = Evaluation(model, data, **options)
    records = Records()
    for name, attack in by_name(attacks).items():
        records += evaluation.accuracy(name, attack)
    return records


class Evaluation:
    """A model, images and `Options`: crafts adversarial examples, classifies them, and makes records.

    `fast` is the model as it is attacked and evaluated: `accelerate(model, engine, precision)`.
    """

    def __init__(self, model: nn.Module, data: Examples, **options: Unpack[Options]) -> None:
        check_classification(model, data)
        given = with_defaults(options)
        self.model, self.data = model, data
        self.samples, self.batch_size, self.rule = given["samples"], given["batch_size"], given["rule"]
        self.seed_list, self.rows = seed_list(given["seeds"]), given["rows"]
        self.out, self.progress, self._may_be_exact = given["out"], given["progress"], given["exact"]
        self._label, self._command, self._overwrite = given["label"], given["command"], given["overwrite"]
        self._warned = False
        how: dict[str, Any] = {name: given[name] for name in ("engine", "precision", "gradients", "batch_size")}
        self._fallbacks: defaultdict[nn.Module, Fallback] = defaultdict(lambda: Fallback(warn=True))
        # a source is accelerated once, not for every batch
        self._accelerated = functools.cache(
            lambda network: accelerated(network, fallback=self._fallbacks[inside(network)], **how)
        )
        self.fast, self.device = self._accelerated(model), device_of(model, data.device)
        self._examples = n = len(data) if self.rows is None else check_rows(self.rows, len(data))
        if n < 100:
            width = f"{n} images: the 95 % interval of an accuracy spans up to {min(100, 200 / n**0.5):.0f} points"
            advice = "evaluate at least 100, and 1,000 or more to see differences of a few points"
            warnings.warn(f"{width}; {advice}", SmallSampleWarning, stacklevel=3)

    @functools.cached_property
    def exact(self) -> bool:
        """Whether the classifier is the exact mean over the members of the network; see `predict`."""
        if not self._may_be_exact or not members(self.model, at_most=EXACT_UP_TO):
            return False
        with self.explain_input_errors():
            # a member may be random itself, which only a pass shows
            return predict(self.model, self.first(1)[0]).exact

    def few_threads(self) -> AbstractContextManager[None]:
        """Within the block, passes on a CPU use as many threads as a batch can occupy; see `advbnn.machine.threads`."""
        return few_threads(self.model, self.data.shape, min(self.batch_size, self._examples))

    @functools.cached_property
    def plan(self) -> Plan:
        """The plan of the clean accuracy; other plans are copies with changes."""
        return Plan(
            kind="clean",
            name=CLEAN,
            model=ModelIdentity.of(self.model, self._label),
            data=DataIdentity.of(self.data, self.rows),
            samples=len(members(self.model)) if self.exact else self.samples,
            exact=self.exact,
            rule=self.rule,
            seeds=self.seed_list,
            batch_size=self.batch_size,
            precision=precision_of(self.model, self.device, computes_in_bf16(self.fast), rough_gradients(self.fast)),
        )

    def planned(self, name: str, attack: Perturbation | None, **fields: Any) -> Plan:
        """The plan of an attack on the model, with `fields` as given."""
        known: dict[str, Any] = {"name": name}
        if attack is not None:
            check_attack(name, attack)
            known |= {"kind": "attack", "attack": attack_settings(attack), "threat": attack.threat}
            self._warn_of_single_members(name, attack)
            source = getattr(attack, "source", None)
            if source is not None:
                known |= {"kind": "transfer", "source": ModelIdentity.of(source)}
        return replace(self.plan, **known | fields)

    def _warn_of_single_members(self, name: str, attack: Perturbation) -> None:
        if not isinstance(attack, Attack) or isinstance(attack, ARC | FixedRandomness) or attack.eot > 1:
            return
        if self.exact and (count := self.plan.samples) > 1 and not self._warned:
            self._warned = True
            what = f"{name}, with one EOT sample, attacks one of the {count} members per step"
            remedy = f"eot={count} (--eot {count}) attacks their exact mean, which is stronger"
            warnings.warn(f"{what}; {remedy}", SingleMemberWarning, stacklevel=5)

    def accuracy(self, name: str, attack: Perturbation | None, ensembles: int = 1, **fields: Any) -> Records:
        """The accuracy under one attack; `fields` go into its record.

        Under each seed `ensembles` of S weight samples each, the first of them the seed's own, score the same points;
        if the support is finite, with each member as often as its probability says.
        """
        support = finite_support(self.fast, self.first(1)[0]) if ensembles > 1 and not self.exact else ()

        def work(x: Tensor, y: Tensor, batch: Batch) -> dict[str, Tensor]:
            correct = []
            for seed in self.seed_list:
                points = self.craft(attack, x, y, seed, batch)
                if support:
                    how = ensembles, self.samples, self.rule, scoring_seed(seed)
                    correct.append(correct_ensembles(support, points, y, *how))
                    continue
                scoring = [seed, *(derive_seed(seed, "ensemble", number) for number in range(1, ensembles))]
                correct.append(torch.stack([self.classify(points, one).label == y for one in scoring], 1))
            return {"correct": torch.stack(correct, 1)[:, None]}

        return self.measure([self.planned(name, attack, **fields)], work, ensembles=ensembles)

    def craft(self, attack: Perturbation | None, x: Tensor, y: Tensor, seed: int, batch: Batch) -> Tensor:
        """Perturbed inputs, from randomness that no score uses; `x` itself without an attack."""
        if attack is None or attack.threat.eps == 0:
            return x
        crafting = crafting_seed(seed, batch.number)
        if not isinstance(attack, Attack | Transfer | BPDA):
            return craft(attack, self.model, x, y, crafting)
        if isinstance(attack, Transfer):
            attack = replace(attack, source=self._accelerated(attack.source))
        if isinstance(attack, FixedRandomness):
            attack = replace(attack, samples=self.samples, ensemble_seed=scoring_seed(seed))
        if self.progress:
            attack = _reporting_to(functools.partial(batch.attacked, seed=seed), attack)
        x_adv = attack(self.fast, x.clone(), y.clone(), seed=crafting)
        check_allowed(attack, x_adv, x)
        return x_adv

    def classify(self, x: Tensor, seed: int) -> Prediction:
        """The prediction of the ensemble of an evaluation seed, or of all members of a finite support."""
        if not self.exact:
            return prediction_of(self.log_probs(x, seed), self.rule)
        prediction = exact_prediction(self.fast, x, scoring_seed(seed), self.rule)
        self._check_classes(prediction.probs)
        return prediction

    def log_probs(self, x: Tensor, seed: int, samples: int | None = None) -> Tensor:
        """The log probabilities of the S weight samples of a seed, or of more; the first S are the ensemble's."""
        log_probs = sampled_log_probs(self.fast, x, samples or self.samples, scoring_seed(seed))
        self._check_classes(log_probs)
        return log_probs

    def _check_classes(self, outputs: Tensor) -> None:
        classes, needed = outputs.shape[-1], len(self.data.classes)
        if classes < needed:
            raise ArgumentError(f"model has {classes} classes, {self.data.name!r} has {needed}; use data that fits it")

    def prepared(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """A batch on the device of the model, with inputs of its dtype."""
        return x.to(self.device, dtype_of(self.model)), y.to(self.device)

    def first(self, count: int) -> tuple[Tensor, Tensor]:
        """The first of the images, prepared, and their labels."""
        stored, labels = next(iter(self.data.gather([row_numbers(self.rows, len(self.data))[:count]])))
        return self.prepared(to_float(stored), labels)

    def explain_input_errors(self) -> AbstractContextManager[None]:
        """Within the block, images that do not fit the model raise an error about the data."""
        shape = (min(len(self.data), self.batch_size), *self.data.shape)
        return explain_input_errors(self.model, "data", shape, dtype_of(self.model))

    def measure(
        self, plans: Sequence[Plan], work: Work, details: Details | None = None, keeps: str = "", ensembles: int = 0
    ) -> Records:
        """The records of plans that are measured together.

        `work` computes tensors with one row per example, batch by `prepared` batch. One of them, `correct`, bool,
        [examples, plans, seeds] or [examples, plans, seeds, ensembles], becomes the accuracies, if it is there.
        `details` makes the further results of each plan from all tensors. `keeps` names tensors that are kept beside
        the results, so that batches of unfinished work without these are not used. Finished work has at least this
        number of `ensembles` for each seed.
        """
        if (finished := self.finished(plans, ensembles)) is not None:
            return finished
        further = {"keeps": keeps} if keeps else {}
        if ensembles > 1:
            further["ensembles"] = str(ensembles)
        with self.few_threads():
            return self._measure(plans, work, details, further)

    def _measure(
        self, plans: Sequence[Plan], work: Work, details: Details | None, circumstances: Mapping[str, str]
    ) -> Records:
        versions = versions_on(self.device)
        circumstances = {**versions, **circumstances}
        store = None if self.out is None else store_of(Path(self.out), plans, circumstances)
        with self.explain_input_errors():
            results, seconds = batchwise(
                lambda x, y, batch: work(*self.prepared(x, y), batch),
                self.data,
                batch_size=self.batch_size,
                rows=self.rows,
                device=self.device,
                store=store,
                description=f"{plans[0].model.label}: {plans[0].name}" if self.progress else None,
            )
        right = results.get("correct", torch.empty(0, len(plans), 0))
        rights = (right if right.ndim == 4 else right[..., None]).unbind(1)  # each [examples, seeds, ensembles]
        further: Sequence[Mapping[str, Any]] = [{}] * len(plans) if details is None else details(results)
        records = Records(
            Record.of(
                plan,
                correct=tuple(right.sum(0).flatten().tolist()),
                outcomes=tuple(pack(of_seed.sum(1), of_seed.shape[1]) for of_seed in right.unbind(1)),
                details={**more, "members": plan.samples} if plan.exact else dict(more),
                seconds=seconds / len(plans),
                versions=versions | self._engine(),
                command=self._command,
            )
            for plan, right, more in zip(plans, rights, further, strict=True)
        )
        if self.out is not None and store is not None and world().leads:
            records.save(self.out, overwrite=self._overwrite)
            shutil.rmtree(store, ignore_errors=True)
            with suppress(OSError):  # other evaluations may have unfinished work there
                store.parent.rmdir()
        return records

    def _engine(self) -> dict[str, str]:
        """The engine that ran the model, and why it was eager where a fast one was to run it."""
        reason = self._fallbacks[inside(self.model)].reason
        return {"engine": engine_of(self.fast)} | ({} if reason is None else {"why eager": reason})

    def finished(self, plans: Sequence[Plan], ensembles: int = 0) -> Records | None:
        """The records of these plans in `out`, if all are there; an error if one has other settings."""
        kept = Records.load(self.out) if self.out is not None and Path(self.out).exists() else Records()
        if self._overwrite:
            wanted = {plan.key: plan.settings() for plan in plans}
            same = (one for one in kept if one.settings() == wanted.get(one.key))
            kept = Records(one for one in same if one.ensembles >= ensembles)
        for plan in plans:
            check_same_settings(kept.find(plan), plan, str(self.out))
        found = Records(record for plan in plans if (record := kept.find(plan)) is not None)
        for record in found:
            if record.ensembles < ensembles:
                what = f"a finished record {record.title} of {record.ensembles} ensembles for each seed"
                raise ArgumentError(f"{self.out} holds {what}, not {ensembles}. {ELSEWHERE}")
        # the first process decides, so that all of them do the same
        return gather(found if len(found) == len(plans) else None)[0]


def _reporting_to(listener: Listener, attack: Any) -> Any:
    """The attack with `listener` for its progress, unless it has one of its own."""
    if isinstance(attack, Transfer | BPDA):
        return replace(attack, attack=_reporting_to(listener, attack.attack))
    return replace(attack, progress=attack.progress or listener) if isinstance(attack, Attack) else attack


def attack_settings(attack: Perturbation) -> dict[str, Any]:
    """The settings of an attack as records store them, networks by their SHA-256."""
    return settings_of(attack, lambda network: ModelIdentity.of(network).sha256)


def by_name(attacks: Attacks) -> dict[str, Perturbation | None]:
    """Attacks in any of the forms that `evaluate` takes, by their names in records."""
    if attacks is None or attacks == CLEAN:
        return {CLEAN: None}
    if isinstance(attacks, str):
        raise unknown("attacks", attacks, [CLEAN])
    if isinstance(attacks, Mapping):
        if not attacks:
            raise ArgumentError("attacks is empty: give at least one attack, or None for the clean accuracy")
        return dict(attacks)
    return {type(attacks).__name__: attacks}


def store_of(out: Path, plans: Sequence[Plan], versions: Mapping[str, str]) -> Path:
    """The folder of unfinished work, one for each choice of settings, software and device."""
    identity = json.dumps([[plan.settings(), dict(versions)] for plan in plans])
    return out.with_name(f"{out.name}.unfinished") / hashlib.sha256(identity.encode()).hexdigest()[:16]
