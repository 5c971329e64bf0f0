"""The page of a server with API keys: the browser asks for one, and shows it from then on."""

import pytest
from playwright.sync_api import Browser, Error
from tests.fakes import FakeEngine
from tests.server.live import serving

from vivace.config import ServerConfig

KEY = "amy-key-0123456789"
SPEAK = """fetch("/v1/audio/speech", {
    method: "POST",
    headers: {"content-type": "application/json"},
    body: JSON.stringify({input: "Hi.", response_format: "pcm"}),
}).then(async (reply) => [reply.status, (await reply.arrayBuffer()).byteLength])"""
TYPE = """new Promise((told) => {
    const socket = new WebSocket(`${WHERE.replace("http", "ws")}/v1/audio/speech/stream`);
    socket.onmessage = (event) => told(JSON.parse(event.data).type);
    socket.onclose = (event) => told(event.code);
})"""
BLIND = """fetch(`${WHERE}/v1/audio/speech`, {
    method: "POST",
    mode: "no-cors",  // no question is asked before, as the body has no type
    body: new Blob([JSON.stringify({input: "Hi."})]),
}).then((reply) => reply.type)"""


def test_the_page_speaks_over_http_and_its_socket(browser: Browser) -> None:
    with serving(FakeEngine(), ServerConfig(api_keys={"amy": KEY})) as live:
        stranger = browser.new_page()
        with pytest.raises(Error, match="AUTH"):
            stranger.goto(live.url)
        stranger.close()
        page = browser.new_page(http_credentials={"username": "", "password": KEY})
        page.goto(live.url)
        assert page.evaluate(SPEAK) == [200, 3 * 3840]
        assert page.evaluate(TYPE.replace("WHERE", "location.origin")) == "session.created"
        page.close()


def test_another_sites_page_neither_speaks_nor_opens_a_socket(browser: Browser) -> None:
    engine = FakeEngine()
    with serving(engine) as ours, serving(FakeEngine()) as theirs:
        page = browser.new_page()
        page.goto(f"{theirs.url}/health")
        assert page.evaluate(TYPE.replace("WHERE", f'"{ours.url}"')) == 1006
        assert page.evaluate(BLIND.replace("WHERE", f'"{ours.url}"')) == "opaque"
        assert engine.sessions.empty()
        page.close()
