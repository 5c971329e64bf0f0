"""`POST /v1/audio/speech`: each field of the JSON body honoured, mapped or refused by its name."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from vivace.audio.encode import ENCODERS
from vivace.config import Limits
from vivace.errors import InvalidRequest, NotFound, Unprocessable
from vivace.server.fields import Fields
from vivace.server.names import OPENAI_VOICES, check_model, find_language, find_voice
from vivace.text.clean import speakable
from vivace.types import Sampling, SpeechRequest, TextMode

if TYPE_CHECKING:
    from vivace.engine import Engine

DEFAULT_FORMAT: Final = "wav"
LATER_FORMATS: Final = ("mp3", "opus", "aac", "flac")
CLONING_LATER: Final = "cloning a voice comes in a later version."


@dataclass(frozen=True, slots=True)
class Order:
    """One checked request: what to say, how, in which format, and what we did not use."""

    text: str
    request: SpeechRequest
    format: str
    warnings: tuple[str, ...]


def read_order(body: Mapping[str, object], engine: "Engine", limits: Limits) -> Order:
    """The order that a JSON body places.

    Raises:
        InvalidRequest: And its children; `param` names the field at fault.
    """
    fields = Fields(body)
    model = fields.text("model")
    if model is not None:
        check_model(model, engine.model_id)
    text = _text(fields, limits)
    _check_task(fields, engine)
    request = SpeechRequest(
        voice=_voice(fields, engine),
        language=_language(fields, engine),
        instruct=_instruct(fields, engine, limits),
        text_mode=TextMode.WHOLE if fields.flag("non_streaming_mode") else TextMode.STREAMING,
        sampling=_sampling(fields, engine.defaults, limits),
        trim=fields.flag("trim"),
        normalize=fields.flag("normalize"),
    )
    form = _format(fields)
    if unknown := fields.unknown():
        names = ", ".join(name[:40] or "(empty)" for name in unknown[:10])
        fields.warnings.append(f"ignored unknown fields: {names}")
    return Order(text, request, form, tuple(fields.warnings))


def _text(fields: Fields, limits: Limits) -> str:
    text = fields.text("input")
    if text is None:
        raise InvalidRequest("`input` is missing: it is the text to say.", param="input")
    if len(text) > limits.text_chars:
        raise Unprocessable(
            f"`input` has {len(text):,} characters; the limit is {limits.text_chars:,}.",
            param="input",
            code="text_too_long",
        )
    if not speakable(text):
        raise InvalidRequest(
            "`input` holds nothing that can be spoken.", param="input", code="nothing_to_say"
        )
    return text


def _check_task(fields: Fields, engine: "Engine") -> None:
    """Cloning fields are refused until there is cloning; a task must be the checkpoint's own."""
    for name in ("ref_audio", "ref_text"):
        fields.refuse(name, CLONING_LATER)
    if fields.flag("x_vector_only_mode"):
        raise Unprocessable(f"`x_vector_only_mode`: {CLONING_LATER}", param="x_vector_only_mode")
    task, kind = fields.text("task_type"), engine.spec.kind
    if task is not None and task.lower().replace("_", "") != kind.replace("_", ""):
        raise Unprocessable(
            f"`task_type` must be {kind}, as the checkpoint is, or be left out.", param="task_type"
        )
    if kind == "base":
        raise Unprocessable(
            f"A base checkpoint speaks with a cloned voice (`ref_audio`) only, and {CLONING_LATER}",
            param="ref_audio",
            code="not_supported_yet",
        )


def _voice(fields: Fields, engine: "Engine") -> str | None:
    """A voice of the checkpoint; its first one if the request names none."""

    def read(name: str) -> str | None:
        value = fields.take(name)
        if isinstance(value, dict) and set(value) == {"id"}:
            value = value["id"]
        if value is None or isinstance(value, str):
            return value
        raise Unprocessable(f'`{name}` must be a name or {{"id": name}}.', param=name)

    name = fields.either("voice", "speaker", read)
    if engine.voices:
        return engine.voices[0].id if name is None else find_voice(name, engine.voices).id
    if name is None:
        return None
    if name.lower() not in OPENAI_VOICES:  # clients that must send a voice send one of those
        raise NotFound(
            "This checkpoint has no named voices: describe one in `instructions`.",
            param="voice",
            code="voice_not_found",
        )
    fields.warnings.append("voice is not used: instructions describe this checkpoint's voice")
    return None


def _language(fields: Fields, engine: "Engine") -> str:
    name = fields.text("language")
    return "auto" if name is None else find_language(name, engine.languages)


def _instruct(fields: Fields, engine: "Engine", limits: Limits) -> str:
    text = (fields.either("instructions", "instruct", fields.text) or "").strip()
    if len(text) > limits.instruct_chars:
        raise Unprocessable(
            f"`instructions` has {len(text):,} characters; the limit is {limits.instruct_chars:,}.",
            param="instructions",
            code="text_too_long",
        )
    if engine.spec.kind == "voice_design" and not text:
        raise InvalidRequest(
            "`instructions` is missing: it describes the voice of this checkpoint.",
            param="instructions",
        )
    if text and engine.spec.size == "0b6":  # trained without them
        fields.warnings.append("instructions are not used: this checkpoint cannot follow them")
        return ""
    return text


def _sampling(fields: Fields, defaults: Sampling, limits: Limits) -> Sampling:
    """The checkpoint's own sampling with the request's wishes; not sampling is temperature 0."""
    hottest, penalty = limits.temperature_max, limits.repetition_penalty_max
    wishes: dict[str, Any] = {
        "temperature": fields.number("temperature", 0, hottest),
        "top_k": fields.whole("top_k", 0),
        "top_p": fields.number("top_p", 0, 1, above=True),
        "repetition_penalty": fields.number("repetition_penalty", 0, penalty, above=True),
        "subtalker_temperature": fields.number("subtalker_temperature", 0, hottest),
        "subtalker_top_k": fields.whole("subtalker_top_k", 0),
        "subtalker_top_p": fields.number("subtalker_top_p", 0, 1, above=True),
        "seed": fields.whole("seed", 0, limits.seed_max),
        "min_frames": fields.whole("min_new_tokens", 0),
        "max_frames": fields.whole("max_new_tokens", 1),
    }
    if fields.flag("do_sample") is False:
        wishes["temperature"] = 0.0
    if fields.flag("subtalker_dosample") is False:
        wishes["subtalker_temperature"] = 0.0
    sampling = replace(defaults, **{k: v for k, v in wishes.items() if v is not None})
    if wishes["min_frames"] is not None and sampling.min_frames > sampling.max_frames:
        raise Unprocessable(
            "`min_new_tokens` is more than `max_new_tokens`.", param="min_new_tokens"
        )
    return sampling


def _format(fields: Fields) -> str:
    """The response's format. Everything streams, whatever `stream` says."""
    form = fields.choice("response_format", tuple(ENCODERS), LATER_FORMATS)
    fields.choice("stream_format", ("audio",), ("sse",))
    fields.flag("stream")
    speed = fields.number("speed", 0.25, 4)
    if speed is not None and speed != 1:
        raise Unprocessable(
            "`speed` other than 1 comes in a later version.",
            param="speed",
            code="not_supported_yet",
        )
    return form or DEFAULT_FORMAT
