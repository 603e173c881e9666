"""The files of a report."""

import csv
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import made_up_records as made_up
from advbnn.attacks.threat import Threat
from advbnn.evaluation.records import Records
from advbnn.report import write_report
from advbnn.report.compose import compose
from advbnn.report.render import html, markdown
from elements import Elements
from made_up_records import picture


def test_the_folder_has_three_files_and_the_csv_every_record(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == ["report.csv", "report.html", "report.md"]
    with (folder / "report.csv").open(newline="") as file:
        assert [row["name"] for row in csv.DictReader(file)] == [record.name for record in made_up.everything()]


def test_the_page_has_all_plots_and_images(elements: Elements) -> None:
    assert (len(elements.of("svg")), len(elements.of("img")), elements.text.count("two (wrong)")) == (13, 45, 12)


def test_the_page_needs_no_other_file(elements: Elements, folder: Path) -> None:
    assert all(address.startswith("data:image/png;base64,") for address in elements.values("src"))
    assert all(address.startswith(("#", "data:,")) for address in elements.values("href"))
    assert not elements.of("script")
    assert not re.search(r"url\((?!#)|@import|https?:", (folder / "report.html").read_text())
    (policy,) = [meta["content"] for meta in elements.of("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")


def test_the_page_is_accessible(elements: Elements) -> None:
    assert all(image["alt"] for image in elements.of("img"))
    plots = [div for div in elements.of("div") if div.get("role") == "img"]
    assert [len(plot["aria-label"]) > 40 for plot in plots] == [True] * 13
    assert all(drawing["aria-hidden"] == "true" for drawing in elements.of("svg"))
    scrolling = [div for div in elements.of("div") if "scroll" in div.get("class", "").split()]
    assert all(div["tabindex"] == "0" and div["role"] == "region" and div["aria-label"] for div in scrolling)
    assert all(heading["scope"] in ("col", "row", "rowgroup") for heading in elements.of("th"))
    assert elements.of("html") == [{"lang": "en"}]


def test_every_anchor_exists_once(elements: Elements) -> None:
    names = elements.values("id")
    assert len(set(names)) == len(names)
    within = [address[1:] for address in elements.values("href") if address.startswith("#")]
    within += [name for names_of in elements.values("aria-labelledby") for name in names_of.split()]
    assert set(within) <= set(names)


def test_the_page_follows_light_and_dark_mode(folder: Path) -> None:
    text = (folder / "report.html").read_text()
    for variable in set(re.findall(r"var\((--[a-z0-9-]+)", text)) - {"--warmth"}:
        assert len(re.findall(rf"{variable}: #[0-9a-f]{{6}};", text)) == 2


def test_markdown_has_every_table_and_flag(folder: Path) -> None:
    text = (folder / "report.md").read_text()
    assert re.search(r"- \*\*RSE: .* \(linf 0.015, linf 0.035, linf 0.055, linf 0.07\)\.\*\* Square leaves", text)
    assert "| Adv-BNN | **worst case** (quick) |" in text
    assert "| from BNN | 0.82 19.3 % |" in text
    assert "| Adv-BNN | PGD-20 at 0.1 | seven | seven (98%, 0.11) | seven (98%, 0.11) |" in text
    assert "advbnn audit runs/adv_bnn --level quick" in text


def test_names_are_escaped(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    made = made_up.record(evil, 0.5, name="clean")
    threat = {"kind": "attack", "name": "<b>$x", "attack": "<i>", "threat": Threat("linf", 0.1)}
    attacked = [made_up.record(evil, 0.4, **threat), made_up.record(evil, 0.4, **threat, curve="radius", at=0.1)]
    uncertainty = replace(made, kind="uncertainty", details=made_up.uncertainties()[0].details)
    path = write_report([made, *attacked, uncertainty], tmp_path, [picture(evil, channels=3)])
    elements = Elements(path.read_text())
    assert not elements.of("script") + elements.of("b") + elements.of("i")
    assert evil in elements.text


def test_tables_and_markdown_need_no_plotting_library(monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("matplotlib", "jinja2"):
        monkeypatch.setitem(sys.modules, library, None)
    contents = compose(made_up.radius_curves().where(label="adv"))
    assert markdown(contents, {}).startswith("# Robustness of Adv. training on digits")
    with pytest.raises(ImportError, match=r"matplotlib.*pip install 'advbnn\[report\]'"):
        contents.sections[0].figures[0].draw()
    with pytest.raises(ImportError, match=r"jinja2.*pip install 'advbnn\[report\]'"):
        html(contents, {})


def test_labels_have_no_effect_in_markdown() -> None:
    label = "<img src=x onerror=alert(1)> **bold** [link](http://x) ```"
    named = [replace(r, model=replace(r.model, label=label), command=f"advbnn {label}") for r in made_up.everything()]
    ours = [record for record in named if record.kind in ("clean", "attack", "worst_case")]
    one = {(record.kind, record.name, str(record.threat), record.at): record for record in ours}
    text = markdown(compose(Records(one.values())), {})
    before, fence, _ = text.partition("````sh")
    assert fence and "&lt;img src=x" in before
    assert "<img" not in before and "**bold" not in before and "](http" not in before and "```" not in before
