"""What the subcommands of `advbnn` do, as plain functions."""
