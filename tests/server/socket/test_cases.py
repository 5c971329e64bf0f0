"""Public failure reports about sockets, by their numbers in the list of cases."""

import asyncio
import json
import threading
from typing import Any

import pytest
from starlette.types import ASGIApp
from tests.runners import FakeRunner
from tests.server.socket.client import (
    FRAME_BYTES,
    NARI,
    Socket,
    app_of,
    audio,
    counted,
    given_back,
)
from tests.server.socket.fuzz import run

from vivace.engine import Engine
from vivace.server.live.conversation import MOST_TURNS

WORDS = "Hello there, how are you today? I am well, and so is everybody else. "


def kinds(heard: list[Any]) -> list[str]:
    return [message["type"] for message in heard if isinstance(message, dict)]


@pytest.mark.parametrize("texts", [[], [""], ["", ""], [" "], ["..."], ["😊"]])
async def test_case_13_14_turn_without_speech_is_done_without_sound(
    app: ASGIApp, engine: Engine, texts: list[str]
) -> None:
    async with Socket(app) as socket:
        for text in texts:
            socket.say("input_text.append", text=text)
        socket.say("input_text.end")
        heard = await socket.until("speech.audio.done")
        assert heard[-1]["finish_reason"] == "no_audio"
        assert heard[-1]["audio_s"] == 0
        assert "error" not in heard[-1]
        assert not audio(heard)
        assert bool(heard[-1]["skipped"]) == (texts in (["..."], ["😊"]))
    await given_back(engine)


async def test_case_22_half_a_pair_waits_for_its_other_half(engine: Engine) -> None:
    told: list[str] = []
    opened = engine.open

    def spied(*args: Any) -> Any:
        session = opened(*args)
        append = session.append
        session.append = lambda text: (told.append(text), append(text))[1]  # type: ignore[method-assign]
        return session

    engine.open = spied  # type: ignore[method-assign]
    async with Socket(app_of(engine)) as socket:
        socket.raw('{"type": "input_text.append", "text": "Hi \\ud83d"}')
        socket.raw('{"type": "input_text.append", "text": "\\ude00 there."}')
        socket.say("input_text.end")
        heard = await socket.until("speech.audio.done")
        assert "error" not in kinds(heard)
        assert heard[-1]["skipped"] == ["😀"]
        assert told == ["Hi \ud83d", "\ude00 there."]


async def test_case_22_half_a_pair_alone_is_an_error(app: ASGIApp) -> None:
    async with Socket(app) as socket:
        socket.raw('{"type": "input_text.append", "text": "Hi \\ud83d"}')
        socket.raw('{"type": "input_text.append", "text": " there."}')
        error = (await socket.until("error"))[-1]
        assert error["turn_id"] == 1
        assert error["error"]["code"] == "unpaired_surrogate"
        socket.say("input_text.append", text="Hello.")
        socket.say("input_text.end")
        assert (await socket.until("speech.audio.done"))[-1]["finish_reason"] == "stop"
        socket.raw('{"type": "input_text.append", "text": "Hi \\ud83d"}')
        socket.say("input_text.end")
        done = (await socket.until("speech.audio.done"))[-1]
        assert done["finish_reason"] == "error"
        assert done["error"]["code"] == "unpaired_surrogate"
        socket.raw('{"type": "session.update", "instructions": "\\ud83d"}')
        assert (await socket.until("error"))[-1]["error"]["code"] == "unpaired_surrogate"


@pytest.mark.parametrize("when", ["before the first sound", "after some", "in the queue"])
async def test_case_38_client_that_leaves_frees_its_session(
    engine: Engine, gate: threading.Event, when: str
) -> None:
    app = app_of(engine)
    gate.clear()
    others = []
    for _ in range(4 if when == "in the queue" else 0):
        others.append(await Socket(app).__aenter__())
        others[-1].say("input_text.append", text=WORDS)
    async with Socket(app) as socket:
        socket.say("session.update", seed=1_000_000)
        socket.say("input_text.append", text=WORDS)
        await socket.until("response.created")
        if when == "after some":
            gate.set()
            while not isinstance(await socket.hear(), tuple):
                pass
    gate.set()
    for other in others:
        await other.__aexit__()
    await given_back(engine)


