"""The page of the playground, built with Gradio: controls on the left, a card for each network on the right."""

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from advbnn.attacks.threat import Threat
from advbnn.data.augment import to_float
from advbnn.data.image import read_inputs
from advbnn.data.imageset import Examples
from advbnn.errors import AdvbnnError, ArgumentError, MissingPackageError
from advbnn.play.card import card
from advbnn.play.drawing import drawn_input, ink_of
from advbnn.play.trial import ATTACKS, Network, trial
from advbnn.report.images import data_uri
from advbnn.report.style import looks

_THUMBNAILS = 20
_UNKNOWN = "unknown"
_GUIDE = """<details class="note"><summary>How to read this</summary>
<p><b>Dots</b> are weight samples: each says how probable it finds each class. The black <b>mark</b> is their mean, which
decides; the bar through it is the 95 % interval of that mean over weight samples. A deterministic network has one dot.
The true class is green.</p>
<p><b>Entropy</b> is the uncertainty of the mean in nats; the bar below the plot shows it, with a mark at the threshold.
<b>Mutual information</b> is the part of it that comes from weight samples that disagree. A network <b>abstains</b> above
the entropy that the chosen share of clean images stays below. This promises nothing about attacked images.</p>
<p>Each network is attacked by itself, with gradients averaged over the EOT samples, and classifies with weight samples
that the attack has not seen. One image that is not fooled proves nothing: <code>advbnn audit</code> measures.</p>
</details>"""
_CANVAS = '<div class="paper"><canvas width="240" height="240"></canvas><button type="button">Clear</button></div>'
_THUMBNAIL_CLICK = """element.addEventListener("click", (event) => {
  const chosen = event.target.closest("[data-row]");
  if (chosen) trigger("click", { row: Number(chosen.dataset.row) });
});"""


def gradio() -> Any:
    """The package Gradio."""
    try:
        import gradio
    except ImportError as error:
        raise MissingPackageError("the playground needs Gradio: pip install 'advbnn[play]'") from error
    return gradio


def text_of(name: str) -> str:
    """A file of this package."""
    return files("advbnn.play").joinpath(name).read_text(encoding="utf-8")


def interleaved(labels: Tensor) -> list[int]:
    """The rows in an order that goes through the classes again and again, so that the first rows show all of them."""
    rank = torch.empty_like(labels)
    for label in labels.unique():
        rows = (labels == label).nonzero().squeeze(1)
        rank[rows] = torch.arange(len(rows), device=labels.device)
    return [row for _, _, row in sorted(zip(rank.tolist(), labels.tolist(), range(len(labels)), strict=True))]


