"""One training of a run of several modes: what it starts from, its seed and its folder, and who may train it."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from advbnn.attacks import PGD
from advbnn.bayes.mean_field import Bayesian
from advbnn.bayes.protocol import inner_network, random_parts
from advbnn.bayes.sample_bank import SampleBank
from advbnn.bayes.swag import SWAG
from advbnn.data import Splits
from advbnn.defenses.defense import Defense
from advbnn.errors import ArgumentError, InUseError, RunError
from advbnn.machine.files import locked_folder
from advbnn.models import reset_parameters_
from advbnn.models.initial_weights import InitialWeights, load_initial
from advbnn.randomness import seeded
from advbnn.training.adversarial_copy import adversarial_copy
from advbnn.training.config import Config
from advbnn.training.fit_result import FitResult
from advbnn.training.loading import Trained, load_trained
from advbnn.training.loop import fit
from advbnn.training.mode_plan import TRUNK, ModePlan
from advbnn.training.run_folder import MODEL, MODES


@dataclass(frozen=True)
class ModesRun:
    """The arguments of `fit` for several modes; every mode takes the `options` as they are."""

    net: nn.Module
    built: bool  # by the defence, so that it builds the modes too; a copy in another process does not know
    data: Splits[Any]
    defense: Defense
    plan: ModePlan
    seed: int
    config: Config
    out: Path | None
    progress: bool
    init: tuple[InitialWeights, ...]  # none, one for all modes, or one for each
    init_classifier: str
    options: Mapping[str, Any]
    titled: bool = True  # progress names the mode, unless something else does

    def folder(self, name: str) -> Path | None:
        return None if self.out is None else self.out / MODES / name

    def finished(self, name: str) -> bool:
        folder = self.folder(name)
        return folder is not None and (folder / MODEL).exists()

    def title(self, name: str) -> str:
        """What progress calls a training."""
        return TRUNK if name == TRUNK else f"mode {int(name) + 1}/{self.plan.count}"

    def train(self, name: str, device: torch.device | str, before: nn.Module | None = None) -> FitResult:
        """Train one mode, or resume its training; `before` is the network that it needs, else from its folder."""
        plan, seed, data = self.plan, self.plan.seed_of(name, self.seed), self.data
        needed, starts = plan.needed_by(name), plan.start_of(name) is not None
        weights = None if starts else self._init_of(name)
        model = self._fresh(seed, weights)
        if needed is not None and before is None:
            before = self.load(needed).model
        if starts and before is not None:
            model.load_state_dict(_state_to_continue(before))
        elif before is not None:
            attack = cast(PGD, self.defense.attack)
            copied = partial(adversarial_copy, before.to(device), attack=attack, seed=seed)
            held_out = None if data.validation is None else copied(data.validation)
            data = replace(data, train=copied(data.train), validation=held_out)
        files = (str(weights),) if isinstance(weights, str | Path) else ()
        described = plan.defense_of(name, self.config.defense)
        config = replace(self.config, defense=described, seed=seed, modes=ModePlan(), init=files)
        return fit(
            model,
            data,
            plan.defense_of(name, self.defense),
            seed=seed,
            out=self.folder(name),
            resume=self.folder(name) is not None,
            config=config,
            device=device,
            progress=self.title(name) if self.progress and self.titled else self.progress,
            **self.options,
        )

    def train_unless_taken(self, name: str, device: torch.device | str) -> bool:
        """Train one mode, unless it is finished, must wait, or another process trains it; whether it was trained."""
        needed, folder = self.plan.needed_by(name), self.folder("claims")
        if folder is None or self.finished(name) or (needed is not None and not self.finished(needed)):
            return False
        with claimed(folder / name) as free:
            if free and not self.finished(name):
                self.train(name, device)
                return True
        return False

    def load(self, name: str | None = None) -> Trained:
        """One mode from its folder, or all modes; on the CPU."""
        folder = self.out if name is None else self.folder(name)
        if folder is None:
            raise RunError("the modes are in no folder; give fit an out")
        return load_trained(folder, net=None if self.built else copy.deepcopy(self.net))

    def check_starts(self) -> None:
        """Refuse weights that no mode can start from, before the first of them trains."""
        centred = any(isinstance(part, Bayesian) and hasattr(part, "prior_mean") for _, part in random_parts(self.net))
        if centred and not self.built and not self.init:
            remedy = "give the weights that it is centred on as init too, or a checkpoint for each mode"
            raise ArgumentError(f"net has a prior of its own means, and modes start from fresh weights; {remedy}")
        for weights in self.init or (None,):
            self._fresh(self.seed, weights)

    def _init_of(self, name: str) -> InitialWeights | None:
        if not self.init:
            return None
        return self.init[int(name) if len(self.init) > 1 else 0]

    def _fresh(self, seed: int, init: InitialWeights | None) -> nn.Module:
        """A network like the given one, with initial weights of its own or of a checkpoint, ready for `fit`.

        What is frozen in the given one is so in all modes, with the same weights.
        """
        train = self.data.train
        if self.built and all(parameter.requires_grad for parameter in self.net.parameters()):
            kind = {"classes": len(train.classes), "shape": train.shape, "seed": seed}
            model = self.defense.build(**kind, init=init, init_classifier=self.init_classifier)
            return model.train(self.net.training)
        with seeded(seed):
            model = copy.deepcopy(self.net)
            reset_parameters_(inner_network(model))
            if init is not None:
                load_initial(inner_network(model), init, self.init_classifier)
            return self.defense.wrap(model)


@contextmanager
def claimed(folder: Path) -> Iterator[bool]:
    """Whether this process alone has the lock of a training, within the block."""
    with ExitStack() as stack:
        free = True
        try:
            stack.enter_context(locked_folder(folder))
        except InUseError:
            free = False
        yield free


def _state_to_continue(model: nn.Module) -> dict[str, Any]:
    """The weights that a further training starts from: of samples or moments, those of the network inside."""
    return (model.net if isinstance(model, SampleBank | SWAG) else model).state_dict()
