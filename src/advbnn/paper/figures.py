"""The paper's figures as pictures: ours in full colour, the paper's numbers hollow and dashed where there are any.

Each function takes whatever has been measured and draws that; None where there is nothing to draw.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advbnn.defenses.profiles import DEFENSES
from advbnn.errors import MissingPackageError
from advbnn.paper import published as paper
from advbnn.paper.evidence import Evidence, Number
from advbnn.paper.plan import RANDOM
from advbnn.paper.protocol import AUTHORS
from advbnn.report.plots import FAINT, GROUND, INK, STYLE
from advbnn.report.style import Look, looks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

_LOOKS = looks(DEFENSES)
_DASHED: dict[str, Any] = {"linestyle": (0, (4, 2)), "linewidth": 1.2}
_PAPER: dict[str, Any] = {"markerfacecolor": "none", "markersize": 10, "zorder": 4, **_DASHED}
"""Around ours and on top of them, so that both are seen where they agree."""
_DOTTED: dict[str, Any] = {"linestyle": ":", "marker": "x"}
_STARS: dict[str, Any] = {"linestyle": "", "marker": "*", "markersize": 11, "color": INK[1]}
_SHADES = ("#22262b", "#7a5195", "#bf5504")


def draw_all(evidence: Evidence, out: Path) -> dict[str, Path]:
    """Writes every figure that there are records for, and says where, by name."""
    out.mkdir(parents=True, exist_ok=True)
    written = {}
    for name, draw in FIGURES.items():
        path = out / f"{name}.png"
        if draw(evidence, path):
            written[name] = path
    return written


def table1(evidence: Evidence, path: Path) -> bool:
    """Table 1 as a picture: adversarial training and Adv-BNN, by the paper, its attack, and stronger ones."""
    shown = [name for name in ("adv", "adv_bnn") if name in evidence.measured]
    if not shown:
        return False
    radii = (0.0, *evidence.radii)
    with _canvas(path, columns=len(shown), width=4.6, height=4.4, sharey=True) as (figure, panels):
        for axes, name in zip(panels, shown, strict=True):
            look = _LOOKS[name]
            _paper_line(axes, evidence, name)
            _line(axes, look, {eps: evidence.authors(name, eps) for eps in radii})
            if name in RANDOM:
                _line(axes, look, {eps: evidence.averaged(name, eps) for eps in radii}, band=False, **_DOTTED)
            _line(axes, look, {eps: evidence.worst(name, eps) for eps in evidence.radii}, band=False, **_STARS)
            axes.set_title(look.title)
            _accuracy_axes(axes, "radius of the attack")
        legend: dict[str, dict[str, Any]] = {
            "the paper, its attack": {"marker": "o", **_PAPER},
            "its attack, here": {"marker": "o"},
            "averaged gradients": _DOTTED,
            "worst case": _STARS,
        }
        if not any(evidence.worst(name, eps) for name in shown for eps in evidence.radii):
            del legend["worst case"]
        if not any(name in evidence.paper for name in shown):
            del legend["the paper, its attack"]
            legend = {title.replace("its attack, here", "the paper's attack"): style for title, style in legend.items()}
        handles = [panels[0].plot([], [], **{"color": INK[1], **style})[0] for style in legend.values()]
        figure.legend(handles, list(legend), loc="outside lower center", ncols=len(legend), frameon=False)
    return True


def fig2(evidence: Evidence, path: Path) -> bool:
    """Figure 2: accuracy against the radius; beside it the same along averaged gradients."""
    radii = sorted({0.0, *evidence.radii, *evidence.experiment.protocol.radii})
    asked: dict[str, tuple[Callable[[str, float], Number | None], Sequence[float]]] = {
        f"{AUTHORS}, the paper's attack": (evidence.authors, radii),
        "The same along averaged gradients": (evidence.averaged, (0.0, *evidence.radii)),
    }
    shown = [name for name in DEFENSES if any(evidence.authors(name, eps) for eps in radii)]
    if not shown:
        return False
    with _canvas(path, columns=2, width=4.6, height=4.4, sharey=True) as (figure, panels):
        for axes, (title, (ask, places)) in zip(panels, asked.items(), strict=True):
            for name in shown:
                if ask == evidence.authors:
                    _paper_line(axes, evidence, name)
                _line(axes, _LOOKS[name], {eps: ask(name, eps) for eps in places}, label=_LOOKS[name].title)
            axes.set_title(title)
            _accuracy_axes(axes, "radius of the attack")
        handles, labels = panels[0].get_legend_handles_labels()
        if evidence.paper:
            handles += panels[0].plot([], [], color=INK[1], marker="o", **_PAPER)
            labels.append("the paper (Table 1)")
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return True


def fig3(evidence: Evidence, path: Path) -> bool:
    """Figure 3: the affinity of all pairs."""
    rho = evidence.affinity
    names = [name for name in DEFENSES if name in rho]
    if len(names) < 2:
        return False
    with _canvas(path, columns=1, width=6.8, height=5.4) as (_, (axes,)):
        values = [[rho[a].get(b) for b in names] for a in names]
        shades = [[float("nan") if value is None else min(max(value, 0.0), 1.2) for value in row] for row in values]
        axes.imshow(shades, cmap="Blues", vmin=0, vmax=1.3, aspect="auto")
        for row, of_source in enumerate(values):
            for column, value in enumerate(of_source):
                text = "-" if value is None else f"{value:.2f}"
                ink = GROUND[1] if value is not None and value > 0.75 else INK[1]
                axes.text(column, row, text, ha="center", va="center", fontsize=13, color=ink)
        axes.set_xticks(range(len(names)), [_LOOKS[name].title for name in names])
        axes.set_yticks(range(len(names)), [_LOOKS[name].title for name in names])
        axes.set_xlabel("tried on")
        axes.set_ylabel("attack made on")
        axes.grid(visible=False)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        radius = evidence.experiment.protocol.transfer_radius
        title = f"Affinity at radius {radius:g} (1: as harmful as the own attack)"
        if evidence.experiment.data == "cifar10":
            low, high = paper.AFFINITY_OF_ROBUST
            title += f"\nThe paper: none and BNN {paper.AFFINITY_OF_PLAIN}; the other three {low} to {high}"
        axes.set_title(title, fontsize=12)
    return True


def fig4(evidence: Evidence, path: Path) -> bool:
    """Figure 4: accuracy of Adv-BNN by the size of the ensemble, and by the steps of the attack."""
    radii = (0.0, *evidence.experiment.protocol.study_radii)
    panels_of = {
        "ensemble": ("draws that are averaged", "Draws of the classifier"),
        "steps": ("steps of the attack", "Steps of the attack"),
    }
    curves = {over: {eps: evidence.curve(over, eps) for eps in radii} for over in panels_of}
    if not any(curve for of_radii in curves.values() for curve in of_radii.values()):
        return False
    with _canvas(path, columns=2, width=4.6, height=4.3, sharey=True) as (figure, panels):
        for axes, (over, (axis, title)) in zip(panels, panels_of.items(), strict=True):
            for shade, (eps, curve) in zip(_SHADES, curves[over].items(), strict=True):
                if curve:
                    numbers = {at: Number.of([record]) for at, record in curve.items()}
                    _line(axes, _LOOKS["adv_bnn"], numbers, label=_radius(eps), color=shade, every=5)
                    said = evidence.paper_says("adv_bnn", eps)
                    if said is not None:
                        axes.axhline(said, color=shade, **_DASHED)
            axes.set_title(f"Adv-BNN: {title[0].lower()}{title[1:]}")
            _accuracy_axes(axes, axis)
            if over == "steps" and any(curves[over].values()):
                _logarithmic(axes, sorted({at for curve in curves[over].values() for at in curve}))
        handles, labels = panels[0].get_legend_handles_labels()
        if evidence.paper:
            handles += panels[0].plot([], [], color=INK[1], **_DASHED)
            labels.append("the paper (Table 1: 20 steps, 10 to 20 draws)")
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return True


def lipschitz(evidence: Evidence, path: Path) -> bool:
    """Section 3's argument: the local Lipschitz value on training and on test images."""
    found = [
        (name, part, details)
        for name in ("adv", "adv_bnn")
        for part in ("train", "test")
        if (details := evidence.steepness(name, part)) is not None
    ]
    if not found:
        return False
    with _canvas(path, columns=1, width=7.0, height=4.0) as (figure, (axes,)):
        for place, (name, part, details) in enumerate(found):
            value = details["first_order"]
            axes.barh(
                place, value["mean"], 0.72, color=_LOOKS[name].light, alpha=0.4 if part == "train" else 0.8, linewidth=0
            )
            axes.plot([value["mean"] - 2 * value["se"], value["mean"] + 2 * value["se"]], [place] * 2, color=INK[1])
            axes.plot(
                details["increase"]["mean"],
                place,
                marker="D",
                markersize=7,
                markerfacecolor=GROUND[1],
                color=INK[1],
                linestyle="",
                label="what the attack really adds" if place == 0 else "",
            )
        axes.set_yticks(range(len(found)), [f"{_LOOKS[name].title}, {part}" for name, part, _ in found])
        axes.set_ylim(len(found) - 0.4, -0.6)
        axes.set_xlim(0, None)
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x", visible=True)
        axes.set_xlabel(
            "growth of the loss within the radius of training, nats\n"
            "bars: by the slope at the image, with twice the standard error"
        )
        axes.set_title("Local Lipschitz value")
        figure.legend(loc="outside lower center", frameon=False)
    return True


