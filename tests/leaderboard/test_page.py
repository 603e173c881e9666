"""The page of the leaderboard: what it holds, and that a browser sorts, filters and opens evidence."""

import csv
import io
import json
import re
import subprocess
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from advbnn.defenses.registry import PUBLISHED
from advbnn.errors import FileError
from advbnn.leaderboard.entry import Claim, Cost, Difference
from advbnn.leaderboard.page import html, write_board
from advbnn.leaderboard.tables import BETTER, COLUMNS, SAME, WORSE, numbers, ranked, table, to_csv, verdict
from made_up_entries import board, claimed_entry, entry
from report.test_browser import CHROMIUM, OPTIONS

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_board(board(), tmp_path_factory.mktemp("board")).parent


def test_every_number_has_evidence_on_the_page(folder: Path) -> None:
    page = (folder / "index.html").read_text()
    targets, links = set(re.findall(r'id="([^"]+)"', page)), re.findall(r'href="#([^"]+)"', page)
    assert links and set(links) <= targets
    by_id = {made.id: made for made in board()}
    for made in board():
        for cell in numbers(made, by_id):
            assert not cell.anchor or f'href="#{cell.anchor}"' in page
        assert json.loads((folder / "entries" / f"{made.id}.json").read_text())["id"] == made.id


def test_text_of_entries_is_not_html() -> None:
    page = html(board())
    assert "<b>noise</b>" not in page and "&lt;b&gt;noise&lt;/b&gt;" in page
    assert not re.search(r'(src|href)="(?!#|data:|entries/|leaderboard\.|https://github)', page)


def test_what_a_page_of_its_own_links_to_is_beside_it(folder: Path) -> None:
    page = (folder / "index.html").read_text()
    links = {unescape(link) for link in re.findall(r'(?:src|href)="(?!#|data:|\w+://)([^"#]+)', page)}
    assert links and all((folder / link).is_file() and ".." not in link for link in links)
    site = html(board(), "https://example.org/docs/")
    assert 'href="https://example.org/docs/leaderboard/index.html"' in site and 'href="../' not in site


def test_the_most_robust_come_first_and_claims_last() -> None:
    order = ["cifar10-wins", "cifar10-adv", "cifar10-loses", "cifar10-claims", "digits-other"]
    assert [entry.id for entry in ranked(board())] == order
    rows = list(csv.DictReader(io.StringIO(to_csv(board()))))
    assert [row["id"] for row in rows] == order
    assert float(rows[2]["difference"]) == -0.1 and rows[3]["worst_case"] == ""
    assert "+4.0 [+2.0, +6.0]" in table(board()).markdown()


def test_a_claim_of_others_names_them_and_a_dash_may_be_one() -> None:
    others = Claim(attack="PGD-20", accuracy=0.6, where="by Doe & Roe, table 2", eps=0.031)
    theirs, own = entry("cifar10-theirs", claims=(others,)), entry("cifar10-own")
    cells = {made.id: dict(zip(COLUMNS[1:], numbers(made, {}), strict=False)) for made in (theirs, own)}
    assert cells["cifar10-theirs"]["claimed"].note == "PGD-20, by Doe & Roe"
    assert cells["cifar10-own"]["claimed"].note == "PGD-20"
    assert [row["claimed_by"] for row in csv.DictReader(io.StringIO(to_csv([own, theirs])))] == ["", "Doe & Roe"]
    assert PUBLISHED["bat"].claims[0].accuracy == 61.6
    assert claimed_entry(PUBLISHED["bat"]).claims[0].by == "Dbouk & Shanbhag"
    assert "no confirmed claim" in table([own]).markdown()


def test_the_worst_case_is_beside_the_name() -> None:
    (made,) = [made for made in board() if made.id == "cifar10-wins"]
    assert COLUMNS[:2] == ("defence", "worst case")
    assert numbers(made, {})[0].text == "50.0"


def test_attacks_in_the_csv_have_shares_of_all_images() -> None:
    attack = entry().attacks[0]
    few = replace(attack, name="FAB", on="survivors", accuracy=1.0, interval=(0.9, 1.0), n=30)
    own = replace(attack, name="AutoAttack", on="its own count")
    (row,) = csv.DictReader(io.StringIO(to_csv([entry(attacks=(attack, few, own))])))
    assert json.loads(row["attacks"]) == {"PGD-20": attack.accuracy}
    assert row["architecture"] == "ResNet-18"


