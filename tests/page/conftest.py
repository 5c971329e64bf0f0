"""The page in a headless Chromium, before a scripted engine whose every chunk is a tone."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright
from tests import fakes
from tests.server.live import serving

from vivace.types import SAMPLE_RATE, SAMPLES_PER_FRAME, Chunk

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def tone(index: int) -> Chunk:
    """One frame of 250 Hz, which fits a frame evenly; its loudness tells the chunks apart."""
    seconds = np.arange(SAMPLES_PER_FRAME) / SAMPLE_RATE
    pcm = (0.2 + index % 8 / 16) * np.sin(2 * np.pi * 250 * seconds)
    return Chunk(pcm.astype(np.float32), np.full((1, 16), index, dtype=np.int64))


@dataclass
class Stage:
    """A server, its engine, a page that is not open yet, and what the page complained of."""

    url: str
    engine: fakes.FakeEngine
    page: Page
    complaints: list[str] = field(default_factory=list)

    def open(self) -> Page:
        self.page.goto(self.url)
        self.page.wait_for_selector("body[data-state=idle]")
        return self.page

    def speak(self) -> fakes.FakeSession:
        """Press the button; the session that it opened."""
        self.page.get_by_role("button", name="Speak").click()
        return self.engine.sessions.get(timeout=30)

    def wait(self, state: str) -> None:
        self.page.wait_for_selector(f"body[data-state={state}]")


def find_chromium() -> str | None:
    """The path of a Chromium."""
    return os.environ.get("VIVACE_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


@pytest.fixture(scope="session")
def chromium() -> str:
    path = find_chromium()
    if path is None:
        pytest.skip("no Chromium on this machine: see CONTRIBUTING.md")
    return path


@pytest.fixture(scope="module")  # while it lives no other event loop can run in this thread
def browser(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def stage(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """At the end nothing may have been complained of or asked of another host."""
    monkeypatch.setattr(fakes, "sound", tone)
    engine = fakes.FakeEngine()
    with serving(engine) as live, browser.new_context(accept_downloads=True) as context:
        stage = Stage(live.url, engine, context.new_page())
        context.set_default_timeout(120_000)  # a guard against hanging, as elsewhere

        def listen(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning"):
                stage.complaints.append(message.text)

        stage.page.on("console", listen)
        stage.page.on("pageerror", lambda error: stage.complaints.append(str(error)))
        asked: list[str] = []
        context.on("request", lambda request: asked.append(request.url))
        yield stage
        assert stage.complaints == []
        assert [url for url in asked if not url.startswith((live.url, "blob:"))] == []