def alpha(evidence: Evidence, path: Path) -> bool:
    """The remark under Table 1: what a smaller alpha does without and under attack."""
    names = {"clean": "no attack", AUTHORS: "the paper's attack", evidence.experiment.protocol.averaged: "averaged"}
    curves = {title: evidence.alpha(name) for name, title in names.items()}
    if not any(curves.values()):
        return False
    radius = evidence.experiment.protocol.study_radii[1]
    with _canvas(path, columns=1, width=6.4, height=4.2) as (_, (axes,)):
        for shade, (title, curve) in zip(_SHADES, curves.items(), strict=True):
            if curve:
                label = title if title == "no attack" else f"{title}, {radius:g}"
                _line(axes, _LOOKS["adv_bnn"], dict(sorted(curve.items())), label=label, color=shade)
        ours, said = evidence.clean("adv"), evidence.paper_says("adv", 0.0)
        if ours is not None:
            axes.axhline(ours.mean, color=_LOOKS["adv"].light, linewidth=1.4, label="adv. training, no attack")
        if said is not None:
            axes.axhline(said, color=_LOOKS["adv"].light, label="the same in the paper", **_DASHED)
        _accuracy_axes(axes, "alpha, the weight of the divergence")
        _logarithmic(axes, sorted({at for curve in curves.values() for at in curve}), all_of_them=True)
        axes.set_title("Adv-BNN as alpha shrinks")
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return True