def test_the_page_begins_with_what_keeps_an_advantage(folder: Path) -> None:
    page = (folder / "index.html").read_text()
    assert page.count('<dl class="verdicts">') == 2  # of all kinds, and of those that are trained
    listed = re.search(r'<dl class="verdicts">(.*?)</dl>', page, re.DOTALL)
    assert listed is not None
    found = re.findall(r">([^<>]*): (\d+)</dt>\s*<dd>(.*?)</dd>", listed[1], re.DOTALL)
    assert [(word, int(count), re.findall('href="#([^"]+)"', names)) for word, count, names in found] == [
        (BETTER, 1, ["cifar10-wins-difference"]),
        (SAME, 0, []),
        (WORSE, 1, ["cifar10-loses-difference"]),
    ]
    unsure = Difference(difference=0.01, interval=(-0.01, 0.03), n=1000)
    assert verdict(entry(baseline="cifar10-adv", difference=unsure)) == SAME and verdict(entry()) == ""


def test_the_page_says_what_was_measured_and_where_the_rules_are(folder: Path) -> None:
    page = (folder / "index.html").read_text()
    assert "3 of 5 entries are audited, at level standard on 1,000 test images." in page
    trained = html([entry(cost=Cost(epochs=15)), entry("cifar10-b", cost=Cost(epochs=200))])
    assert "15 to 200 epochs" in trained and "Sources often train longer" in trained
    assert "none of them audited" in html([entry(worst=None)])
    documents = Path(__file__).parents[2] / "docs"
    headings = re.findall("^## (.*)$", (documents / "leaderboard.md").read_text(), re.MULTILINE)
    in_site = html(board(), "../..")  # as the Makefile builds it, at leaderboard/board
    anchors = re.findall(r'href="\.\./\.\./leaderboard/index\.html#([^"]+)"', in_site)
    assert anchors and set(anchors) <= {heading.lower().replace(" ", "-") for heading in headings}
    assert (documents / "evaluation.md").is_file() and 'href="../../evaluation/index.html"' in in_site
    assert all(f'<a href="entries/{made.id}.json">{made.id}</a>' in page for made in board())


def test_evidence_is_in_words() -> None:
    attack = {"name": "PGD", "threat": {"norm": "linf", "eps": 8 / 255}, "step_size": 2 / 255}
    protocol = replace(entry().own_protocol, settings={"name": "AuthorsProtocol", "attack": attack})
    plain = entry(kind="no randomness", random="nothing", redrawn="never", shared=True, own_protocol=protocol)
    page = html([plain])
    assert "PGD, linf 8/255, step 2/255" in page and "AuthorsProtocol" not in page and "0.0313" not in page
    assert "<dd>nothing</dd>" in page and "resnet18" not in page


def test_figures_are_files_of_their_own(folder: Path) -> None:
    assert [file.name for file in folder.glob("*.png")] == ["cifar10-linf-8_255.png"]  # one line makes no figure


