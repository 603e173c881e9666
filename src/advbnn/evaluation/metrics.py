"""The metrics that torchmetrics has, which is loaded only when one is asked for."""

from types import ModuleType

from advbnn.errors import MissingPackageError


def torchmetrics_classification() -> ModuleType:
    """`torchmetrics.functional.classification`."""
    try:
        from torchmetrics.functional import classification
    except ImportError as error:
        raise MissingPackageError("this metric needs torchmetrics: pip install 'advbnn[report]'") from error
    return classification
