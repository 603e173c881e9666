"""The command line: one file per command, each a plain function that parses options and calls the library.

Modules that `app` imports do not import torch at the top, so that help and errors about options appear at once.
"""
