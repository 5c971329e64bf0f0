"""Word error rates of known transcripts, and the two ways to a transcript."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from vivace.bench.texts import Text
from vivace.bench.wer import errors, score, spoken, transcriber
from vivace.errors import InvalidRequest

TEXTS = [Text("a", "The door is open, now."), Text("b", "Don't wait!"), Text("c", "您好，请问？")]


def test_only_words_count() -> None:
    assert spoken("The  door—it's OPEN.") == "the door its open"
    assert spoken("您好，请 问？") == "您 好 请 问"
    assert spoken("  ?! ") == ""


@pytest.mark.parametrize(
    ("said", "heard", "wrong"),
    [("a b c", "a b c", 0), ("a b c", "a c", 1), ("a b", "a x b", 1), ("a b", "b a", 2),
     ("a b", "", 2), ("", "a", 1), ("k i t t e n", "s i t t i n g", 3)],
)  # fmt: skip
def test_errors_are_the_fewest_changes(said: str, heard: str, wrong: int) -> None:
    assert errors(said.split(), heard.split()) == wrong


def test_the_rate_is_over_all_words_and_nonsense_is_counted() -> None:
    heard = {"a": "the door is shut now", "b": "", "c": "您好请问您好请问您好请问"}
    found: Any = score(dict.fromkeys("abc", b""), TEXTS, lambda _, text: heard[text.id])
    assert found["wer_percent"] == pytest.approx(100 * (1 + 2 + 8) / (5 + 2 + 4), abs=0.01)
    assert (found["samples"], found["runaways"], found["silent"]) == (3, 1, 1)
    assert found["transcripts"][0] == {
        "text": "a", "said": "the door is open now", "heard": "the door is shut now"
    }  # fmt: skip
    assert score({}, TEXTS, lambda *_: "") is None


@pytest.fixture
def whisper() -> Iterator[tuple[str, list[bytes]]]:
    """A server with OpenAI's transcription route."""
    bodies: list[bytes] = []

    class Route(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            reply = json.dumps({"text": "hello"}).encode()
            self.send_response(200 if self.path == "/v1/audio/transcriptions" else 404)
            self.send_header("content-length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Route) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", bodies
        server.shutdown()
        thread.join()


def test_a_transcription_server(whisper: tuple[str, list[bytes]]) -> None:
    url, bodies = whisper
    assert transcriber("whisper-1", f"{url}/v1")(b"RIFFwav", TEXTS[2]) == "hello"
    assert b'name="model"\r\n\r\nwhisper-1\r\n' in bodies[0]
    assert b'name="language"\r\n\r\nzh\r\n' in bodies[0]
    assert b'filename="speech.wav"\r\n\r\nRIFFwav\r\n' in bodies[0]
    with pytest.raises(InvalidRequest, match="no transcript"):
        transcriber("whisper-1", url)(b"", TEXTS[0])


def test_without_the_extra_the_way_to_it_is_told() -> None:
    try:
        import faster_whisper  # noqa: F401
    except ImportError:
        with pytest.raises(InvalidRequest, match=r"vivace\[wer\]"):
            transcriber("tiny.en", None)
    else:
        with pytest.raises(InvalidRequest, match="no whisper model"):
            transcriber("/no/such/model", None)
