"""Servers that misbehave: each kind has its name, none is a success, nothing is raised."""

import asyncio
import json
import socket
from typing import Any

import pytest
from tests.bench.exchange import exchange, judged
from tests.bench.fake import Fake, Script, silence, tone, wav

from vivace.bench import http, sockets
from vivace.bench.answer import Manners
from vivace.bench.targets import Ask

PCM = tone(0.4)
ONE_READ = 1 << 18  # bytes: the most that asyncio hands over at a time
ERROR = json.dumps({"error": {"message": "out of memory"}}).encode()


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        (Script([(0.0, ERROR)], status=429, content_type="application/json"), "refused"),
        (Script([(0.0, ERROR)], status=503, content_type="application/json"), "refused"),
        (Script([(0.0, ERROR)], status=404, content_type="application/json"), "rejected"),
        (Script([(0.0, b"oops")], status=500, content_type="text/plain"), "server_error"),
        (Script([(0.0, ERROR)], content_type="application/json"), "error_body"),
        (Script([(0.0, ERROR)], content_type="audio/pcm"), "error_body"),
        (Script([(0.0, b"<html>")], content_type="text/html"), "wrong_type"),
        (Script([(0.0, PCM)], content_type="audio/mpeg"), "wrong_type"),
        (Script([(0.0, PCM)], content_type=None), "wrong_type"),
        (Script([(0.0, PCM + b"x")]), "odd_bytes"),
        (Script([(0.0, wav(PCM, len(PCM) + 100))], content_type="audio/wav"), "truncated"),
        (Script([(0.0, wav(PCM)[:20])], content_type="audio/wav"), "bad_wav"),
        (Script([(0.0, PCM)], breaks=True), "truncated"),
        (Script([(0.0, PCM)], framing="length", breaks=True), "ok"),
        (Script([(0.0, PCM)], framing="close"), "ok"),
        (Script([(0.0, b"")], framing="length"), "no_audio"),
        (Script([(0.0, silence(0.4))]), "ok"),
        (Script([(0.0, PCM)], headers={"x-sample-rate": "0"}), "bad_rate"),
        (Script([(0.0, PCM)], headers={"x-finish-reason": "length"}), "length"),
    ],
)
async def test_http(fake: Fake, script: Script, kind: str) -> None:
    fake.script = script
    answer = await exchange(Ask("vivace", fake.url))
    record = judged(answer)
    assert record.kind == kind, record.detail
    assert answer.ended_s >= answer.sent_s
    if kind not in {"ok", "no_audio", "length"}:
        assert record.detail
        assert record.e2e_ms is None


async def test_a_length_that_is_not_kept_is_truncated(fake: Fake) -> None:
    fake.script = Script([(0.0, PCM)], framing="close", headers={"content-length": "999999"})
    assert judged(await exchange(Ask("vivace", fake.url))).kind == "truncated"


@pytest.mark.parametrize("target", ["vivace", "nari-ws", "elevenlabs", "cartesia"])
async def test_nobody_listens(target: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"ws://127.0.0.1:{unused.getsockname()[1]}"
        asked = Ask(target, url.replace("ws", "http") if target == "vivace" else url)
        record = judged(await exchange(asked))
    assert record.kind == "unreachable"
    assert record.detail


@pytest.mark.parametrize("target", ["vivace", "nari-ws", "elevenlabs", "cartesia"])
async def test_no_end_in_time(fake: Fake, target: str) -> None:
    fake.script = Script([(0.0, PCM), (3600.0, PCM)])
    url = fake.url if target == "vivace" else fake.ws_url
    record = judged(await exchange(Ask(target, url), timeout_s=1.0))
    assert record.kind == "timeout"
    assert record.audio_s == pytest.approx(0.4)  # what came is heard, and no success


@pytest.mark.parametrize("target", ["vivace", "nari-ws"])
async def test_a_stream_without_end_is_given_up(
    fake: Fake, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (http, sockets):
        monkeypatch.setattr(module, "MOST_BYTES", 50_000)
    fake.script = Script([(0.0, PCM)] * 10)
    url = fake.url if target == "vivace" else fake.ws_url
    assert judged(await exchange(Ask(target, url))).kind == "endless"


async def test_something_else_than_http(fake: Fake) -> None:
    record = judged(await exchange(Ask("vivace", fake.ws_url.replace("ws", "http"))))
    assert record.kind in {"rejected", "server_error", "protocol", "truncated"}


@pytest.mark.parametrize("target", ["vivace", "nari-ws", "elevenlabs", "cartesia"])
async def test_sockets_that_break_or_complain(fake: Fake, target: str) -> None:
    fake.script = Script([(0.0, PCM)], error="no such voice")
    record = judged(await exchange(Ask(target, fake.ws_url)))
    assert record.kind == "error_event"
    fake.script = Script([(0.0, PCM)], breaks=True)
    assert judged(await exchange(Ask(target, fake.ws_url))).kind == "truncated"
    fake.script = Script([])
    assert judged(await exchange(Ask(target, fake.ws_url))).kind == "no_audio"
    record = judged(await exchange(Ask(target, fake.url.replace("http", "ws"))))
    assert record.kind not in {"ok", "unreachable"}


@pytest.mark.parametrize(("status", "kind"), [(429, "refused"), (403, "rejected")])
async def test_a_socket_that_is_not_opened(fake: Fake, status: int, kind: str) -> None:
    fake.script = Script([(0.0, b"no")], status=status, framing="length")
    record = judged(await exchange(Ask("nari-ws", fake.url)))
    assert (record.kind, record.status) == (kind, status)


async def test_nari_says_why_speech_ended(fake: Fake) -> None:
    fake.script = Script([(0.0, PCM)], headers={"stop": "length"})
    assert judged(await exchange(Ask("nari-ws", fake.ws_url))).kind == "length"


@pytest.mark.parametrize("target", ["vivace", "nari-ws"])
async def test_a_client_that_leaves_is_neither_success_nor_failure(fake: Fake, target: str) -> None:
    fake.script = Script([(0.0, tone(0.08))] + [(0.02, tone(0.08))] * 200)
    url = fake.url if target == "vivace" else fake.ws_url
    answer = await exchange(Ask(target, url), manners=Manners(leave_after_s=0.1))
    assert judged(answer).kind == "left"
    assert 0 < len(answer.arrivals) < 200


@pytest.mark.parametrize("target", ["vivace", "nari-ws"])
async def test_a_slow_reader_waits_for_as_long_as_what_it_has_read_takes(
    fake: Fake, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock that does not wait: what counts is what was asked of it."""
    loop, pauses_s = asyncio.get_running_loop(), list[float]()
    call_later = loop.call_later

    def at_once(delay_s: float, *rest: Any, **context: Any) -> asyncio.TimerHandle:
        pause = delay_s < 1.0  # a longer one is a time limit
        pauses_s.extend([delay_s] * pause)
        return call_later(0.0 if pause else delay_s, *rest, **context)

    monkeypatch.setattr(loop, "call_later", at_once)
    fake.script = Script([(0.0, tone(1.0))] * 10)
    url = fake.url if target == "vivace" else fake.ws_url
    answer = await exchange(Ask(target, url), manners=Manners(bytes_s=480_000))
    assert judged(answer).kind == "ok"
    read = sum(pauses_s) * 480_000
    assert read >= 480_000 - ONE_READ, "all but the last, after which nothing is left to read"
