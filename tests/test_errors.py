from advbnn.errors import AdvbnnError, FileError, unknown


def test_an_unknown_name_gets_the_options_and_the_closest_one() -> None:
    message = str(unknown("norm", "l_inf", ("linf", "l2")))
    assert "norm='l_inf'" in message and "'l2', 'linf'" in message and "did you mean 'linf'?" in message
    assert "did you mean" not in str(unknown("norm", "zzz", ("linf",)))


def test_errors_are_also_the_built_in_ones() -> None:
    for error in AdvbnnError.__subclasses__():
        assert (
            issubclass(error, ValueError | TypeError | RuntimeError | ImportError | OSError) or not error.__bases__[1:]
        )
    assert str(FileError("message")) == "message"  # OSError treats several arguments in its own way
