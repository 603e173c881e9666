"""advbnn evaluate: the accuracy of a run under attack."""

from advbnn.cli.options import (
    Attacks,
    BatchSize,
    Device,
    Engine,
    Eot,
    Last,
    Limit,
    Norm,
    Out,
    Precision,
    Radii,
    Run,
    Samples,
    Seeds,
    Steps,
    refuse_larger_than_images,
)


def evaluate(
    run: Run,
    attack: Attacks = None,
    eps: Radii = None,
    norm: Norm = "linf",
    steps: Steps = None,
    eot: Eot = 1,
    samples: Samples = 20,
    seeds: Seeds = 3,
    limit: Limit = None,
    batch_size: BatchSize = 250,
    out: Out = None,
    last: Last = False,
    device: Device = None,
    engine: Engine = "auto",
    precision: Precision = "full",
) -> None:
    """Measure the accuracy of a run under attack; under torchrun, on all of its processes.

    Records that are in the file already are not measured again, and an interrupted evaluation resumes.
    """
    from advbnn.attacks.threat import Threat
    from advbnn.cli.attacks import make_attack, refuse_impossible, title
    from advbnn.cli.common import open_run, show, training_radius
    from advbnn.evaluation.accuracy import CLEAN, Evaluation
    from advbnn.evaluation.records import Records

    names = attack or [CLEAN, "paper"]
    attacking = [name for name in names if name != CLEAN]
    refuse_impossible(attacking, norm, steps, eot)
    refuse_larger_than_images(norm, eps or ())
    settings = {"samples": samples, "seeds": seeds, "batch_size": batch_size, "engine": engine, "precision": precision}
    with open_run(run, device=device, limit=limit, out=out, last=last, **settings) as (trained, test, options, leads):
        evaluation = Evaluation(trained.model, test, **options)
        records = evaluation.accuracy(CLEAN, None) if CLEAN in names else Records()
        for radius in eps or ([training_radius(trained)] if attacking else []):
            for name in attacking:
                chosen = make_attack(name, trained.model, Threat(norm, radius), steps, eot)
                records += evaluation.accuracy(title(name, chosen), chosen)
        if leads:
            show(records)
