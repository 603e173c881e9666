"""The page in a real browser: picking, drawing, uploading and the controls; nothing is loaded from elsewhere."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from images import save
from play.served import Served, served
from report.test_browser import CHROMIUM
from webdriver import DRIVER, Browser, browser

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("gradio") is None, reason="Gradio is not installed (pip install 'advbnn[play]')"),
    pytest.mark.skipif(
        CHROMIUM is None or DRIVER is None,
        reason="no Chromium with chromedriver is installed (Debian: apt-get install chromium chromium-driver)",
    ),
]

CARDS = """return JSON.stringify([...document.querySelectorAll('.card')].map((card) => ({
  network: card.dataset.network,
  outcome: card.dataset.outcome,
  text: card.innerText,
  dots: card.querySelectorAll('.sample').length,
  pictures: [...card.querySelectorAll('img')].map((image) => image.src),
  wide: card.getBoundingClientRect().right <= innerWidth,
})))"""


def cards(page: Browser) -> dict[str, dict[str, Any]]:
    return {card["network"]: card for card in json.loads(page.run(CARDS))}


def changed(page: Browser) -> dict[str, dict[str, Any]]:
    """The cards once they are others than those marked as seen."""
    page.wait("const first = document.querySelector('.card'); return first && !first.dataset.seen")
    return cards(page)


def seen(page: Browser) -> None:
    page.run("document.querySelectorAll('.card').forEach((card) => { card.dataset.seen = 'yes' })")


def open_tab(page: Browser, name: str) -> None:
    page.run(f"[...document.querySelectorAll('[role=tab]')].find((tab) => tab.innerText.trim() === '{name}').click()")


def set_slider(page: Browser, label: str, value: float) -> None:
    """Types a number into the field of a slider, and leaves it."""
    page.run(f"""const field = [...document.querySelectorAll('input[type=number]')]
      .find((one) => one.ariaLabel.includes('{label}'));
    field.value = {value};
    field.dispatchEvent(new Event('input', {{ bubbles: true }}));
    field.dispatchEvent(new Event('blur'));""")


def test_a_visit(tmp_path: Path) -> None:
    """One test, because a server and a browser take seconds to start."""
    with served("--samples", 6) as server:
        with browser() as page:
            page.open(server.address)
            page.wait("return document.querySelectorAll('.card').length")
            two_networks_are_attacked_at_once(page)
            without_a_radius_nothing_changes(page)
            a_network_is_added(page)
            an_image_is_picked(page)
            a_drawing_is_read(page)
            a_file_is_uploaded(page, tmp_path)
            nothing_comes_from_elsewhere(page, server)
        assert server.interrupt() == 0
    assert "Traceback" not in server.output and "reaches for" not in server.output


def two_networks_are_attacked_at_once(page: Browser) -> None:
    found = cards(page)
    assert {name: card["outcome"] for name, card in found.items()} == {"none": "wrong", "adv_bnn": "right"}
    assert found["none"]["dots"] == 20 and found["adv_bnn"]["dots"] == 2 * 10 * 6
    for card in found.values():
        assert len({*card["pictures"]}) == 3 and card["wide"]
        assert "Entropy" in card["text"] and "Mutual information" in card["text"]


def without_a_radius_nothing_changes(page: Browser) -> None:
    seen(page)
    set_slider(page, "Radius", 0)
    found = changed(page)
    assert {card["outcome"] for card in found.values()} == {"right"}
    assert all(card["pictures"][0] == card["pictures"][2] for card in found.values())
    seen(page)
    set_slider(page, "Radius", 0.15)
    assert changed(page)["none"]["outcome"] == "wrong"


def a_network_is_added(page: Browser) -> None:
    seen(page)
    page.run("[...document.querySelectorAll('label')].find((one) => one.innerText.trim() === 'Adv. training').click()")
    assert [*changed(page)] == ["none", "adv", "adv_bnn"]


def an_image_is_picked(page: Browser) -> None:
    before = cards(page)
    seen(page)
    page.run("document.querySelector('[data-row=\"6\"]').click()")
    found = changed(page)
    assert found["none"]["pictures"][0] != before["none"]["pictures"][0]
    assert page.run("return [...document.querySelectorAll('input')].some((one) => one.value === '6')")


def a_drawing_is_read(page: Browser) -> None:
    seen(page)
    open_tab(page, "Draw")
    left, top, width = page.wait("""const box = document.querySelector('canvas').getBoundingClientRect();
      return box.width && [box.left, box.top, box.width]""")
    corners = ((0.5, 0.1), (0.5, 0.5), (0.5, 0.9))  # a one
    page.stroke([(round(left + x * width), round(top + y * width)) for x, y in corners])
    found = changed(page)
    assert "Before: 1" in found["adv_bnn"]["text"]
    assert "\u2713" not in found["none"]["text"]  # its class is not known


def a_file_is_uploaded(page: Browser, tmp_path: Path) -> None:
    before = cards(page)
    seen(page)
    open_tab(page, "Upload")
    save(tmp_path / "grey.png", 90, size=40)
    page.wait("return document.querySelector('input[type=file]')")
    page.upload("input[type=file]", str(tmp_path / "grey.png"))
    assert changed(page)["none"]["pictures"][0] != before["none"]["pictures"][0]


def nothing_comes_from_elsewhere(page: Browser, server: Served) -> None:
    assert [line for line in page.complaints() if "net::" in line or "Refused" in line] == []
    assert page.requests_elsewhere(server.address) == []
    assert page.run("return document.title") == "advbnn playground"
