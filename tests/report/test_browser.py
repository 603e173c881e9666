"""The page in a real browser: it loads, shows everything, fits the screen, and makes no requests."""

import json
import re
import shlex
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (Debian: apt-get install chromium)")

# the probe looks into frames of its own folder; what the browser itself would like to load is not our affair
OPTIONS = shlex.split("""--headless=new --no-sandbox --disable-gpu --disable-background-networking --no-first-run
--disable-component-update --allow-file-access-from-files --enable-logging=stderr --virtual-time-budget=20000
--dump-dom '--host-resolver-rules=MAP * ~NOTFOUND'""")

# The page is loaded into frames as wide as a telephone and as a desk, and asked what it looks like there.
PROBE = """<!doctype html><meta charset="utf-8"><title>probe</title><body><script>
const shown = (element) => { const box = element.getBoundingClientRect(); return box.width > 20 && box.height > 20; };
async function look(width) {
  const frame = document.createElement("iframe");
  frame.style = `width: ${width}px; height: 900px; border: 0`;
  frame.src = "report.html";
  const loaded = new Promise((resolve) => { frame.onload = resolve; });
  document.body.append(frame);
  await loaded;
  const page = frame.contentDocument, root = page.documentElement;
  const colours = new Set([...page.querySelectorAll("svg path")].map((path) => getComputedStyle(path).stroke));
  const found = {
    title: page.title,
    width: root.scrollWidth,
    ground: getComputedStyle(root).backgroundColor,
    plots: [...page.querySelectorAll(".plot svg")].filter(shown).length,
    labels: [...page.querySelectorAll("svg text")].filter((text) => text.textContent === "Adv-BNN").length,
    colours: colours.size,
    pictures: [...page.images].filter((image) => image.complete && image.naturalWidth === 8 && shown(image)).length,
    focusable: page.querySelectorAll("a[href], summary, [tabindex='0']").length,
    overflowing: [...page.querySelectorAll("body *")].filter((element) => !element.closest(".scroll, pre, .skip")
      && element.getBoundingClientRect().right > width + 1).map((element) => element.outerHTML.slice(0, 80)),
    requests: frame.contentWindow.performance.getEntriesByType("resource").map((entry) => entry.name)
      .filter((name) => !name.startsWith("data:")),
  };
  frame.remove();
  return found;
}
(async () => {
  const found = { telephone: await look(390), desk: await look(1200) };
  const answer = document.createElement("pre");
  answer.id = "answer";
  answer.textContent = JSON.stringify(found);
  document.body.append(answer);
})();
</script>"""


def browse(page: str, folder: Path, *options: str) -> tuple[dict[str, Any], list[str]]:
    """What the probe found in a page, and what the browser complained about."""
    (folder / "report.html").write_text(page)
    (folder / "probe.html").write_text(PROBE)
    assert CHROMIUM is not None
    command = [CHROMIUM, *OPTIONS, f"--user-data-dir={folder / 'profile'}", *options, (folder / "probe.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    answer = re.search(r'<pre id="answer">(.*?)</pre>', done.stdout, re.DOTALL)
    assert answer is not None, done.stdout[-2000:]
    return json.loads(unescape(answer[1])), [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.fixture(scope="module")
def light(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[str]]:
    """The report of everything as a browser sees it."""
    return browse((folder / "report.html").read_text(), tmp_path_factory.mktemp("light"))


@pytest.mark.parametrize(("place", "width"), [("telephone", 390), ("desk", 1200)])
def test_everything_is_shown_and_fits(light: tuple[dict[str, Any], list[str]], place: str, width: int) -> None:
    found, complaints = light[0][place], light[1]
    assert (complaints, found["title"]) == ([], "Robustness of 5 models on digits")
    assert (found["plots"], found["labels"], found["pictures"]) == (13, 7, 45)
    assert found["colours"] >= 6
    assert found["focusable"] > 40
    assert found["width"] <= width
    assert found["overflowing"] == found["requests"] == []


def test_a_request_would_be_noticed(tmp_path: Path, folder: Path) -> None:
    page = (folder / "report.html").read_text().replace("<main", '<img src="https://example.org/x.png" alt=""><main')
    _, complaints = browse(page, tmp_path)
    assert any("Content Security Policy" in complaint for complaint in complaints)


def test_dark_mode(light: tuple[dict[str, Any], list[str]], folder: Path, tmp_path: Path) -> None:
    page = (folder / "report.html").read_text()
    dark, _ = browse(page, tmp_path, "--blink-settings=preferredColorScheme=0")
    assert light[0]["desk"]["ground"] == "rgb(253, 252, 250)"
    assert dark["desk"]["ground"] == "rgb(21, 23, 26)"
    assert dark["desk"]["colours"] >= 6
