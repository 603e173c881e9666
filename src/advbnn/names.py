"""Names that options take, in a module without torch, so that the command line can list them at once."""

DATA_SETS = ("digits", "cifar10", "stl10", "imagenet143")
"""Data sets that are known by name."""

NORMS = ("linf", "l2", "l1")
"""Norms of a threat."""

AUDIT_LEVELS = ("quick", "standard", "thorough")
"""How much an audit does, in ascending order."""

LEADERBOARD_STEPS = ("clean", "protocol", "audit", "eot", "seed", "mean", "autoattack", "between")
"""The parts of a measurement for the leaderboard, in their order."""

ENGINES = ("auto", "eager", "compile", "graph")
"""How a model runs."""

PRECISIONS = ("full", "bf16")
"""Precisions of matrix products."""

RULES = ("probability", "loss", "vote")
"""How the outputs of weight samples become a label."""
