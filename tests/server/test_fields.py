"""Each field of POST /v1/audio/speech: honoured, mapped or refused by its name."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from tests.fakes import FakeEngine

from vivace.audio.encode import FORMATS
from vivace.config import Limits, ServerConfig
from vivace.errors import NotFound, VivaceError, outcome
from vivace.server.order import Order, read_order
from vivace.server.shelf import Shelf
from vivace.types import Sampling, TextMode, Voice
from vivace.voices.styles import Style

SPEECH = "/v1/audio/speech"
SHELF = Shelf(styles={"news": Style("news", "Read the news.", "播报新闻。")})


def order(engine: FakeEngine, **fields: object) -> Order:
    return read_order({"input": "Hello.", **fields}, engine, ServerConfig(), SHELF)


def sampling(name: str) -> Callable[[Order], Any]:
    return lambda placed: getattr(placed.request.sampling, name)


def output(name: str) -> Callable[[Order], Any]:
    return lambda placed: getattr(placed.output, name)


def form_name(placed: Order) -> str:
    return placed.output.format.name


def warning(placed: Order) -> str:
    return " ".join(placed.warnings)


# Field, value, where to look in the order, what must be there.
HONOURED: list[tuple[str, object, Callable[[Order], Any], object]] = [
    ("input", "Guten Tag.", lambda o: o.text, "Guten Tag."),
    ("model", "vivace-fake", lambda o: o.warnings, ()),
    ("model", "Vivace", lambda o: o.warnings, ()),
    ("model", "tts-1", lambda o: o.warnings, ()),
    ("model", "tts-1-hd", lambda o: o.warnings, ()),
    ("model", "gpt-4o-mini-tts", lambda o: o.warnings, ()),
    ("model", "gpt-4o-mini-tts-2025-12-15", lambda o: o.warnings, ()),
    ("voice", "ryan", lambda o: o.request.voice, "ryan"),
    ("voice", "Uncle_Fu", lambda o: o.request.voice, "uncle_fu"),
    ("voice", {"id": "SOHEE"}, lambda o: o.request.voice, "sohee"),
    ("speaker", "vivian", lambda o: o.request.voice, "vivian"),
    ("instructions", " Whisper. ", lambda o: o.request.instruct, "Whisper."),
    ("instructions", "", lambda o: o.request.instruct, ""),
    ("instruct", "Whisper.", lambda o: o.request.instruct, "Whisper."),
    ("style", "News", lambda o: o.request.instruct, "Read the news."),
    *(("response_format", form, form_name, form) for form in FORMATS),
    ("response_format", "WAV", form_name, "wav"),
    ("sample_rate", 48_000, output("rate"), 48_000),
    ("speed", 1, output("speed"), 1.0),
    ("speed", 0.25, output("speed"), 0.25),
    ("speed", 4, output("speed"), 4.0),
    ("stream_format", "audio", output("sse"), False),
    ("stream_format", "SSE", output("sse"), True),
    ("language", "English", lambda o: o.request.language, "english"),
    ("language", "en-US", lambda o: o.request.language, "english"),
    ("language", "zh", lambda o: o.request.language, "chinese"),
    ("language", "zh-Hans-CN", lambda o: o.request.language, "chinese"),
    ("language", "pt_BR", lambda o: o.request.language, "portuguese"),
    ("language", "Auto", lambda o: o.request.language, "auto"),
    ("task_type", "CustomVoice", lambda o: o.warnings, ()),
    ("task_type", "custom_voice", lambda o: o.warnings, ()),
    ("x_vector_only_mode", False, lambda o: o.warnings, ()),
    ("seed", 0, sampling("seed"), 0),
    ("seed", 2**63 - 1, sampling("seed"), 2**63 - 1),
    ("temperature", 0, sampling("temperature"), 0.0),
    ("temperature", 2, sampling("temperature"), 2.0),
    ("top_k", 0, sampling("top_k"), 0),
    ("top_k", 10**6, sampling("top_k"), 10**6),
    ("top_p", 1, sampling("top_p"), 1.0),
    ("top_p", 1e-9, sampling("top_p"), 1e-9),
    ("repetition_penalty", 2, sampling("repetition_penalty"), 2.0),
    ("repetition_penalty", 0.5, sampling("repetition_penalty"), 0.5),
    ("do_sample", True, sampling("temperature"), 0.9),
    ("do_sample", False, sampling("temperature"), 0.0),
    ("subtalker_dosample", True, sampling("subtalker_temperature"), 0.9),
    ("subtalker_dosample", False, sampling("subtalker_temperature"), 0.0),
    ("subtalker_temperature", 0.5, sampling("subtalker_temperature"), 0.5),
    ("subtalker_top_k", 7, sampling("subtalker_top_k"), 7),
    ("subtalker_top_p", 0.5, sampling("subtalker_top_p"), 0.5),
    ("max_new_tokens", 1, sampling("max_frames"), 1),
    ("min_new_tokens", 5, sampling("min_frames"), 5),
    ("non_streaming_mode", True, lambda o: o.request.text_mode, TextMode.WHOLE),
    ("non_streaming_mode", False, lambda o: o.request.text_mode, TextMode.STREAMING),
    ("guards", True, lambda o: o.request.guards, True),
    ("guards", False, lambda o: o.request.guards, False),
    ("guards", None, lambda o: o.request.guards, True),
    ("trim", True, lambda o: o.request.trim, True),
    ("trim", False, lambda o: o.request.trim, False),
    ("trim", None, lambda o: o.request.trim, None),
    ("stream", True, output("whole"), False),
    ("stream", False, output("whole"), True),
    ("cache", False, lambda o: o.results, None),
    ("normalize", False, lambda o: o.request.normalize, False),
    ("normalize", True, lambda o: o.request.normalize, True),
    ("extra", [1], warning, "ignored unknown fields: extra"),
]

ANYTHING_BUT_TEXT: list[object] = [1, 1.5, True, ["x"], {"a": "x"}]
ANYTHING_BUT_A_NUMBER: list[object] = ["1", True, False, [1], {}, "", "NaN"]
NO_NUMBER: list[object] = [float("nan"), float("inf"), float("-inf"), 10**400, -(10**400)]

# Field, values, status. Every refusal names its field.
REFUSED: list[tuple[str, list[object], int]] = [
    ("input", [None, "", " ", "\n", "\t\u3000", "...", "😊", "\u200b"], 400),
    ("input", [*ANYTHING_BUT_TEXT, "a" * (64 * 1024 + 1)], 422),
    ("model", ["", "gpt-5", "tts-2", "../x"], 404),
    ("model", ANYTHING_BUT_TEXT, 422),
    ("voice", ["", "nobody", "../../x", "/etc/passwd", "ryan ", {"id": "x"}, {"id": ""}], 404),
    ("voice", [1, True, ["ryan"], {}, {"name": "ryan"}, {"id": 1}, {"id": "ryan", "x": 1}], 422),
    ("instructions", [*ANYTHING_BUT_TEXT, "x" * 4097], 422),
    ("style", ["", "nobody", "../news"], 404),
    ("style", ANYTHING_BUT_TEXT, 422),
    ("response_format", ["ogg", "mp4", "", *ANYTHING_BUT_TEXT], 422),
    ("sample_rate", [0, -1, 7_999, 8_000, 22_050, 48_001, 44_100.0, *NO_NUMBER], 422),
    ("sample_rate", ANYTHING_BUT_A_NUMBER, 422),
    ("speed", [0, 0.24, -1, 4.01, *NO_NUMBER, *ANYTHING_BUT_A_NUMBER], 422),
    ("stream_format", ["", "x", "ws", *ANYTHING_BUT_TEXT], 422),
    ("language", ["", "Klingon", "xx", "../../x", "en/US", *ANYTHING_BUT_TEXT], 422),
    ("task_type", ["Base", "VoiceDesign", "", "x", *ANYTHING_BUT_TEXT], 422),
    ("ref_audio", ["ftp://x/y.wav", "x", "", *ANYTHING_BUT_TEXT], 422),
    ("ref_text", ["Hello.", "", ["x"]], 422),
    ("x_vector_only", [True, 1, "true"], 422),
    ("x_vector_only_mode", [True, 1, "true"], 422),
    ("ref_silence_ms", [0, 500, -1, 1.5, *ANYTHING_BUT_A_NUMBER], 422),
    ("seed", [-1, 2**63, 1.0, *NO_NUMBER, *ANYTHING_BUT_A_NUMBER], 422),
    ("temperature", [-0.1, 2.1, *NO_NUMBER, *ANYTHING_BUT_A_NUMBER], 422),
    ("top_k", [-1, 2**31, 1.5, *NO_NUMBER, *ANYTHING_BUT_A_NUMBER], 422),
    ("top_p", [0, -0.1, 1.1, *NO_NUMBER, *ANYTHING_BUT_A_NUMBER], 422),
    ("repetition_penalty", [0, -1, 2.1, *NO_NUMBER, *ANYTHING_BUT_A_NUMBER], 422),
    ("subtalker_temperature", [-0.1, 2.1, *NO_NUMBER, *ANYTHING_BUT_A_NUMBER], 422),
    ("subtalker_top_k", [-1, 2**31, 1.5, *NO_NUMBER, *ANYTHING_BUT_A_NUMBER], 422),
    ("subtalker_top_p", [0, 1.1, *NO_NUMBER, *ANYTHING_BUT_A_NUMBER], 422),
    ("max_new_tokens", [0, -1, 1.5, 2**31, *NO_NUMBER, *ANYTHING_BUT_A_NUMBER], 422),
    ("min_new_tokens", [-1, 1.5, 2**31, *NO_NUMBER, *ANYTHING_BUT_A_NUMBER], 422),
    ("do_sample", [0, 1, "true", [], {}], 422),
    ("subtalker_dosample", [0, 1, "true", [], {}], 422),
    ("non_streaming_mode", [0, 1, "true", [], {}], 422),
    ("guards", [0, 1, "true", [], {}], 422),
    ("trim", [0, 1, "true", [], {}], 422),
    ("stream", [0, 1, "true", [], {}], 422),
    ("normalize", [0, 1, "true", [], {}], 422),
    ("cache", [0, 1, "true", [], {}], 422),
]
REFUSALS = [(name, value, status) for name, values, status in REFUSED for value in values]

# As the wire contract lists them.
WIRE_FIELDS = set(
    [
        "input",
        "model",
        "voice",
        "speaker",
        "instructions",
        "instruct",
        "style",
        "response_format",
        "speed",
        "sample_rate",
        "stream_format",
        "language",
        "task_type",
        "ref_audio",
        "ref_text",
        "x_vector_only",
        "x_vector_only_mode",
        "ref_silence_ms",
        "seed",
        "temperature",
        "top_k",
        "top_p",
        "repetition_penalty",
        "subtalker_dosample",
        "subtalker_temperature",
        "subtalker_top_k",
        "subtalker_top_p",
        "do_sample",
        "max_new_tokens",
        "min_new_tokens",
        "non_streaming_mode",
        "guards",
        "trim",
        "stream",
        "normalize",
        "cache",
    ]
)


def test_the_tables_cover_every_field_of_the_contract() -> None:
    covered = {name for name, *_ in HONOURED} | {name for name, *_ in REFUSED}
    assert covered - {"extra"} == WIRE_FIELDS


@pytest.mark.parametrize("name", sorted(WIRE_FIELDS))
def test_every_field_of_the_contract_is_known(engine: FakeEngine, name: str) -> None:
    try:
        placed = order(engine, **{name: "Hello."})
    except VivaceError as error:
        assert name in (error.param, "speaker", "instruct")
    else:
        assert "unknown" not in warning(placed)


@pytest.mark.parametrize(("name", "value", "where", "expected"), HONOURED)
def test_honoured(
    engine: FakeEngine, name: str, value: object, where: Callable[[Order], Any], expected: object
) -> None:
    assert where(order(engine, **{name: value})) == expected


@pytest.mark.parametrize("name", sorted(WIRE_FIELDS - {"input"}))
def test_null_is_absent(engine: FakeEngine, name: str) -> None:
    assert order(engine, **{name: None}) == order(engine)


def test_case_65_every_refusal_is_a_4xx_that_names_its_field(
    client: httpx.Client, engine: FakeEngine
) -> None:
    wrong = []
    for name, value, status in REFUSALS:
        body = json.dumps({"input": "Hello.", name: value})
        reply = client.post(SPEECH, content=body)
        kind, got = reply.headers["content-type"], (reply.status_code, "")
        if kind == "application/json":
            got = (reply.status_code, reply.json()["error"]["param"])
        if got != (status, name):
            wrong.append((name, value, status, reply.text))
    assert wrong == []
    assert client.get("/health").status_code == 200
    assert client.post(SPEECH, json={"input": "Hello."}).status_code == 200


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_sample_rates_are_the_formats_own(engine: FakeEngine, form: str) -> None:
    rates = FORMATS[form].rates
    for rate in (1, 8_000, 22_050, 44_100, 48_000, 96_000):
        if rate in rates:
            assert order(engine, response_format=form, sample_rate=rate).output.rate == rate
        else:
            with pytest.raises(VivaceError, match=f"{form} must be {rates[0]}"):
                order(engine, response_format=form, sample_rate=rate)
    assert order(engine, response_format=form).output.rate == FORMATS[form].rate


def test_events_that_do_not_stream_are_refused(engine: FakeEngine) -> None:
    with pytest.raises(VivaceError) as caught:
        order(engine, stream=False, stream_format="sse")
    assert caught.value.param == "stream"


def test_strict_refuses_what_nobody_knows(engine: FakeEngine) -> None:
    body = {"input": "Hello.", "extra": 1}
    with pytest.raises(VivaceError) as caught:
        read_order(body, engine, ServerConfig(), strict=True)
    assert (caught.value.param, outcome(caught.value).status) == ("extra", 422)


def test_operators_names_go_before_openais(engine: FakeEngine) -> None:
    config = ServerConfig(
        model_aliases=("Narrator",), voice_aliases={"Nova": "RYAN", "butler": "uncle_fu"}
    )

    def placed(**fields: object) -> Order:
        return read_order({"input": "Hello.", **fields}, engine, config)

    assert placed(voice="nova", model="narrator").request.voice == "ryan"
    assert placed(voice="Butler").request.voice == "uncle_fu"
    assert placed(voice="alloy").request.voice == "vivian"


@pytest.mark.parametrize("kind", ["custom_voice", "base"])
@pytest.mark.parametrize("field", ["voice", "speaker"])
@pytest.mark.parametrize("wrap", [str, lambda name: {"id": name}])
def test_an_unknown_voice_is_told_as_it_was_sent(
    kind: str, field: str, wrap: Callable[[str], object]
) -> None:
    with pytest.raises(NotFound, match="no voice 'McNobody' here"):
        order(FakeEngine(kind), **{field: wrap("McNobody")})


def test_two_names_of_a_voice_agree_in_any_case(engine: FakeEngine) -> None:
    assert order(engine, voice="RYAN", speaker="Ryan").request.voice == "ryan"


def test_missing_input_names_it(engine: FakeEngine) -> None:
    with pytest.raises(VivaceError) as caught:
        read_order({}, engine, ServerConfig())
    assert (caught.value.param, outcome(caught.value).status) == ("input", 400)


@pytest.mark.parametrize(
    ("limits", "fields", "numbers"),
    [
        (Limits(text_chars=10), {"input": "a" * 1234}, ("1,234", "10")),
        (Limits(instruct_chars=10), {"instructions": "a" * 1234}, ("1,234", "10")),
        (Limits(temperature_max=1.5), {"temperature": 1.75}, ("1.75", "1.5")),
        (Limits(seed_max=100), {"seed": 101}, ("101", "100")),
    ],
)
def test_refusals_name_the_numbers(
    engine: FakeEngine, limits: Limits, fields: dict[str, object], numbers: tuple[str, ...]
) -> None:
    with pytest.raises(VivaceError) as caught:
        read_order({"input": "Hello.", **fields}, engine, ServerConfig(limits=limits))
    assert all(number in caught.value.message for number in numbers)
    assert outcome(caught.value).status == 422


def test_absent_sampling_is_the_checkpoints_own(engine: FakeEngine) -> None:
    engine.defaults = Sampling(temperature=0.3, top_k=5, max_frames=99)
    assert order(engine).request.sampling == engine.defaults
    assert order(engine, top_k=6).request.sampling == Sampling(
        temperature=0.3, top_k=6, max_frames=99
    )


@pytest.mark.parametrize(
    ("names", "same"), [(("voice", "speaker"), "ryan"), (("instructions", "instruct"), "Whisper.")]
)
def test_two_names_of_one_field_must_agree(
    engine: FakeEngine, names: tuple[str, str], same: str
) -> None:
    assert order(engine, **dict.fromkeys(names, same)) == order(engine, **{names[0]: same})
    with pytest.raises(VivaceError) as caught:
        order(engine, **{names[0]: same, names[1]: "vivian"})
    assert caught.value.param == names[1]


def test_fewest_frames_beyond_the_most_is_refused(engine: FakeEngine) -> None:
    with pytest.raises(VivaceError) as caught:
        order(engine, min_new_tokens=6, max_new_tokens=5)
    assert caught.value.param == "min_new_tokens"
    order(engine, max_new_tokens=1)  # the default minimum is no wish of the client's


def test_case_37_voices(client: httpx.Client, engine: FakeEngine) -> None:
    def spoken(**fields: object) -> str | None:
        assert client.post(SPEECH, json={"input": "Hello.", **fields}).status_code == 200
        return engine.next_session().request.voice

    assert spoken(voice="nova") == "vivian"
    assert spoken(voice="Vivian") == spoken(voice="VIVIAN") == "vivian"
    assert spoken(voice=None) == spoken() == "serena"
    for unknown in ("../../x", "", {"id": "x"}):
        reply = client.post(SPEECH, json={"input": "Hello.", "voice": unknown})
        assert reply.status_code == 404
        assert "serena, vivian, uncle_fu" in reply.json()["error"]["message"]


def test_a_voice_of_that_name_goes_before_the_table(engine: FakeEngine) -> None:
    engine.voices = [Voice("alloy", "Alloy"), Voice("mine", "My Own")]
    assert order(engine, voice="alloy").request.voice == "alloy"
    assert order(engine, voice="my own").request.voice == "mine"
    # ash and ballad: second and third of the table, and neither ryan nor aiden is here
    assert order(engine, voice="ash").request.voice == "mine"
    assert order(engine, voice="ballad").request.voice == "alloy"


def test_unknown_language_lists_what_is_there(engine: FakeEngine) -> None:
    engine.languages = ["english", "klingon"]
    assert order(engine, language="Klingon").request.language == "klingon"
    with pytest.raises(VivaceError, match="auto, english, klingon"):
        order(engine, language="zh")


def test_small_checkpoint_drops_instructions_and_says_so(engine: FakeEngine) -> None:
    engine.reset(size="0b6")
    placed = order(engine, instructions="Whisper.")
    assert placed.request.instruct == ""
    assert "instructions are not used" in warning(placed)
    assert order(engine, instructions=" ").warnings == ()


@pytest.mark.parametrize(
    ("fields", "instruct"),
    [
        ({"style": "news", "language": "zh"}, "播报新闻。"),
        ({"style": "news", "instructions": " Whisper. "}, "Read the news. Whisper."),
        ({"style": "news", "instructions": " "}, "Read the news."),
    ],
)
def test_a_style_comes_before_the_instructions(
    engine: FakeEngine, fields: dict[str, object], instruct: str
) -> None:
    assert order(engine, **fields).request.instruct == instruct


def test_a_style_is_dropped_where_instructions_are(engine: FakeEngine) -> None:
    engine.reset(size="0b6")
    placed = order(engine, style="news")
    assert placed.request.instruct == ""
    assert "the style is not used" in warning(placed)
    with pytest.raises(VivaceError, match="no style"):
        order(engine, style="nobody")


def test_a_style_describes_no_voice(engine: FakeEngine) -> None:
    engine.reset("voice_design")
    with pytest.raises(VivaceError) as caught:
        order(engine, style="news")
    assert (caught.value.param, outcome(caught.value).status) == ("instructions", 400)
    placed = order(engine, style="news", instructions="A deep voice.")
    assert placed.request.instruct == "Read the news. A deep voice."


def test_voice_design_needs_instructions(engine: FakeEngine) -> None:
    engine.reset("voice_design")
    for fields in ({}, {"instructions": " "}):
        with pytest.raises(VivaceError) as caught:
            order(engine, **fields)
        assert (caught.value.param, outcome(caught.value).status) == ("instructions", 400)
    placed = order(engine, instructions="A deep voice.", task_type="VoiceDesign")
    assert (placed.request.voice, placed.request.instruct) == (None, "A deep voice.")
    assert placed.warnings == ()


def test_voice_design_takes_an_openai_voice_and_no_other(engine: FakeEngine) -> None:
    engine.reset("voice_design")
    placed = order(engine, instructions="A deep voice.", voice="alloy")
    assert placed.request.voice is None
    assert "voice is not used" in warning(placed)
    with pytest.raises(VivaceError, match="no named voices"):
        order(engine, instructions="A deep voice.", voice="ryan")
