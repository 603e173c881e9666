"""Accuracy of a random classifier under attack, with its uncertainty.

The classifier is fixed first: the largest mean probability over S draws of the network (eq. 18). Attacks see other
draws. What they made is classified afterwards, and every accuracy is a `Record`.
"""

import functools
import hashlib
import json
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypedDict, Unpack

import torch
from torch import Tensor, nn

from advbnn.attacks.base import Attack
from advbnn.attacks.threat import Threat
from advbnn.attacks.transfer import Transfer
from advbnn.bayes.prediction import RULES, Prediction, predict
from advbnn.data.imageset import Examples, row_numbers
from advbnn.data.splits import Splits
from advbnn.distributed import world
from advbnn.errors import ArgumentError, ArgumentTypeError, unknown
from advbnn.evaluation.attackable import accelerated
from advbnn.evaluation.batchwise import Batch, Work, batchwise, gather
from advbnn.evaluation.identity import DataIdentity, ModelIdentity, precision_of, versions_on
from advbnn.evaluation.outcomes import pack
from advbnn.evaluation.records import Record, Records, check_same_settings
from advbnn.fast.acceleration import computes_in_bf16, engine_of
from advbnn.modules import device_of, dtype_of, evaluating, explain_input_errors, without_parameter_gradients
from advbnn.progress import listening
from advbnn.randomness import crafting_seed, scoring_seed

FEWEST_IMAGES = 100
"""Below this the 95 % interval of an accuracy near one half is wider than 20 points."""

CLEAN = "clean"


class SmallSampleWarning(UserWarning):
    """There are so few images that the interval of an accuracy says next to nothing."""


class Perturbation(Protocol):
    """Any attack: `advbnn.attacks`, or a function of your own with a `threat`. Its repr is its identity."""

    @property
    def threat(self) -> Threat:
        """What it may do; `evaluate` checks that it keeps to it."""

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, seed: int | None = None) -> Tensor:
        """Perturbed inputs."""


Attacks = Perturbation | None | str | Mapping[str, Perturbation | None]


Details = Callable[[dict[str, Tensor]], Sequence[Mapping[str, Any]]]


class Options(TypedDict, total=False):
    """The keyword arguments that all evaluations share; see `Evaluation`."""

    samples: int
    seeds: int | Sequence[int]
    rule: str
    batch_size: int
    rows: Sequence[int] | Tensor | None
    label: str | None
    out: str | Path | None
    progress: bool
    command: str
    engine: str
    precision: str


