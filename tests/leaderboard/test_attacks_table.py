from advbnn.leaderboard.attacks_table import COLUMNS, attacks_table
from advbnn.leaderboard.entry import Attacked, Difference, Entry, Eot
from advbnn.report.elements import NOTHING, Cell
from made_up_entries import accuracy, entry


def row(made: Entry) -> dict[str, Cell]:
    (cells,) = attacks_table([made, entry("cifar10-claims", worst=None)]).rows  # claims have no row
    return dict(zip(COLUMNS, cells, strict=True))


def test_a_row_has_the_attacks_of_an_entry() -> None:
    rand = [
        Attacked(**accuracy(share), name=f"AutoAttack rand, {how}", settings={}, on="its own count")
        for share, how in ((0.39, "as it counts"), (0.57, "its points on a fresh pass"))
    ]
    curve = tuple(Eot(**accuracy(share), eot=eot) for eot, share in ((1, 0.5), (10, 0.45)))
    worse = Difference(difference=-0.03, interval=(-0.05, -0.01), n=1000)
    found = row(entry(attacks=tuple(rand), plateau=curve, flat=False, baseline="cifar10-adv", difference=worse))
    assert found["AutoAttack rand"] == Cell("39.0", "(57.0)")
    assert found["PGD-20 by EOT samples"] == Cell("50.0 (1), 45.0 (10)", "not flat")
    assert found["worst case"] == Cell("40.0")
    assert found["difference"] == Cell("-3.0", "[-5.0, -1.0]", strong=True)


def test_what_was_not_measured_is_a_dash() -> None:
    found = row(entry(attacks=(), plateau=(), flat=None, own_protocol=None))
    assert all(found[name] == NOTHING for name in COLUMNS[2:5])
    unsure = Difference(difference=0.01, interval=(-0.01, 0.03), n=1000)
    assert not row(entry(baseline="cifar10-adv", difference=unsure))["difference"].strong
