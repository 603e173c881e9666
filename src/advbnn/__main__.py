"""`python -m advbnn`, for places where the command is not on the path."""

from advbnn.cli.app import app

app(prog_name="advbnn")