async def test_case_40_slow_reader_gets_all_of_it() -> None:
    sounds = []
    for slow in (False, True):
        runner = FakeRunner(lambda seed: seed)
        with counted(runner, max_sessions=2) as engine:
            app = app_of(engine)
            async with Socket(app) as socket:
                socket.say("session.update", seed=600)  # 48 s: more than a session holds
                socket.say("input_text.append", text=WORDS * 20)
                socket.say("input_text.end")
                heard: list[Any] = [await socket.hear()]
                while not isinstance(heard[-1], tuple):
                    heard.append(await socket.hear())
                if slow:
                    await _stall(socket, app, runner)
                heard += await socket.until("speech.audio.done")
                sounds.append(audio(heard))
    assert sounds[0] == sounds[1]
    assert sounds[0]
    assert len(sounds[0]) % FRAME_BYTES == 0


async def _stall(socket: Socket, app: ASGIApp, runner: FakeRunner) -> None:
    """Read nothing until the session is paused; others are served meanwhile."""
    socket.reading.clear()
    while runner.made[0] < 300:
        await asyncio.sleep(0)
    async with Socket(app) as other:
        other.say("session.update", seed=3)
        other.say("input_text.append", text="Hello.")
        other.say("input_text.end")
        await other.until("speech.audio.done")
    assert runner.made[0] < 600, "it is paused, not buffered without end"
    socket.reading.set()


@pytest.mark.parametrize("reads", [True, False])
async def test_case_41_nothing_of_a_cancelled_turn_comes_after_its_acknowledgement(
    app: ASGIApp, engine: Engine, reads: bool
) -> None:
    async with Socket(app) as socket:
        socket.say("session.update", seed=1_000_000)
        socket.say("input_text.append", text=WORDS)
        for turn in range(1, 21):
            while not isinstance(message := await socket.hear(), tuple):
                pass
            assert message[0] == turn, "sound of a turn that was cancelled"
            if not reads:
                socket.reading.clear()
            socket.say("response.cancel")
            socket.say("input_text.append", text="The next turn at once. ")
            for _ in range(10):
                await asyncio.sleep(0)
            socket.reading.set()
            late = await socket.until("response.cancelled")
            assert {m[0] for m in late if isinstance(m, tuple)} <= {turn}
            assert late[-1]["turn_id"] == turn
            assert late[-1]["played_s"] >= 0
    await given_back(engine)


async def test_case_41_cancel_of_one_turn_leaves_the_others(app: ASGIApp) -> None:
    async with Socket(app) as socket:
        socket.say("session.update", seed=5)
        for _ in range(3):
            socket.say("input_text.append", text="Hello.")
            socket.say("input_text.end")
        socket.say("response.cancel", turn_id=2)
        heard = await socket.until("response.cancelled")
        assert heard[-1]["turn_id"] == 2
        while kinds(heard).count("speech.audio.done") < 2:
            heard.append(await socket.hear())
        assert [m[0] for m in heard if isinstance(m, tuple)] == sorted(
            m[0] for m in heard if isinstance(m, tuple)
        )
        assert {m[0] for m in heard if isinstance(m, tuple)} == {1, 3}


async def test_case_44_many_turns_on_one_socket(app: ASGIApp, engine: Engine) -> None:
    async with Socket(app) as socket:
        socket.say("session.update", seed=4)
        for turn in range(1, 21):
            for word in WORDS.split():
                socket.say("input_text.append", text=word + " ")
            socket.say("input_text.flush")
            socket.say("input_text.end")
            heard = await socket.until("speech.audio.done")
            assert heard[-1] == {
                "type": "speech.audio.done",
                "turn_id": turn,
                "finish_reason": "stop",
                "audio_s": 0.32,
                "skipped": [],
            }
            assert {m[0] for m in heard if isinstance(m, tuple)} == {turn}
            assert len(audio(heard)) == 4 * FRAME_BYTES
    await given_back(engine)


