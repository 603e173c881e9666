"""A trial as HTML: images, what every weight sample says, uncertainty, and whether the network abstains."""

import math
from collections.abc import Sequence
from html import escape

import torch
from torch import Tensor

from advbnn.play.trial import Answer, Trial
from advbnn.report.images import data_uri
from advbnn.report.style import Look

MOST_CLASSES = 10
"""Classes in a plot: the most probable ones, and the true one."""

_DARKER, _LIGHTER = torch.tensor([0.08, 0.26, 0.63]), torch.tensor([0.75, 0.33, 0.02])
_ROW, _TOP, _WIDTH, _VALUE = 18, 4, 230, 46
"""Sizes in a plot: of a row, above the first, of the plot, and right of it for the numbers."""

_LONGEST = 11  # characters of the name of a class


def card(trial: Trial, look: Look, classes: Sequence[str]) -> str:
    """A trial of one network, as a part of a page."""
    shown = _shown_classes(trial)
    change, factor = perturbation(trial.image, trial.attacked)
    pictures = (
        ("Image", data_uri(trial.image)),
        (f"Perturbation &times;{factor:.2g}", data_uri(change)),
        ("Attacked", data_uri(trial.attacked)),
    )
    figures = "".join(
        f'<figure><img src="{uri}" alt=""><figcaption>{name}</figcaption></figure>' for name, uri in pictures
    )
    columns = "".join(
        f'<div class="answer"><h4>{when}: {_says(answer, trial.truth, classes)}</h4>'
        f"{plot(answer, shown, classes, trial.truth)}{_bar(answer, trial.threshold)}</div>"
        for when, answer in (("Before", trial.before), ("After", trial.after))
    )
    kind, sentence = headline(trial, classes)
    tone = f"--light: {look.light}; --night: {look.dark}"
    return (
        f'<article class="card" style="{tone}" data-network="{escape(trial.network)}" data-outcome="{kind}">'
        f'<h3>{escape(look.title)}</h3><p class="headline {kind}">{sentence}</p>'
        f'<div class="pictures">{figures}</div><div class="answers">{columns}</div>{_numbers(trial)}</article>'
    )


def headline(trial: Trial, classes: Sequence[str]) -> tuple[str, str]:
    """What the attack achieved: `"right"` or `"wrong"`, and a sentence of HTML."""
    was, now = trial.before.label, trial.after.label
    truth = was if trial.truth is None else trial.truth
    said, right = (f"<b>{escape(_name(label, classes))}</b>" for label in (now, truth))
    silent = trial.after.abstains
    if now == truth:
        return "right", f"Not fooled: says {said}{', and abstains' if silent else ''}"
    begin = "Fooled" if was == truth else "Wrong, also without attack"
    return "wrong", f"{begin}: says {said} instead of {right}{', but abstains' if silent else ''}"


def perturbation(image: Tensor, attacked: Tensor) -> tuple[Tensor, float]:
    """The change as a colour image [3, height, width], and the factor by which it is magnified to the full range.

    The change of a grey image is orange where it became lighter and blue where it became darker; that of a colour image
    is shown around grey, channel by channel.
    """
    change = attacked - image
    largest = change.abs().max().item()
    scaled = change / largest if largest > 0 else change
    if len(change) == 3:
        return 0.5 + scaled / 2, 0.5 / largest if largest > 0 else 1.0
    end = torch.where(scaled > 0, _LIGHTER.view(3, 1, 1), _DARKER.view(3, 1, 1))
    return 1 - scaled.abs() * (1 - end), 1 / largest if largest > 0 else 1.0


