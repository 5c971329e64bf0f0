"""Makes docs/images/page.png anew: python -m tests.page.screenshot http://127.0.0.1:8000

The picture is of a real run, so the machine must keep up with it: a run with a gap is made again.
--typed 40 types the text, so many tokens a second.
"""

import argparse
import io
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright
from tests.page.conftest import FLAGS, find_chromium

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "page.png"
WIDTH, HEIGHT = 1180, 700
AHEAD_S = 2.5
TRIES = 20


def main() -> None:
    """Try until a run is without gaps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--typed", type=int, metavar="PACE")
    parser.add_argument("--output", type=Path, default=PICTURE)
    given = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=FLAGS)
        shots = (shoot(browser, given.url, given.typed) for _ in range(TRIES))
        png = next((shot for shot in shots if shot is not None), None)
        browser.close()
    if png is None:
        parser.exit(1, "This machine cannot keep up with the listener now.\n")
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    picture.quantize(96, dither=Image.Dither.NONE).save(given.output, optimize=True)


def shoot(browser: Browser, url: str, typed: int | None) -> bytes | None:
    """The page in the middle of speech; None if the sound had a gap."""
    page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, device_scale_factor=1.5)
    page.goto(url)
    page.wait_for_selector("body[data-state=idle]")
    if typed:
        page.get_by_text("Typed").click()
        page.get_by_label("tokens a second").fill(str(typed))
    page.get_by_role("button", name="Speak").click()
    while page.locator("body").get_attribute("data-state") != "idle":
        ahead = page.inner_text("#ahead").partition("\xa0")[0]
        if page.inner_text("#gaps dd >> nth=0") not in ("0", "–"):
            break
        if float(ahead or 0) > AHEAD_S:
            png = page.screenshot()
            page.close()
            return png
        page.wait_for_timeout(50)
    page.close()
    return None


if __name__ == "__main__":
    main()