async def test_case_44_ten_thousand_characters_one_by_one_are_one_text() -> None:
    text = (WORDS * 150)[:10_000]
    runner = FakeRunner(lambda seed: seed)
    with counted(runner, max_sessions=2) as engine:
        said = []
        for pieces in ([text], list(text)):
            ids: list[int] = []
            opened = engine.open

            def spied(*args: Any, opened: Any = opened, ids: list[int] = ids) -> Any:
                session = opened(*args)
                desk_text = session._desk.text

                class Desk:
                    def text(self, session: Any, more: list[int], *args: Any, **last: Any) -> None:
                        ids.extend(more)
                        desk_text(session, more, *args, **last)

                    def __getattr__(self, name: str) -> Any:
                        return getattr(engine, name)

                session._desk = Desk()
                return session

            engine.open = spied  # type: ignore[method-assign]
            async with Socket(app_of(engine)) as socket:
                socket.say("session.update", seed=2)
                for piece in pieces:
                    socket.say("input_text.append", text=piece)
                socket.say("input_text.end")
                heard = await socket.until("speech.audio.done")
                assert "error" not in kinds(heard)
            engine.open = opened  # type: ignore[method-assign]
            said.append((ids, audio(heard)))
        assert said[0] == said[1]
        without_spaces = bytes(said[0][0]).decode().replace(" ", "")  # none ends a piece
        assert without_spaces == text.replace(" ", "")


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (b"\0\1", "binary_message"),
        ("[]", None),
        ("{", None),
        ('{"type": "who"}', "unknown_type"),
        ('{"type": 3}', "unknown_type"),
        ("{}", "unknown_type"),
        ('{"type": "input_text.append"}', None),
        ('{"type": "input_text.append", "text": 3}', None),
        ('{"type": "input_text.append", "text": "a", "txt": "b"}', None),
        ('{"type": "input_text.end", "text": "a"}', None),
        ('{"type": "input_text.flush"}', "no_open_turn"),
        ('{"type": "session.update", "voice": "../x"}', "voice_not_found"),
        ('{"type": "session.update", "style": "nobody"}', "style_not_found"),
        ('{"type": "session.update", "seed": -1}', None),
        ('{"type": "session.update", "input": "a"}', None),
        ('{"type": "session.update", "format": "mp5"}', None),
        ('{"type": "session.update", "stream_format": "sse"}', None),
        ('{"type": "response.cancel", "turn_id": 9}', "no_open_turn"),
        ("[" * 10_000, None),
    ],
)
async def test_case_44_illegal_message_is_answered_and_changes_nothing(
    app: ASGIApp, message: str | bytes, code: str | None
) -> None:
    async with Socket(app) as socket:
        socket.raw(message)
        error = (await socket.until("error"))[-1]
        assert error["turn_id"] is None
        assert error["error"]["type"] == "invalid_request_error"
        assert error["error"]["message"]
        assert code in (None, error["error"]["code"])
        socket.say("session.update", seed=2)
        socket.say("input_text.append", text="Hello.")
        socket.say("input_text.end")
        done = (await socket.until("speech.audio.done"))[-1]
        assert (done["turn_id"], done["finish_reason"]) == (1, "stop")


async def test_case_44_text_over_the_limit_is_refused_and_the_turn_goes_on(app: ASGIApp) -> None:
    async with Socket(app) as socket:
        socket.say("input_text.append", text="Hello. ")
        socket.say("input_text.append", text="a" * 65_536)
        assert (await socket.until("error"))[-1]["error"]["code"] == "text_too_long"
        socket.say("input_text.end")
        assert (await socket.until("speech.audio.done"))[-1]["finish_reason"] == "stop"


