"""One seed for each purpose: what crafts an attack and what scores it never share a random number."""

import hashlib


def derive_seed(seed: int, purpose: str, index: int = 0) -> int:
    """A seed in [0, 2^63) of its own for every (seed, purpose, index), by hashing the three.

    Args:
        seed: the evaluation seed.
        purpose: a word for what it is used for.
        index: tells apart what has the same purpose, such as batches.
    """
    key = hashlib.blake2b(f"{purpose} {seed} {index}".encode(), digest_size=8).digest()
    return int.from_bytes(key, "big") >> 1


def crafting_seed(seed: int, batch: int) -> int:
    """The randomness of an attack on a batch."""
    return derive_seed(seed, "craft", batch)


def scoring_seed(seed: int) -> int:
    """The draws of the classifier: the same for every batch and attack, so that they are one ensemble."""
    return derive_seed(seed, "score")
