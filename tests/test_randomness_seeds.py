from advbnn.randomness import crafting_seed, derive_seed, scoring_seed


def test_every_purpose_seed_and_index_has_its_own() -> None:
    seeds = {
        derive_seed(seed, purpose, index)
        for seed in range(20)
        for purpose in ("craft", "score", "validation")
        for index in range(20)
    }
    assert len(seeds) == 20 * 3 * 20
    # the CPU's generator looks at the low half alone
    assert len({seed % 2**32 for seed in seeds}) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_is_the_same_for_ever() -> None:
    # a record made today can be made again tomorrow
    assert derive_seed(0, "score") == scoring_seed(0) == 8195802296681552828
    assert derive_seed(1, "craft", 2) == crafting_seed(1, 2) == 744959877471627314


def test_crafting_differs_by_batch_and_from_scoring() -> None:
    assert len({crafting_seed(0, 0), crafting_seed(0, 1), crafting_seed(1, 0), scoring_seed(0), scoring_seed(1)}) == 5