def evaluate(model: nn.Module, data: Examples, attacks: Attacks = None, **options: Unpack[Options]) -> Records:
    """The accuracy of the ensemble without and under attack, one record for each attack.

    Args:
        model: any module that returns logits, random or not. Its mode and torch's random state stay as they are.
        data: the examples, such as `advbnn.data.load("digits").test`.
        attacks: one attack, or attacks by name; None or `"clean"` for the accuracy without one.
        options: see `Evaluation`, above all `samples=20`, `seeds=3` and `out`.
    """
    evaluation = Evaluation(model, data, **options)
    records = Records()
    for name, attack in by_name(attacks).items():
        records += evaluation.accuracy(name, attack)
    return records


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A model, images, and how the one is judged on the other; makes records.

    Args:
        model: any module that returns logits.
        data: the examples.
        samples: S, the draws of the classifier (eq. 18).
        seeds: evaluation seeds, or how many: 0, 1, ... Each crafts the attack anew and scores it with S draws of its
            own, the same ones for every batch and attack, so that each seed stands for one fixed ensemble.
        rule: how draws become a label, see `predict`.
        batch_size: examples attacked at a time.
        rows: the examples to use, each of them once; all when None.
        label: what the model is called in records; its class when None.
        out: a file of records. Finished records are added to it, those that are there are not made again, and
            unfinished work is kept beside it, so that an interrupted evaluation goes on where it was.
        progress: show what is done and the time left.
        command: what makes these records again, to be written into them.
        engine: how the network runs, see `accelerate`; no setting of a record, as all give the same up to rounding, but
            noted in its `versions`. Attacks that are not of `advbnn.attacks` get the model itself, in evaluation mode
            and without gradients of its parameters.
        precision: `"full"`, or `"bf16"` for matrix products in bfloat16, which records then say; see `accelerate`.
    """

    model: nn.Module
    data: Examples
    samples: int = 20
    seeds: int | Sequence[int] = 3
    rule: str = "probability"
    batch_size: int = 250
    rows: Sequence[int] | Tensor | None = None
    label: str | None = None
    out: str | Path | None = None
    progress: bool = False
    command: str = ""
    engine: str = "auto"
    precision: str = "full"
    _sources: dict[int, nn.Module] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        _check_model_and_data(self.model, self.data)
        _ = self.fast  # refuses unknown names
        for name in ("samples", "batch_size"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.rule not in RULES:
            raise unknown("rule", self.rule, RULES)
        if not self.seed_list or len(set(self.seed_list)) != len(self.seed_list):
            raise ArgumentError(f"seeds must be how many seeds, at least 1, or different seeds; got {self.seeds!r}")
        n = len(self.data) if self.rows is None else _count_different(row_numbers(self.rows, len(self.data)))
        if n < FEWEST_IMAGES:
            warnings.warn(
                f"{n} images: the 95 % interval of an accuracy spans up to {min(100, 200 / n**0.5):.0f} points; "
                f"evaluate at least {FEWEST_IMAGES}, and 1,000 or more to see differences of a few points",
                SmallSampleWarning,
                stacklevel=4,
            )

    @property
    def seed_list(self) -> tuple[int, ...]:
        """The evaluation seeds."""
        return tuple(range(self.seeds)) if isinstance(self.seeds, int) else tuple(self.seeds)

    @property
    def device(self) -> torch.device:
        """Where the model is, and so where the work is done."""
        return device_of(self.model, self.data.device)

    @cached_property
    def fast(self) -> nn.Module:
        """The model as it is attacked and asked: `accelerate(model, engine, precision)`."""
        return accelerated(self.model, self.engine, self.precision)

    @cached_property
    def plan(self) -> Record:
        """A record of the clean accuracy, complete but for its results; others are copies of it with changes."""
        return Record(
            kind="clean",
            name=CLEAN,
            model=ModelIdentity.of(self.model, self.label),
            data=DataIdentity.of(self.data, self.rows),
            samples=self.samples,
            rule=self.rule,
            seeds=self.seed_list,
            batch_size=self.batch_size,
            precision=precision_of(self.model, self.device, computes_in_bf16(self.fast)),
            versions=versions_on(self.device),
            command=self.command,
        )

    def planned(self, name: str, attack: Perturbation | None, **fields: Any) -> Record:
        """The plan for an attack on the model; `fields` of the record as given."""
        known: dict[str, Any] = {"name": name}
        if attack is not None:
            check_attack(name, attack)
            source = getattr(attack, "source", None)
            known |= {"kind": "attack", "attack": repr(attack), "threat": attack.threat}
            if source is not None:
                known |= {"kind": "transfer", "source": ModelIdentity.of(source)}
        return replace(self.plan, **known | fields)

    def accuracy(self, name: str, attack: Perturbation | None, **fields: Any) -> Records:
        """The accuracy under one attack; `fields` go into its record."""

        def work(x: Tensor, y: Tensor, batch: Batch) -> dict[str, Tensor]:
            x, y = self.prepared(x, y)
            correct = [self.classify(self.craft(attack, x, y, seed, batch), seed).label == y for seed in self.seed_list]
            return {"correct": torch.stack(correct, 1)[:, None]}

        return self.measure([self.planned(name, attack, **fields)], work)

    def craft(self, attack: Perturbation | None, x: Tensor, y: Tensor, seed: int, batch: Batch) -> Tensor:
        """Perturbed inputs for the model, from randomness that no score uses; `x` itself without an attack."""
        if attack is None or attack.threat.eps == 0:
            return x
        # copies, as one that writes into its inputs would be checked against what it wrote
        batch_of_its_own, crafting = (x.clone(), y.clone()), crafting_seed(seed, batch.number)
        if isinstance(attack, Attack | Transfer):
            told = functools.partial(batch.attacked, seed=seed)
            with listening(told) if self.progress else nullcontext():
                x_adv = self._accelerated(attack)(self.fast, *batch_of_its_own, seed=crafting)
        else:
            # an attack from elsewhere may look for more in the model than its answers, and set no mode
            with evaluating(self.model), without_parameter_gradients(self.model):
                x_adv = attack(self.model, *batch_of_its_own, seed=crafting)
        check_allowed(attack, x_adv, x)
        return x_adv

    def classify(self, x: Tensor, seed: int) -> Prediction:
        """What the ensemble of an evaluation seed says of `x`."""
        prediction = predict(self.fast, x, self.samples, scoring_seed(seed), self.rule)
        if not bool(prediction.probs.isfinite().all()):
            raise ArgumentError("model returned NaN or infinite logits; check its weights and its precision")
        if prediction.probs.shape[1] < len(self.data.classes):
            raise ArgumentError(
                f"model knows {prediction.probs.shape[1]} classes, {self.data.name!r} has {len(self.data.classes)}; "
                "give it data with its own classes"
            )
        return prediction

    def prepared(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """A batch on the device, and its inputs in the type, of the model."""
        return x.to(self.device, dtype_of(self.model)), y.to(self.device)

    def explain_input_errors(self) -> AbstractContextManager[None]:
        """Within the block, images that the model cannot take are an error about the data."""
        shape = (min(len(self.data), self.batch_size), *self.data.shape)
        return explain_input_errors(self.model, "data", shape, dtype_of(self.model))

    def measure(self, plans: Sequence[Record], work: Work, details: Details | None = None) -> Records:
        """The records of several plans that one piece of work serves.

        Args:
            plans: records without results.
            work: makes for each batch any tensors with one row an example. One of them, `correct`, bool, [examples,
                plans, seeds], becomes the accuracies; without it the records have none.
            details: makes the further results of each plan from all that `work` has made.
        """
        finished = self._finished(plans)
        if finished is not None:
            return finished
        store = None if self.out is None else _store(Path(self.out), plans)
        shown = f"{plans[0].model.label}: {plans[0].name}" if self.progress else None
        with self.explain_input_errors():
            results, seconds = batchwise(
                work,
                self.data,
                batch_size=self.batch_size,
                rows=self.rows,
                device=self.device,
                store=store,
                description=shown,
            )
        rights = results.get("correct", torch.empty(0, len(plans), 0)).unbind(1)
        further: Sequence[Mapping[str, Any]] = [{}] * len(plans) if details is None else details(results)
        records = Records(
            replace(
                plan,
                correct=tuple(right.sum(0).tolist()),
                outcomes=tuple(pack(of_seed) for of_seed in right.unbind(1)),
                details=more,
                seconds=seconds / len(plans),
                versions={**plan.versions, "engine": engine_of(self.fast)},
            )
            for plan, right, more in zip(plans, rights, further, strict=True)
        )
        if self.out is not None and store is not None and world().leads:
            records.save(self.out)
            shutil.rmtree(store, ignore_errors=True)
            with suppress(OSError):  # others may have unfinished work there
                store.parent.rmdir()
        return records

    def _accelerated(self, attack: Attack | Transfer) -> Attack | Transfer:
        """A transfer with its source accelerated; any other attack as it is."""
        if not isinstance(attack, Transfer):
            return attack
        source = attack.source
        if id(source) not in self._sources:
            self._sources[id(source)] = accelerated(source, self.engine, self.precision)
        return replace(attack, source=self._sources[id(source)])

    def _finished(self, plans: Sequence[Record]) -> Records | None:
        """The records of a former evaluation with the same settings; an error if its settings were others."""
        found: list[Record] | None = None
        if self.out is not None and Path(self.out).exists():
            kept = Records.load(self.out)
            for plan in plans:
                check_same_settings(kept.find(plan), plan, str(self.out))
            there = [record for plan in plans if (record := kept.find(plan)) is not None]
            found = there if len(there) == len(plans) else None
        # the first process decides, so that all of them do the same
        found = gather(found)[0]
        return None if found is None else Records(found)


def by_name(attacks: Attacks) -> dict[str, Perturbation | None]:
    """Attacks in any of the forms that `evaluate` takes, by the names that their records get."""
    if attacks is None or attacks == CLEAN:
        return {CLEAN: None}
    if isinstance(attacks, str):
        raise unknown("attacks", attacks, [CLEAN])
    if isinstance(attacks, Mapping):
        if not attacks:
            raise ArgumentError("attacks is empty: give at least one attack, or None for the clean accuracy")
        return dict(attacks)
    return {type(attacks).__name__: attacks}


def _store(out: Path, plans: Sequence[Record]) -> Path:
    """The folder of unfinished work that is the same in every setting, on the same software and device."""
    identity = json.dumps([[plan.settings(), dict(plan.versions)] for plan in plans])
    return out.with_name(f"{out.name}.unfinished") / hashlib.sha256(identity.encode()).hexdigest()[:16]


def check_model_and_examples(model: nn.Module, data: Examples, returns: str) -> None:
    """Refuse what is no network, or not one set of examples.

    Args:
        model: what should be a network.
        data: what should be examples.
        returns: what the network should return, for the message.
    """
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(f"model must be a torch.nn.Module that returns {returns}, got {type(model).__name__}")
    if isinstance(data, Splits):
        raise ArgumentTypeError("data must be one set of examples, got Splits; pass splits.test")
    if not hasattr(data, "classes"):
        raise ArgumentTypeError(
            f"data must be examples, got {type(data).__name__}; advbnn.data.from_tensors(x, y) makes such"
        )


def _check_model_and_data(model: nn.Module, data: Examples) -> None:
    check_model_and_examples(model, data, "logits")
    if len(data) == 0:
        raise ArgumentError(f"data is empty: {data.name!r} has no images to evaluate on")
    if not data.classes:
        raise ArgumentError(
            f"data must have classes, and {data.name!r} is a regression set; accuracy is for classifiers, and "
            "advbnn.score_regression gives the error of a regression"
        )


def _count_different(rows: Tensor) -> int:
    """How many rows there are; an error if one is repeated, as intervals are for that many different images."""
    different, times = rows.unique(return_counts=True)
    if len(different) < len(rows):
        most = int(times.argmax())
        raise ArgumentError(
            f"rows must be different examples, got {len(rows)} that name {len(different)}, row {int(different[most])} "
            f"{int(times[most])} times; an interval would take each for another image, so name every one once"
        )
    return len(rows)


def check_attack(name: str, attack: Perturbation) -> None:
    """Refuse what is no attack, and one that wants other labels than the true ones."""
    if not callable(attack) or not isinstance(getattr(attack, "threat", None), Threat):
        raise ArgumentTypeError(
            f"attack {name!r} must be callable and have a threat, such as attacks.PGD(...); got {attack!r}"
        )
    inner = getattr(attack, "attack", attack)
    if getattr(inner, "targeted", False):
        raise ArgumentError(f"attack {name!r} is targeted, but is given the true labels here; use targeted=False")


def check_allowed(attack: Perturbation, x_adv: Tensor, x: Tensor) -> None:
    """Refuse what an attack has made if its threat does not allow it."""
    threat = attack.threat
    if x_adv.shape != x.shape:
        raise ArgumentError(f"{attack!r} returned shape {tuple(x_adv.shape)} for inputs of shape {tuple(x.shape)}")
    # brought over together, to wait for the device once
    ends = (end.double() for end in x_adv.aminmax())
    furthest, least, most = torch.stack([threat.distance(x_adv, x).max(), *ends]).tolist()
    low, high = (torch.tensor(bound, dtype=x.dtype).item() for bound in threat.bounds)
    # what rounding in the inputs' own type may add to a perturbation that is just long enough
    allowed = threat.eps * (1 + 1e-6) + torch.finfo(x.dtype).eps
    if not (furthest <= allowed and low <= least and most <= high):
        raise ArgumentError(
            f"{attack!r} left its threat: a perturbation of {threat.norm} norm {furthest:.6g}, values in "
            f"[{least:.6g}, {most:.6g}]; its points must be moved back with threat.project"
        )
