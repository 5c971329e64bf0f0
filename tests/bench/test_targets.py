"""What each target sends and understands, against a server that speaks its wire format."""

import pytest
from tests.bench.exchange import TEXT, exchange, judged
from tests.bench.fake import Fake, Script, tone, wav

from vivace.bench.answer import Answer
from vivace.bench.sound import unpack
from vivace.bench.targets import NAMES, Ask
from vivace.errors import InvalidRequest

PCM = tone(0.4)
STREAM = {"stream": True, "non_streaming_mode": False}
OPENAI_LIKE = {
    "vivace": {"response_format": "pcm"},
    "openai": {"model": "gpt-4o-mini-tts", "voice": "alloy", "response_format": "pcm"},
    "vllm-omni": {"response_format": "pcm", "stream_format": "audio", **STREAM},
    "sglang-omni": {"response_format": "pcm", **STREAM},
    "voxserve": {"response_format": "pcm", **STREAM},
    "mstar": {"response_format": "wav", **STREAM},
    "nari": {"response_format": "pcm", **STREAM},
}


def heard(answer: Answer) -> bytes:
    assert answer.kind == "ok", (answer.kind, answer.detail)
    return unpack(answer.arrivals, answer.rate).samples.tobytes()


@pytest.mark.parametrize("target", OPENAI_LIKE)
async def test_the_speech_route(fake: Fake, target: str) -> None:
    pieces = [PCM[:7000], PCM[7000:]]
    content = "audio/pcm"
    if target == "mstar":
        pieces, content = [wav(b"", 0x7FFFFFFF), *pieces], "audio/wav"
    fake.script = Script([(0.0, piece) for piece in pieces], content_type=content)
    url = f"{fake.url}/v1" if target == "openai" else fake.url
    answer = await exchange(Ask(target, url))
    assert heard(answer) == PCM
    (seen,) = fake.seen
    assert seen.path == "/v1/audio/speech"
    assert seen.body == {**OPENAI_LIKE[target], "input": TEXT.text}
    assert seen.headers["content-type"] == "application/json"
    assert "authorization" not in seen.headers


@pytest.mark.parametrize("target", OPENAI_LIKE)
async def test_names_fields_and_key_where_they_were_given(fake: Fake, target: str) -> None:
    asked = Ask(target, f"{fake.url}/v1", "m", "v", "en", {"seed": 7}, key="secret")
    assert heard(await exchange(asked)) == PCM
    (seen,) = fake.seen
    assert seen.path == "/v1/audio/speech"  # not /v1/v1
    assert seen.headers["authorization"] == "Bearer secret"
    assert seen.body.items() >= {"model": "m", "voice": "v", "language": "en", "seed": 7}.items()


async def test_sglang_says_its_rate_in_a_header(fake: Fake) -> None:
    fake.script = Script(headers={"x-sample-rate": "16000"})
    assert (await exchange(Ask("sglang-omni", fake.url))).rate == 16_000
    fake.script = Script(content_type="audio/L16; rate=44100; channels=1")
    assert (await exchange(Ask("openai", fake.url))).rate == 44_100


async def test_vivace_over_its_socket(fake: Fake) -> None:
    answer = await exchange(Ask("vivace", f"{fake.ws_url}/v1", voice="ryan", fields={"seed": 7}))
    assert heard(answer) == PCM
    assert answer.finish == "stop"
    (seen,) = fake.seen
    assert seen.path == "/v1/audio/speech/stream"
    assert seen.body == [
        {"type": "session.update", "format": "pcm", "voice": "ryan", "seed": 7},
        {"type": "input_text.append", "text": TEXT.text},
        {"type": "input_text.end"},
    ]


async def test_nari_over_its_socket(fake: Fake) -> None:
    answer = await exchange(Ask("nari-ws", fake.url.replace("http", "ws"), voice="ryan"))
    assert answer.kind != "ok"  # that is the port for HTTP
    answer = await exchange(Ask("nari-ws", fake.ws_url.replace("ws", "http"), voice="ryan"))
    assert heard(answer) == PCM
    assert answer.finish == "stop"
    seen = fake.seen[-1]
    assert seen.path == "/v1/audio/speech/ws"
    assert seen.headers["sec-websocket-protocol"] == "nari.speech.v1"
    assert seen.body == [
        {"type": "request.start", "response_format": "pcm", "voice": "ryan"},
        {"type": "input_text.append", "sequence": 0, "text": TEXT.text},
        {"type": "input_text.end", "sequence": 1},
    ]


