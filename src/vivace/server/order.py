"""`POST /v1/audio/speech`: each field of the JSON body honoured, mapped or refused by its name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vivace.audio.decoder import PARAM
from vivace.audio.encode import FORMATS, Format
from vivace.config import Limits, ServerConfig
from vivace.errors import InvalidRequest, NotFound, Unprocessable
from vivace.roster import Offer, follows
from vivace.server import sse
from vivace.server.casting import clip_of_kept, kept_voice
from vivace.server.clips import Reference, read_reference
from vivace.server.fields import Fields, bounded
from vivace.server.names import OPENAI_VOICES, find_language, find_voice
from vivace.server.results import Results
from vivace.server.routing import model_of
from vivace.server.shelf import EMPTY, Shelf
from vivace.text.clean import speakable
from vivace.types import Sampling, SpeechRequest, TextMode, Voice
from vivace.voices.kept import Kept
from vivace.voices.styles import find_style

if TYPE_CHECKING:
    from vivace.engine import Engine

DEFAULT_FORMAT: Final = "mp3"
NOTHING_TO_SAY: Final = "nothing_to_say"


@dataclass(frozen=True, slots=True)
class Output:
    """What shape the speech is sent in: `whole` waits for its end, `sse` sends events."""

    format: Format
    rate: int
    speed: float
    sse: bool
    whole: bool

    @property
    def media_type(self) -> str:
        """The response's content type; a rate that is not the format's own is part of it."""
        if self.sse:
            return sse.MEDIA_TYPE
        kind, own = self.format.media_type, self.rate == self.format.rate
        return f"{kind};rate={self.rate}" if self.format.bare and not own else kind

    @property
    def light(self) -> bool:
        """Whether encoding a chunk costs so little that the event loop can do it."""
        return self.format.light and self.speed == 1


@dataclass(frozen=True, slots=True)
class Order:
    """One checked request: what to say, how, in which shape, and what we did not use."""

    text: str
    request: SpeechRequest
    output: Output
    warnings: tuple[str, ...]
    results: Results | None = None  # where the same speech is looked for, and kept
    reference: Reference | None = None  # whose voice the request is still to get


class Manner(NamedTuple):
    """How to say something, in which shape, and with the voice of which clip, if of one."""

    request: SpeechRequest
    output: Output
    reference: Reference | None


def read_order(
    body: Mapping[str, object],
    engine: "Engine",
    config: ServerConfig,
    shelf: Shelf = EMPTY,
    *,
    strict: bool = False,
) -> Order:
    """The order that a JSON body places; `strict` refuses fields that nobody knows.

    Raises:
        InvalidRequest: And its children; `param` names the field at fault.
    """
    return place_order(Fields(body), engine, config, shelf, strict=strict)


def place_order(
    fields: Fields, engine: "Engine", config: ServerConfig, shelf: Shelf, *, strict: bool
) -> Order:
    """The same, of fields that none has been taken of."""
    text = _text(fields, config.limits)
    request, output, reference = read_manner(fields, engine, config, shelf)
    results = _results(fields, config, shelf)
    tell_unknown(fields, strict)
    return Order(text, request, output, tuple(fields.warnings), results, reference)


def read_manner(
    fields: Fields,
    engine: "Engine",
    config: ServerConfig,
    shelf: Shelf = EMPTY,
    form: str = DEFAULT_FORMAT,
) -> Manner:
    """How to say it and in which shape, `form` if the fields name none.

    Raises:
        InvalidRequest: And its children; `param` names the field at fault.
    """
    limits = config.limits
    model = model_of(fields, engine, config, shelf)
    _check_task(fields, model)
    voice = _voice(fields, model, config.voice_aliases, shelf.voices_of(engine))
    kept = shelf.kept_as(voice)
    output, language = _output(fields, form), _language(fields, model, kept)
    if kept is None:
        reference = read_reference(fields, model, language, limits)
    else:
        reference = clip_of_kept(fields, model, shelf, kept)
    request = SpeechRequest(
        model=model.model_id,
        voice=None if voice is None or kept else voice.id,
        language=language,
        instruct=_instruct(fields, model, limits, _style(fields, shelf, language)),
        text_mode=TextMode.WHOLE if fields.flag("non_streaming_mode") else TextMode.STREAMING,
        sampling=_sampling(fields, _defaults(model, kept), limits),
        clone=None if kept is None or reference is not None else kept.clone,
        guards=fields.flag("guards") is not False,
        trim=fields.flag("trim"),
        normalize=fields.flag("normalize"),
        patient=output.whole,
    )
    return Manner(request, output, reference)


def tell_unknown(fields: Fields, strict: bool) -> None:
    """Warn of fields that nobody has taken, or refuse them."""
    unknown = fields.unknown()
    names = ", ".join(name[:40] or "(empty)" for name in unknown[:10])
    if unknown and strict:
        raise Unprocessable(f"There is no such field here: {names}.", param=unknown[0])
    if unknown:
        fields.warnings.append(f"ignored unknown fields: {names}")


def _results(fields: Fields, config: ServerConfig, shelf: Shelf) -> Results | None:
    """Where this speech may come from, if the client or the operator has opted in."""
    wanted = fields.flag("cache")
    if wanted and shelf.results is None:
        fields.warnings.append("cache is not used: this server keeps no results")
    return shelf.results if (config.cache if wanted is None else wanted) else None


def _text(fields: Fields, limits: Limits) -> str:
    text = fields.text("input")
    if text is None:
        raise InvalidRequest("`input` is missing: it is the text to say.", param="input")
    bounded("input", text, limits.text_chars)
    if not speakable(text):
        raise InvalidRequest(
            "`input` holds nothing that can be spoken.", param="input", code=NOTHING_TO_SAY
        )
    return text


def _check_task(fields: Fields, model: Offer) -> None:
    """A task must be the checkpoint's own."""
    task, kind = fields.text("task_type"), model.spec.kind
    if task is not None and task.lower().replace("_", "") != kind.replace("_", ""):
        raise Unprocessable(
            f"`task_type` must be {kind}, as the checkpoint is, or be left out.", param="task_type"
        )