PROBE = """<!doctype html><meta charset="utf-8"><title>probe</title><body><script>
async function look(width) {
  const frame = document.createElement("iframe");
  frame.style = `width: ${width}px; height: 900px; border: 0`;
  frame.src = "index.html#cifar10-loses-worst";
  const loaded = new Promise((resolve) => { frame.onload = resolve; });
  document.body.append(frame);
  await loaded;
  const page = frame.contentDocument, body = page.querySelector(".board-table tbody");
  const shown = () => [...body.rows].filter((row) => !row.hidden).map((row) => row.cells[0].querySelector("a").hash);
  const press = (column) => page.querySelectorAll("thead button")[column].click();
  const found = { start: shown(), width: page.documentElement.scrollWidth };
  found.opened = page.getElementById("cifar10-loses").open;
  found.closed = page.getElementById("cifar10-wins").open;
  press(1); found.descending = shown(); press(1); found.ascending = shown();
  found.sorted = page.querySelectorAll("th[aria-sort]").length;
  const kind = page.querySelector("select[name=kind]");
  kind.value = "no randomness"; kind.dispatchEvent(new frame.contentWindow.Event("change"));
  found.filtered = shown(); found.count = page.querySelector(".count").textContent;
  const drawn = () => [...page.querySelectorAll("figure.board")].filter((one) => !one.hidden).map((one) => ({
    kind: one.dataset.kind,
    names: [...one.querySelectorAll("svg text")].map((text) => text.textContent)
      .filter((text) => text.startsWith("Defence")),
    verdicts: [...one.querySelectorAll(".verdicts a")].map((link) => link.hash),
  }));
  found.drawnOfKind = drawn();
  kind.value = ""; kind.dispatchEvent(new frame.contentWindow.Event("change"));
  found.drawnOfAll = drawn();
  const cells = [...body.rows[1].cells], scroller = page.querySelector("#board .scroll");
  found.lines = cells.map((cell) => getComputedStyle(cell).borderTopWidth);
  found.borders = getComputedStyle(page.querySelector(".board-table")).borderCollapse;
  found.right = cells[1].getBoundingClientRect().right;  // of the worst case
  found.cut = scroller.scrollWidth - scroller.clientWidth;
  found.inner = [...page.querySelectorAll("details .scroll")].map((one) => getComputedStyle(one).maxHeight);
  found.caption = page.querySelector("#board-caption").closest(".scroll") === null;
  const norm = page.querySelector("select[name=norm]");
  found.drawings = [...page.querySelectorAll("figure.board svg")].filter((one) => one.getBoundingClientRect().width > 0)
    .map((one) => one.parentElement.className);
  norm.value = "l2"; norm.dispatchEvent(new frame.contentWindow.Event("change"));
  found.l2 = shown(); found.figures = [...page.querySelectorAll("figure.board")].filter((one) => !one.hidden).length;
  found.overflowing = [...page.querySelectorAll("body *")].filter((element) => !element.closest(".scroll, pre, .skip")
    && element.getBoundingClientRect().right > width + 1).map((element) => element.outerHTML.slice(0, 80));
  found.requests = frame.contentWindow.performance.getEntriesByType("resource").map((entry) => entry.name)
    .filter((name) => !name.startsWith("data:"));
  found.unnamed = [...page.querySelectorAll("select, button, a")].filter((one) => !one.textContent.trim()).length;
  frame.remove();
  return found;
}
(async () => {
  const answer = document.createElement("pre");
  answer.id = "answer";
  answer.textContent = JSON.stringify({ telephone: await look(390), desk: await look(1200) });
  document.body.append(answer);
})();
</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (Debian: apt-get install chromium)")
def test_a_browser_sorts_filters_and_opens_evidence(folder: Path, tmp_path: Path) -> None:
    (folder / "probe.html").write_text(PROBE)
    command = [str(CHROMIUM), *OPTIONS, f"--user-data-dir={tmp_path / 'profile'}", (folder / "probe.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    answer = re.search(r'<pre id="answer">(.*?)</pre>', done.stdout, re.DOTALL)
    assert answer is not None, done.stdout[-2000:]
    assert not [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    robust = ["#cifar10-wins", "#cifar10-adv", "#cifar10-loses"]
    for width, found in zip((390, 1200), json.loads(unescape(answer[1])).values(), strict=True):
        claimed: list[Any] = ["#cifar10-claims", "#digits-other"]
        assert found["start"] == robust + claimed
        assert found["opened"] and not found["closed"]
        assert found["descending"] == robust + claimed and found["ascending"] == robust[::-1] + claimed
        assert found["sorted"] == 1
        assert found["filtered"] == ["#cifar10-adv"] and found["count"] == "1 of 5 entries"
        assert [one["kind"] for one in found["drawnOfAll"]] == [""] and len(found["drawnOfAll"][0]["verdicts"]) == 2
        (of_kind,) = found["drawnOfKind"]
        assert of_kind["kind"] == "no randomness"
        assert set(of_kind["names"]) == {"Defence cifar10-adv"} and not of_kind["verdicts"]
        # of every cell, the sticky one too, with which collapsed borders do not stay
        assert set(found["lines"]) == {"1px"} and found["borders"] == "separate"
        assert found["right"] <= width and (found["cut"] <= 0 or width < 640)
        assert found["caption"] and set(found["inner"]) == {"none"}
        assert found["l2"] == ["#digits-other"] and found["figures"] == 0
        assert found["drawings"] == ["narrow" if width < 640 else "wide"]
        assert found["width"] <= width and not found["overflowing"]
        assert not found["requests"] and found["unnamed"] == 0


def test_an_entry_that_was_withdrawn_is_no_longer_in_the_page(tmp_path: Path) -> None:
    first, second = (claimed_entry(PUBLISHED[name]) for name in ("bat", "ctrw"))
    for entries in ([first, second], [first]):
        write_board(entries, tmp_path)
        assert {file.stem for file in (tmp_path / "entries").iterdir()} == {entry.id for entry in entries}


def test_another_page_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("mine")
    with pytest.raises(FileError, match="index.html.*--out"):
        write_board([claimed_entry(PUBLISHED["bat"])], tmp_path)
    assert (tmp_path / "index.html").read_text() == "mine"


def test_files_that_no_page_has_made_stay(tmp_path: Path) -> None:
    (tmp_path / "entries").mkdir()
    (tmp_path / "entries" / "mine.json").write_text("{}")
    for _ in range(2):
        write_board([claimed_entry(PUBLISHED["bat"])], tmp_path)
        assert (tmp_path / "entries" / "mine.json").exists()
