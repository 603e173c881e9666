"""What several modes are worth beyond accuracy, and what they cost: for rows that `modes.py train` has trained.

    python benchmarks/modes_worth.py uncertainty one modes5 adv_bnn5 --foreign FOLDER --root /data/cifar10
    python benchmarks/modes_worth.py number modes10 --root ...     # the worst case of the first 1, 2, 3, 5, 10 modes
    python benchmarks/modes_worth.py average modes5 snapshots ...  # one network with the mean weights of all modes
    python benchmarks/modes_worth.py distil modes5 ...             # one network that learns from all modes
    python benchmarks/modes_worth.py cost one wide modes5 ...      # images per second, alone and with a gradient

Other runs in `--runs` go by the name of their folder. `uncertainty` measures calibration, abstention and the detection
of attacks, and of the images in FOLDER, clean and attacked until the network is certain of them. Its records go to
`RESULTS-uncertainty/`, speeds to `RESULTS-cost/`; the others are judged as by `judge.py`, beside those of `modes.py`,
so that `advbnn tables` compares them. The first of several radii is that of `uncertainty` and of trainings. All
commands resume, but for the training of `distil`; `cost` measures again.
"""

import argparse
import copy
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from common import Rows
from judge import add_options, evaluation_options, judge, one_network, seconds_per_image, show
from modes import add_places, place, title_of
from safetensors.torch import load_model, save_model
from torch import Tensor, nn

import advbnn
from advbnn.attacks import PGD, Attack, registry
from advbnn.attacks.threat import Threat
from advbnn.bayes.protocol import members
from advbnn.data import Batches, from_tensors, to_float
from advbnn.data.augment import HorizontalFlip, RandomCrop
from advbnn.data.image import image_files, read_inputs
from advbnn.data.imageset import Examples
from advbnn.data.splits import Splits
from advbnn.evaluation.uncertainty import ood_detection, uncertainty
from advbnn.fast import accelerate
from advbnn.models import reset_parameters_
from advbnn.training import load_trained
from advbnn.training.averaging import refresh_batchnorm

NUMBERS = (1, 2, 3, 5, 10)
ATTACKS = ("pgd", "evasive", "overconfident", "underconfident")


def worth(model: nn.Module, data: Splits[Any], given: argparse.Namespace, label: str, out: Path) -> None:
    """Calibration, abstention and detection, of clean, attacked and foreign images."""
    options = evaluation_options(model, given, label, out)
    made = attacks_on(model, threat_of(given))
    found = uncertainty(model, data.test, {"clean": None, **made}, **options)
    for folder in given.foreign:
        others = {folder.name: foreign(folder, data.test)}
        for attack in (None, made["overconfident"]):
            found += ood_detection(model, data.test, others, attack, **options)
    for record in found:
        show(record)


def attacks_on(model: nn.Module, threat: Threat) -> dict[str, Attack]:
    """Exact for a mixture: with one EOT sample they would be weaker on it than on a single network."""
    return {name: registry.make_attack(name, threat, model, eot=10) for name in ATTACKS}


def threat_of(given: argparse.Namespace) -> Threat:
    """The ball of `uncertainty`, and of the attacks in training."""
    return Threat("linf", float(Fraction(given.eps[0])))


def foreign(folder: Path, like: Examples) -> Examples:
    """All images of a folder, in the shape of others; their labels mean nothing."""
    inputs = read_inputs(image_files([folder]), like.shape)
    labels = torch.zeros(len(inputs), dtype=torch.int64)
    return from_tensors(inputs, labels, classes=like.classes, name=folder.name)


def number(model: nn.Module, data: Splits[Any], given: argparse.Namespace, label: str, out: Path) -> None:
    """The first mode, and more and more of them."""
    nets = [member.net for member in members(model)]
    for count in (count for count in NUMBERS if count <= len(nets)):
        judge(advbnn.Modes(nets[:count]), data.test, given, f"first {count} of {label}", beside(out, str(count)))


def average(model: nn.Module, data: Splits[Any], given: argparse.Namespace, label: str, out: Path) -> None:
    """One network with the mean weights of the mixture."""
    mean = mean_weights(model, data.train, PGD(threat_of(given)), given.device)
    judge(mean, data.test, given, f"mean weights of {label}", beside(out, "mean"))