def plot(answer: Answer, shown: Sequence[int], classes: Sequence[str], truth: int | None = None) -> str:
    """The probability of each class: a dot for each weight sample, a mark for their mean, a bar for its interval."""
    names = [_name(index, classes) for index in shown]
    left = 14 + 6 * min(_LONGEST, max(map(len, names)))
    right, bottom = _WIDTH - _VALUE, _TOP + _ROW * len(shown)

    def x(probability: float) -> str:
        return f"{left + probability * (right - left):.1f}"

    grid = "".join(f'<line class="grid" x1="{x(p)}" x2="{x(p)}" y1="{_TOP}" y2="{bottom}"/>' for p in (0, 0.5, 1))
    axis = "".join(f'<text class="axis" x="{x(p)}" y="{bottom + 13}">{p:g}</text>' for p in (0, 0.5, 1))
    rows = []
    samples = answer.samples[:1] if answer.deterministic else answer.samples
    for row, (index, name) in enumerate(zip(shown, names, strict=True)):
        y = _TOP + _ROW * (row + 0.5)
        low, high = answer.interval[index].tolist()
        mean = answer.mean[index].item()
        # spread over the row, so that equal dots are seen
        dots = "".join(
            f'<circle class="sample" cx="{x(p)}" cy="{y + 8 * (number * 0.618 % 1 - 0.5):.1f}" r="2.6"/>'
            for number, p in enumerate(samples[:, index].tolist())
        )
        kind = " ".join([*(["truth"] if index == truth else []), *(["says"] if index == answer.label else [])])
        rows.append(
            f'<g class="{kind}"><title>{escape(name)}: {mean:.1%}, 95 % interval of the mean {low:.1%} to {high:.1%}'
            f'</title><text class="name" x="{left - 8}" y="{y + 4:.1f}">{escape(_cut(name))}</text>{dots}'
            f'<line class="interval" x1="{x(low)}" x2="{x(high)}" y1="{y}" y2="{y}"/>'
            f'<line class="mean" x1="{x(mean)}" x2="{x(mean)}" y1="{y - 7}" y2="{y + 7}"/>'
            f'<text class="value" x="{_WIDTH - 2}" y="{y + 4:.1f}">{_percent(mean)}</text></g>'
        )
    height = bottom + 18
    says = f"{_name(answer.label, classes)}, {answer.mean[answer.label].item():.0%}"
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="Probability of each class: {escape(says)}">'
        f"{grid}{''.join(rows)}{axis}</svg>"
    )


def _bar(answer: Answer, limit: float) -> str:
    """The entropy as a part of the largest possible, with a mark at the threshold."""
    largest = math.log(len(answer.mean))
    fill, mark = (f"{100 * min(1, value / largest):.1f}%" for value in (answer.entropy, limit))
    return f'<div class="bar"><i style="width: {fill}"></i><b style="left: {mark}"></b></div>'


def _numbers(trial: Trial) -> str:
    """Entropy, mutual information, and the mean probability of the label with its interval, before and after."""
    columns = []
    for answer in (trial.before, trial.after):
        mean, (low, high) = 100 * answer.mean[answer.label].item(), (100 * answer.interval[answer.label]).tolist()
        interval = "" if answer.deterministic else f" <small>[{low:.1f}, {high:.1f}]</small>"
        columns.append((f"{answer.entropy:.3f}", f"{answer.mutual_information:.3f}", f"{mean:.1f}{interval}"))
    titles = (f"Entropy <small>limit {trial.threshold:.3f}</small>", "Mutual information", "Mean probability, %")
    rows = "".join(
        f"<tr><th>{title}</th><td>{before}</td><td>{after}</td></tr>"
        for title, before, after in zip(titles, *columns, strict=True)
    )
    return f"<table><thead><tr><th></th><td>before</td><td>after</td></tr></thead><tbody>{rows}</tbody></table>"


def _says(answer: Answer, truth: int | None, classes: Sequence[str]) -> str:
    """The label, with a mark for right or wrong, and whether the network abstains."""
    mark = ""
    if truth is not None:
        kind, sign = ("right", "&#10003;") if answer.label == truth else ("wrong", "&#10007;")
        mark = f' <span class="{kind}">{sign}</span>'
    chip = ' <span class="chip">abstains</span>' if answer.abstains else ""
    return f"<b>{escape(_name(answer.label, classes))}</b>{mark}{chip}"


def _shown_classes(trial: Trial) -> list[int]:
    """The classes with the largest means before or after, and the true one, in their order."""
    highest = torch.maximum(trial.before.mean, trial.after.mean)
    if trial.truth is not None:
        highest[trial.truth] = 2.0
    return sorted(highest.topk(min(MOST_CLASSES, len(highest))).indices.tolist())


def _name(index: int, classes: Sequence[str]) -> str:
    return classes[index] if index < len(classes) else str(index)


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}\u2026"


def _percent(mean: float) -> str:
    return "&lt;1 %" if 0.001 <= mean < 0.01 else f"{mean:.0%}".replace("%", " %")
