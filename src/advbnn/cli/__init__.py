"""The command line: a file for each subcommand, a plain function.

It stands beside the library because importing that takes its time, for torch. Files that `app` imports import torch and
`advbnn` inside their functions, so that help, and a word about a mistyped option, come at once.
"""
