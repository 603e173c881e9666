"""What the tests of commands that judge finished runs share."""

from pathlib import Path

import pytest

from advbnn.training.config import Config
from advbnn.training.loop import fit


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two short runs, `plain` and `robust`."""
    folder = tmp_path_factory.mktemp("runs")
    for name, defense in (("plain", "none"), ("robust", "adv_bnn")):
        table = {
            "data": "digits",
            "defense": defense,
            "architecture": "mlp",
            "schedule": {"kind": "constant", "epochs": 2},
        }
        if defense == "adv_bnn":
            table["attack"] = {"steps": 1, "threat": {"eps": 0.05}}
        config = Config.from_table(table)
        model = config.defense.build(classes=10, shape=(1, 8, 8), seed=0)
        fit(model, config.load_data(), config.defense, out=folder / name, config=config)
    return folder
