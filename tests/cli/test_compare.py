from collections.abc import Callable
from pathlib import Path

from advbnn.evaluation.records import Records

Command = Callable[..., str]
FEW = ["--limit", 110, "--samples", 2, "--seeds", 1, "--device", "cpu"]


def test_measures_both_then_compares_what_is_stored(runs: Path, advbnn: Command) -> None:
    plain, robust = runs / "plain", runs / "robust"
    attacks = ["--attack", "clean", "--attack", "fgsm", "--eot", 2, "--eps", 0.1]
    shown = advbnn("compare", plain, robust, *FEW, *attacks)
    assert "fgsm EOT 2 at linf 0.1" in shown and "same 110 images of digits" in shown
    assert len(Records.load(plain / "records.json")) == len(Records.load(robust / "records.json")) == 2
    for sides in ((plain, robust), (plain / "records.json", robust), (plain, robust / "records.json")):
        assert advbnn("compare", *sides) == shown  # nothing is measured again
    (robust / "model.safetensors").unlink()
    table = advbnn("compare", robust, plain, "--format", "markdown")
    assert table.startswith("| measurement | robust | plain | difference | images |")
    assert "measurement,robust,plain" in advbnn("compare", robust, plain, "--format", "csv")
    assert r"\begin{tabular}" in advbnn("compare", robust, plain, "--format", "latex")


def test_averages_gradients_or_says_that_it_does_not(runs: Path, advbnn: Command) -> None:
    both = (runs / "plain", runs / "robust", *FEW, "--steps", 1)
    assert "pgd 1 EOT 10 at linf 0.05" in advbnn("compare", *both)
    assert advbnn("compare", *both, "--attack", "pgd").count("note: no attack averages") == 1


def test_networks_of_ones_own(runs: Path, advbnn: Command, tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text("from torch import nn\ndef build():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))")
    own = ["--model", f"{file}:build", "--data", "digits", "--out", tmp_path / "both.json"]
    shown = advbnn("compare", runs / "plain", *own, *FEW, "--attack", "clean")
    assert "plain has" in shown and "more than net" in shown


def test_refusals(runs: Path, advbnn: Command, tmp_path: Path) -> None:
    assert "give two models" in advbnn("compare", runs / "plain", status=2)
    advbnn("evaluate", runs / "plain", "--attack", "clean", *FEW)
    file = runs / "plain" / "records.json"
    assert "cannot be measured again" in advbnn("compare", file, runs / "robust", status=1)
    assert "give --eps" in advbnn("compare", runs / "plain", runs / "robust", "--norm", "l2", *FEW, status=1)


def test_options_that_measure_need_an_attack_where_records_are_stored(runs: Path, advbnn: Command) -> None:
    both = (runs / "plain", runs / "robust")
    advbnn("compare", *both, *FEW, "--attack", "clean", "--attack", "fgsm", "--eps", 0.1)
    shown = advbnn("compare", *both, "--eps", 0.3, "--limit", 5, "--norm", "l2", status=2)
    assert "--eps, --norm, --limit" in shown and "--attack" in shown
    assert "--no-exact:" in advbnn("compare", *both, "--no-exact", status=2)
    assert "fgsm" in advbnn("compare", *both, "--device", "cpu")


def test_a_stored_record_of_fewer_images_stops_it_before_anything_is_measured(runs: Path, advbnn: Command) -> None:
    plain, robust = runs / "plain", runs / "robust"
    advbnn("evaluate", robust, "--attack", "clean", *FEW)
    options = ["--eps", 0.1, "--steps", 1, "--eot", 1, *FEW[2:]]
    assert "data.n was 110 and is now 500" in advbnn("compare", plain, robust, *options, status=1)
    assert not (plain / "records.json").exists()
    assert "pgd 1 at linf 0.1" in advbnn("compare", plain, robust, *options, "--limit", 110)


def test_other_classifiers_and_runs_of_one_name_are_told_apart(runs: Path, advbnn: Command, tmp_path: Path) -> None:
    files = tmp_path / "vote.json", tmp_path / "mean.json"
    for file, how in zip(files, (["--rule", "vote", "--samples", 3], ["--samples", 4]), strict=True):
        options = ["--attack", "clean", "--limit", 110, "--seeds", 1, "--out", file, "--device", "cpu"]
        advbnn("evaluate", runs / "plain", *options, *how)
    shown = " ".join(advbnn("compare", *files).split())
    assert "3 weight samples, rule vote, float32" in shown and "4 weight samples, rule probability" in shown
    assert "vote.json" in shown and "mean.json" in shown
