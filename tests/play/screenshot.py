"""Makes the picture of docs/play.md: `make play-picture`."""

import io
import sys
import time
from pathlib import Path

from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))

from play.served import served
from webdriver import browser


def main(path: str) -> None:
    with served() as server, browser((1360, 950)) as page:
        page.open(server.address)
        page.wait("return document.querySelectorAll('.card').length")
        time.sleep(1)  # for the last transition
        Image.open(io.BytesIO(page.screenshot())).convert("RGB").save(path, quality=85, method=6)


if __name__ == "__main__":
    main(sys.argv[1])
