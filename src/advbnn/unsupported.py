"""How a fast form says that it does not apply."""


class Unsupported(Exception):  # noqa: N818  it is an answer, not an error
    """A fast form cannot do what was asked; the message says why, and a slower one takes its place."""
