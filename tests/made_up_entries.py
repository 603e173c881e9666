"""Entries with invented numbers, for tests of the leaderboard."""

from typing import Any

from advbnn.defenses.published import Published
from advbnn.leaderboard.entry import (
    CLAIMED,
    Accuracy,
    Attacked,
    Claim,
    Difference,
    Entry,
    Eot,
    Flag,
    Threat,
    WorstCase,
)
from advbnn.leaderboard.from_records import about_published


def accuracy(share: float) -> dict[str, Any]:
    return {"accuracy": share, "interval": (max(0.0, share - 0.03), min(1.0, share + 0.03)), "n": 1000}


def entry(id: str = "cifar10-toy", worst: float | None = 0.4, **fields: Any) -> Entry:
    """A measured entry; one that is only claimed if `worst` is None."""
    about: dict[str, Any] = {
        "id": id,
        "name": f"Defence {id}",
        "paper": "A paper",
        "kind": "trained",
        "architecture": "resnet18",
        "dataset": "cifar10",
        "threat": Threat(norm="linf", eps=0.031373),
        "random": "<b>noise</b>",
        "redrawn": "every forward pass",
        "status": "claimed",
        "claims": (Claim(attack="PGD-20", accuracy=0.7, where="README", eps=0.031),),
    }
    if worst is not None:
        about |= {
            "status": "reproduced",
            "samples": 1,
            "clean": Accuracy(**accuracy(0.8)),
            "own_protocol": Attacked(**accuracy(0.65), name="the authors' protocol: PGD-20"),
            "worst_case": WorstCase(**accuracy(worst), level="standard"),
            "attacks": (Attacked(**accuracy(worst + 0.02), name="PGD-20", settings={"steps": 20}),),
            "plateau": (Eot(**accuracy(0.6), eot=1), Eot(**accuracy(0.5), eot=10)),
            "flat": False,
            "flags": (Flag(name="single_sample", title="One sample", evidence="It fell."),),
            "weights_sha256": "0" * 64,
            "commit": "c0ffee5",
            "command": "advbnn leaderboard measure toy run",
        }
    return Entry(**about | fields)


def board() -> list[Entry]:
    """A baseline, a defence that loses against it, one that wins, one that is only claimed, and one of other data."""
    base = {"kind": "no randomness", "claims": (), "flags": ()}
    compared: dict[str, Any] = {"baseline": "cifar10-adv"}
    loses, wins = (Difference(difference=d, interval=(d - 0.02, d + 0.02), n=1000) for d in (-0.1, 0.04))
    return [
        entry("cifar10-adv", 0.46, **base),
        entry("cifar10-loses", 0.36, **compared, difference=loses),
        entry("cifar10-wins", 0.5, **compared, difference=wins),
        entry("cifar10-claims", None),
        entry("digits-other", None, dataset="digits", kind="post hoc", threat=Threat(norm="l2", eps=0.5)),
    ]


def claimed_entry(published: Published) -> Entry:
    """The entry of a defence with nothing measured: what its source claims."""
    first = next(claim for claim in published.claims if not claim.quoted)
    radius = first.eps if first.norm == "linf" and first.eps is not None else 8 / 255
    # 0.031 is how some sources write 8/255
    threat = Threat(norm="linf", eps=0.031373 if abs(radius - 8 / 255) < 0.002 else radius)
    about = about_published(published, "cifar10", first.architecture, status=CLAIMED)
    return Entry(**vars(about), threat=threat)