async def test_case_44_turns_that_wait_are_few(app: ASGIApp, gate: threading.Event) -> None:
    gate.clear()
    async with Socket(app) as socket:
        for _ in range(MOST_TURNS + 1):
            socket.say("input_text.append", text="Hello.")
            socket.say("input_text.end")
        codes = [m["error"]["code"] for m in [*(await socket.until("error"))[-1:]]]
        assert codes == ["too_many_turns"]
        gate.set()


@pytest.mark.parametrize("after", [0, 1, 3])
async def test_case_45_fault_ends_the_turn_with_an_error(after: int) -> None:
    runner = FakeRunner(lambda seed: 50)
    frames = 0

    def fail(call: str, seeds: tuple[int, ...]) -> None:
        nonlocal frames
        frames += call == "frame"
        if call == "frame" and frames == after + 1:
            raise ZeroDivisionError("secret")

    runner.fault = fail
    with counted(runner) as engine:
        async with Socket(app_of(engine)) as socket:
            socket.say("input_text.append", text=WORDS)
            socket.say("input_text.end")
            heard = await socket.until("speech.audio.done")
            assert heard[-1]["finish_reason"] == "error"
            assert heard[-1]["error"]["type"] == "server_error"
            assert "secret" not in str(heard)
            socket.say("input_text.append", text=WORDS)
            socket.say("input_text.end")
            assert (await socket.until("speech.audio.done"))[-1]["finish_reason"] == "stop"
        await given_back(engine)


async def test_overload_ends_the_turn_and_not_the_connection(gate: threading.Event) -> None:
    runner = FakeRunner(lambda seed: 5)
    runner.fault = lambda call, seeds: gate.wait(60) and None
    with counted(runner, max_sessions=1, max_queue=0) as engine:
        gate.clear()
        app = app_of(engine)
        async with Socket(app) as first, Socket(app) as second:
            first.say("input_text.append", text="Hello.")
            await first.until("response.created")
            await asyncio.sleep(0)
            second.say("input_text.append", text="Hello.")
            done = (await second.until("speech.audio.done"))[-1]
            assert done["error"]["type"] == "rate_limit_error"
            gate.set()
            first.say("input_text.end")
            await first.until("speech.audio.done")
            await given_back(engine)
            second.say("input_text.append", text="Hello.")
            second.say("input_text.end")
            heard = await second.until("speech.audio.done")
            assert (heard[-1]["turn_id"], heard[-1]["finish_reason"]) == (2, "stop")


async def test_base64_and_other_formats_hold_the_same_sound(app: ASGIApp) -> None:
    import base64

    sounds = {}
    async with Socket(app) as socket:
        for encoding, form in (("binary", "pcm"), ("base64", "pcm"), ("binary", "wav")):
            socket.say("session.update", seed=5, encoding=encoding, format=form)
            socket.say("input_text.append", text="Hello.")
            socket.say("input_text.end")
            heard = await socket.until("speech.audio.done")
            deltas = [m["audio"] for m in heard if kinds([m]) == ["speech.audio.delta"]]
            sounds[encoding, form] = audio(heard) or b"".join(map(base64.b64decode, deltas))
    plain = sounds["binary", "pcm"]
    assert len(plain) == 5 * FRAME_BYTES
    assert sounds["base64", "pcm"] == plain
    assert sounds["binary", "wav"][44:] == plain


async def test_update_holds_from_the_next_turn_on(app: ASGIApp) -> None:
    async with Socket(app) as socket:
        socket.say("session.update", seed=2)
        socket.say("input_text.append", text="Hello.")
        socket.say("session.update", seed=6, language="english")
        socket.say("session.update", language=None)
        socket.say("input_text.end")
        socket.say("input_text.append", text="Hello.")
        socket.say("input_text.end")
        heard = await socket.until("speech.audio.done")
        heard += await socket.until("speech.audio.done")
        updated = [m["language"] for m in heard if kinds([m]) == ["session.updated"]]
        assert updated == ["auto", "english", "auto"]
        done = [m["audio_s"] for m in heard if kinds([m]) == ["speech.audio.done"]]
        assert done == [0.16, 0.48]


