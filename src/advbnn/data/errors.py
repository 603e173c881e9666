"""The one error that reading a dataset raises."""

from pathlib import Path


class DataError(ValueError):
    """A dataset that cannot be used as it is; the message names the file, the problem and the remedy."""


def data_error(path: Path | str, problem: str, remedy: str) -> DataError:
    """The error about one file or folder, always worded in the same order."""
    return DataError(f"{path}: {problem}; {remedy}")
