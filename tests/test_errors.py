"""Errors about names say what was probably meant."""

from advbnn.errors import unknown


def test_names_the_argument_the_options_and_the_nearest_match() -> None:
    message = str(unknown("norm", "l_inf", ("linf", "l2")))
    assert message == "norm='l_inf' is unknown: expected one of 'l2', 'linf'; did you mean 'linf'?"
    assert "did you mean" not in str(unknown("norm", "zzz", ("linf",)))
