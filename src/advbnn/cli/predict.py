"""advbnn predict: labels and uncertainties of images, with abstention."""

import json
from pathlib import Path
from typing import Annotated

import typer

from advbnn.cli import options
from advbnn.cli.groups import Subject

TOGETHER = 200
"""Images that are read and classified at a time."""


def predict(
    subject: Subject,
    images: Annotated[list[Path] | None, typer.Argument(help="Image files, or folders of them.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object per image, one per line.")] = False,
    coverage: Annotated[
        float, typer.Option(help="The share of images to classify, among images like those of the dataset.")
    ] = 0.9,
    samples: Annotated[int, options.count("Weight samples.")] = 20,
    seed: Annotated[int, typer.Option(help="The seed of the weight samples.")] = 0,
    device: options.Device = None,
) -> None:
    """Print the label, probability and uncertainty of each image, and "abstain" if the model is too uncertain.

    Of a folder, all images in it and in its folders are taken, in the order of their names.
    """
    from advbnn.bayes.prediction import predict as predict_batch
    from advbnn.cli.common import device_or_first_gpu, open_subject
    from advbnn.data.image import image_files, read_inputs
    from advbnn.evaluation.abstention import cutoff
    from advbnn.modules import dtype_of

    subject, first = subject.shifted()
    images = [*([] if first is None else [Path(first)]), *(images or ())]
    subject.check()
    if not images:
        raise typer.BadParameter("IMAGES is missing: give image files, or folders of them")
    files = image_files(images)
    place = device_or_first_gpu(device)
    opened = open_subject(subject, place)
    # the threshold comes from images that are not in the training set
    part, reference = ("test", opened.test) if opened.validation is None else ("validation", opened.validation)
    dtype = dtype_of(opened.model)
    first_part = read_inputs(files[:TOGETHER], reference.shape)  # an unreadable image is found before the work begins
    limit = cutoff(opened.model, reference, coverage, samples, seed)
    names = [typer.format_filename(path) for path in files]  # in a folder, names may be no text
    width = max(len("image"), *map(len, names))
    if not as_json:
        typer.echo(f"{'image':{width}}  {'label':>12}  probability  entropy  disagreement")
    for begin in range(0, len(files), TOGETHER):
        read = first_part if begin == 0 else read_inputs(files[begin : begin + TOGETHER], reference.shape)
        found = predict_batch(opened.model, read.to(place, dtype), samples, seed)
        for row, name in enumerate(names[begin : begin + TOGETHER]):
            label, entropy = reference.classes[int(found.label[row])], found.entropy[row].item()
            probabilities, disagreement = found.probs[row].tolist(), found.mutual_information[row].item()
            if as_json:
                values = {
                    "image": name,
                    "label": label,
                    "probability": max(probabilities),
                    "entropy": entropy,
                    "disagreement": disagreement,
                    "abstain": entropy > limit.entropy,
                    "probabilities": dict(zip(reference.classes, probabilities, strict=True)),
                }
                typer.echo(json.dumps(values))
                continue
            typer.echo(
                f"{name:{width}}  {label:>12}  {max(probabilities):11.3f}  {entropy:7.3f}  "
                f"{disagreement:12.3f}{'  abstain' if entropy > limit.entropy else ''}"
            )
    typer.echo(
        f"Abstains above an entropy of {limit.entropy:.3f} nats: {limit.coverage:.1%} of the {len(reference):,} "
        f"{part} images of {reference.name} are below, and {limit.accuracy:.1%} of these are classified correctly. "
        "This does not extend to images of another kind, or to attacked images.",
        err=as_json,  # standard output has JSON only
    )
