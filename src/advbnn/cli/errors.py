"""One style for all errors of the command line: a line `error: ...`, status 2 for wrong usage and 1 for the rest."""

import re
import sys
import warnings
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from advbnn.errors import AdvbnnError

UsageError: Any = typer.BadParameter.__mro__[1]
"""Click's error for wrong usage; newer versions of Typer have Click inside."""


class Flags:
    """Shows flags without a type in the help, where some versions of Typer write `<bool>`."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters; see Click."""
        found: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in found:
            if getattr(parameter, "is_flag", False):
                parameter.display_type_rich = parameter.display_type = lambda *_, **__: None
        return found


class Group(Flags, TyperGroup):
    """The program: prints wrong usage in one line, with the place of the help."""

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Runs a command; see Click."""
        extra["standalone_mode"] = False
        if not standalone_mode:
            return super().main(*args, **extra)
        try:
            status = super().main(*args, **extra)
        except UsageError as error:
            if type(error).__name__ == "NoArgsIsHelpError":
                error.show()
                sys.exit(2)
            message = " ".join(error.format_message().split()).rstrip(".")
            path = error.ctx.command_path if error.ctx is not None else "advbnn"
            typer.echo(f"error: {message}{_repeat(error)} (see {path} --help)", err=True)
            sys.exit(2)
        sys.exit(status if isinstance(status, int) else 0)


def _repeat(error: Any) -> str:
    """The remedy for `--eps 0.1 0.2`: an option takes one value, and Click calls the second an extra argument."""
    if error.ctx is None or "extra argument" not in error.format_message():
        return ""
    several = [one for one in error.ctx.command.params if getattr(one, "multiple", False)]
    given = [one.opts[0] for one in several if error.ctx.params.get(one.name)]
    return f"; repeat {' and '.join(given)} for every value" if given else ""


class Command(Flags, TyperCommand):
    """A command: prints an error that the user can correct in one line, and warnings, too."""

    def invoke(self, ctx: Any) -> Any:
        """Runs the command; see Click."""
        try:
            with warnings.catch_warnings():
                warned: set[str] = set()  # two evaluations of one command say the same

                def show(message: Warning | str, *_: Any, **__: Any) -> None:
                    if str(message) not in warned:
                        typer.echo(f"warning: {message}", err=True)
                    warned.add(str(message))

                warnings.showwarning = show
                return super().invoke(ctx)
        except AdvbnnError as error:
            typer.echo(f"error: {self._with_options(str(error))}", err=True)
            raise typer.Exit(1) from None

    def _with_options(self, message: str) -> str:
        """The message with the option of this command for the argument of Python that it begins with."""
        options = {str(one.name): one.opts[0] for one in self.params if one.opts[0].startswith("--")}
        word = re.match(r"\w+(?==| must )", message)
        return message if word is None else options.get(word[0], word[0]) + message[word.end() :]
