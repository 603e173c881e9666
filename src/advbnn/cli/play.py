"""advbnn play: attack single images in the browser."""

from pathlib import Path
from typing import Annotated

import typer

from advbnn.cli import options
from advbnn.cli.groups import Subject, Subjects

NETWORKS = ("none", "adv", "adv_bnn")
"""The runs in the package."""

REFERENCE = 500
"""Images that the abstention is calibrated on."""


def play(
    subjects: Subjects,
    samples: options.Samples = 20,
    host: Annotated[
        str, typer.Option(help="The address to listen at; 0.0.0.0 lets other machines connect.")
    ] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="The port; a free one from 7860 on by default.")
    ] = None,
    share: Annotated[bool, typer.Option("--share", help="Also open a public link, through servers of Gradio.")] = False,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
    device: options.Device = None,
) -> None:
    """Attack single images in the browser, and see what every weight sample says.

    Without a run, networks for handwritten digits are shown. Needs the extra `play`.
    """
    from advbnn.attacks.threat import Threat
    from advbnn.cli.common import device_or_first_gpu, open_all
    from advbnn.data import to_float
    from advbnn.evaluation.checks import check_classification
    from advbnn.play import page, server
    from advbnn.play.playground import Playground
    from advbnn.play.trial import Network

    page.check_gradio()
    server.check_free(host, port)  # before anything is loaded
    shipped = Path(page.__file__).parent / "digits"
    given = subjects.each() or [Subject(run=shipped / name) for name in NETWORKS]
    opened, test = open_all(given, device_or_first_gpu(device), leads=True)
    networks = []
    for one in opened:
        check_classification(one.model, test)
        reference = one.test if one.validation is None else one.validation
        images = to_float(reference.tensors()[0][:REFERENCE])
        networks.append(Network(label=one.label, model=one.model, reference=images, samples=samples))
    threats = [one.threat for one in opened if one.threat is not None]
    threat = max(threats, key=lambda one: one.eps, default=Threat("linf", 16 / 255))
    server.serve(page.build(Playground(networks, test, threat)), host=host, port=port, share=share, browser=browser)
