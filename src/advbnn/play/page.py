"""The page of the playground, built with Gradio: controls on the left, a card for each network on the right."""

from html import escape
from importlib.resources import files
from typing import Any

from torch import Tensor

from advbnn.errors import AdvbnnError, explain_missing_package
from advbnn.play.playground import UNKNOWN, Playground
from advbnn.play.trial import ATTACKS

_FIRST = 3  # of the digits, one where the networks in the package differ
_GUIDE = """<details class="note"><summary>How to read this</summary>
<p><b>Dots</b> are weight samples: each says how probable it finds each class. The upright mark is their mean, which
decides; the bar through it is the 95 % interval of that mean over weight samples. A deterministic network has one dot.
The true class is green. In the perturbation of a grey image, orange became lighter and blue darker.</p>
<p><b>Entropy</b> is the uncertainty of the mean in nats; the bar below the plot shows it, with a mark at the threshold.
<b>Mutual information</b> is the part of it that comes from weight samples that disagree. A network <b>abstains</b>
above the threshold: the entropy that the chosen share of clean images, the <b>coverage</b>, does not exceed. This
promises nothing about attacked images.</p>
<p>The attack leads away from the true class; if that is unknown, from what the network says. Each network is attacked
by itself, with gradients averaged over the EOT samples, and classifies with weight samples that the attack has not
seen. One image that is not fooled proves nothing: <code>advbnn audit</code> measures.</p>
</details>"""
_CANVAS = '<div class="paper"><canvas width="240" height="240"></canvas><button type="button">Clear</button></div>'
_THUMBNAIL_CLICK = """element.addEventListener("click", (event) => {
  const chosen = event.target.closest("[data-row]");
  if (chosen) trigger("click", { row: Number(chosen.dataset.row) });
});"""


def check_gradio() -> None:
    """Refuses to go on without the package Gradio."""
    with explain_missing_package("the playground needs Gradio: pip install 'advbnn[play]'"):
        import gradio  # noqa: F401


def text_of(name: str) -> str:
    return files("advbnn.play").joinpath(name).read_text(encoding="utf-8")


def build(play: Playground) -> Any:
    """The page. The slider of the radius reaches twice the usual radius."""
    check_gradio()
    import gradio as gr

    data, eps = play.data, play.threat.eps
    first_image, first_class = play.picked(play.order[min(_FIRST, len(data) - 1)])

    def show(image: Tensor, truth: str, titles: list[str], attack: str, radius: float, eot: float, share: float) -> str:
        return play.cards(image, truth, titles, attack, radius, int(eot), share / 100)

    def pick(event: gr.EventData) -> tuple[Tensor, str]:
        return play.picked(int(event.row))

    def draw(event: gr.EventData) -> tuple[Tensor, str]:
        return play.drawn(str(event.image))

    def upload(path: str) -> tuple[Tensor, str]:
        try:
            return play.uploaded(path)
        except AdvbnnError as error:
            raise gr.Error(str(error)) from error

    title = "advbnn playground"
    with gr.Blocks(title=title, analytics_enabled=False, fill_width=True, delete_cache=(3600, 3600)) as page:
        gr.HTML(
            "<h1>Playground</h1><p>Attack an image, and see what every weight sample says, how uncertain their mean "
            f"is, and whether the network abstains. {len(data.classes)} classes of {escape(data.name)}, images of "
            f"{data.shape[1]} &times; {data.shape[2]} pixels.</p>",
            elem_classes="head",
        )
        image, turn = gr.State(first_image), gr.State(0)
        with gr.Row():
            with gr.Column(scale=2, min_width=300):
                with gr.Tab("Pick"):
                    picks = gr.HTML(play.thumbnails(0), js_on_load=_THUMBNAIL_CLICK, apply_default_css=False)
                    more = gr.Button("Other images", size="sm")
                with gr.Tab("Draw"):
                    paper = gr.HTML(_CANVAS, js_on_load=text_of("canvas.js"), apply_default_css=False)
                with gr.Tab("Upload"):
                    sources = ["upload", "clipboard"]
                    file = gr.Image(type="filepath", format="png", sources=sources, show_label=False, height=240)
                radius = gr.Slider(
                    0, round(2 * eps, 4), round(eps, 4), step=round(eps / 30, 5), label=f"Radius ({play.threat.norm})"
                )
                attack = gr.Dropdown([(title, name) for name, title in ATTACKS.items()], value="pgd", label="Attack")
                eot = gr.Slider(1, 20, 10, step=1, label="EOT samples")
                share = gr.Slider(50, 100, 90, step=1, label="Coverage (%)")
                several = len(play.titles) > 1
                ends = play.titles[:: max(1, len(play.titles) - 1)]  # two fit side by side
                titles = gr.CheckboxGroup(play.titles, value=ends, label="Networks", visible=several)
                truth = gr.Dropdown([*data.classes, UNKNOWN], value=first_class, label="True class")
            with gr.Column(scale=7, min_width=400):
                cards = gr.HTML('<p class="note">Attacking the first image.</p>', apply_default_css=False)
                gr.HTML(_GUIDE)
        # one at a time: predictions use torch's global generator, which threads share
        answer: dict[str, Any] = {
            "fn": show,
            "inputs": [image, truth, titles, attack, radius, eot, share],
            "outputs": cards,
            "show_progress": "minimal",
            "concurrency_limit": 1,
            "concurrency_id": "networks",
        }
        changes = [page.load, truth.input, titles.input, attack.input, radius.release, eot.release, share.release]
        gr.on(changes, trigger_mode="always_last", **answer)
        quiet: dict[str, Any] = {"outputs": [image, truth], "show_progress": "hidden"}
        for chosen in (picks.click(pick, **quiet), paper.submit(draw, **quiet), file.upload(upload, file, **quiet)):
            chosen.then(**answer)
        more.click(lambda turn: (turn + 1, play.thumbnails(turn + 1)), turn, [turn, picks], show_progress="hidden")
    return page
