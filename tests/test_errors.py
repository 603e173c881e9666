from advbnn.errors import FileError, unknown


def test_an_unknown_name_gets_the_options_and_the_closest_one() -> None:
    message = str(unknown("norm", "l_inf", ("linf", "l2")))
    assert "norm='l_inf'" in message and "'l2', 'linf'" in message and "did you mean 'linf'?" in message
    assert "did you mean" not in str(unknown("norm", "zzz", ("linf",)))


def test_a_file_error_is_its_message() -> None:
    assert str(FileError("message")) == "message"  # OSError formats several arguments in its own way