async def test_clear_forgets_text_that_nobody_has_heard(
    app: ASGIApp, gate: threading.Event
) -> None:
    gate.clear()
    async with Socket(app) as socket:
        socket.say("session.update", seed=3)
        socket.say("input_text.append", text="Forget this. ...")
        socket.say("input_text.clear")
        assert (await socket.until("input_text.cleared"))[-1]["turn_id"] == 1
        gate.set()
        socket.say("input_text.append", text="Say that.")
        while not isinstance(await socket.hear(), tuple):
            pass
        socket.say("input_text.clear")
        assert (await socket.until("error"))[-1]["error"]["code"] == "already_speaking"
        socket.say("input_text.end")
        done = (await socket.until("speech.audio.done"))[-1]
        assert (done["turn_id"], done["skipped"], done["audio_s"]) == (1, [], 0.24)


async def test_flush_speaks_what_would_have_waited(app: ASGIApp, gate: threading.Event) -> None:
    async with Socket(app) as socket:
        socket.say("session.update", seed=3)
        socket.say("input_text.append", text="Hel")
        socket.say("input_text.flush")
        while not isinstance(await socket.hear(), tuple):
            pass
        socket.say("input_text.append", text="More.")
        socket.say("input_text.end")
        done = (await socket.until("speech.audio.done"))[-1]
        assert done["audio_s"] == pytest.approx(0.48)  # two pieces


async def test_idle_connection_is_closed(engine: Engine) -> None:
    async with Socket(app_of(engine, idle_s=0.1)) as socket:
        assert (await socket.hear())["limits"]["idle_s"] == 0.1
        assert await socket.hear() is None
        assert socket.closed == (1000, "no message for 0.1 s")


async def test_random_sequences_leave_nothing_behind() -> None:
    with counted(max_sessions=4, max_queue=8) as engine:
        met = await run(0, 150, engine)
        assert engine.stats().slots_free == engine.stats().slots_total
    assert met["response.cancelled"] > 50
    assert met["speech.audio.done"] > 50


# The other dialects.


async def test_nari_speaks_one_request_and_closes(app: ASGIApp, engine: Engine) -> None:
    async with Socket(app, NARI, ["nari.speech.v1"]) as socket:
        assert socket.accepted["subprotocol"] == "nari.speech.v1"
        socket.say("request.start", voice="ryan", response_format="pcm", seed=3)
        for number, text in enumerate(["Hello ", "there."]):
            socket.say("input_text.append", sequence=number, text=text)
        socket.say("input_text.end", sequence=2)
        heard = await socket.until("response.done")
        assert kinds(heard) == [
            "session.created",
            "request.configured",
            "input_text.ack",
            "input_text.ack",
            "response.started",
            "response.done",
        ]
        assert [m["sequence"] for m in heard if kinds([m]) == ["input_text.ack"]] == [0, 1]
        sound = b"".join(m for m in heard if isinstance(m, bytes))
        assert len(sound) == 3 * FRAME_BYTES
        assert heard[-1]["stop_reason"] == "stop"
        assert heard[-1]["audio_chunks"] == sum(isinstance(m, bytes) for m in heard)
        assert await socket.hear() is None
        assert socket.closed == (1000, "")
    await given_back(engine)


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([{"type": "input_text.append", "sequence": 0, "text": "a"}], None),
        ([{"type": "request.start", "voice": "nobody"}], "voice"),
        ([{"type": "request.start"}, {"type": "request.start"}], None),
        (
            [{"type": "request.start"}, {"type": "input_text.append", "sequence": 1, "text": "a"}],
            "sequence",
        ),
        ([{"type": "request.start"}, {"type": "input_text.append", "sequence": 0}], "text"),
    ],
)
async def test_nari_error_closes(
    app: ASGIApp, engine: Engine, messages: list[Any], param: str | None
) -> None:
    async with Socket(app, NARI) as socket:
        for message in messages:
            socket.raw(json.dumps(message))
        error = (await socket.until("error"))[-1]
        assert error["request_id"]
        assert error["error"]["param"] == param
        assert await socket.hear() is None
        assert socket.closed is not None
        assert socket.closed[0] == 1008
    await given_back(engine)


