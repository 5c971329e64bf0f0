"""Each request is told once: in the log, and to the metrics."""

import logging
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.fakes import FakeEngine, Play
from tests.server.live import connect, serving

from vivace.config import ServerConfig
from vivace.errors import EngineFailure, Overloaded
from vivace.server.heard import Heard
from vivace.server.metrics import Metrics
from vivace.server.story import ENOUGH, Ledger, Pace, Story
from vivace.types import FinishReason

SPEECH = "/v1/audio/speech"
Lines = list[dict[str, Any]]


class Log(logging.Handler):
    """Keeps the lines about requests, and wakes who waits for one."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: Lines = []
        self._more = threading.Condition()

    def emit(self, record: logging.LogRecord) -> None:
        about = getattr(record, "about", None)
        if about is not None:
            with self._more:
                self.lines.append({"level": record.levelname, "message": record.msg, **about})
                self._more.notify_all()

    def one(self, **about: object) -> dict[str, Any]:
        """The one line with these, once it is there."""

        def found() -> Lines:
            return [line for line in self.lines if about.items() <= line.items()]

        with self._more:
            assert self._more.wait_for(found, timeout=30), (about, self.lines)
            (line,) = found()
            return line


@pytest.fixture
def log() -> Iterator[Log]:
    handler, ours = Log(), logging.getLogger("vivace")
    level = ours.level
    ours.addHandler(handler)
    ours.setLevel(logging.INFO)
    yield handler
    ours.removeHandler(handler)
    ours.setLevel(level)


def counted(client: httpx.Client, name: str, **labels: str) -> float:
    """The sum of the samples of that name with these labels."""
    families = text_string_to_metric_families(client.get("/metrics").text)
    samples = (sample for family in families for sample in family.samples)
    return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())


@pytest.mark.parametrize(
    ("fields", "kind"),
    [({}, "stream"), ({"stream_format": "sse"}, "events"), ({"stream": False}, "whole")],
)
def test_a_request_has_one_line_with_its_times(
    client: httpx.Client, log: Log, fields: dict[str, object], kind: str
) -> None:
    before = counted(client, "vivace_requests_total", kind=kind, reason="stop")
    body = {"input": "Hello.", "response_format": "pcm", "voice": "ryan", **fields}
    client.post(SPEECH, json=body, headers={"x-request-id": f"one-{kind}"})
    line = log.one(request_id=f"one-{kind}")
    assert (line["level"], line["message"]) == ("INFO", "spoke")
    assert (line["route"], line["kind"], line["reason"], line["key"]) == (SPEECH, kind, "stop", "-")
    assert (line["chars"], line["audio_s"], line["voice"]) == (6, 0.24, "ryan")
    assert 0 <= line["sound_ms"] <= line["first_byte_ms"] <= line["took_ms"]
    assert "text" not in line
    assert counted(client, "vivace_requests_total", kind=kind, reason="stop") == before + 1
    assert counted(client, "vivace_ttfa_seconds_count", kind=kind, sound="first_byte") >= 1


@pytest.mark.parametrize(
    ("body", "status", "reason", "kind"),
    [
        ({"input": ""}, 400, "invalid", "none"),
        ({"input": "Hi.", "speed": 9}, 422, "unprocessable", "none"),
        ({"input": "Hi.", "voice": "nobody"}, 404, "not_found", "none"),
    ],
)
def test_a_refusal_is_told_as_one(
    client: httpx.Client, log: Log, body: dict[str, object], status: int, reason: str, kind: str
) -> None:
    before = counted(client, "vivace_requests_total", route=SPEECH, reason=reason)
    client.post(SPEECH, json=body, headers={"x-request-id": reason})
    line = log.one(request_id=reason)
    assert (line["message"], line["status"], line["kind"]) == ("refused", status, kind)
    assert counted(client, "vivace_requests_total", route=SPEECH, reason=reason) == before + 1


@pytest.mark.parametrize(
    ("error", "message", "reason", "level"),
    [
        (Overloaded("full", retry_after_s=1), "refused", "overloaded", "INFO"),
        (EngineFailure("broke"), "refused", "failure", "ERROR"),
        (RuntimeError("bug"), "refused", "failure", "ERROR"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_what_the_engine_refuses_did_not_speak(
    client: httpx.Client,
    engine: FakeEngine,
    log: Log,
    error: Exception,
    message: str,
    reason: str,
    level: str,
) -> None:
    engine.play = Play(fault_at=0, fault=error)
    client.post(SPEECH, json={"input": "Hi."}, headers={"x-request-id": "refusal"})
    line = log.one(request_id="refusal")
    assert (line["message"], line["reason"], line["level"]) == (message, reason, level)
    assert line["audio_s"] == 0


def test_what_breaks_off_is_told_as_failed(
    client: httpx.Client, engine: FakeEngine, log: Log
) -> None:
    engine.play = Play(chunks=3, fault_at=2, fault=EngineFailure("broke"))
    body = {"input": "Hi.", "response_format": "pcm", "stream_format": "sse"}
    client.post(SPEECH, json=body, headers={"x-request-id": "broken"})
    line = log.one(request_id="broken")
    assert (line["message"], line["reason"], line["audio_s"]) == ("failed", "failure", 0.16)


def test_who_leaves_is_told_as_cancelled(
    client: httpx.Client, engine: FakeEngine, log: Log
) -> None:
    engine.play = Play(chunks=3, open_gates=1)
    sock = connect(client, {"input": "Gone.", "response_format": "pcm"})
    session = engine.next_session()
    sock.close()
    assert session.cancelled.wait(timeout=30)
    assert log.one(reason="cancelled")["message"] == "left"


def test_a_route_that_is_not_there_is_one_label(client: httpx.Client, log: Log) -> None:
    client.get("/nowhere/at/all", headers={"x-request-id": "lost"})
    line = log.one(request_id="lost")
    assert (line["route"], line["reason"]) == ("other", "http_404")
    assert counted(client, "vivace_http_requests_total", route="other", status="404") >= 1


def test_items_of_a_batch_are_told_each(client: httpx.Client, log: Log) -> None:
    body = {"items": [{"input": "One."}, {"input": "Two."}]}
    client.post(f"{SPEECH}/batch", json=body, headers={"x-request-id": "many"})
    for item in ("many.1", "many.2"):
        assert log.one(request_id=item)["kind"] == "batch"


def test_texts_are_in_the_log_where_they_are_asked_for(log: Log) -> None:
    with serving(FakeEngine(), ServerConfig(log_text=True)) as live:
        httpx.post(f"{live.url}{SPEECH}", json={"input": "Secret."}, timeout=30)
    assert log.one(message="spoke")["text"] == "Secret."


def test_a_story_is_told_once() -> None:
    ledger = Ledger(Metrics())
    story = Story(ledger, "a", {})
    story.fail(EngineFailure("first"))
    story.end("stop")
    (family,) = ledger.metrics.requests.collect()
    assert [s.labels["reason"] for s in family.samples if s.name.endswith("_total")] == ["failure"]


def test_half_as_slow_again_as_the_mean_is_slow() -> None:
    pace = Pace()
    assert not any(pace.slow(9.0) for _ in range(ENOUGH - 1))
    assert not pace.slow(90.0)  # there was no mean yet
    pace = Pace()
    for _ in range(ENOUGH):
        assert not pace.slow(0.2)
    assert not pace.slow(0.3)
    assert pace.slow(0.31)
    assert pace.mean < 0.21  # and one slow request changes it little


def test_a_slow_request_is_warned_of(log: Log) -> None:
    now = [0.0]
    ledger = Ledger(Metrics(), clock=lambda: now[0])

    class Spoken:
        form, encode_s, cache = "pcm", 0.0, None

        def __init__(self, took_s: float, sound_s: float) -> None:
            self.heard = Heard()
            self.heard.take(np.ones(round(sound_s * 24_000), dtype=np.float32), now[0] + took_s)

    def speak(id: str, took_s: float, sound_s: float = 2.0, kind: str = "stream") -> None:
        story = Story(ledger, id, {}, kind)
        story.voiced = Spoken(took_s, sound_s)  # type: ignore[assignment]
        now[0] += took_s
        story.end(FinishReason.STOP)

    for _ in range(ENOUGH):
        speak("usual", 0.4)
    for id, took_s, sound_s, kind in (
        ("long", 4.0, 20.0, "stream"),
        ("short", 9.0, 0.5, "stream"),
        ("typed", 9.0, 2.0, "turn"),
        ("slow", 0.61, 2.0, "stream"),
    ):
        speak(id, took_s, sound_s, kind)
    slow = [line for line in log.lines if line["level"] == "WARNING"]
    assert [(line["request_id"], line["took"], line["mean"]) for line in slow] == [
        ("slow", 0.305, 0.2)
    ]