def distil(model: nn.Module, data: Splits[Any], given: argparse.Namespace, label: str, out: Path) -> None:
    """One network that has learned the predictions of the mixture."""
    student, file = copy.deepcopy(members(model)[0].net), given.runs / f"{out.stem}-student.safetensors"
    if file.exists():
        load_model(student, file)
    else:
        attack = PGD(threat_of(given), steps=10)
        train_student(student, one_network(accelerate(model)), data.train, attack, given.epochs)
        save_model(student, str(file))
    judge(student.eval(), data.test, given, f"one network that learned from {label}", beside(out, "student"))


def beside(out: Path, what: str) -> Path:
    """The file of a network that was made from another."""
    return out.with_name(f"{out.stem}-{what}.json")


def train_student(student: nn.Module, teacher: nn.Module, train: Examples, attack: Attack, epochs: int) -> None:
    """Adversarial distillation: minimise KL(teacher(x) || student(x_adv)) (Goldblum et al., 2020)."""
    device = next(student.parameters()).device
    reset_parameters_(student)
    moves = (RandomCrop(), HorizontalFlip()) if train.shape[-1] == 32 else ()
    batches = Batches(train.to(device), 256, augmentations=moves, drop_last=True)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, epochs * len(batches), pct_start=0.025)
    fast, step = accelerate(student.eval()), 0
    for epoch in range(epochs):
        for x, y in batches.epoch(epoch):
            x_adv, step = attack(fast, x, y, seed=step), step + 1
            with torch.no_grad():
                target = teacher(x)
            logits = student.train()(x_adv)
            loss = nn.functional.kl_div(logits.log_softmax(1), target, reduction="batchmean", log_target=True)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            student.eval()
        print(f"epoch {epoch + 1} of {epochs}: KL {loss.item():.3f}", flush=True)


def mean_weights(model: nn.Module, train: Examples, attack: Attack, device: str) -> nn.Module:
    """One network with the mean weights of all members; statistics of BatchNorm from attacked training images."""
    found = members(model)
    network = copy.deepcopy(found[0].net)
    states = [member.net.state_dict() for member in found]
    weights = [member.weight for member in found]
    network.load_state_dict(
        {
            name: sum(w * state[name] for w, state in zip(weights, states, strict=True))
            if first.is_floating_point()
            else first
            for name, first in states[0].items()
        }
    )

    def batches() -> Iterator[Tensor]:
        for stored, labels in train.gather(list(torch.arange(min(5000, len(train))).split(250))):
            yield attack(network, to_float(stored.to(device)), labels.to(device), seed=0)

    refresh_batchnorm(network, batches())
    return network


def cost(name: str, model: nn.Module, data: Splits[Any], given: argparse.Namespace, rows: Rows) -> None:
    """Images per second of a prediction and of a gradient, in float32 and bfloat16; a random network: of one sample."""
    x = to_float(data.test.images[: given.batch or 1000].to(given.device))
    for precision in ("full", "bf16"):
        fast = one_network(accelerate(model, "auto", precision))
        seconds = {what: seconds_per_image(fast, x, what == "gradient", 100) for what in ("prediction", "gradient")}
        per_second = {f"{what}s_a_second": round(1 / took, 1) for what, took in seconds.items()}
        rows.add({"row": name, "networks": len(members(model)) or 1, "precision": precision, **per_second})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands: dict[str, Any] = {
        "uncertainty": worth,
        "number": number,
        "average": average,
        "distil": distil,
        "cost": cost,
    }
    parser.add_argument("command", choices=commands)
    add_places(parser)
    add_options(parser)
    parser.set_defaults(images=2000)
    parser.add_argument("--foreign", type=Path, nargs="*", default=[], help="folders of images of other kinds")
    parser.add_argument("--epochs", type=int, default=40, help="of `distil`")
    given = parser.parse_args()
    data = advbnn.data.load(given.data, root=given.root)
    apart = given.results.with_name(f"{given.results.name}-{given.command}")
    rows = Rows(apart / "cost.json", batch=given.batch or 1000) if given.command == "cost" else None
    for name in given.rows:
        folder = place(name, given.seed)
        model = load_trained(given.runs / folder, device=given.device).model
        if rows is not None:
            cost(folder, model, data, given, rows)
            continue
        out = (apart if given.command == "uncertainty" else given.results) / f"{folder}.json"
        commands[given.command](model, data, given, title_of(name, given.seed), out)


if __name__ == "__main__":
    main()