def build(networks: Sequence[Network], data: Examples, threat: Threat) -> Any:
    """The page for networks of one data set.

    Args:
        data: the test images to pick from.
        threat: norm and initial radius of the attacks; the slider reaches twice as far.
    """
    gr = gradio()
    if len(data.shape) != 3 or data.shape[0] not in (1, 3) or not data.classes:
        raise ArgumentError(f"the playground is for classes of grey or colour images, got {data!r}")
    stored, labels = data.tensors()
    order = interleaved(labels)
    light_on_dark = bool(to_float(stored[order[:100]]).mean() < 0.5)
    styles = looks([network.label for network in networks])
    titles = {styles[network.label].title: network for network in networks}
    names = list(data.classes)

    def image_of(row: int) -> Tensor:
        return to_float(stored[row]).cpu()

    def thumbnails(turn: int) -> str:
        first = turn * _THUMBNAILS % len(order)
        return "".join(
            f'<button type="button" data-row="{row}" title="test image {row}"><img src="{data_uri(image_of(row))}" '
            f'alt="test image {row}"></button>'
            for row in order[first : first + _THUMBNAILS]
        )

    def show(image: Tensor, truth: str, chosen: list[str], attack: str, radius: float, eot: float, share: float) -> str:
        settings = {"attack": attack, "eot": int(eot), "coverage": share / 100}
        label = names.index(truth) if truth in names else None
        done = [
            trial(network, image, Threat(threat.norm, radius), truth=label, **settings)
            for title, network in titles.items()
            if title in chosen
        ]
        cards = "".join(card(one, styles[one.network], names) for one in done)
        return f'<div class="cards">{cards or "Choose a network."}</div>'

    def pick(event: gr.EventData) -> tuple[Tensor, str]:
        row = int(event.row)
        return image_of(row), names[int(labels[row])]

    def draw(event: gr.EventData) -> tuple[Tensor, str]:
        return drawn_input(ink_of(str(event.image)), data.shape, light_on_dark), _UNKNOWN

    def upload(path: str) -> tuple[Tensor, str]:
        try:
            return read_inputs([Path(path)], data.shape)[0], _UNKNOWN
        except AdvbnnError as error:
            raise gr.Error(str(error)) from error

    with gr.Blocks(title="advbnn playground", analytics_enabled=False, delete_cache=(3600, 3600)) as page:
        gr.HTML(
            "<h1>Playground</h1><p>Attack an image, and see what every weight sample says, how uncertain their mean is, "
            f"and whether the network abstains. {len(names)} classes of {data.name}, images of "
            f"{data.shape[1]} &times; {data.shape[2]} pixels.</p>",
            elem_classes="head",
        )
        image, turn = gr.State(image_of(order[0])), gr.State(0)
        with gr.Row():
            with gr.Column(scale=2, min_width=300):
                with gr.Tab("Pick"):
                    picks = gr.HTML(thumbnails(0), js_on_load=_THUMBNAIL_CLICK, elem_classes="pick")
                    more = gr.Button("Other images", size="sm")
                with gr.Tab("Draw"):
                    paper = gr.HTML(_CANVAS, js_on_load=text_of("canvas.js"))
                with gr.Tab("Upload"):
                    file = gr.Image(
                        type="filepath", format="png", sources=["upload", "clipboard"], show_label=False, height=240
                    )
                truth = gr.Dropdown(
                    [*names, _UNKNOWN],
                    value=names[int(labels[order[0]])],
                    label="True class",
                    info="The attack leads away from it; if unknown, from the network's own prediction.",
                )
                radius = gr.Slider(
                    0, 2 * threat.eps, threat.eps, step=threat.eps / 30, label=f"Radius, {threat.norm}", precision=4
                )
                attack = gr.Dropdown([(title, name) for name, title in ATTACKS.items()], value="pgd", label="Attack")
                eot = gr.Slider(1, 20, 10, step=1, label="EOT samples", info="Weight samples per gradient or query.")
                share = gr.Slider(
                    50, 100, 90, step=1, label="Coverage, %", info="The share of clean images that are classified."
                )
                chosen = gr.CheckboxGroup(list(titles), value=list(titles), label="Networks", visible=len(titles) > 1)
            with gr.Column(scale=7, min_width=400):
                cards = gr.HTML(elem_id="cards")
                gr.HTML(_GUIDE)
        seen = {
            "fn": show,
            "inputs": [image, truth, chosen, attack, radius, eot, share],
            "outputs": cards,
            "show_progress": "hidden",
            "trigger_mode": "always_last",
            # predictions use torch's global generator, which threads share
            "concurrency_limit": 1,
            "concurrency_id": "networks",
        }
        gr.on([page.load, truth.input, chosen.input, attack.input, radius.release, eot.release, share.release], **seen)
        chain = {key: value for key, value in seen.items() if key != "trigger_mode"}
        for event, function, inputs in ((picks.click, pick, None), (paper.submit, draw, None), (file.upload, upload, file)):
            event(function, inputs, [image, truth], show_progress="hidden").then(**chain)
        more.click(lambda turn: (turn + 1, thumbnails(turn + 1)), turn, [turn, picks], show_progress="hidden")
    return page