async def test_elevenlabs_over_http_and_over_its_socket(fake: Fake) -> None:
    strange = await exchange(Ask("elevenlabs", fake.url, voice="a voice/é"))
    assert heard(strange) == PCM
    assert fake.seen.pop().path.startswith("/v1/text-to-speech/a%20voice%2F%C3%A9/stream?")
    asked = Ask("elevenlabs", fake.url, "eleven_v3", "abc", "de", key="k")
    assert heard(await exchange(asked)) == PCM
    over_socket = Ask("elevenlabs", fake.ws_url, "eleven_v3", "abc", "de", key="k")
    assert heard(await exchange(over_socket)) == PCM
    http, socket = fake.seen
    assert http.path == "/v1/text-to-speech/abc/stream?output_format=pcm_24000"
    assert http.body == {"text": TEXT.text, "model_id": "eleven_v3", "language_code": "de"}
    assert socket.path.startswith("/v1/text-to-speech/abc/stream-input?")
    query = set(socket.path.partition("?")[2].split("&"))
    assert query == {"model_id=eleven_v3", "output_format=pcm_24000", "language_code=de"}
    assert socket.body == [{"text": " "}, {"text": f"{TEXT.text} "}, {"text": ""}]
    assert http.headers["xi-api-key"] == socket.headers["xi-api-key"] == "k"


async def test_cartesia_over_http_and_over_its_socket(fake: Fake) -> None:
    assert heard(await exchange(Ask("cartesia", fake.url, voice="abc", key="k"))) == PCM
    assert heard(await exchange(Ask("cartesia", fake.ws_url, voice="abc", key="k"))) == PCM
    http, socket = fake.seen
    body = {
        "model_id": "sonic-3.5",
        "transcript": TEXT.text,
        "voice": {"mode": "id", "id": "abc"},
        "output_format": {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24_000},
    }
    assert (http.path, http.body) == ("/tts/bytes", body)
    assert socket.path.startswith("/tts/websocket?cartesia_version=")
    assert socket.body == [{**body, "context_id": "bench-7", "continue": False}]
    for seen in (http, socket):
        assert seen.headers["x-api-key"] == "k"
        assert seen.headers["cartesia-version"]


@pytest.mark.parametrize(
    ("target", "field"),
    [("vivace", "text"), ("nari-ws", "text"), ("elevenlabs", "text"), ("cartesia", "transcript")],
)
async def test_words_at_a_pace_join_to_the_text(fake: Fake, target: str, field: str) -> None:
    answer = await exchange(Ask(target, fake.ws_url, paced=True), pace_s=0.002)
    assert heard(answer) == PCM
    sent = [message[field] for message in fake.seen[0].body if message.get(field, "").strip()]
    assert len(sent) == 5
    assert "".join(sent).strip() == TEXT.text
    if target == "cartesia":
        assert [m["continue"] for m in fake.seen[0].body] == [True] * 4 + [False]


async def test_a_socket_that_closes_normally_has_ended_where_that_is_the_custom(
    fake: Fake,
) -> None:
    fake.script = Script([(0.0, PCM)], breaks=True)  # nari closes with 1000 too, without its end
    assert judged(await exchange(Ask("nari-ws", fake.ws_url))).kind == "truncated"


@pytest.mark.parametrize(
    "asked",
    [
        Ask("nobody", "http://localhost"),
        Ask("vivace", "localhost:8000"),
        Ask("openai", "ws://localhost"),
        Ask("openai", "http://localhost", paced=True),
        Ask("vivace", "http://localhost:99999"),
        Ask("vivace", "http://[::1"),
        Ask("vivace", "http://name:secret@localhost"),
        Ask("vivace", "http://localhost/über"),
        Ask("vivace", "http://localhost", key="two\r\nlines: 1"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_words(asked: Ask) -> None:
    with pytest.raises(InvalidRequest):
        asked.check()


def test_every_target_has_a_contract() -> None:
    assert set(NAMES) == {*OPENAI_LIKE, "nari-ws", "elevenlabs", "cartesia"}