FIGURES: Mapping[str, Callable[[Evidence, Path], bool]] = {
    "table1": table1,
    "fig2": fig2,
    "fig3": fig3,
    "fig4": fig4,
    "lipschitz": lipschitz,
    "alpha": alpha,
}


@contextmanager
def _canvas(
    path: Path, *, columns: int, width: float, height: float, sharey: bool = False
) -> Iterator["tuple[Canvas, Sequence[Axes]]"]:
    """A figure with panels side by side; `width` inches each."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackageError("figures need matplotlib: pip install 'advbnn[report]'") from error
    with matplotlib.rc_context(STYLE | {"axes.titlesize": 13, "axes.titlepad": 10, "legend.fontsize": 10.5}):
        figure = Figure(figsize=(width * columns, height), layout="constrained", facecolor=GROUND[1])
        panels = figure.subplots(1, columns, sharey=sharey, squeeze=False)[0]
        for axes in panels:
            axes.set_facecolor(GROUND[1])
        yield figure, list(panels)
        figure.savefig(path, dpi=150, metadata={"Software": None})


def _line(
    axes: "Axes",
    look: Look,
    numbers: Mapping[float, Number | None],
    *,
    label: str = "",
    band: bool = True,
    every: int = 1,
    **style: Any,
) -> None:
    found = {at: number for at, number in numbers.items() if number is not None}
    if not found:
        return
    drawn: dict[str, Any] = {
        "color": look.light,
        "marker": look.marker,
        "markevery": every if len(found) > 20 else 1,
    } | style
    axes.plot(list(found), [number.mean for number in found.values()], label=label, clip_on=False, zorder=3, **drawn)
    if band:
        low, high = [n.low for n in found.values()], [n.high for n in found.values()]
        axes.fill_between(list(found), low, high, color=drawn["color"], alpha=0.1, linewidth=0)


def _paper_line(axes: "Axes", evidence: Evidence, defense: str) -> None:
    if defense in evidence.paper:
        look = _LOOKS[defense]
        where = (0.0, *evidence.radii)
        axes.plot(where, evidence.paper[defense], color=look.light, marker=look.marker, clip_on=False, **_PAPER)


def _accuracy_axes(axes: "Axes", x_label: str) -> None:
    axes.set_ylim(0, 100)
    axes.set_xlabel(x_label)
    axes.set_ylabel("accuracy, %")
    axes.label_outer()
    axes.grid(color=FAINT[1])


def _logarithmic(axes: "Axes", values: Sequence[float], all_of_them: bool = False) -> None:
    axes.set_xscale("log")
    marks = [m for m in (1, 3, 10, 30, 100, 300, 1000) if values[0] <= m <= values[-1]]
    chosen: Sequence[float] = values if all_of_them else marks
    axes.set_xticks(chosen, [f"{mark:g}" for mark in chosen])
    axes.set_xticks([], minor=True)


def _radius(eps: float) -> str:
    return f"radius {eps:g}" if eps else "no attack"
