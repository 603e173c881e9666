"""advbnn predict: what a run says of images, and when it had better say nothing."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from advbnn.errors import ArgumentError

if TYPE_CHECKING:
    from torch import Tensor


def predict(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    images: Annotated[list[Path], typer.Argument(help="Image files.")],
    coverage: Annotated[
        float, typer.Option(help="The share of images to answer, among images like those of the data set.")
    ] = 0.9,
    samples: Annotated[int, typer.Option(help="Draws of the network.")] = 20,
    seed: Annotated[int, typer.Option(help="Which draws.")] = 0,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:1; the first GPU if there is one.")] = None,
) -> None:
    """Print the label, probability and uncertainty of each image, and "abstain" where the network is too uncertain."""
    from advbnn.bayes.prediction import predict as predict_batch
    from advbnn.cli.common import device_or_first_gpu, explaining_errors, refuse_missing
    from advbnn.evaluation.abstention import cutoff
    from advbnn.modules import dtype_of
    from advbnn.training.loading import load_trained

    with explaining_errors():
        refuse_missing(images)
        place = device_or_first_gpu(device)
        trained = load_trained(run, device=place)
        splits = trained.config.load_data()
        # images that training has not seen; a validation set is there for such choices
        part, reference = ("test", splits.test) if splits.validation is None else ("validation", splits.validation)
        pixels = read_images(images, reference.shape).to(place, dtype_of(trained.model))
        line = cutoff(trained.model, reference, coverage, samples, seed)
        found = predict_batch(trained.model, pixels, samples, seed)
        width = max(len("image"), *(len(str(path)) for path in images))
        typer.echo(f"{'image':{width}}  {'label':>12}  probability  entropy  disagreement")
        for row, path in enumerate(images):
            label, entropy = reference.classes[int(found.label[row])], found.entropy[row].item()
            typer.echo(
                f"{path!s:{width}}  {label:>12}  {found.probs[row].max().item():11.3f}  {entropy:7.3f}  "
                f"{found.mutual_information[row].item():12.3f}{'  abstain' if entropy > line.entropy else ''}"
            )
        typer.echo(
            f"Abstains above an entropy of {line.entropy:.3f} nats: {line.coverage:.1%} of the {len(reference):,} "
            f"{part} images of {reference.name} lie below, and {line.accuracy:.1%} of those are classified correctly. "
            "This promises nothing about images of another kind, or about attacked ones."
        )


def read_images(paths: list[Path], shape: tuple[int, ...]) -> "Tensor":
    """Image files as inputs in [0, 1] of the given shape: centred squares, resized; grey for a single channel."""
    import numpy as np
    import torch

    from advbnn.data.image import decode

    channels, height, width = shape
    if height != width or channels not in (1, 3):
        raise ArgumentError(f"images are read as grey or colour squares, and the network takes inputs of shape {shape}")
    pixels = torch.from_numpy(np.stack([decode(path, height) for path in paths])).float() / 255
    if channels == 1:
        # luma by ITU-R BT.601, which leaves what is grey already as it is
        pixels = (pixels * torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(1, keepdim=True).clamp(0, 1)
    return pixels
