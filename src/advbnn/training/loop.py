"""Training: Algorithm 1 of the paper for every defence, on one process or several, with exact resumption."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from advbnn import modules
from advbnn.bayes.protocol import random_parts
from advbnn.data import Splits
from advbnn.defenses.defense import OWN, Defense
from advbnn.display.progress import ProgressBar
from advbnn.errors import ArgumentError, CheckpointError, DivergedError, FileError, RunError
from advbnn.machine.files import locked_folder
from advbnn.machine.processes import World, world
from advbnn.machine.threads import few_threads
from advbnn.models.initial_weights import InitialWeights, load_initial
from advbnn.randomness import seeded
from advbnn.training import checkpoint
from advbnn.training.arguments import as_splits, check_arguments, starts
from advbnn.training.callbacks import Augment, Callback, TensorBoard, check_augment, check_callbacks
from advbnn.training.checkpoint import Checkpoint
from advbnn.training.config import Config
from advbnn.training.fit_result import FitResult
from advbnn.training.interrupts import BROKEN_PIPE, Interrupted, Interrupts
from advbnn.training.mode_plan import ModePlan, mode_plan
from advbnn.training.provenance import run_facts
from advbnn.training.run_folder import CHECKPOINTS, RunFolder
from advbnn.training.run_logger import RunLogger
from advbnn.training.state import TrainingState


def fit(
    net: nn.Module,
    data: Splits[Any] | Iterable[Any],
    defense: Defense,
    *,
    init: InitialWeights | Sequence[InitialWeights] | None = None,
    init_classifier: str = "kept",
    augment: Augment | None = None,
    callbacks: Iterable[Callback] = (),
    modes: ModePlan | int | None = None,
    seed: int = 0,
    out: Path | str | None = None,
    resume: bool = False,
    config: Config | None = None,
    device: torch.device | str | None = None,
    engine: str = "auto",
    precision: str = "auto",
    log_every: int = 50,
    save_every: float = 60.0,
    progress: bool | str = False,
    tensorboard: bool = False,
) -> FitResult:
    """Train a network with a defence (Algorithm 1).

    All randomness of a step (order, augmentation, attack, weights) depends on the seed, the epoch, the step and the
    process only. A run that is killed and resumed therefore gives the same result as without the interruption; on the
    CPU, with the same number of threads and the same kernels, bit for bit.

    Args:
        net: a plain network, which the defence makes noisy or Bayesian as needed, or one that is so already. Trained
            in place, except for RSE, which trains a copy. If it is in training mode, parts in evaluation mode stay in
            it: their BatchNorm is frozen.
        data: the training set is used, the test set never. Also a `DataLoader`, or any iterable of batches (inputs,
            targets); see `advbnn.data.stream`. A set in memory is faster and can be divided among processes, and a
            resumption in the middle of an epoch need not load its first batches again.
        defense: how to train; see `defense(...)`.
        init: a safetensors file or a state dict whose weights the network starts from; with several modes, one for all
            or one for each. See `load_initial`.
        init_classifier: `"kept"`, or `"fresh"` for a checkpoint with another number of classes.
        augment: a function of the inputs and targets of a batch, applied after the defence's augmentation. Random
            numbers of torch's, NumPy's and Python's global generators follow from the seed. A function cannot be
            stored in the run folder: pass the same one to resume.
        callbacks: called after every step and epoch; see `Callback`.
        modes: train so many networks, each with initial weights and a seed of its own; the model of the result is a
            `Modes`. A `ModePlan` says how they are trained. On `device="cuda"` all GPUs train modes side by side.
        seed: decides all randomness.
        out: the run folder, for checkpoints, metrics and log; None writes nothing.
        resume: continue from the last checkpoint in `out`, if there is one.
        config: the settings to write into `out`; by default made from the other arguments.
        device: where to train; by default where the network is.
        engine: how a step runs: `"eager"`, `"compile"`, `"graph"`, or `"auto"`, the fastest that works here.
        precision: of matrix products: `"full"`, `"bf16"`, or `"auto"`: bfloat16 with a fast engine on a GPU.
        log_every: steps between lines of metrics.
        save_every: seconds between checkpoints.
        progress: show a progress bar, or lines if stderr is not a terminal; text is shown as its title.
        tensorboard: also write TensorBoard events into `out`.

    Raises:
        Interrupted: on Ctrl-C, SIGTERM, SIGHUP, or a closed pipe that progress is written to, after the step is
            complete and the state is saved.
        DivergedError: the loss is NaN or infinite; the state is saved separately.
    """
    plan, called = mode_plan(modes), check_callbacks(callbacks)
    check_augment(augment)
    if resume and out is None:
        raise ArgumentError("resume=True needs out, the folder of the run to continue; give out=")
    if not isinstance(data, Splits):
        data = as_splits(net, data, seed)
    check_arguments(net, defense)
    given = starts(init, plan)
    files = tuple(str(weights) for weights in given if isinstance(weights, str | Path))
    train = data.train
    built = defense.has_built(net, classes=len(train.classes), shape=train.shape)
    described = defense if built else replace(defense, architecture=OWN)
    how: dict[str, Any] = {"engine": engine, "precision": precision, "log_every": log_every, "save_every": save_every}
    start: dict[str, Any] = {"seed": seed, "init_classifier": init_classifier}
    settings = config or Config(data=train.name, defense=described, init=files, modes=plan, **start, **how)
    if plan.count > 1:
        from advbnn.training.mode_run import ModesRun  # it trains each mode by this function
        from advbnn.training.modes import fit_modes

        if called:
            raise ArgumentError(
                "callbacks are for a single network; train each mode with fit, and combine: Modes(nets)"
            )
        run_of_modes = ModesRun(
            net=net,
            built=built,
            data=data,
            defense=defense,
            plan=plan,
            config=settings,
            out=None if out is None else Path(out),
            progress=bool(progress),
            init=given,
            options={**how, "augment": augment, "tensorboard": tensorboard},
            **start,
        )
        return fit_modes(run_of_modes, resume=resume, device=device)
    processes = world()
    device = modules.usable_device(device) if device is not None else next(net.parameters()).device
    for weights in given:
        if random_parts(net):
            remedy = "load it before bayesianize(net), or with defense.build(..., init=...)"
            raise ArgumentError(f"init is for a plain network, and this {type(net).__name__} is random; {remedy}")
        load_initial(net, weights, init_classifier)
    with seeded(seed):  # some defences have random initial weights of their own
        model = defense.wrap(net).to(device)
    training = TrainingState(model, data.to(device), defense, seed, engine, processes, precision, augment)
    with (
        few_threads(training.model, train.shape, defense.batch_size),
        _opened(training, settings, given or settings.init, out, resume) as run,
        ProgressBar("training" if progress and processes.leads else None) as bar,
        RunLogger(
            run,
            bar,
            log_every=log_every,
            save_every=save_every,
            callbacks=(*called, TensorBoard()) if tensorboard and run is not None else called,
            title=progress if isinstance(progress, str) else "",
        ) as logger,
        Interrupts() as interrupts,
        modules.training(training.model),
    ):
        training.load(_last_checkpoint(run, out, processes))
        if run is not None and run.finished:
            run.publish()
            logger.say(f"{run.path} is finished: {training.total_steps} steps; nothing to do")
        else:
            logger.start(training)
            _train(training, logger, interrupts, out)
    return FitResult(
        model=training.product,
        defense=training.defense,
        seed=seed,
        steps=training.total_steps,
        history=logger.history,
        noise_std=training.noise_std,
        out=None if out is None else Path(out),
    )


def _train(training: TrainingState, logger: RunLogger, interrupts: Interrupts, out: Path | str | None) -> None:
    first = True
    try:
        while not training.over:
            for x, y in training.rest_of_epoch():
                training.advance(x, y)
                if first and training.why_eager is not None:
                    logger.say(f"running eagerly, which is slower: {training.why_eager}")
                first = False
                logger.after_step(training)
                if training.world.any(interrupts.received is not None or logger.bar.broken):
                    logger.save(training)
                    where = f"stopped after step {training.total_steps} of {training.steps_in_all}"
                    saved = f"saved in {out}; continue with --resume (resume=True)"
                    received = interrupts.received or (BROKEN_PIPE if logger.bar.broken else None)
                    raise Interrupted(f"{where}, {saved if out else 'not saved, as out is None'}", received)
        training.finish()
        if training.best is not None:
            logger.keep_last(training)
            training.return_to_best()
        logger.finish(training)
    except DivergedError as error:
        raise DivergedError(f"{error}; {logger.save_diverged(training)}") from error
    except (FileError, CheckpointError) as error:  # a full disk
        raise type(error)(f"{error}; {logger.kept(training)}") from error


@contextmanager
def _opened(
    training: TrainingState, config: Config, init: Sequence[InitialWeights], out: Path | str | None, resume: bool
) -> Iterator[RunFolder | None]:
    """The run folder, locked, in the process that leads."""
    if out is None or not training.world.leads:
        yield None
        return
    with locked_folder(Path(out)):
        processes = training.world.size
        facts = run_facts(training.model, training.data.train, training.seed, processes, init)
        yield RunFolder(out, config, facts, resume=resume)


def fit_config(
    config: Config, data: Splits[Any], *, out: Path, resume: bool, device: torch.device | str | None
) -> FitResult:
    """Build the network of a configuration and train it on `config.load_data()`, with progress; see `fit`."""
    several = config.modes.count > 1
    start: dict[str, Any] = {"seed": config.seed, "init_classifier": config.init_classifier}
    first = None if several or not config.init else starts(config.init, config.modes)[0]
    net = config.defense.build(classes=len(data.train.classes), shape=data.train.shape, init=first, **start)
    names = ("modes", "engine", "precision", "log_every", "save_every", "tensorboard")
    return fit(
        net,
        data,
        config.defense,
        init=config.init if several and config.init else None,
        out=out,
        resume=resume,
        config=config,
        device=device,
        progress=True,
        **start,
        **{name: getattr(config, name) for name in names},
    )


def _last_checkpoint(run: RunFolder | None, out: Path | str | None, processes: World) -> Checkpoint | None:
    """The checkpoint to resume from, the same in all processes."""
    if out is None or processes.size == 1:
        return None if run is None else run.checkpoint
    processes.any(False)  # wait until the leading process has checked the folder
    found = checkpoint.latest(Path(out) / CHECKPOINTS) if run is None else run.checkpoint
    step = found.step if found is not None else 0
    if processes.any(step != round(float(processes.sum(torch.tensor(step, dtype=torch.float64))) / processes.size)):
        raise RunError(f"the processes see different checkpoints in {out}; use a folder that all can read and write")
    return found