async def test_nari_cancel_is_a_done_and_closes(
    app: ASGIApp, engine: Engine, gate: threading.Event
) -> None:
    gate.clear()
    async with Socket(app, NARI) as socket:
        socket.say("request.start")
        socket.say("input_text.append", sequence=0, text=WORDS)
        socket.say("response.cancel")
        assert (await socket.until("response.done"))[-1]["stop_reason"] == "cancelled"
        assert await socket.hear() is None
    gate.set()
    await given_back(engine)


class OmniSocket(Socket):
    """Its sound has no turn before it."""

    async def hear(self) -> Any:
        message = await self._heard.get()
        if message["type"] == "websocket.close":
            return None
        data = message.get("bytes")
        return json.loads(message["text"]) if data is None else data


@pytest.mark.parametrize("streams", [True, False])
async def test_omni_utterances(app: ASGIApp, engine: Engine, streams: bool) -> None:
    async with OmniSocket(app) as socket:
        socket.say(
            "session.config",
            voice="ryan",
            stream_audio=streams,
            seed=4,
            split_granularity="sentence",
            word_timestamps=False,
        )
        for index in range(2):
            socket.say("input.text", text="Hello ")
            socket.say("input.text", text="there.")
            socket.say("input.done")
            heard = await socket.until("session.done")
            assert [k for k in kinds(heard) if k != "session.created"] == [
                "audio.start",
                "audio.done",
                "session.done",
            ]
            place = {"utterance_index": index, "sentence_index": 0}
            sound = [m for m in heard if isinstance(m, bytes)]
            start, done, end = heard[-3 - len(sound)], heard[-2], heard[-1]
            assert (
                start.items() >= {**place, "sentence_text": "Hello there.", "format": "wav"}.items()
            )
            assert (
                done.items()
                >= {**place, "error": False, "total_bytes": len(b"".join(sound))}.items()
            )
            assert end["total_sentences"] == 1
            assert sound[0][:4] == b"RIFF"
            assert (len(sound) == 1) == (not streams)
        socket.say("input.done")
        assert (await socket.until("session.done"))[-1]["total_sentences"] == 0
        socket.say("session.close")
        assert await socket.hear() is None
    await given_back(engine)


@pytest.mark.parametrize(
    ("message", "closes"),
    [
        ({"type": "session.config", "voice": "nobody"}, True),
        ({"type": "session.config", "word_timestamps": True}, True),
        ({"type": "session.config", "ref_audio": "x"}, True),
    ],
)
async def test_omni_config_that_cannot_be(
    app: ASGIApp, message: dict[str, Any], closes: bool
) -> None:
    async with OmniSocket(app) as socket:
        socket.raw(json.dumps(message))
        error = (await socket.until("error"))[-1]
        assert isinstance(error["message"], str)
        assert await socket.hear() is None


async def test_omni_text_is_spoken_before_the_utterance_is_done(app: ASGIApp) -> None:
    async with OmniSocket(app) as socket:
        socket.say("session.config", stream_audio=True, response_format="pcm", seed=3)
        socket.say("input.text", text=WORDS)
        start = (await socket.until("audio.start"))[-1]
        assert (start["sample_rate"], start["channels"]) == (24_000, 1)
        socket.say("session.config")
        assert "open" in (await socket.until("error"))[-1]["message"]
        socket.say("input.done")
        await socket.until("session.done")
