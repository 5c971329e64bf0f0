"""Chromium decodes what the server sends: headless, with the browser's own decodeAudioData."""

import http.server
import json
import queue
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from tests.fakes import FakeEngine, Play

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
FORMS = ["mp3", "opus", "aac", "flac", "wav"]
FRAMES = 25
PAGE = """<!doctype html><script>
async function decoded(name) {
  const data = await (await fetch("/" + name)).arrayBuffer();
  try {
    const sound = await new OfflineAudioContext(1, 1, 48000).decodeAudioData(data);
    const peak = sound.getChannelData(0).reduce((most, x) => Math.max(most, Math.abs(x)), 0);
    return {duration: sound.duration, peak};
  } catch (error) { return {error: String(error)}; }
}
async function run(names) {
  const heard = {};
  for (const name of names) heard[name] = await decoded(name);
  await fetch("/heard", {method: "POST", body: JSON.stringify(heard)});
}
run(NAMES);
</script>"""


@contextmanager
def offering(files: dict[str, bytes]) -> Iterator[tuple[str, "queue.Queue[bytes]"]]:
    """A page that decodes files, and what it posts back."""
    heard: queue.Queue[bytes] = queue.Queue()
    page = PAGE.replace("NAMES", json.dumps(list(files))).encode()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = urlsplit(self.path).path[1:]
            data = page if name == "" else files.get(name, b"")
            self.send_response(200)
            self.send_header("content-type", "audio/x" if name else "text/html")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_POST(self) -> None:
            heard.put(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *args: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/", heard
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def browsing(url: str, profile: Path) -> Iterator[None]:
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    flags += "--disable-background-networking --disable-component-update --disable-sync"
    command = [CHROMIUM, *flags.split(), f"--user-data-dir={profile}", "--remote-debugging-port=0"]
    with subprocess.Popen(
        [*command, url], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield
        finally:
            process.terminate()


@pytest.mark.skipif(not CHROMIUM, reason="no Chromium here: apt-get install chromium")
def test_chromium_decodes_every_format_streamed_and_whole(
    client: httpx.Client, engine: FakeEngine, tmp_path: Path
) -> None:
    engine.play = Play(chunks=FRAMES)
    files = {}
    for form in FORMS:
        for stream in (True, False):
            body = {"input": "Hello.", "response_format": form, "stream": stream}
            files[f"{form}-{stream}"] = client.post("/v1/audio/speech", json=body).content
    with offering(files) as (url, heard), browsing(url, tmp_path):
        found = json.loads(heard.get(timeout=100))
    assert list(found) == list(files)
    for name, sound in found.items():
        assert "error" not in sound, (name, sound)
        assert -1e-3 < sound["duration"] - FRAMES * 0.08 < 0.060, (name, sound)
        assert 0.015 < sound["peak"] < 0.05, (name, sound)  # the fake's loudest chunk is 0.025
