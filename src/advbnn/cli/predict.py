"""advbnn predict: labels and uncertainties of images, with abstention."""

from pathlib import Path
from typing import Annotated

import typer

from advbnn.cli import options
from advbnn.cli.groups import Subject


def predict(
    subject: Subject,
    images: Annotated[list[Path] | None, typer.Argument(help="Image files.")] = None,
    coverage: Annotated[
        float, typer.Option(help="The share of images to classify, among images like those of the dataset.")
    ] = 0.9,
    samples: Annotated[int, options.count("Weight samples.")] = 20,
    seed: Annotated[int, typer.Option(help="The seed of the weight samples.")] = 0,
    device: options.Device = None,
) -> None:
    """Print the label, probability and uncertainty of each image, and "abstain" if the model is too uncertain."""
    from advbnn.bayes.prediction import predict as predict_batch
    from advbnn.cli.common import device_or_first_gpu, open_subject, refuse_missing
    from advbnn.data.image import read_inputs
    from advbnn.evaluation.abstention import cutoff
    from advbnn.modules import dtype_of

    subject, first = subject.shifted()
    images = [*([] if first is None else [Path(first)]), *(images or ())]
    subject.check()
    if not images:
        raise typer.BadParameter("IMAGES is missing: give one or more image files")
    refuse_missing(images)
    place = device_or_first_gpu(device)
    opened = open_subject(subject, place)
    splits = opened.splits
    # the threshold comes from images that are not in the training set
    part, reference = ("test", splits.test) if splits.validation is None else ("validation", splits.validation)
    inputs = read_inputs(images, reference.shape).to(place, dtype_of(opened.model))
    limit = cutoff(opened.model, reference, coverage, samples, seed)
    found = predict_batch(opened.model, inputs, samples, seed)
    names = list(map(str, images))
    width = max(len("image"), *map(len, names))
    typer.echo(f"{'image':{width}}  {'label':>12}  probability  entropy  disagreement")
    for row, name in enumerate(names):
        label, entropy = reference.classes[int(found.label[row])], found.entropy[row].item()
        typer.echo(
            f"{name:{width}}  {label:>12}  {found.probs[row].max().item():11.3f}  {entropy:7.3f}  "
            f"{found.mutual_information[row].item():12.3f}{'  abstain' if entropy > limit.entropy else ''}"
        )
    typer.echo(
        f"Abstains above an entropy of {limit.entropy:.3f} nats: {limit.coverage:.1%} of the {len(reference):,} "
        f"{part} images of {reference.name} are below, and {limit.accuracy:.1%} of these are classified correctly. "
        "This does not extend to images of another kind, or to attacked images."
    )
