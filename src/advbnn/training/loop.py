"""Training: Algorithm 1 of the paper, for every defence, on one process or many, and never lost."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from advbnn import modules as modes
from advbnn.data import Splits
from advbnn.defenses.defense import OWN, Defense
from advbnn.distributed import World, world
from advbnn.errors import ArgumentError, ArgumentTypeError, DivergedError, RunError
from advbnn.progress import ProgressBar
from advbnn.training import checkpoint
from advbnn.training.checkpoint import Checkpoint
from advbnn.training.config import Config
from advbnn.training.interrupts import Interrupted, Interrupts
from advbnn.training.journal import Journal, describe
from advbnn.training.run_folder import CHECKPOINTS, RunFolder, provenance, structure_of
from advbnn.training.state import Training


@dataclass(frozen=True, kw_only=True, repr=False)
class FitResult:
    """What training gave.

    Attributes:
        model: the trained network, in the mode that it came in.
        defense: how it was trained.
        seed: the seed.
        steps: updates made, those before a resumption included.
        history: metrics, one entry a logging interval.
        noise_std: the learned noise of a Gaussian likelihood, else None.
        out: the run folder, if there is one.
    """

    model: nn.Module
    defense: Defense
    seed: int
    steps: int
    history: list[dict[str, Any]]
    noise_std: float | None
    out: Path | None

    def __repr__(self) -> str:
        parts = [f"{type(self.model).__name__} by {self.defense.name}", f"seed {self.seed}", f"{self.steps} steps"]
        parts += [describe(line) for line in self.history[-1:]]
        parts += [] if self.out is None else [f"in {self.out}"]
        return f"FitResult({', '.join(parts)})"


def fit(
    net: nn.Module,
    data: Splits[Any],
    defense: Defense,
    *,
    seed: int = 0,
    out: Path | str | None = None,
    resume: bool = False,
    config: str | None = None,
    device: torch.device | str | None = None,
    engine: str = "auto",
    precision: str = "auto",
    log_every: int = 50,
    save_every: float = 60.0,
    progress: bool = False,
    tensorboard: bool = False,
) -> FitResult:
    """Train a network with a defence (Algorithm 1).

    Everything random in a step (order, augmentation, attack, weights) is a function of the seed, the epoch, the step
    and the process alone. So a run that is killed and resumed gives, on the CPU bit for bit, what it would have given.

    Args:
        net: a plain network, which the defence makes noisy or Bayesian as it needs; or one that is so already. Trained
            in place, but for RSE, which trains a copy. If it is in training mode, parts in evaluation mode stay so:
            their normalisation is frozen.
        data: the training set is used; the test set never is.
        defense: what to do; see `defense(...)`.
        seed: decides all randomness.
        out: a folder for checkpoints, metrics and log; nothing is written when None.
        resume: go on from the last checkpoint in `out`, if there is one.
        config: TOML text kept in `out` as the settings of the run; written from `defense` and `seed` when None.
        device: where to train; where the network is when None.
        engine: how a step runs: `"eager"`, `"compile"`, `"graph"`, or the fastest that works here; see `engine`.
        precision: of matrix products: `"full"`, `"bf16"`, or bfloat16 where the engine is fast and on a GPU.
        log_every: steps from one line of metrics to the next.
        save_every: seconds from one checkpoint to the next.
        progress: show a bar, or lines where stderr is no terminal.
        tensorboard: also write TensorBoard events into `out`.

    Raises:
        Interrupted: Ctrl-C or SIGTERM came; the step was finished and the state saved.
        DivergedError: the loss became NaN or infinite; the state was saved apart.
    """
    _check_arguments(net, data, defense)
    processes = world()
    device = torch.device(device) if device is not None else next(net.parameters()).device
    training = Training(defense.wrap(net).to(device), data.to(device), defense, seed, engine, processes, precision)
    run = None
    if out is not None and processes.leads:
        own = Config(data=data.train.name, seed=seed, engine=engine, precision=precision, defense=defense)
        run = _open_run(training, out, config or _true_of(own, training).to_toml(), resume)

    with (
        ProgressBar("training" if progress and processes.leads else None) as bar,
        Journal(run, bar, log_every=log_every, save_every=save_every, tensorboard=tensorboard) as journal,
        Interrupts() as interrupts,
        modes.training(training.model),
    ):
        training.load(_last_checkpoint(run, out, processes))
        if run is not None and run.finished:
            run.publish()
            journal.say(f"{run.path} is finished: {training.total_steps} steps; nothing is left to do")
            return _result(training, journal, out)
        journal.say(_headline(training))
        try:
            while not training.over:
                for x, y in training.rest_of_epoch():
                    training.advance(x, y)
                    journal.after_step(training)
                    if processes.any(interrupts.asked is not None):
                        journal.save(training)
                        raise Interrupted(_how_to_go_on(training, out), interrupts.asked)
            training.finish()
            if training.best is not None:
                journal.keep_last(training)
                training.return_to_best()
            journal.finish(training)
        except DivergedError as error:
            raise DivergedError(f"{error}; {journal.save_diverged(training)}") from error
    return _result(training, journal, out)


def fit_config(
    config: Config, data: Splits[Any], *, out: Path, resume: bool, device: torch.device | str | None
) -> FitResult:
    """A run from its settings: builds the network and trains it, and shows progress.

    Args:
        config: all settings.
        data: what `config.load_data()` gives.
        out: the run folder.
        resume: see `fit`.
        device: see `fit`.
    """
    train = data.train
    return fit(
        config.defense.build(classes=len(train.classes), shape=train.shape, seed=config.seed),
        data,
        config.defense,
        seed=config.seed,
        out=out,
        resume=resume,
        config=config.to_toml(),
        device=device,
        engine=config.engine,
        precision=config.precision,
        log_every=config.log_every,
        save_every=config.save_every,
        progress=True,
        tensorboard=config.tensorboard,
    )


def _check_arguments(net: object, data: object, defense: object) -> None:
    if not isinstance(net, nn.Module):
        raise ArgumentTypeError(f"net must be a torch.nn.Module that returns logits, got {type(net).__name__}")
    if next(net.parameters(), None) is None:
        raise ArgumentError(f"net must have parameters to train, and this {type(net).__name__} has none")
    if not isinstance(data, Splits):
        raise ArgumentTypeError(
            f"data must be Splits(train, test), got {type(data).__name__}; advbnn.data.load(name) gives one, and "
            "from_tensors(images, labels) makes each of the two sets"
        )
    if not isinstance(defense, Defense):
        raise ArgumentTypeError(
            f"defense must be a Defense, got {defense!r}; advbnn.defense('adv_bnn', 'cifar10') makes one of a name and "
            "the data set whose settings to take"
        )


def _true_of(config: Config, training: Training) -> Config:
    """The settings; where the network is not what they would build, they say so."""
    train, defense = training.data.train, config.defense
    try:
        built = defense.build(classes=len(train.classes), shape=train.shape)
    except ValueError:  # there is none of that architecture for such data
        built = None
    if built is not None and structure_of(built) == structure_of(training.model):
        return config
    return replace(config, defense=replace(defense, architecture=OWN))


def _open_run(training: Training, out: Path | str, config: str, resume: bool) -> RunFolder:
    train, model = training.data.train, training.model
    facts = provenance(
        training.seed,
        data={
            "name": train.name,
            "examples": len(train),
            "classes": len(train.classes),
            "shape": list(train.shape),
            "sha256": train.fingerprint(),
        },
        model={
            "kind": type(model).__name__,
            "parameters": sum(p.numel() for p in model.parameters()),
            "structure": structure_of(model),
        },
        processes=training.world.size,
    )
    return RunFolder(out, config, facts, resume=resume)


def _last_checkpoint(run: RunFolder | None, out: Path | str | None, processes: World) -> Checkpoint | None:
    """The checkpoint to go on from, the same in all processes."""
    if out is None or processes.size == 1:
        return None if run is None else run.checkpoint
    processes.wait()  # until the leading process has made sure that the folder is this run's
    found = checkpoint.latest(Path(out) / CHECKPOINTS) if run is None else run.checkpoint
    step = found.step if found is not None else 0
    if processes.any(step != round(float(processes.sum(torch.tensor(float(step)))) / processes.size)):
        raise RunError(f"the processes see different checkpoints in {out}; put it where all of them can read and write")
    return found


def _result(training: Training, journal: Journal, out: Path | str | None) -> FitResult:
    return FitResult(
        model=training.product,
        defense=training.defense,
        seed=training.seed,
        steps=training.total_steps,
        history=journal.history,
        noise_std=training.noise_std,
        out=None if out is None else Path(out),
    )


def _headline(training: Training) -> str:
    defense, train = training.defense, training.data.train
    changed = f", changed in {', '.join(defense.changed)}" if defense.changed else ""
    done = f"; resumed after step {training.total_steps}" if training.total_steps else ""
    return (
        f"{defense.name} with the numbers of {defense.profile!r}{changed}: {len(train):,} examples of {train.name}, "
        f"{training.steps_in_all:,} steps on {train.device}{done}"
    )


def _how_to_go_on(training: Training, out: Path | str | None) -> str:
    where = f"stopped after step {training.total_steps} of {training.steps_in_all}"
    if out is None:
        return f"{where}; nothing was saved, there being no run folder (out=...)"
    return f"{where}, saved in {out}; go on with --resume (resume=True)"
