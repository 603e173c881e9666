"""advbnn evaluate: the accuracy of a run under attack."""

from advbnn.cli import options


def evaluate(
    run: options.Run,
    attack: options.Attacks = None,
    eps: options.Radii = None,
    norm: options.Norm = "linf",
    steps: options.Steps = None,
    eot: options.Eot = 1,
    samples: options.Samples = 20,
    seeds: options.Seeds = 3,
    limit: options.Limit = None,
    batch_size: options.BatchSize = 250,
    out: options.Out = None,
    last: options.Last = False,
    device: options.Device = None,
    engine: options.Engine = "auto",
    precision: options.Precision = "full",
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
    options.refuse_larger_than_images(norm, eps or ())
    settings = {"samples": samples, "seeds": seeds, "batch_size": batch_size, "engine": engine, "precision": precision}
    with open_run(run, device=device, limit=limit, out=out, last=last, **settings) as (trained, test, shared, leads):
        radii = eps or ([training_radius(trained, norm)] if attacking else [])
        # all are made before anything is measured, as some do not fit the network
        chosen = [
            (name, make_attack(name, trained.model, Threat(norm, radius), steps, eot))
            for radius in radii
            for name in attacking
        ]
        evaluation = Evaluation(trained.model, test, **shared)
        records = evaluation.accuracy(CLEAN, None) if CLEAN in names else Records()
        for name, one in chosen:
            records += evaluation.accuracy(title(name, one), one)
        if leads:
            show(records)