def _defaults(model: Offer, kept: Kept | None) -> Sampling:
    """The checkpoint's own sampling, with the voice's seed if it has one."""
    seed = None if kept is None else kept.card.seed
    return model.defaults if seed is None else replace(model.defaults, seed=seed)


def _voice(
    fields: Fields, model: Offer, aliases: Mapping[str, str], kept: Sequence[Voice]
) -> Voice | None:
    """A voice of the checkpoint or a kept one; the checkpoint's first if the request names none."""
    sent: dict[str, str] = {}  # as it was sent, by what it is in any case

    def read(name: str) -> str | None:
        value = fields.take(name)
        if isinstance(value, dict) and set(value) == {"id"}:
            value = value["id"]
        if value is None or isinstance(value, str):
            return value and sent.setdefault(value.lower(), value)
        raise Unprocessable(f'`{name}` must be a name or {{"id": name}}.', param=name)

    name = fields.either("voice", "speaker", read)
    if name is None:
        return model.voices[0] if model.voices else None
    if model.voices:
        return find_voice(name, model.voices, aliases)
    if model.spec.kind == "base":
        if not fields.has(PARAM):
            return kept_voice(name, aliases, kept)
        fields.warnings.append("voice is not used: ref_audio gives the voice")
        return None
    if name.lower() not in OPENAI_VOICES:  # clients that must send a voice send one of those
        raise NotFound(
            "This checkpoint has no named voices: describe one in `instructions`.",
            param="voice",
            code="voice_not_found",
        )
    fields.warnings.append("voice is not used: instructions describe this checkpoint's voice")
    return None


def _language(fields: Fields, model: Offer, kept: Kept | None) -> str:
    """The request's, or the voice's if the checkpoint has it."""
    name, own = fields.text("language"), "" if kept is None else kept.card.language
    if name is not None:
        return find_language(name, model.languages)
    return own if own in model.languages else "auto"


def _style(fields: Fields, shelf: Shelf, language: str) -> str:
    """The words that the style's name stands for."""
    name = fields.text("style")
    return "" if name is None else find_style(name, shelf.styles).instruct(language)


def _instruct(fields: Fields, model: Offer, limits: Limits, style: str) -> str:
    """The style's words, then the client's own."""
    text = (fields.either("instructions", "instruct", fields.text) or "").strip()
    bounded("instructions", text, limits.instruct_chars)
    if model.spec.kind == "voice_design" and not text:
        raise InvalidRequest(
            "`instructions` is missing: it describes the voice of this checkpoint.",
            param="instructions",
        )
    if (text or style) and not follows(model.spec):
        sent = "instructions are" if text else "the style is"
        fields.warnings.append(f"{sent} not used: this checkpoint cannot follow instructions")
        return ""
    return " ".join(filter(None, (style, text)))


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


def _output(fields: Fields, default: str) -> Output:
    """The response's shape. Everything streams unless `stream` is false."""
    form = FORMATS[fields.choice("response_format", FORMATS) or default]
    events = fields.choice("stream_format", ("audio", "sse")) == "sse"
    stream = fields.flag("stream")
    if events and stream is False:
        raise Unprocessable('`stream` is false, but `stream_format` "sse" streams.', param="stream")
    speed = fields.number("speed", 0.25, 4)
    return Output(
        format=form,
        rate=_rate(fields, form),
        speed=1.0 if speed is None else speed,
        sse=events,
        whole=stream is False,
    )


def _rate(fields: Fields, form: Format) -> int:
    rate = fields.whole("sample_rate", 1)
    if rate is not None and rate not in form.rates:
        rates = form.rates
        known = f"{rates[0]} to {rates[-1]}" if isinstance(rates, range) else str(rates)[1:-1]
        raise Unprocessable(
            f"`sample_rate` of {form.name} must be {known}; got {rate}.", param="sample_rate"
        )
    return form.rate if rate is None else rate
